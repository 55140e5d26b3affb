"""The installed package, with real numpy and pandas: python -m unittest discover -s python/tests"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy
import pandas

import holdall
from holdall.commands import words_of


def drawn(folder, count=24):
    holdall.run_program("data", "sample", "cars", folder / "cars", "--count", count, "--size", 32)
    return folder / "cars/image_labels.csv"


class Programs(unittest.TestCase):
    def test_the_program_came_along_and_is_on_the_path(self):
        scripts = Path(sys.executable).parent
        self.assertEqual(Path(holdall.program()).parent.resolve(), scripts.resolve())
        version = subprocess.run([scripts / "holdall", "--version"], capture_output=True, text=True, check=True)
        as_module = subprocess.run([sys.executable, "-m", "holdall", "--version"], capture_output=True, text=True, check=True)
        self.assertEqual(version.stdout, as_module.stdout)
        self.assertTrue(version.stdout.startswith("holdall "))

    def test_a_plan_is_a_dict_and_a_refusal_an_error_with_its_hint(self):
        plan = holdall.plan("small", effective_batch=32, batch_size=8, device="cpu")
        self.assertEqual(plan["chosen"]["batch_size"] * plan["chosen"]["gradient_accumulation"], 32)
        with self.assertRaises(holdall.HoldallError) as refused:
            holdall.plan("no-such-model", device="cpu")
        self.assertEqual(refused.exception.code, 2)
        self.assertIn("hint: ", str(refused.exception))

    def test_options_are_spelled_as_the_program_has_them(self):
        words = words_of({"batch_size": 8, "resume": True, "memory": None, "set": {"a.b": [1], "c": "d"}})
        self.assertEqual(words, ["--batch-size", "8", "--resume", "--set", "a.b=[1]", "--set", "c=d"])


class Runs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)
        self.options = dict(model="small", effective_batch=8, device="cpu", lr=1e-3, out=self.path / "run")

    def test_training_tells_every_step_and_leaves_frames(self):
        seen = []
        run = holdall.train(drawn(self.path), epochs=2, on_progress=seen.append, **self.options)
        steps = run.steps
        self.assertIsInstance(steps, pandas.DataFrame)
        told = [line["loss"] for line in seen if line["kind"] == "step"]
        self.assertEqual(list(steps["loss"]), told)
        self.assertEqual(list(steps["step"]), list(range(1, len(told) + 1)))
        self.assertIn("image_to_text.r1", run.evaluations.columns)
        self.assertEqual(len(run.evaluations), sum(line["kind"] == "evaluation" for line in seen))
        self.assertEqual(str(run.memory["time"].dtype.tz), "UTC")
        self.assertEqual(run.summary["steps"], len(told))
        self.assertTrue((run.model / "model.safetensors").is_file())
        self.assertIn("Weights: RANDOM", run.log)
        again = holdall.load_run(self.path / "run")
        pandas.testing.assert_frame_equal(again.steps, steps)

    def test_a_callback_stops_a_run_that_goes_on_later(self):
        csv = drawn(self.path)
        stopped = holdall.train(csv, epochs=200, on_progress=lambda line: line.get("step", 0) < 3, **self.options)
        done = len(stopped.steps)
        self.assertLess(done, 400)
        self.assertIsNone(stopped.summary)
        seen = []
        resumed = holdall.train(resume=True, out=self.path / "run", on_progress=lambda line: seen.append(line) or len(seen) < 3)
        self.assertGreater(len(resumed.steps), done)
        self.assertEqual(list(resumed.steps["step"]), list(range(1, len(resumed.steps) + 1)))

    def test_what_is_no_run_is_refused(self):
        with self.assertRaisesRegex(FileNotFoundError, "config.yml"):
            holdall.load_run(self.path)
        with self.assertRaises(holdall.HoldallError) as failed:
            holdall.train(self.path / "nothing.csv", **self.options)
        self.assertEqual(failed.exception.code, 2)


class Retrieval(unittest.TestCase):
    def setUp(self):
        random = numpy.random.default_rng(7)
        self.gallery = random.standard_normal((300, 32)).astype(numpy.float32)
        self.queries = self.gallery + 2 * random.standard_normal((300, 32)).astype(numpy.float32)

    def expected(self, queries, gallery):
        """Ranks by the whole matrix, in f64."""
        scores = queries.astype(numpy.float64) @ gallery.astype(numpy.float64).T
        own = numpy.diag(scores)
        return 1 + (scores > own[:, None]).sum(1), 1 + (scores > own[None, :]).sum(0)

    def test_ranks_are_those_of_the_whole_matrix(self):
        for kind in (numpy.float32, numpy.float16):
            queries, gallery = self.queries.astype(kind), self.gallery.astype(kind)
            found = holdall.retrieval(queries, gallery, at=[1, 7], top=3)
            for name, ranks in zip(("query_to_gallery", "gallery_to_query"), self.expected(queries, gallery)):
                self.assertEqual(found[name]["mean_rank"], ranks.mean(), kind)
                self.assertEqual(found[name]["at"]["7"], (ranks <= 7).mean())
            scores = queries.astype(numpy.float64) @ gallery.astype(numpy.float64).T
            numpy.testing.assert_array_equal(found["neighbours"][:, 0], scores.argmax(1))
            self.assertEqual(found["neighbours"].shape, (300, 3))
        program = self.by_program()
        self.assertEqual(program["query_to_gallery"]["mrr"], holdall.retrieval(self.queries, self.gallery)["query_to_gallery"]["mrr"])

    def by_program(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, array in (("q", self.queries), ("g", self.gallery)):
                numpy.save(Path(folder) / f"{name}.npy", array)
            words = ["--queries", Path(folder) / "q.npy", "--gallery", Path(folder) / "g.npy", "--device", "cpu", "--json"]
            return holdall.run_program("retrieval", *words)

    def test_arrays_are_read_where_they_lie(self):
        """Ranking 256 MiB of features makes the process no larger than by a few tiles."""
        script = (
            "import numpy, resource, holdall\n"
            "features = numpy.ones((1 << 20, 64), numpy.float32)\n"
            "few = features[:2] * 2\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "holdall.retrieval(few, features, pairs=[(0, 0), (1, 1)], memory=64 << 20)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        grown = int(done.stdout) << 10
        self.assertLess(grown, 200 << 20, "a copy would be 256 MiB")

    def test_pairs_and_refusals(self):
        found = holdall.retrieval(self.queries[:2], self.gallery, pairs=numpy.array([[0, 0], [1, 1], [1, 2]]), positives="recall")
        self.assertEqual((found["queries"], found["pairs"]), (2, 3))
        cases = [
            (TypeError, "float64", dict(queries=self.queries.astype(numpy.float64), gallery=self.gallery)),
            (ValueError, "strides", dict(queries=self.queries[:, ::2], gallery=self.gallery[:, ::2])),
            (ValueError, "pairs", dict(queries=self.queries[:2], gallery=self.gallery)),
            (ValueError, "shape", dict(queries=self.queries[0], gallery=self.gallery)),
            (ValueError, "ties", dict(queries=self.queries, gallery=self.gallery, ties="best")),
            (TypeError, "list", dict(queries=[[1.0]], gallery=self.gallery)),
            (ValueError, "one length", dict(queries=self.queries[:, :16].copy(), gallery=self.gallery)),
        ]
        for kind, words, arguments in cases:
            with self.assertRaisesRegex(kind, words):
                holdall.retrieval(**arguments)
        bad = self.queries.copy()
        bad[3, 4] = numpy.nan
        with self.assertRaisesRegex(ValueError, "finite"):
            holdall.retrieval(bad, self.gallery)

    def test_torch_tensors_are_taken_too(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        queries, gallery = torch.from_numpy(self.queries), torch.from_numpy(self.gallery)
        self.assertEqual(holdall.retrieval(queries, gallery), holdall.retrieval(self.queries, self.gallery))
        half = holdall.retrieval(queries.bfloat16(), gallery.bfloat16())
        self.assertEqual(half["dimension"], 32)


if __name__ == "__main__":
    os.environ.pop("HOLDALL_BINARY", None)
    unittest.main()
