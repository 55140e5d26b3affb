// Curves over steps or time: hover, or focus and arrow keys; a table for those who cannot see them.

const DASHES = ["", "6 3", "2 3", "9 3 2 3"];
const charts = [];
const POINT = "Hover, or focus and use the arrow keys.";
const PLOT_HEIGHT = 200;
const MARGIN = { left: 58, right: 14, bottom: 24 };
/** Names of bands stand above the curves. */
const topOf = (spec) => ((spec.bands || []).some((band) => band.name) ? 24 : 10);

/**
 * A figure with curves.
 *
 * spec: title, hint, height, x: {show, label}, y: {show, ticks, zero, most}, series: [{name, colour, dash, faint, points: {x, y}}],
 * areas: [{name, colour, y}] over `areaX`, lines: [{name, y, colour}], marks: [{name, x, colour}], bands: [{from, to, name}], extra: nodes.
 */
function chart(spec) {
  const readout = h("output", { class: "readout idle", "aria-live": "polite" });
  const plot = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": describe(spec), "aria-roledescription": "chart" });
  const figure = h("figure", { class: spec.wide ? "wide" : null },
    h("figcaption", {}, h("h3", { text: spec.title }), spec.unit ? h("span", { class: "hint", text: spec.unit }) : null),
    keys(spec), plot, readout, spec.extra || null,
    lateTable("As a table", () => chartTable(spec)));
  const state = { spec, plot, readout, at: null, svg: null, scale: null };
  plot.addEventListener("pointermove", (event) => {
    if (!state.scale) return;
    const x = event.clientX - plot.getBoundingClientRect().left;
    moveTo(state, state.scale.toValue(x));
  });
  plot.addEventListener("pointerleave", () => moveTo(state, null));
  plot.addEventListener("blur", () => moveTo(state, null));
  plot.addEventListener("focus", () => { if (state.at === null && state.scale) moveTo(state, state.scale.high); });
  plot.addEventListener("keydown", (event) => chartKey(state, event));
  charts.push(state);
  // Its height is known before it is drawn: drawing moves nothing, so no observer is called in a circle.
  plot.style.height = `${spec.height || PLOT_HEIGHT}px`;
  onWidth(plot, () => drawChart(state));
  moveTo(state, null);
  return figure;
}

/** Calls `draw` when an element is shown, and when its width changes. */
function onWidth(element, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    requestAnimationFrame(draw);
  }).observe(element);
}

/** What is said while nobody points: where the curves end. */
function idleWords(spec) {
  if (spec.hint || spec.series.length > 6) return spec.hint || POINT;
  const ends = spec.series.filter((one) => !one.faint && one.points.y.length).map((one) => {
    const y = one.points.y[one.points.y.length - 1];
    return `${one.name} ${isNumber(y) ? spec.y.show(y) : "not a number"}`;
  });
  return `At the end: ${ends.join("  ·  ")}`;
}

function describe(spec) {
  const parts = spec.series.filter((one) => !one.faint).map((one) => {
    const ys = one.points.y.filter(isNumber);
    if (!ys.length) return `${one.name}: no values`;
    return `${one.name}: from ${spec.y.show(ys[0])} to ${spec.y.show(ys[ys.length - 1])}`;
  });
  for (const area of spec.areas || []) parts.push(`${area.name}: at most ${spec.y.show(Math.max(...area.y))}`);
  for (const line of spec.lines || []) parts.push(`${line.name}: ${spec.y.show(line.y)}`);
  for (const mark of spec.marks || []) parts.push(`${mark.name}: ${spec.x.name(mark.x)}`);
  return `${spec.title}. ${parts.join("; ")}. Arrow keys move a cursor.`;
}

function keys(spec) {
  const list = h("div", { class: "keys", "aria-hidden": "true" });
  for (const area of spec.areas || []) list.append(h("span", { class: "key" }, swatch(area.colour), area.name));
  for (const one of spec.series) {
    if (one.faint || !one.name) continue;
    list.append(h("span", { class: "key" }, lineKey(one), one.name));
  }
  for (const line of spec.lines || []) list.append(h("span", { class: "key" }, lineKey({ colour: line.colour, dash: 1 }), line.name));
  for (const mark of spec.marks || []) list.append(h("span", { class: "key" }, markKey(mark), mark.name));
  return list;
}

