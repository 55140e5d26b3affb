#!/usr/bin/env python3
"""PyTorch peer of `holdall bench captions`: transformers' `generate` of a captioning decoder with its cache, timed. One JSON line.

The job: 1,024 clips in batches of 128, each with 8 x 50 frame tokens of width 512; a decoder of 6 pre-norm layers, 8 heads, 1,024 wide
inside, over 49,408 words; greedy (or --beams), 64 tokens, none of which ends a caption. Frame tokens are random: only speed and
memory are measured. --model takes the `decoder` folder that Holdall exports; its sizes count then.

  --small     for a CPU: the decoder of `video-text-small`, 4 x 65 frame tokens, 24 tokens, 64 clips in batches of 16
"""
import argparse, json, time
import torch
from transformers import BlenderbotConfig, BlenderbotForCausalLM, DynamicCache, EncoderDecoderCache

p = argparse.ArgumentParser()
p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
p.add_argument("--model")
p.add_argument("--dtype", choices=["f32", "bf16"])
p.add_argument("--clips", type=int)
p.add_argument("--batch-size", type=int)
p.add_argument("--tokens", type=int)
p.add_argument("--beams", type=int, default=1)
p.add_argument("--repeat", type=int, default=3)
p.add_argument("--small", action="store_true")
p.add_argument("--threads", type=int)
a = p.parse_args()
if a.threads:
    torch.set_num_threads(a.threads)
torch.manual_seed(0)
cuda = a.device.startswith("cuda")
dtype = a.dtype or ("bf16" if cuda else "f32")
if a.small:
    sizes, frame_tokens, usual = dict(d_model=128, layers=2, heads=4, inner=256, vocab=1024), 4 * 65, (64, 16, 24)
else:
    sizes, frame_tokens, usual = dict(d_model=512, layers=6, heads=8, inner=1024, vocab=49408), 8 * 50, (1024, 128, 64)
clips, batch, tokens = (given or default for given, default in zip((a.clips, a.batch_size, a.tokens), usual))
if a.model:
    model = BlenderbotForCausalLM.from_pretrained(a.model)
else:
    model = BlenderbotForCausalLM(BlenderbotConfig(
        d_model=sizes["d_model"], decoder_layers=sizes["layers"], decoder_attention_heads=sizes["heads"], decoder_ffn_dim=sizes["inner"],
        vocab_size=sizes["vocab"], max_position_embeddings=tokens, is_decoder=True, is_encoder_decoder=False, scale_embedding=False,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=2, pad_token_id=1, forced_eos_token_id=None))
model = model.to(a.device, torch.bfloat16 if dtype == "bf16" else torch.float32).eval()
bos = model.config.bos_token_id
frames = torch.randn(batch, frame_tokens, model.config.d_model, device=a.device, dtype=model.dtype)
start = torch.full((batch, 1), bos, device=a.device)


@torch.inference_mode()
def captions():
    # Without a cache of its own, the keys of the frames would be appended to those of the words.
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    return model.generate(start, encoder_hidden_states=frames, past_key_values=cache, do_sample=False, num_beams=a.beams,
                          max_new_tokens=tokens, min_new_tokens=tokens, max_length=None)


def all_clips():
    for _ in range(clips // batch):
        assert captions().shape == (batch, 1 + tokens)
    if cuda:
        torch.cuda.synchronize()


captions()
if cuda:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
times = []
for _ in range(a.repeat):
    began = time.perf_counter()
    all_clips()
    times.append(time.perf_counter() - began)
seconds = min(times)
print(json.dumps({
    "peer": f"pytorch {torch.__version__}", "job": "captions", "clips": clips, "batch": batch, "tokens": tokens, "beams": a.beams, "dtype": dtype,
    "ms": round(seconds * 1e3, 2), "all_ms": [round(t * 1e3, 2) for t in times], "ms_per_token": round(seconds * 1e3 / (clips // batch * tokens), 4),
    "clips_per_s": round(clips / seconds, 1), "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3) if cuda else None,
}))
