"""Does an adapter that Holdall wrote give, in peft, what the merged model gives?

    pip install torch transformers peft
    python docs/scripts/check_lora.py RUN/model [BASE]

BASE is the model that training began with; `base_model_name_or_path` of the adapter where it is left out. Loads BASE with
RUN/model/adapter by peft, and RUN/model by transformers, feeds both the same random inputs, and prints one JSON line: the
largest difference of any output, and the largest change that the adapter makes. Exits 1 where they differ by 1e-5 or more.
CLIP models and classifiers of pictures.

Layers are called as the files of a model call them. transformers 5 calls those of ViT and DINOv2 otherwise once they are
loaded, and peft does not translate: `adapt` does.
"""

import json
import re
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file


def outputs(model, config):
    """What the model makes of random inputs: features of CLIP, logits of a classifier."""
    torch.manual_seed(0)
    if config.model_type == "clip":
        vision, text = config.vision_config, config.text_config
        pixels = torch.randn(8, 3, vision.image_size, vision.image_size)
        ids = torch.randint(0, text.vocab_size - 2, (8, text.max_position_embeddings))
        ids[:, -1] = text.vocab_size - 1 if text.eos_token_id == 2 else text.eos_token_id
        out = model(pixel_values=pixels, input_ids=ids)
        return torch.cat([out.image_embeds, out.text_embeds])
    pixels = torch.randn(8, 3, config.image_size, config.image_size)
    return model(pixel_values=pixels).logits


# Names in files -> names of layers in transformers 5: of every model, and of ViT beside them.
RENAMED = [
    (r"\.attention\.attention\.query", ".attention.q_proj"),
    (r"\.attention\.attention\.key", ".attention.k_proj"),
    (r"\.attention\.attention\.value", ".attention.v_proj"),
    (r"\.attention\.output\.dense", ".attention.o_proj"),
    (r"\.intermediate\.dense", ".mlp.fc1"),
    (r"(\d)\.output\.dense", r"\1.mlp.fc2"),
]
RENAMED_BLOCKS = [(r"\.encoder\.layer\.", ".layers.")]


def adapt(base, adapter, settings):
    """The base with the adapter, whatever its layers are called."""
    modules = {name for name, _ in base.named_modules()}
    tensors = load_file(f"{adapter}/adapter_model.safetensors")
    prefix = "base_model.model."
    layers = {key.removeprefix(prefix).rsplit(".lora_", 1)[0] for key in tensors if ".lora_" in key}
    if layers <= modules:
        return peft.PeftModel.from_pretrained(base, adapter)
    for rules in [RENAMED, RENAMED + RENAMED_BLOCKS]:

        def rename(name):
            for pattern, new in rules:
                name = re.sub(pattern, new, name)
            return name

        if {rename(layer) for layer in layers} <= modules:
            settings.target_modules = sorted(rename(layer) for layer in layers)
            adapted = peft.get_peft_model(base, settings)
            peft.set_peft_model_state_dict(adapted, {rename(key): value for key, value in tensors.items()})
            return adapted
    raise SystemExit(f"layers of the adapter that the model does not have: {sorted(layers - modules)[:3]}")


def main():
    merged_folder = sys.argv[1]
    adapter = f"{merged_folder}/adapter"
    settings = peft.PeftConfig.from_pretrained(adapter)
    base_name = sys.argv[2] if len(sys.argv) > 2 else settings.base_model_name_or_path
    config = transformers.AutoConfig.from_pretrained(merged_folder)
    if config.model_type == "clip":
        load = transformers.CLIPModel.from_pretrained
    else:
        # A new head has another size than the base's: the adapter brings it.
        def load(folder):
            return transformers.AutoModelForImageClassification.from_pretrained(
                folder, num_labels=config.num_labels, ignore_mismatched_sizes=True
            )

    with torch.no_grad():
        merged = outputs(load(merged_folder).eval(), config)
        base = load(base_name).eval()
        before = outputs(base, config)
        adapted = adapt(base, adapter, settings).eval()
        found = outputs(adapted, config)
    difference = (merged - found).abs().max().item()
    report = {
        "peft": peft.__version__,
        "rank": settings.r,
        "target_modules": sorted(settings.target_modules),
        "largest_difference": difference,
        "largest_change": (merged - before).abs().max().item(),
    }
    print(json.dumps(report))
    return 0 if difference < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