function lineKey(one) {
  const line = s("line", { x1: 0, x2: 18, y1: 5, y2: 5, "stroke-width": 2.2, "stroke-dasharray": DASHES[(one.dash || 0) % DASHES.length] });
  line.style.stroke = `var(--${one.colour})`;
  return s("svg", { width: 18, height: 10 }, line);
}

function markKey(mark) {
  const line = s("line", { x1: 4, x2: 4, y1: 0, y2: 12, "stroke-width": 2.2, "stroke-dasharray": DASHES[2] });
  line.style.stroke = `var(--${mark.colour})`;
  return s("svg", { width: 8, height: 12 }, line);
}

function bounds(spec) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  const take = (x, y) => {
    left = Math.min(left, x);
    right = Math.max(right, x);
    if (isNumber(y)) {
      low = Math.min(low, y);
      high = Math.max(high, y);
    }
  };
  for (const one of spec.series) one.points.x.forEach((x, index) => take(x, one.points.y[index]));
  if (spec.areas && spec.areas.length) {
    spec.areaX.forEach((x, index) => take(x, spec.areas.reduce((sum, area) => sum + area.y[index], 0)));
  }
  for (const line of spec.lines || []) {
    low = Math.min(low, line.y);
    high = Math.max(high, line.y);
  }
  if (spec.y.zero) low = Math.min(0, low);
  if (spec.y.most !== undefined) high = Math.max(high, spec.y.most);
  if (!isNumber(low)) [low, high] = [0, 1];
  if (high === low) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const room = (high - low) * 0.06;
  if (!(spec.y.zero && low === 0)) low -= room;
  if (spec.y.most === undefined || high > spec.y.most) high += room;
  if (!isNumber(left)) [left, right] = [0, 1];
  if (left === right) [left, right] = [left - 0.5, right + 0.5];
  return { left, right, low, high };
}

function drawChart(state) {
  const { spec, plot } = state;
  const width = Math.floor(plot.clientWidth);
  if (width < 60) return;
  const height = spec.height || PLOT_HEIGHT;
  const { left, right, low, high } = bounds(spec);
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - topOf(spec) - MARGIN.bottom };
  const px = (x) => MARGIN.left + ((x - left) / (right - left)) * inner.width;
  const py = (y) => topOf(spec) + (1 - (y - low) / (high - low)) * inner.height;
  state.scale = { px, py, low: left, high: right, toValue: (x) => left + ((x - MARGIN.left) / inner.width) * (right - left) };
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  for (const band of spec.bands || []) drawBand(svg, band, px, { top: topOf(spec), height: inner.height }, left, right);
  const yTicks = (spec.y.ticks || ticks)(low, high, Math.max(2, Math.floor(inner.height / 36)));
  const showTick = spec.y.tick || (spec.y.show === showNumber ? alike(yTicks) : spec.y.show);
  for (const tick of yTicks) {
    const line = s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: py(tick), y2: py(tick) });
    line.style.stroke = "var(--grid)";
    svg.append(line, s("text", { x: MARGIN.left - 7, y: py(tick) + 4, "text-anchor": "end", text: showTick(tick) }));
  }
  const xTicks = (spec.x.ticks || ticks)(left, right, Math.max(2, Math.floor(inner.width / (6.5 * spec.x.show(right).length + 26)))).filter((tick) => !spec.x.whole || Number.isInteger(tick));
  for (const tick of xTicks) {
    const text = spec.x.show(tick);
    // The last one ends where the page does.
    const x = Math.min(px(tick), width - 3.2 * text.length);
    svg.append(s("text", { x, y: height - 7, "text-anchor": "middle", text }));
  }
  drawAreas(svg, spec, px, py);
  for (const line of spec.lines || []) drawLine(svg, line, py, width);
  for (const mark of spec.marks || []) {
    const rule = s("line", { x1: px(mark.x), x2: px(mark.x), y1: topOf(spec), y2: topOf(spec) + inner.height, "stroke-width": 1.4, "stroke-dasharray": DASHES[2] });
    rule.style.stroke = `var(--${mark.colour})`;
    svg.append(rule);
  }
  for (const one of spec.series) drawSeries(svg, one, px, py);
  const cursor = s("g", {});
  svg.append(cursor);
  plot.replaceChildren(svg);
  state.svg = svg;
  state.cursor = cursor;
  state.size = { width, height };
  drawCursor(state);
}

