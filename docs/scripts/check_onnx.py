"""Compares what onnxruntime computes from exported models with what Holdall says.

    pip install onnxruntime numpy tokenizers
    python docs/scripts/check_onnx.py target/release/holdall [FOLDER] [MODEL ...]

Without models, the smallest preset of every task is trained for an epoch on drawn data, exported by `holdall export --onnx` in f32
and in half precision, and asked about pictures of its own size, so that nothing is resized. Exit code 1: a difference is above
1e-4 (f32) or 2e-2 (half precision).
"""

import json
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

LIMITS = {"f32": 1e-4, "f16": 2e-2}
TEXTS = ["a photo of a red car", "blue", "a small ball moves to the left and stops"]
SAMPLES = {
    "clip": ("cars", ["--count", "40"], "cars/image_labels.csv", []),
    "classify": ("cars", ["--count", "40"], "cars/image_labels.csv", ["--set", "data.label=make"]),
    "segment": ("vessels", ["--count", "8"], "vessels", ["--batch-size", "2", "--set", "data.image_size=64"]),
    "video-text": ("clips", ["--count", "24"], "clips/clips.csv", ["--set", "data.validation={column: split}"]),
}
MODELS = {"clip": "small", "classify": "vit-demo", "segment": "unet-small", "video-text": "video-text-demo"}


class Check:
    def __init__(self, holdall, folder):
        self.holdall, self.folder, self.failed, self.count = holdall, Path(folder), 0, 0

    def run(self, *words):
        done = subprocess.run([self.holdall, *map(str, words)], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"holdall {' '.join(map(str, words))}:\n{done.stderr}")
        return done.stdout

    def compare(self, what, found, expected, limit):
        found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
        assert found.shape == expected.shape, f"{what}: {found.shape} against {expected.shape}"
        difference = np.abs(found - expected).max()
        verdict = "" if difference <= limit else f"   ABOVE {limit}"
        self.count += 1
        self.failed += difference > limit
        print(f"{what}: largest difference {difference:.1e}{verdict}")


