// Captions that the model wrote: scores, and the clips of the best and the worst, frame beside frame.

const CAPTION_SCORES = { bleu1: "BLEU-1", bleu2: "BLEU-2", bleu3: "BLEU-3", bleu4: "BLEU-4", rouge_l: "ROUGE-L", cider_d: "CIDEr-D", caption_loss: "caption loss" };

function captions(view) {
  const file = view.runs[view.detail].captions;
  if (!file) return null;
  const where = file.on === "train" ? "training clips" : "held-out clips";
  const after = isNumber(file.step) ? ` after step ${showStep(file.step)}` : "";
  const protocol = file.protocol ? ` ${capital(file.protocol)}.` : "";
  return section("captions", "Captions", `Captions by the best model, on ${where}${after}.${protocol}`,
    [captionScores(file.scores), ...clipList("Best clips", "best", file.best), ...clipList("Worst clips", "worst", file.worst)]);
}

function captionScores(scores) {
  const names = Object.keys(scores).filter((name) => isNumber(scores[name]));
  if (!names.length) return null;
  return h("div", { class: "card wide scroll" }, table("Caption scores", names.map((name) => CAPTION_SCORES[name] || name.replaceAll("_", " ")), [names.map((name) => showNumber(scores[name]))]));
}

function clipList(title, kind, clips) {
  if (!clips.length) return [];
  return [h("h3", { class: "wide", text: title }), h("ul", { class: "overlays wide many" }, clips.map((one) => captionedClip(one, kind)))];
}

function captionedClip(one, kind) {
  const frames = one.frames.filter((frame) => /^data:image\/(png|jpeg);base64,[A-Za-z0-9+/=]+$/.test(frame));
  const facts = [isNumber(one.bleu4) ? `BLEU-4 ${one.bleu4.toFixed(3)}` : "", isNumber(one.rank) ? `rank ${showNumber(one.rank)}` : ""].filter(Boolean).join(", ");
  const isRight = one.caption === one.truth;
  return h("li", { class: "card" },
    h("div", { class: "overlay-head" }, h("span", { class: `tag ${kind}`, text: capital(kind) }), h("strong", { text: facts }), h("span", { class: "soft", text: one.name })),
    h("div", { class: "clip-frames" }, frames.map((src, index) => h("img", { src, alt: `frame ${index + 1} of ${one.name}`, loading: "lazy" }))),
    h("dl", { class: "said-of" }, h("dt", { text: "truth" }), h("dd", { text: one.truth }),
      h("dt", { text: "model" }), h("dd", { class: isRight ? "same" : null }, isRight ? "✓ " : null, one.caption || "(nothing)", isRight ? h("span", { class: "visually-hidden", text: " (the same)" }) : null)));
}
