"""Does an adapter that Holdall wrote give, in peft, what the merged model gives?

    pip install torch transformers peft
    python docs/scripts/check_lora.py RUN/model [BASE]

BASE is the model that training began with; `base_model_name_or_path` of the adapter where it is left out. Loads BASE with
RUN/model/adapter by peft, and RUN/model by transformers, feeds both the same random inputs, and prints one JSON line: the
largest difference of any output, and the largest change that the adapter makes. Exits 1 where they differ by 1e-5 or more.
CLIP models and classifiers of pictures.
"""

import json
import sys

import peft
import torch
import transformers


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
        adapted = peft.PeftModel.from_pretrained(base, adapter).eval()
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
