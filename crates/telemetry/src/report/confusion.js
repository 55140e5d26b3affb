// Which classes are taken for which: a matrix, a table of classes, and the pictures of the worst mistakes.

const matrices = [];
const MATRIX_IDLE = "Hover over a cell or tap it, or focus the matrix: arrow keys move, Page Down goes to the next most frequent mistake.";
/** Classes of the excerpt that shows the most confused ones. */
const EXCERPT = 20;
const LARGEST_CELL = 60;
const LARGEST_MATRIX = 660;
/** Below this a cell cannot be hit: the page begins with the excerpt. */
const SMALLEST_CELL = 3;
const LABEL_HEIGHT = 12;

function classes(view) {
  const file = view.runs[view.detail].confusion;
  if (!file) return null;
  const where = file.on === "train" ? "training pictures" : "held-out pictures";
  const parts = file.targets.flatMap((target) => classParts(target, file.targets.length > 1));
  const after = isNumber(file.step) ? ` after step ${showStep(file.step)}` : "";
  return section("classes", "Classes", `Which classes the best model takes for which, on ${where}${after}.`, parts);
}

function classParts(target, isNamed) {
  const of = isNamed ? ` of ${target.name}` : "";
  const matrix = target.counts.length ? confusionMatrix(target, of) : null;
  const rows = target.per_class.length ? classTable(target, of) : null;
  const pair = matrix && rows ? h("div", { class: "wide matrix-row" }, matrix, rows) : matrix || rows;
  if (pair) pair.classList.add("wide");
  if (!target.mistakes.length) return [pair];
  return [pair, h("h3", { class: "wide", text: `Worst mistakes${of}` }), h("ul", { class: "samples wide" }, target.mistakes.map(mistake))];
}

function mistake(one) {
  const share = isNumber(one.share) ? ` ${showShare(one.share)}` : "";
  return h("li", {}, thumbnail(one.jpeg, `The picture of: ${one.expected}`), h("div", { class: "body" },
    h("div", {}, h("span", { class: "tag wrong", text: `✕ ${one.found}${share}` }), h("span", { class: "soft", text: ` is ${one.expected}` })),
    h("div", { class: "soft", text: one.image })));
}

// The matrix.

function confusionMatrix(target, of) {
  const size = target.labels.length;
  const cells = new Map(target.counts.map(([expected, found, count]) => [expected * size + found, count]));
  const mistakes = target.counts.filter(([expected, found]) => expected !== found).sort((a, b) => b[2] - a[2]);
  const all = target.totals.reduce((sum, count) => sum + count, 0);
  const right = target.labels.reduce((sum, _, index) => sum + (cells.get(index * size + index) || 0), 0);
  const canvas = h("canvas", { "aria-hidden": "true" });
  const readout = h("output", { class: "readout idle", "aria-live": "polite", text: MATRIX_IDLE });
  const plot = h("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "confusion matrix",
    "aria-label": `Confusion matrix${of}: ${showStep(size)} classes, ${showStep(right)} of ${showStep(all)} right. ${MATRIX_IDLE}` }, canvas);
  const state = { target, size, cells, mistakes, canvas, plot, readout, at: null, shown: target.labels.map((_, index) => index), isSettled: size <= EXCERPT };
  const pick = h("select", { onchange: () => showClasses(state, pick.value) }, h("option", { value: "all", text: `all ${size} classes` }), h("option", { value: "excerpt", text: `the ${EXCERPT} most confused` }));
  state.pick = pick;
  plot.addEventListener("pointermove", (event) => pointAt(state, event));
  plot.addEventListener("pointerdown", (event) => pointAt(state, event));
  plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot) chooseCell(state, null); });
  plot.addEventListener("focus", () => { if (!state.at) chooseCell(state, [0, 0]); });
  plot.addEventListener("blur", () => chooseCell(state, null));
  plot.addEventListener("keydown", (event) => matrixKey(state, event));
  matrices.push(state);
  onWidth(plot, () => drawMatrix(state));
  const left = target.left_out ? `; ${showStep(target.left_out)} classes with fewer samples are not shown` : "";
  return h("figure", {},
    h("figcaption", {}, h("h3", { text: `Confusion matrix${of}` }), h("span", { class: "hint", text: `${showStep(right)} of ${showStep(all)} right${left}` })),
    h("div", { class: "keys" }, h("span", { class: "key" }, "a row for each true class, a column for each predicted one"),
      h("span", { class: "key" }, swatch("accent"), "right"), h("span", { class: "key" }, swatch("bad"), "mistaken"), h("span", { class: "key" }, "stronger: a larger share of the row")),
    size > EXCERPT ? h("div", { class: "controls" }, h("label", {}, "Show", pick)) : null,
    plot, readout,
    mistakes.length ? frequentMistakes(target, mistakes.slice(0, 8)) : null);
}