function drawBand(svg, band, px, { top, height }, left, right) {
  const [from, to] = [Math.max(left, band.from), Math.min(right, band.to)];
  if (!(to > from)) return;
  const box = s("rect", { x: px(from), y: top, width: Math.max(1, px(to) - px(from)), height });
  box.style.fill = "var(--grid)";
  if (band.shaded) svg.append(box);
  if (band.parted && from > left) {
    const rule = s("line", { x1: px(from), x2: px(from), y1: top, y2: top + height });
    rule.style.stroke = "var(--line)";
    svg.append(rule);
  }
  if (band.name && px(to) - px(from) > 7 * band.name.length) {
    svg.append(s("text", { x: (px(from) + px(to)) / 2, y: top - 8, "text-anchor": "middle", text: band.name }));
  }
}

function drawAreas(svg, spec, px, py) {
  if (!spec.areas || !spec.areas.length) return;
  const base = spec.areaX.map(() => 0);
  for (const area of spec.areas) {
    const top = base.map((bottom, index) => bottom + area.y[index]);
    const path = [];
    const corner = (index, y) => `${px(spec.areaX[index]).toFixed(1)},${py(y).toFixed(1)}`;
    for (let index = 0; index < top.length; index += 1) {
      if (spec.stepped && index > 0) path.push(`${px(spec.areaX[index]).toFixed(1)},${py(top[index - 1]).toFixed(1)}`);
      path.push(corner(index, top[index]));
    }
    for (let index = top.length - 1; index >= 0; index -= 1) {
      path.push(corner(index, base[index]));
      if (spec.stepped && index > 0) path.push(`${px(spec.areaX[index]).toFixed(1)},${py(base[index - 1]).toFixed(1)}`);
    }
    const shape = s("path", { d: `M${path.join("L")}Z`, class: "area" });
    shape.style.fill = `var(--${area.colour})`;
    shape.style.fillOpacity = spec.areaOpacity || 0.85;
    svg.append(shape);
    top.forEach((y, index) => { base[index] = y; });
  }
}

function drawLine(svg, line, py, width) {
  const mark = s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: py(line.y), y2: py(line.y), "stroke-width": 1.4, "stroke-dasharray": DASHES[1] });
  mark.style.stroke = `var(--${line.colour})`;
  svg.append(mark);
}

function drawSeries(svg, one, px, py) {
  const { x, y } = one.points;
  const parts = [];
  let pen = false;
  let lone = [];
  for (let index = 0; index < x.length; index += 1) {
    if (!isNumber(y[index])) {
      pen = false;
      continue;
    }
    const next = isNumber(y[index + 1]);
    if (!pen && !next) lone.push(index);
    parts.push(`${pen ? "L" : "M"}${px(x[index]).toFixed(1)},${py(y[index]).toFixed(1)}`);
    pen = true;
  }
  const path = s("path", { d: parts.join(""), fill: "none", class: "curve", "stroke-linejoin": "round", "stroke-linecap": "round",
    "stroke-width": one.faint ? 1 : 1.9, "stroke-dasharray": DASHES[(one.dash || 0) % DASHES.length] });
  path.style.stroke = `var(--${one.colour})`;
  if (one.faint) path.style.strokeOpacity = 0.32;
  svg.append(path);
  // Few points are shown as such: an evaluation is a point, not a line.
  if (!one.faint && x.length <= 40) lone = x.map((_, index) => index).filter((index) => isNumber(y[index]));
  for (const index of lone) {
    const dot = s("circle", { cx: px(x[index]), cy: py(y[index]), r: 2.6 });
    dot.style.fill = `var(--${one.colour})`;
    svg.append(dot);
  }
}

