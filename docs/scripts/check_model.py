"""Does a model folder that Holdall wrote give the same features in transformers?

    holdall predict RUN IMAGES --features features.npy
    python docs/scripts/check_model.py RUN/model IMAGES features.npy

Loads model, tokenizer and image processor with transformers' own loaders, encodes the same pictures from the same files,
and prints one JSON line: the largest difference of any feature, and the tokens of a caption as transformers has them.
"""

import json
import pathlib
import sys

import numpy
import torch
import transformers
from PIL import Image

folder, images, features = sys.argv[1:]
model, report = transformers.CLIPModel.from_pretrained(folder, output_loading_info=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
processor = transformers.CLIPImageProcessorPil.from_pretrained(folder) if hasattr(
    transformers, "CLIPImageProcessorPil"
) else transformers.CLIPImageProcessor.from_pretrained(folder)
paths = sorted(path for path in pathlib.Path(images).iterdir())
ours = numpy.load(features)
theirs = []
with torch.no_grad():
    for start in range(0, len(paths), 64):
        pictures = [Image.open(path).convert("RGB") for path in paths[start : start + 64]]
        pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]
        pooled = model.vision_model(pixel_values=pixels).pooler_output
        projected = model.visual_projection(pooled)
        theirs.append(torch.nn.functional.normalize(projected, dim=-1).numpy())
theirs = numpy.concatenate(theirs)
assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
print(
    json.dumps(
        {
            "transformers": transformers.__version__,
            "missing": sorted(report["missing_keys"]),
            "unexpected": sorted(report["unexpected_keys"]),
            "pictures": len(paths),
            "largest_difference": float(abs(ours - theirs).max()),
            "mean_difference": float(abs(ours - theirs).mean()),
            "tokens": tokenizer("a photo of a red Halvik van")["input_ids"],
        }
    )
)
