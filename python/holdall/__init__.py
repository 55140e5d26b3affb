"""Holdall from Python: plan and train inside a memory budget, rank features where they lie, load runs as frames.

    import holdall

    plan = holdall.plan("openai/clip-vit-base-patch32", effective_batch=128, memory="6GiB")
    run = holdall.train("photos.csv", model="small", epochs=3, on_progress=print)
    run.steps.plot(x="step", y="loss")
    holdall.retrieval(image_features, text_features)["query_to_gallery"]["r1"]

Every option of the program is a keyword with `_` for `-`: `effective_batch=128` is `--effective-batch 128`, `resume=True` is
`--resume`, `set={"train.lr": 1e-5}` is `--set train.lr=1e-05`.
"""

from .commands import HoldallError, plan, program, run_program, train
from .retrieval import retrieval
from .runs import Run, load_run

__all__ = ["HoldallError", "Run", "load_run", "plan", "program", "retrieval", "run_program", "train"]
__version__ = "0.1.0"
