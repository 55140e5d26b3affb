// The plan as a picture: a box per tensor, time from left to right, addresses from the bottom up.

/** Tensors of `plan-tensors.json` as objects. */
function readTensors(file) {
  if (!file || !Array.isArray(file.tensors) || !Array.isArray(file.programs) || !file.programs.length) return null;
  const tensors = file.tensors.map(([name, category, offset, bytes, first, last]) => ({
    name: file.names[name], category: file.categories[category], offset, bytes, first, last, shade: 0.76 + 0.06 * ((name * 7) % 5),
  }));
  const programs = file.programs.map(([name, first, last, runs]) => ({ name, first, last, runs }));
  const moments = programs[programs.length - 1].last + 1;
  return { tensors, programs, moments, arena: file.arena_bytes, categories: file.categories, leftOut: file.left_out || 0,
    operation: (moment) => file.names[file.operations[moment]] || "" };
}

function programAt(plan, moment) {
  return plan.programs.find((one) => moment >= one.first && moment <= one.last) || plan.programs[0];
}

function describeTensor(plan, tensor) {
  const when = (moment) => `operation ${moment + 1} (${plan.operation(moment)}, ${programAt(plan, moment).name})`;
  const life = tensor.first === 0 && tensor.last === plan.moments - 1 ? "always alive"
    : tensor.first === tensor.last ? `alive during ${when(tensor.first)}`
    : `alive from ${when(tensor.first)} to ${when(tensor.last)}`;
  return `${tensor.name}  ·  ${tensor.category}  ·  ${showBytes(tensor.bytes)} at ${showBytes(tensor.offset)}  ·  ${life}`;
}

/** Bytes alive at each moment, by category. */
function aliveBy(plan) {
  const by = new Map(plan.categories.map((name) => [name, new Float64Array(plan.moments + 1)]));
  for (const tensor of plan.tensors) {
    by.get(tensor.category)[tensor.first] += tensor.bytes;
    by.get(tensor.category)[tensor.last + 1] -= tensor.bytes;
  }
  for (const change of by.values()) for (let moment = 1; moment <= plan.moments; moment += 1) change[moment] += change[moment - 1];
  return by;
}

const arenas = [];
const HEAD = 30;
const FOOT = 22;
const ARENA_HEIGHT = 440;
const IDLE = "Hover over a box, or focus the picture: left and right follow time, up and down follow addresses, + and - zoom, 0 shows all.";

/** The figure. */
function arenaPicture(plan) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const readout = h("output", { class: "readout idle", "aria-live": "polite", text: IDLE });
  const plot = h("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "picture of the arena",
    "aria-label": `${plan.tensors.length} tensors in an arena of ${showBytes(plan.arena)}. ${IDLE}` }, canvas);
  const state = { plan, canvas, plot, readout, chosen: null, filter: "", from: 0, to: plan.moments, order: byTime(plan) };
  const part = h("select", { onchange: () => zoomTo(state, part.value) },
    h("option", { value: "all", text: "All programs" }),
    plan.programs.map((one, index) => h("option", { value: index, text: programName(one) })));
  const search = h("input", { type: "search", placeholder: "such as fc1", "aria-label": "Highlight tensors whose name contains", oninput: () => {
    state.filter = search.value.trim().toLowerCase();
    drawArena(state);
  } });
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    choose(state, tensorAt(state, event.clientX - box.left, event.clientY - box.top));
  });
  plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot) choose(state, null); });
  plot.addEventListener("focus", () => { if (!state.chosen) choose(state, state.order.find((one) => one.category === "activations") || state.order[0]); });
  plot.addEventListener("blur", () => choose(state, null));
  plot.addEventListener("keydown", (event) => arenaKey(state, event, part));
  arenas.push(state);
  plot.style.height = `${ARENA_HEIGHT}px`;
  onWidth(plot, () => drawArena(state));
  const used = plan.categories.filter((name) => plan.tensors.some((one) => one.category === name));
  const hint = plan.leftOut ? `${plan.tensors.length} largest tensors; ${plan.leftOut} smaller ones are not drawn` : `${plan.tensors.length.toLocaleString("en-US")} tensors`;
  return h("figure", { class: "wide" },
    h("figcaption", {}, h("h3", { text: "The arena, tensor by tensor" }), h("span", { class: "hint", text: hint })),
    h("div", { class: "keys", "aria-hidden": "true" }, used.map((name) => h("span", { class: "key" }, swatch(name), name))),
    h("div", { class: "controls" }, h("label", {}, "Show", part), h("label", {}, "Highlight", search)),
    plot, readout,
    lateTable("The largest tensors as a table", () => table(null, ["tensor", "category", "bytes", "offset", "first used", "last used"],
      [...plan.tensors].sort((a, b) => b.bytes - a.bytes).slice(0, 60).map((one) => [one.name, one.category, showBytes(one.bytes), showBytes(one.offset),
        `${programAt(plan, one.first).name}, ${one.first + 1}`, `${programAt(plan, one.last).name}, ${one.last + 1}`]))));
}