function frequentMistakes(target, mistakes) {
  const title = "Most frequent mistakes";
  const head = h("tr", {}, ["true class", "predicted", "samples", "of the class"].map((text, at) => h("th", { scope: "col", class: at < 2 ? "text" : null, text })));
  const rows = mistakes.map(([expected, found, count]) => h("tr", {}, [expected, found].map((index) => h("td", { class: "text", text: target.labels[index] })),
    h("td", { text: showStep(count) }), h("td", { text: showShare(count / target.totals[expected]) })));
  return h("div", { class: "scroll" }, tableTitle(title), h("table", { "aria-label": title }, h("thead", {}, head), h("tbody", {}, rows)));
}

/** All classes, or those with the most mistakes, whether they are taken for others or others for them. */
function showClasses(state, which) {
  state.isSettled = true;
  state.pick.value = which;
  state.shown = state.target.labels.map((_, index) => index);
  if (which === "excerpt") {
    const wrong = state.shown.map(() => 0);
    for (const [expected, found, count] of state.mistakes) {
      wrong[expected] += count;
      wrong[found] += count;
    }
    state.shown = state.shown.sort((a, b) => wrong[b] - wrong[a]).slice(0, EXCERPT).sort((a, b) => a - b);
  }
  state.at = null;
  drawMatrix(state);
}

function matrixFrame(state, pen) {
  const width = Math.floor(state.plot.clientWidth);
  const longest = Math.max(...state.shown.map((index) => pen.measureText(state.target.labels[index]).width));
  const room = Math.min(Math.ceil(longest) + 8, Math.max(56, width * 0.26), 150);
  const cell = Math.min(LARGEST_CELL, Math.min(width - room - 2, LARGEST_MATRIX) / state.shown.length);
  const side = cell * state.shown.length;
  return { width, height: Math.ceil(room + side + 4), room, cell, side };
}

function drawMatrix(state) {
  const pen = state.canvas.getContext("2d");
  pen.font = "11px system-ui, sans-serif";
  if (state.plot.clientWidth < 100) return;
  state.frame = matrixFrame(state, pen);
  if (!state.isSettled && state.frame.cell < SMALLEST_CELL) return showClasses(state, "excerpt");
  const { width, height, room, cell, side } = state.frame;
  const dense = window.devicePixelRatio || 1;
  state.canvas.width = width * dense;
  state.canvas.height = height * dense;
  state.canvas.style.height = `${height}px`;
  state.plot.style.height = `${height}px`;
  pen.scale(dense, dense);
  pen.font = "11px system-ui, sans-serif";
  const ink = { soft: colour("soft"), ink: colour("ink"), card: colour("card"), grid: colour("grid"), right: colour("accent"), wrong: colour("bad") };
  pen.fillStyle = ink.grid;
  pen.fillRect(room, room, side, side);
  const gap = cell >= 8 ? 1 : 0;
  state.shown.forEach((expected, row) => state.shown.forEach((found, column) => {
    const count = state.cells.get(expected * state.size + found) || 0;
    const [x, y] = [room + column * cell, room + row * cell];
    if (gap) {
      pen.fillStyle = ink.card;
      pen.fillRect(x, y, cell - gap, cell - gap);
    }
    if (!count) return;
    const share = count / state.target.totals[expected];
    pen.globalAlpha = 0.1 + 0.9 * share ** 0.7;
    pen.fillStyle = expected === found ? ink.right : ink.wrong;
    pen.fillRect(x, y, Math.max(1, cell - gap), Math.max(1, cell - gap));
    const isStrong = pen.globalAlpha > 0.55;
    pen.globalAlpha = 1;
    const text = showStep(count);
    if (cell >= 18 && pen.measureText(text).width <= cell - 4) {
      pen.fillStyle = isStrong ? ink.card : ink.ink;
      pen.textAlign = "center";
      pen.fillText(text, x + (cell - gap) / 2, y + cell / 2 + 4);
    }
  }));
  labelMatrix(pen, state, ink);
  if (state.at) {
    const [row, column] = state.at;
    pen.lineWidth = 2;
    pen.strokeStyle = ink.ink;
    pen.strokeRect(room + column * cell - 1, room + row * cell - 1, cell + 1, cell + 1);
  }
}

