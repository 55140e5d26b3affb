"""Loads a U-Net that Holdall trained: `load("RUN/model")(pictures)`. Pictures are numbers from 0 to 1, [n, channels, height,
width], sides multiples of 2^(stages - 1); what comes out are logits, [n, classes, height, width]."""
import json, pathlib
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import load_file
ACTIVATIONS = {"relu": nn.ReLU(), "leaky-relu": nn.LeakyReLU(), "gelu": nn.GELU()}

class ConvNorm(nn.Module):
    def __init__(self, c, i, o, kernel=3, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.GroupNorm(c["groups"] if c["norm"] == "group" else o, o, c["norm_eps"])
    def forward(self, x):
        return self.norm(self.conv(x))

class Block(nn.Module):
    """Convolution, norm, activation; a residual block has two, and what goes past them."""
    def __init__(self, c, i, o, stride=1, residual=False):
        super().__init__()
        first, self.act, self.residual = ConvNorm(c, i, o, 3, stride), ACTIVATIONS[c["activation"]], residual
        if residual:
            second = ConvNorm(c, o, o)
            self.conv1, self.norm1, self.conv2, self.norm2 = first.conv, first.norm, second.conv, second.norm
            self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
            self.shortcut = ConvNorm(c, i, o, 1) if i != o else nn.Identity()
        else:
            self.conv, self.norm = first.conv, first.norm
    def forward(self, x):
        if not self.residual: return self.act(self.norm(self.conv(x)))
        return self.act(self.norm2(self.conv2(self.act(self.norm1(self.conv1(x))))) + self.shortcut(self.pool(x)))

class Unet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, w, residual, transposed = c, c["channels"], c["kind"] == "residual-encoder", c["upsampling"] == "transposed"
        chain = lambda i, o, n, stride=1, residual=False: nn.Sequential(
            *(Block(c, o if b else i, o, 1 if b else stride, residual) for b in range(n)))
        self.stem = Block(c, c["input_channels"], w[0]) if residual else nn.Identity()
        inputs, stride = [w[0] if residual else c["input_channels"], *w], 2 if c["downsampling"] == "strided" else 1
        self.encoder = nn.ModuleList(chain(inputs[s], w[s], n, stride if s else 1, residual) for s, n in enumerate(c["encoder_blocks"]))
        up = lambda s: nn.ConvTranspose2d(w[s + 1], w[s], 2, 2) if transposed else nn.Upsample(scale_factor=2, mode=c["upsampling"])
        self.up = nn.ModuleList(up(s) for s in range(len(w) - 1))
        self.decoder = nn.ModuleList(chain(w[s] + w[s if transposed else s + 1], w[s], c["decoder_blocks"]) for s in range(len(w) - 1))
        self.head = nn.ModuleList(nn.Conv2d(w[s], len(c["classes"]), 1) for s in range(max(len(w) - 2, 1) if c["deep_supervision"] else 1))
    def heads(self, x):  # the full size first, then 1/2, 1/4, ...
        mean, std = (torch.tensor(self.c[key], dtype=torch.float64).to(x).view(1, -1, 1, 1) for key in ("mean", "std"))
        x, skips, found = self.stem((x - mean) / std), [], []
        for s, stage in enumerate(self.encoder):
            skips.append(x := stage(F.max_pool2d(x, 2) if s and self.c["downsampling"] == "max-pool" else x))
        for s in reversed(range(len(self.decoder))):
            x = self.decoder[s](torch.cat([skips[s], self.up[s](x)], 1))
            found += [self.head[s](x)] if s < len(self.head) else []
        return found[::-1]
    def forward(self, x):
        return self.heads(x)[0]

def load(folder):
    model = Unet(json.loads(pathlib.Path(folder, "config.json").read_text()))
    model.load_state_dict(load_file(pathlib.Path(folder, "model.safetensors")))
    return model.eval()