const programName = (one) => (one.runs > 1 ? `${one.name} × ${one.runs}` : one.runs === 0 ? `${one.name} (beside the step)` : one.name);

function byTime(plan) {
  return [...plan.tensors].sort((a, b) => a.first - b.first || a.offset - b.offset);
}

function zoomTo(state, value) {
  const program = state.plan.programs[Number(value)];
  [state.from, state.to] = value === "all" || !program ? [0, state.plan.moments] : [program.first, program.last + 1];
  drawArena(state);
}

function frame(state) {
  const width = Math.floor(state.plot.clientWidth);
  const height = ARENA_HEIGHT;
  const left = 58;
  const inner = { width: width - left - 8, height: height - HEAD - FOOT };
  const x = (moment) => left + ((moment - state.from) / (state.to - state.from)) * inner.width;
  const y = (address) => HEAD + (1 - address / state.plan.arena) * inner.height;
  return { width, height, left, inner, x, y };
}

function drawArena(state) {
  const { plan, canvas } = state;
  const { width, height, left, inner, x, y } = frame(state);
  if (width < 100) return;
  const dense = window.devicePixelRatio || 1;
  canvas.width = width * dense;
  canvas.height = height * dense;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(dense, dense);
  const ink = { soft: colour("soft"), line: colour("line"), card: colour("card"), ink: colour("ink"), grid: colour("grid") };
  const fill = Object.fromEntries(plan.categories.map((name) => [name, colour(name)]));
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = ink.grid;
  pen.fillRect(left, HEAD, inner.width, inner.height);
  for (const tensor of plan.tensors) {
    if (tensor.last < state.from || tensor.first >= state.to) continue;
    const box = boxOf(state, tensor, x, y);
    pen.globalAlpha = state.filter && !tensor.name.toLowerCase().includes(state.filter) ? 0.12 : tensor.shade;
    pen.fillStyle = fill[tensor.category];
    pen.fillRect(box.x, box.y, box.width, box.height);
    if (box.height >= 3.5 && box.width >= 3) {
      pen.globalAlpha = 0.75;
      pen.strokeStyle = ink.card;
      pen.lineWidth = 0.7;
      pen.strokeRect(box.x, box.y, box.width, box.height);
    }
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = ink.ink;
  pen.lineWidth = 0.6;
  for (const one of plan.programs.slice(1).filter(({ first }) => first > state.from && first < state.to)) {
    pen.globalAlpha = 0.55;
    pen.beginPath();
    pen.moveTo(x(one.first), HEAD);
    pen.lineTo(x(one.first), HEAD + inner.height);
    pen.stroke();
  }
  pen.globalAlpha = 1;
  if (state.chosen && state.chosen.last >= state.from && state.chosen.first < state.to) {
    const box = boxOf(state, state.chosen, x, y);
    pen.strokeStyle = ink.card;
    pen.lineWidth = 4;
    pen.strokeRect(box.x - 1, box.y - 1, Math.max(3, box.width + 2), Math.max(3, box.height + 2));
    pen.strokeStyle = ink.ink;
    pen.lineWidth = 2;
    pen.strokeRect(box.x - 1, box.y - 1, Math.max(3, box.width + 2), Math.max(3, box.height + 2));
  }
  labelArena(pen, state, { width, height, left, inner, x, y }, ink);
}

/** As far as it is within the moments that are shown. */
function boxOf(state, tensor, x, y) {
  const [from, to] = [x(Math.max(state.from, tensor.first)), x(Math.min(state.to, tensor.last + 1))];
  const [top, bottom] = [y(tensor.offset + tensor.bytes), y(tensor.offset)];
  return { x: from, y: top, width: Math.max(0.6, to - from), height: Math.max(0.5, bottom - top) };
}

function labelArena(pen, state, { height, left, inner, x, y }, ink) {
  pen.fillStyle = ink.soft;
  pen.textAlign = "right";
  for (const tick of byteTicks(0, state.plan.arena, 5)) pen.fillText(showTickBytes(tick), left - 7, y(tick) + 4);
  pen.textAlign = "center";
  let free = left;
  for (const one of state.plan.programs) {
    const [from, to] = [Math.max(left, x(one.first)), Math.min(left + inner.width, x(one.last + 1))];
    const name = one.runs > 1 ? `${one.name} × ${one.runs}` : one.name;
    const wide = pen.measureText(name).width;
    const middle = (from + to) / 2;
    if (to - from < wide + 4 || middle - wide / 2 < free) continue;
    pen.fillText(name, middle, HEAD - 10);
    free = middle + wide / 2 + 8;
  }
  pen.textAlign = "left";
  pen.fillText(`operation ${state.from + 1}`, left, height - 6);
  pen.textAlign = "right";
  pen.fillText(`operation ${state.to}`, left + inner.width, height - 6);
}

function tensorAt(state, px, py) {
  const { left, inner } = frame(state);
  const moment = state.from + ((px - left) / inner.width) * (state.to - state.from);
  const address = (1 - (py - HEAD) / inner.height) * state.plan.arena;
  // A finger's width around what is too thin to be hit.
  const near = state.plan.arena / inner.height;
  let best = null;
  let distance = near;
  for (const tensor of state.plan.tensors) {
    if (moment < tensor.first || moment >= tensor.last + 1) continue;
    const away = Math.max(0, tensor.offset - address, address - tensor.offset - tensor.bytes);
    if (away < distance || (away === 0 && best === null)) [best, distance] = [tensor, away];
    if (away === 0) break;
  }
  return best;
}

function choose(state, tensor) {
  if (state.chosen === tensor) return;
  state.chosen = tensor;
  state.readout.textContent = tensor ? describeTensor(state.plan, tensor) : IDLE;
  state.readout.classList.toggle("idle", !tensor);
  drawArena(state);
}

/** The next box up or down among those that are alive with the chosen one. */
function neighbour(state, up) {
  const { chosen, plan } = state;
  const middle = (Math.max(chosen.first, state.from) + Math.min(chosen.last, state.to - 1)) >> 1;
  const alive = plan.tensors.filter((one) => one.first <= middle && one.last >= middle).sort((a, b) => a.offset - b.offset);
  return alive[alive.indexOf(chosen) + (up ? 1 : -1)];
}

function arenaKey(state, event, part) {
  const visible = state.order.filter((one) => one.last >= state.from && one.first < state.to);
  const at = visible.indexOf(state.chosen);
  const zoom = (factor) => {
    const middle = state.chosen ? (state.chosen.first + state.chosen.last) / 2 : (state.from + state.to) / 2;
    const half = Math.max(4, ((state.to - state.from) * factor) / 2);
    state.from = Math.max(0, Math.floor(middle - half));
    state.to = Math.min(state.plan.moments, Math.ceil(middle + half));
    drawArena(state);
  };
  const move = { ArrowRight: () => visible[at + 1], ArrowLeft: () => visible[at - 1], Home: () => visible[0], End: () => visible[visible.length - 1],
    PageDown: () => visible[Math.min(visible.length - 1, at + 25)], PageUp: () => visible[Math.max(0, at - 25)],
    ArrowUp: () => state.chosen && neighbour(state, true), ArrowDown: () => state.chosen && neighbour(state, false) }[event.key];
  if (move) {
    event.preventDefault();
    choose(state, move() || state.chosen);
  } else if (event.key === "+" || event.key === "=") zoom(0.5);
  else if (event.key === "-") zoom(2);
  else if (event.key === "0") {
    part.value = "all";
    zoomTo(state, "all");
  } else if (event.key === "Escape") choose(state, null);
}