def write_png(path, picture):
    """An 8-bit RGB PNG of `[height, width, 3]`."""
    height, width, _ = picture.shape
    rows = b"".join(b"\0" + picture[row].tobytes() for row in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def draw(folder, count, height, width):
    """Random pictures as files, and as `[count, height, width, 3]`."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    pictures = random.integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    for number, picture in enumerate(pictures):
        write_png(folder / f"{number:03}.png", picture)
    return pictures


def pixel_values(pictures, mean, std):
    normalized = (pictures.astype(np.float32) / 255 - np.float32(mean)) / np.float32(std)
    return np.moveaxis(normalized, -1, -3)


def softmax(logits):
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def session(folder, name):
    return onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), providers=["CPUExecutionProvider"])


def answers(one, **inputs):
    """All outputs by name; the batch in two uneven parts gives the same."""
    names = [output.name for output in one.get_outputs()]
    whole = one.run(None, inputs)
    parts = [one.run(None, {name: value[part] for name, value in inputs.items()}) for part in (slice(0, 1), slice(1, None))]
    for index, name in enumerate(names):
        joined = np.concatenate([part[index] for part in parts])
        assert np.abs(joined - whole[index]).max() < 1e-2, f"{name} depends on the batch"
    return dict(zip(names, whole))


def preprocessing(model):
    config = json.loads((model / "preprocessor_config.json").read_text())
    return config["image_mean"], config["image_std"]


def token_ids(one, tokenizer):
    """Rows of ids as long as the program takes them, and masks."""
    length = {entry.name: entry.shape[1] for entry in one.get_inputs()}["input_ids"]
    ids, mask = np.zeros((len(TEXTS), length), np.int64), np.zeros((len(TEXTS), length), np.int64)
    for row, text in enumerate(TEXTS):
        tokens = tokenizer.encode(text).ids[:length]
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    return {entry.name: inputs[entry.name] for entry in one.get_inputs()}


def texts_of(check, run):
    (check.folder / "texts.txt").write_text("\n".join(TEXTS))
    check.run("predict", run, "--texts", "texts.txt", "--text-features", f"{run}/texts.npy", "--device", "cpu")
    return np.load(check.folder / run / "texts.npy")


def check_clip(check, run, exports):
    model = check.folder / run / "model"
    size = json.loads((model / "config.json").read_text())["vision_config"]["image_size"]
    pictures = draw(check.folder / run / "drawn", 5, size, size)
    features = f"{run}/features.npy"
    said = json.loads(check.run("predict", run, f"{run}/drawn", "--features", features, "--top", 99, "--json", "--device", "cpu"))
    pixels, texts = pixel_values(pictures, *preprocessing(model)), texts_of(check, run)
    labels = json.loads((model / "labels.json").read_text())["labels"]
    for precision, folder in exports.items():
        found = answers(session(folder, "image_encoder"), pixel_values=pixels)
        check.compare(f"{run} {precision} image_embeds", found["image_embeds"], np.load(check.folder / features), LIMITS[precision])
        if "logits" in found:
            compare_labels(check, f"{run} {precision} logits", found["logits"], said, labels, LIMITS[precision])
        encoder = session(folder, "text_encoder")
        found = answers(encoder, **token_ids(encoder, Tokenizer.from_file(str(model / "tokenizer.json"))))
        check.compare(f"{run} {precision} text_embeds", found["text_embeds"], texts, LIMITS[precision])


def compare_labels(check, what, logits, said, labels, limit):
    expected = np.zeros(logits.shape)
    for row, prediction in enumerate(said["predictions"]):
        for guess in prediction["labels"]:
            expected[row, labels.index(guess["label"])] = guess["probability"]
    check.compare(what, softmax(logits.astype(np.float64)), expected, limit)


def check_classify(check, run, exports):
    model = check.folder / run / "model"
    config = json.loads((model / "config.json").read_text())
    size = config.get("image_size") or config["vision_config"]["image_size"]
    pictures = draw(check.folder / run / "drawn", 5, size, size)
    said = json.loads(check.run("predict", run, f"{run}/drawn", "--top", 99, "--json", "--device", "cpu"))
    labels = [config["id2label"][str(index)] for index in range(len(config["id2label"]))]
    for precision, folder in exports.items():
        found = answers(session(folder, "classifier"), pixel_values=pixel_values(pictures, *preprocessing(model)))
        compare_labels(check, f"{run} {precision} logits", found["logits"], said, labels, LIMITS[precision])


def check_segment(check, run, exports):
    height, width = json.loads((check.folder / run / "model/config.json").read_text())["image_size"]
    place = f"{run}/drawn"
    pictures = draw(check.folder / place, 3, height, width)
    check.run("predict", run, place, "--out", f"{place}-masks", "--probabilities", "npy", "--device", "cpu")
    expected = [np.load(path) for path in sorted((check.folder / f"{place}-masks").rglob("*.npy"))]
    for precision, folder in exports.items():
        one = session(folder, "segmenter")
        said = one.get_modelmeta().custom_metadata_map
        pixels = pixel_values(pictures, json.loads(said["mean"]), json.loads(said["std"]))
        logits = answers(one, pixel_values=pixels)["logits"].astype(np.float64)
        found = 1 / (1 + np.exp(-logits)) if logits.shape[1] == 1 else np.moveaxis(softmax(np.moveaxis(logits, 1, -1)), -1, 1)
        found = [np.moveaxis(picture, 0, -1).reshape(other.shape) for picture, other in zip(found, expected)]
        check.compare(f"{run} {precision} probabilities", found, expected, LIMITS[precision])
        # Pictures of another size, which the stages can halve as often.
        side = int(said["size_multiple"])
        black = np.zeros((2, pixels.shape[1], 2 * side, 3 * side), np.float32)
        other = answers(one, pixel_values=black)["logits"]
        assert other.shape == (2, logits.shape[1], 2 * side, 3 * side), other.shape


def check_video_text(check, run, exports):
    model = check.folder / run / "model"
    config = json.loads((model / "config.json").read_text())
    size, frames = config["vision_config"]["image_size"], config["num_frames"] * config.get("num_videos", 1)
    clips = np.stack([draw(check.folder / run / "drawn" / name, frames, size, size) for name in "ab"])
    clips[1] = 255 - clips[1]
    for number, picture in enumerate(clips[1]):
        write_png(check.folder / run / "drawn" / "b" / f"{number:03}.png", picture)
    features = f"{run}/features.npy"
    options = ["--features", features, "--json", "--device", "cpu"]
    said = json.loads(check.run("predict", run, f"{run}/drawn", *options, *(["--beams", 1] if config.get("decoder_config") else [])))
    texts = texts_of(check, run)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for precision, folder in exports.items():
        found = answers(session(folder, "video_encoder"), pixel_values=pixel_values(clips, *preprocessing(model)))
        check.compare(f"{run} {precision} video_embeds", found["video_embeds"], np.load(check.folder / features), LIMITS[precision])
        encoder = session(folder, "text_encoder")
        embeds = answers(encoder, **token_ids(encoder, tokenizer))["text_embeds"]
        check.compare(f"{run} {precision} text_embeds", embeds, texts, LIMITS[precision])
        own = model / "caption_tokenizer" / "tokenizer.json"
        captions = Tokenizer.from_file(str(own)) if own.is_file() else tokenizer
        if precision == "f32" and (folder / "decoder.onnx").is_file():
            frame_tokens, longest = found["encoder_hidden_states"], json.loads((model / "texts.json").read_text())["caption_tokens"]
            for row, prediction in enumerate(said["predictions"]):
                words = decode(session(folder, "decoder"), frame_tokens[row : row + 1], captions, longest)
                # Ends of words are blanks, which this tokenizer leaves as they are stored.
                words = words.replace("</w>", " ").strip()
                check.count += 1
                check.failed += words != prediction["caption"].strip()
                print(f"{run} {precision} caption: `{words}` against `{prediction['caption'].strip()}`")


def decode(decoder, frame_tokens, tokenizer, longest):
    """The likeliest next word until the end: what `--beams 1` does."""
    said = decoder.get_modelmeta().custom_metadata_map
    bos, eos, pad = (int(said[f"{name}_token_id"]) for name in ("bos", "eos", "pad"))
    width = {entry.name: entry.shape for entry in decoder.get_inputs()}["input_ids"][1]
    words = [bos]
    while len(words) <= longest:
        ids = np.full((1, width), pad, np.int64)
        ids[0, : len(words)] = words
        logits = decoder.run(None, {"input_ids": ids, "encoder_hidden_states": frame_tokens})[0][0, len(words) - 1]
        # The begin token and padding are never said.
        logits[[token for token in (bos, pad) if token != eos]] = -np.inf
        words.append(int(logits.argmax()))
        if words[-1] == eos:
            break
    return tokenizer.decode(words, skip_special_tokens=True)


CHECKS = {"clip": check_clip, "classify": check_classify, "segment": check_segment, "video-text": check_video_text}


def main():
    holdall, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        check = Check(str(Path(holdall).resolve()), rest[0] if rest else temporary)
        check.folder.mkdir(parents=True, exist_ok=True)
        chosen = [one.split(":", 1) for one in rest[1:]] or MODELS.items()
        for task, model in chosen:
            kind, count, data, options = SAMPLES[task]
            run = f"{task}-{model.replace('/', '-')}"
            if not (check.folder / kind).is_dir():
                check.run("data", "sample", kind, kind, *count)
            if not (check.folder / run / "model").is_dir():
                common = ["--task", task, "--model", model, "--epochs", 1, "--device", "cpu", "--lr", "1e-3", "--out", run]
                check.run("train", data, *common, *options)
            exports = {"f32": check.folder / run / "onnx", "f16": check.folder / run / "onnx-half"}
            check.run("export", run, "--onnx")
            check.run("export", run, "--onnx", "--half", "--out", f"{run}/onnx-half")
            CHECKS[task](check, run, exports)
        print(f"{check.count - check.failed} passed, {check.failed} failed")
        sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
