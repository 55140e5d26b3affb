// Pictures with what the model makes of them: whatever answers a run's samples have.

/** The picture of a sample, if it has one. */
function thumbnail(jpeg, alt) {
  return /^[A-Za-z0-9+/=]+$/.test(jpeg || "") ? h("img", { src: `data:image/jpeg;base64,${jpeg}`, alt, loading: "lazy" }) : null;
}

const textsOf = (value) => [value].flat().filter((text) => typeof text === "string");

/** Lists of answers: `labels: [{label, share}]` beside the right `label`, and so for whatever stands beside its own plural. */
function answersOf(one) {
  return Object.entries(one).filter(([key, list]) => key.endsWith("s") && Array.isArray(list)).map(([key, list]) => {
    const name = key.slice(0, -1);
    const right = textsOf(one[name]);
    const lines = list.filter((line) => line && typeof line[name] === "string").map((line) => {
      const [kind, score] = Object.entries(line).find(([, value]) => isNumber(value)) || [];
      return { text: line[name], kind, score, isRight: line.own ?? right.includes(line[name]) };
    });
    const kind = lines.length ? lines[0].kind : null;
    // The right answer, further down than those that are listed.
    if (lines.length && kind !== "share" && right.length && isNumber(one[kind]) && !lines.some((line) => line.isRight)) {
      lines.push({ text: right[0], kind, score: one[kind], isRight: true, isBeyond: true });
    }
    return { key, right, lines, isShare: kind === "share" };
  }).filter((list) => list.lines.length);
}

function answerList(lines) {
  return h("ol", {}, lines.map((line) => h("li", { class: line.isRight ? "is-own" : null },
    h("span", {}, line.isRight ? `${line.isBeyond ? "… " : "✓ "}${line.text}` : line.text, line.isRight ? h("span", { class: "visually-hidden", text: " (right)" }) : null),
    h("span", { text: line.kind === "share" ? showShare(line.score) : isNumber(line.score) ? showNumber(line.score) : "" }))));
}

/** The first answer of a list as a tag, and what is right where that is another. */
function firstAnswer({ right, lines: [first] }) {
  const others = right.filter((text) => text !== first.text);
  const truth = first.isRight ? (others.length ? ` and ${others.join(", ")}` : "") : right.length ? ` is ${right.join(", ")}` : " has none";
  return h("div", {}, h("span", { class: `tag ${first.isRight ? "right" : "wrong"}`, text: `${first.isRight ? "✓" : "✕"} ${first.text} ${showShare(first.score)}` }),
    truth ? h("span", { class: "soft", text: truth }) : null);
}

function numberList(numbers) {
  return h("ol", {}, numbers.map((one) => h("li", { class: "is-own" }, h("span", { text: one.name }),
    h("span", { text: `${showNumber(one.found)}${isNumber(one.expected) ? `, is ${showNumber(one.expected)}` : ""}` }))));
}

function prediction(one) {
  const lists = answersOf(one);
  const titles = lists.filter((list) => !list.isShare).flatMap((list) => list.right);
  const numbers = Array.isArray(one.numbers) ? one.numbers : [];
  const about = titles.length ? titles : lists.flatMap((list) => list.right);
  return h("li", {}, thumbnail(one.jpeg, `The picture of: ${about.join(", ") || one.image}`), h("div", { class: "body" },
    titles.map((text) => h("div", { class: "own", text })),
    lists.filter((list) => list.isShare).map((list) => [firstAnswer(list), lists.length === 1 && list.lines.length > 1 ? answerList(list.lines) : null]).flat(),
    lists.filter((list) => !list.isShare).map((list) => answerList(list.lines)),
    numbers.length ? numberList(numbers) : null,
    h("div", { class: "soft", text: one.image })));
}

function predictions(view) {
  const file = view.runs[view.detail].samples;
  if (!file || !Array.isArray(file.samples) || !file.samples.length) return null;
  const where = file.on === "train" ? "Training pictures" : "Held-out pictures";
  const lists = file.samples.flatMap(answersOf);
  const words = [`${where} with what the model makes of them, after step ${showStep(file.step)}.`];
  for (const key of new Set(lists.map((list) => list.key))) if (isNumber(file[key])) words.push(`Best of ${showStep(file[key])} ${key}.`);
  if (lists.length) words.push(lists.some((list) => list.lines.some((line) => line.isBeyond)) ? "✓ is right, … is right and further down." : "✓ is right.");
  return section("predictions", "Predictions", words.join(" "), [h("ul", { class: "samples wide" }, file.samples.slice(0, 24).map(prediction))]);
}