/** The place of the point that is nearest to x. */
function nearest(xs, x) {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
}

function allX(spec) {
  let longest = spec.areaX || [];
  for (const one of spec.series) if (one.points.x.length > longest.length) longest = one.points.x;
  return longest;
}

function moveTo(state, x) {
  const { spec } = state;
  const xs = allX(spec);
  if (x === null || !xs.length) {
    state.at = null;
    state.readout.textContent = idleWords(spec);
    state.readout.classList.add("idle");
    drawCursor(state);
    return;
  }
  state.at = xs[nearest(xs, x)];
  const parts = [spec.x.name(state.at)];
  for (const one of spec.series) {
    if (one.faint || !one.points.x.length) continue;
    const y = one.points.y[nearest(one.points.x, state.at)];
    const own = one.raw ? one.raw.y[nearest(one.raw.x, state.at)] : y;
    const mean = one.raw ? ` (mean ${spec.y.show(y)})` : "";
    parts.push(`${one.name} ${isNumber(own) ? spec.y.show(own) : "not a number"}${mean}`);
  }
  for (const area of spec.areas || []) {
    const y = area.y[nearest(spec.areaX, state.at)];
    if (y > 0) parts.push(`${area.name} ${spec.y.show(y)}`);
  }
  for (const line of spec.lines || []) parts.push(`${line.name} ${spec.y.show(line.y)}`);
  state.readout.textContent = parts.join("  ·  ");
  state.readout.classList.remove("idle");
  drawCursor(state);
}

function drawCursor(state) {
  if (!state.cursor) return;
  state.cursor.replaceChildren();
  if (state.at === null) return;
  const { px, py } = state.scale;
  const x = px(state.at);
  const rule = s("line", { x1: x, x2: x, y1: topOf(state.spec), y2: state.size.height - MARGIN.bottom });
  rule.style.stroke = "var(--soft)";
  state.cursor.append(rule);
  for (const one of state.spec.series) {
    if (one.faint || !one.points.x.length) continue;
    const index = nearest(one.points.x, state.at);
    if (!isNumber(one.points.y[index])) continue;
    const dot = s("circle", { cx: px(one.points.x[index]), cy: py(one.points.y[index]), r: 4, "stroke-width": 2 });
    dot.style.fill = `var(--${one.colour})`;
    dot.style.stroke = "var(--card)";
    state.cursor.append(dot);
  }
}

function chartKey(state, event) {
  const xs = allX(state.spec);
  if (!xs.length) return;
  const now = state.at === null ? xs.length - 1 : nearest(xs, state.at);
  const page = Math.max(1, Math.round(xs.length / 20));
  const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageDown: now + page, PageUp: now - page, Home: 0, End: xs.length - 1 }[event.key];
  if (event.key === "Escape") return moveTo(state, null);
  if (to === undefined) return;
  event.preventDefault();
  moveTo(state, xs[Math.min(xs.length - 1, Math.max(0, to))]);
}

/** Up to forty rows of a chart, evenly spread. */
function chartTable(spec) {
  const xs = allX(spec);
  const count = Math.min(40, xs.length);
  const rows = [];
  for (let row = 0; row < count; row += 1) {
    const x = xs[count === 1 ? 0 : Math.round((row * (xs.length - 1)) / (count - 1))];
    const cells = [spec.x.show(x)];
    for (const one of spec.series) if (!one.faint) cells.push(one.points.x.length ? spec.y.show(one.points.y[nearest(one.points.x, x)]) : "none");
    for (const area of spec.areas || []) cells.push(spec.y.show(area.y[nearest(spec.areaX, x)]));
    rows.push(cells);
  }
  const head = [spec.x.label, ...spec.series.filter((one) => !one.faint).map((one) => one.name), ...(spec.areas || []).map((one) => one.name)];
  return table(xs.length > count ? `${count} of ${xs.length} points, evenly spread` : null, head, rows);
}