/** As many names as there is room for; the chosen row and column always have one. */
function labelMatrix(pen, state, ink) {
  const { room, cell } = state.frame;
  const every = Math.max(1, Math.ceil(LABEL_HEIGHT / cell));
  const name = (place) => {
    let text = state.target.labels[state.shown[place]];
    if (pen.measureText(text).width <= room - 8) return text;
    while (text && pen.measureText(`${text}…`).width > room - 8) text = text.slice(0, -1);
    return `${text}…`;
  };
  const places = (chosen) => state.shown.map((_, place) => place).filter((place) => place === chosen || (place % every === 0 && (every === 1 || chosen === undefined || Math.abs(place - chosen) * cell >= LABEL_HEIGHT)));
  const [row, column] = state.at || [];
  const inkFor = (isChosen) => {
    pen.fillStyle = isChosen ? ink.ink : ink.soft;
    pen.font = `${isChosen ? "600 " : ""}11px system-ui, sans-serif`;
  };
  pen.textAlign = "right";
  for (const place of places(row)) {
    inkFor(place === row);
    pen.fillText(name(place), room - 5, room + (place + 0.5) * cell + 4);
  }
  pen.textAlign = "left";
  for (const place of places(column)) {
    inkFor(place === column);
    pen.save();
    pen.translate(room + (place + 0.5) * cell + 4, room - 5);
    pen.rotate(-Math.PI / 2);
    pen.fillText(name(place), 0, 0);
    pen.restore();
  }
}

function pointAt(state, event) {
  const box = state.plot.getBoundingClientRect();
  const { room, cell } = state.frame;
  const [column, row] = [event.clientX - box.left, event.clientY - box.top].map((at) => Math.floor((at - room) / cell));
  const isInside = [row, column].every((place) => place >= 0 && place < state.shown.length);
  chooseCell(state, isInside ? [row, column] : null);
}

function chooseCell(state, at) {
  state.at = at;
  state.readout.textContent = at ? cellInWords(state, at) : MATRIX_IDLE;
  state.readout.classList.toggle("idle", !at);
  drawMatrix(state);
}

function cellInWords(state, [row, column]) {
  const [expected, found] = [state.shown[row], state.shown[column]];
  const [count, all] = [state.cells.get(expected * state.size + found) || 0, state.target.totals[expected]];
  const share = all ? ` (${showShare(count / all)})` : "";
  const names = state.target.labels;
  return expected === found ? `${names[expected]}: ${showStep(count)} of ${showStep(all)} right${share}`
    : `${names[expected]}, taken for ${names[found]}: ${showStep(count)} of ${showStep(all)}${share}`;
}

function matrixKey(state, event) {
  if (event.key === "Escape") return chooseCell(state, null);
  const last = state.shown.length - 1;
  const [row, column] = state.at || [0, 0];
  const within = (place) => Math.min(last, Math.max(0, place));
  const to = { ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
    Home: [row, 0], End: [row, last], PageDown: nextMistake(state, 1), PageUp: nextMistake(state, -1) }[event.key];
  if (!to) return;
  event.preventDefault();
  chooseCell(state, to.map(within));
}

/** The next or the one before among the mistakes that are shown, the most frequent first. */
function nextMistake(state, by) {
  const places = new Map(state.shown.map((index, place) => [index, place]));
  const shown = state.mistakes.filter(([expected, found]) => places.has(expected) && places.has(found)).map(([expected, found]) => [places.get(expected), places.get(found)]);
  if (!shown.length) return state.at || [0, 0];
  const now = shown.findIndex(([row, column]) => state.at && row === state.at[0] && column === state.at[1]);
  return shown[Math.min(shown.length - 1, Math.max(0, now + by))];
}

// The table of classes.

const CLASS_COLUMNS = [["class", "label", String], ["samples", "support", showStep], ["precision", "precision", showShare], ["recall", "recall", showShare], ["F1", "f1", showShare]];

function classTable(target, of) {
  return h("div", { class: "card" }, h("h3", { text: `Classes${of}` }), sortedTable(`Table of classes${of}`, CLASS_COLUMNS, target.per_class, "f1"));
}
