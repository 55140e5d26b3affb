// Masks: scores of each picture, the threshold, and what was found, missed and invented in the best, the median and the worst picture.

const asScore = (value) => value.toFixed(3);
const asPixels = (value) => value.toFixed(1);
const SCORES = [["Dice", "dice", showShare], ["IoU", "iou", showShare], ["sensitivity", "sensitivity", showShare], ["specificity", "specificity", showShare],
  ["precision", "precision", showShare], ["accuracy", "accuracy", showShare], ["MCC", "mcc", asScore], ["AUC", "auc", asScore], ["HD95, px", "hd95", asPixels], ["clDice", "cldice", showShare]];
/** Colours of the difference pictures: they are in the pixels, so they are the same in both themes. */
const DIFFERENCES = [["found", "#ffffff", "in both"], ["missed", "#e69f00", "in the truth alone"], ["invented", "#56b4e9", "in the prediction alone"]];
const VIEWS = [["picture", "picture"], ["truth", "truth"], ["prediction", "prediction"], ["difference", "missed and invented"]];
const RANKS = { best: "Best", median: "Median", worst: "Worst" };

function segmentation(view) {
  const file = view.runs[view.detail].segmentation;
  if (!file) return null;
  const where = file.on === "train" ? "training pictures" : "held-out pictures";
  const after = isNumber(file.step) ? ` after step ${showStep(file.step)}` : "";
  const protocol = file.protocol ? ` ${capital(file.protocol)}.` : "";
  return section("segmentation", "Segmentation", `Masks of the best model, on ${where}${after}.${protocol}`,
    [scoreTable(file), sideBySide(thresholdChart(file), everyPicture(file)), ...overlays(file), imageTable(file)]);
}

/** Scores that at least one of the rows has. */
const scoresOf = (rows) => SCORES.filter(([, key]) => rows.some((row) => isNumber(row[key])));
const showScore = (row, [, key, show]) => (isNumber(row[key]) ? show(row[key]) : "");

function scoreTable(file) {
  const rows = [["mean of the pictures", file.mean], ["all pixels together", file.pooled], ...file.per_class.map((row) => [row.class, row])].filter(([, row]) => row);
  if (!rows.length) return null;
  const columns = scoresOf(rows.map(([, row]) => row));
  return h("div", { class: "card wide" }, table("Scores", ["", ...columns.map(([name]) => name)], rows.map(([name, row]) => [name, ...columns.map((column) => showScore(row, column))])));
}

const sideBySide = (...charts) => (charts.some(Boolean) ? h("div", { class: "wide charts" }, charts) : null);

function thresholdChart(file) {
  const points = file.threshold_curve.filter(([, dice]) => isNumber(dice));
  if (points.length < 2) return null;
  const marks = isNumber(file.threshold) ? [{ name: `threshold ${asScore(file.threshold)}`, x: file.threshold, colour: "good" }] : [];
  const [best, dice] = points.reduce((best, point) => (point[1] > best[1] ? point : best));
  return chart({ title: "Dice over the threshold", unit: "mean of the pictures", marks, hint: `Highest: ${showShare(dice)} at ${asScore(best)}. ${POINT}`,
    series: [{ name: "Dice", colour: "run0", points: { x: points.map(([x]) => x), y: points.map(([, y]) => y) } }],
    x: { label: "threshold", show: (x) => x.toFixed(2), name: (x) => `threshold ${asScore(x)}` }, y: shareAxis() });
}

const shareAxis = () => ({ show: showShare, tick: (value) => `${Math.round(100 * value)}%`, zero: true, most: 1 });

/** Pictures in a row, from the worst to the best: a few bad ones are seen at once. */
function everyPicture(file) {
  const rows = file.images.filter((row) => isNumber(row.dice)).sort((a, b) => a.dice - b.dice);
  if (rows.length < 2) return null;
  const lines = file.mean && isNumber(file.mean.dice) ? [{ name: "mean", y: file.mean.dice, colour: "soft" }] : [];
  return chart({ title: "Dice of every picture", unit: "from the worst to the best", lines, hint: POINT,
    series: [{ name: "Dice", colour: "run0", points: { x: rows.map((_, at) => at + 1), y: rows.map((row) => row.dice) } }],
    x: { label: "picture", whole: true, show: showStep, name: (x) => `${showStep(x)} of ${rows.length}: ${rows[Math.min(rows.length, Math.max(1, Math.round(x))) - 1].name}` }, y: shareAxis() });
}

function overlays(file) {
  if (!file.overlays.length) return [];
  const place = (one) => Object.keys(RANKS).indexOf(one.rank);
  const sorted = [...file.overlays].sort((a, b) => place(a) - place(b));
  const legend = h("div", { class: "keys wide" }, DIFFERENCES.map(([name, value, meaning]) => {
    const mark = h("span", { class: "swatch outlined", "aria-hidden": "true" });
    mark.style.background = value;
    return h("span", { class: "key" }, mark, h("span", {}, h("strong", { text: name }), `: ${meaning}`));
  }));
  return [h("h3", { class: "wide", text: "Best, median and worst pictures" }), legend, h("ul", { class: `overlays wide${sorted.length > 3 ? " many" : ""}` }, sorted.map(overlay))];
}

function overlay(one) {
  const views = VIEWS.filter(([key]) => /^data:image\/(png|jpeg);base64,[A-Za-z0-9+/=]+$/.test(one[key] || ""));
  const dice = isNumber(one.dice) ? `Dice ${showShare(one.dice)}` : "";
  return h("li", { class: "card" },
    h("div", { class: "overlay-head" }, h("span", { class: `tag ${one.rank}`, text: RANKS[one.rank] }), h("strong", { text: dice }), h("span", { class: "soft", text: one.name })),
    h("div", { class: "views" }, views.map(([key, name]) => h("figure", { class: "view" }, h("img", { src: one[key], alt: `${name} of ${one.name}`, loading: "lazy" }), h("figcaption", { text: name })))));
}

function imageTable(file) {
  if (!file.images.length) return null;
  const columns = [["picture", "name", String], ...scoresOf(file.images)];
  const left = file.left_out ? `; ${counted(file.left_out, "more picture")} not shown` : "";
  return h("div", { class: "card wide" }, h("h3", { text: `Pictures, the worst first${left}` }), sortedTable("Table of pictures", columns, file.images, "dice"));
}
