"""Loads a video-text model that Holdall trained: `model = load("RUN/model")`. Pixels are normalised as preprocessor_config.json says,
[n, frames, 3, height, width]; `counts` says how many frames of each clip exist, where not all do.
    clips, frame_tokens = model.video(pixels); texts = model.text(ids, mask)    unit-length features, and what the decoder attends to
    logits = model.caption(frame_tokens, caption_ids)    transformers' `generate` takes RUN/model/decoder and frame_tokens as encoder_hidden_states"""
import json, pathlib, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, BlenderbotConfig, BlenderbotForCausalLM, CLIPConfig, CLIPModel
ACTIVATIONS = {"gelu": F.gelu, "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x)}

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, (self.q_proj, self.k_proj, self.v_proj, self.out_proj) = heads, (nn.Linear(width, width) for _ in range(4))
    def forward(self, x, y, there):  # `there` [n, tokens of y]
        q, k, v = (p(z).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p, z in ((self.q_proj, x), (self.k_proj, y), (self.v_proj, y)))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, there[:, None, None]).transpose(1, 2).flatten(2))

class Block(nn.Module):
    def __init__(self, width, heads, inner, eps, act):
        super().__init__()
        self.self_attn, self.act = Attention(width, heads), ACTIVATIONS[act]
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, inner), "fc2": nn.Linear(inner, width)})
    def forward(self, x, there):
        x = x + self.self_attn(h := self.layer_norm1(x), h, there)
        return x + self.mlp["fc2"](self.act(self.mlp["fc1"](self.layer_norm2(x))))

class VideoText(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, v, p, d, self.bert = c, c["vision_config"], c["pooling"], c["decoder_config"], c["text_config"]["model_type"] == "bert"
        text, frames, width = {} if self.bert else c["text_config"], c["num_frames"] * c["num_videos"], v["hidden_size"]
        clip = CLIPModel(CLIPConfig(text_config=text, vision_config=v, projection_dim=c["projection_dim"]))
        self.vision_model, self.visual_projection, self.logit_scale = clip.vision_model, clip.visual_projection, clip.logit_scale
        self.text_model = BertModel(BertConfig(**c["text_config"]), add_pooling_layer=False) if self.bert else clip.text_model
        self.text_projection = nn.Linear(c["text_config"]["hidden_size"], c["projection_dim"], bias=False)
        table = lambda rows, there: nn.Parameter(torch.zeros(rows, width)) if there else None
        self.video_embedding, self.frame_positions = table(c["num_videos"], c["num_videos"] > 1), table(frames, d and c.get("frame_positions"))
        if p["kind"] == "temporal":
            wide, act = (width, "gelu") if p["place"] == "hidden" else (c["projection_dim"], v["hidden_act"])
            self.temporal = nn.ParameterDict({"positions": nn.Parameter(torch.zeros(frames, wide))})
            self.temporal.layers = nn.ModuleList(Block(wide, p["heads"], p["inner"], v["layer_norm_eps"], act) for _ in range(p["layers"]))
        if p["kind"] == "attention":
            self.attention_pool = Attention(width, p["heads"])
            self.attention_pool.norm = nn.LayerNorm(width, v["layer_norm_eps"])
            self.attention_pool.queries, self.attention_pool.positions = table(p["queries"], True), table(frames, True)
        if d:
            self.frame_projection, captions = nn.Linear(width, d["d_model"]), BlenderbotForCausalLM(BlenderbotConfig(**d))
            self.decoder, self.lm_head = captions.model.decoder, None if d["tie_word_embeddings"] else captions.lm_head
            for norm in (m for m in self.decoder.modules() if isinstance(m, nn.LayerNorm)): norm.eps = d["layer_norm_eps"]
    def video(self, pixels, counts=None):
        n, f = pixels.shape[:2]
        there = torch.arange(f, device=pixels.device) < (torch.full((n,), f) if counts is None else counts).to(pixels.device)[:, None]
        mean = lambda x: (x * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        tokens = self.vision_model(pixel_values=pixels.flatten(0, 1)).last_hidden_state.unflatten(0, (n, f))
        if self.video_embedding is not None: tokens = tokens + self.video_embedding.repeat_interleave(self.c["num_frames"], 0)[:, None]
        x, kind, all_there = self.vision_model.post_layernorm(tokens[:, :, 0]), self.c["pooling"], there.repeat_interleave(tokens.shape[2], 1)
        if kind["kind"] == "attention":
            pool = self.attention_pool
            x = pool(pool.queries.expand(n, -1, -1), pool.norm((tokens + pool.positions[:, None]).flatten(1, 2)), all_there)
            x = self.visual_projection(self.vision_model.post_layernorm(x).mean(1))
        elif kind.get("place") == "hidden": x = self.visual_projection(mean(self.over_time(x, there)))
        else: x = mean(F.normalize(self.over_time(self.visual_projection(x), there), dim=-1))
        if self.frame_positions is not None: tokens = tokens + self.frame_positions[:, None]
        return F.normalize(x, dim=-1), (self.frame_projection(tokens.flatten(1, 2)), all_there) if self.c["decoder_config"] else None
    def over_time(self, x, there):
        if self.c["pooling"]["kind"] != "temporal": return x
        y = x + self.temporal["positions"]
        for block in self.temporal.layers: y = block(y, there)
        return x + y
    def text(self, ids, mask=None):
        out = self.text_model(input_ids=ids, attention_mask=torch.ones_like(ids) if mask is None else mask)
        return F.normalize(self.text_projection(out.last_hidden_state[:, 0] if self.bert else out.pooler_output), dim=-1)
    def caption(self, frame_tokens, ids):
        x = self.decoder(input_ids=ids, encoder_hidden_states=frame_tokens[0], encoder_attention_mask=frame_tokens[1], use_cache=False)
        return F.linear(x.last_hidden_state, self.decoder.embed_tokens.weight if self.lm_head is None else self.lm_head.weight)

def load(folder):
    (model := VideoText(json.loads(pathlib.Path(folder, "config.json").read_text()))).load_state_dict(load_file(pathlib.Path(folder, "model.safetensors")))
    return model.eval()
