#!/usr/bin/env python3
"""PyTorch peer of `holdall bench classify`: one training step of a ViT classifier, timed. Prints one JSON line.

The job: ViT-B/16 at 224 (or --small, for a CPU) over 1000 classes, cross-entropy, gradient clipping at 1.0, AdamW.
Random pictures: only speed and memory are measured, with the effective batch = micro-batch x accum.
"""
import argparse
import json
import time

import torch
from transformers import ViTConfig, ViTForImageClassification

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--micro-batch", type=int, default=8)
parser.add_argument("--accum", type=int, default=16)
parser.add_argument("--dtype", choices=["f32", "fp16", "bf16"], default="bf16")
parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--small", action="store_true", help="64 px, patch 8, width 128, 4 layers")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--threads", type=int)
options = parser.parse_args()
if options.threads:
    torch.set_num_threads(options.threads)
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

kind = options.device.split(":")[0]
on_gpu = kind == "cuda"
sizes = dict(num_labels=1000)
if options.small:
    sizes.update(
        image_size=64, patch_size=8, hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
config = ViTConfig(**sizes)
model = ViTForImageClassification(config).to(options.device).train()
if options.recompute:
    model.gradient_checkpointing_enable()
forward = torch.compile(model) if options.compile else model
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(parameters, lr=2e-5, fused=True)
dtype = {"f32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[options.dtype]
scaler = torch.amp.GradScaler(kind, enabled=options.dtype == "fp16")
side = config.image_size
batches = [
    (
        torch.randn(options.micro_batch, 3, side, side, device=options.device),
        torch.randint(0, 1000, (options.micro_batch,), device=options.device),
    )
    for _ in range(options.accum)
]


def step():
    for pixels, labels in batches:
        with torch.autocast(kind, dtype=dtype, enabled=options.dtype != "f32"):
            loss = forward(pixel_values=pixels, labels=labels).loss
        scaler.scale(loss / options.accum).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)


def wait():
    if on_gpu:
        torch.cuda.synchronize()


for _ in range(3):
    step()
wait()
began = time.perf_counter()
for _ in range(options.steps):
    step()
wait()
seconds = (time.perf_counter() - began) / options.steps
gib = 2**30
print(
    json.dumps(
        {
            "peer": "pytorch " + torch.__version__,
            "job": "classify-small" if options.small else "vit-base-patch16-224",
            "micro_batch": options.micro_batch,
            "accum": options.accum,
            "dtype": options.dtype,
            "recompute": options.recompute,
            "compile": options.compile,
            "step_ms": round(seconds * 1e3, 2),
            "samples_per_s": round(options.micro_batch * options.accum / seconds, 1),
            "peak_gib": round(torch.cuda.max_memory_allocated() / gib, 3) if on_gpu else None,
            "reserved_gib": round(torch.cuda.max_memory_reserved() / gib, 3) if on_gpu else None,
        }
    )
)
