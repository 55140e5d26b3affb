// Elements and numbers. What others wrote is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

/** An element; attributes by name, `text` as text, children appended. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  return dress(element, attributes, children);
}

function s(tag, attributes, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** A colour of the page's style, as it is now. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function swatch(name) {
  const mark = h("span", { class: "swatch", "aria-hidden": "true" });
  mark.style.background = `var(--${name})`;
  return mark;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number with as many digits as it is worth. */
function showNumber(value) {
  if (!isNumber(value)) return "none";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  return value.toFixed(3);
}

function showBytes(bytes) {
  if (!isNumber(bytes)) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = bytes;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : unit >= 3 ? 2 : 1;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

function showShare(share) {
  if (!isNumber(share)) return "unknown";
  const percent = 100 * share;
  return `${percent > 0 && percent < 0.1 ? percent.toFixed(2) : percent.toFixed(1)}%`;
}

function showSeconds(seconds) {
  if (!isNumber(seconds)) return "unknown";
  if (seconds < 1) return `${(1000 * seconds).toFixed(seconds < 0.01 ? 2 : 0)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A moment on a clock: 45 s, 1:30, 2:05 h. */
function showClock(seconds) {
  if (seconds < 0.5) return seconds > 0 ? `${seconds.toFixed(2)} s` : "0";
  if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
  const [minutes, rest] = [Math.floor(seconds / 60), Math.round(seconds % 60)];
  if (minutes < 60) return `${minutes}:${String(rest).padStart(2, "0")}`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
}

const CLOCK_UNITS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** Round moments: whole seconds, minutes or hours. */
function clockTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const unit = CLOCK_UNITS.find((one) => one >= rough);
  if (rough < 1 || !unit) return ticks(low, high, count);
  const found = [];
  for (let tick = Math.ceil(low / unit) * unit; tick <= high; tick += unit) found.push(tick);
  return found;
}

const showStep = (step) => Math.round(step).toLocaleString("en-US");

/** Round numbers that cover a range: about `count` of them. */
function ticks(low, high, count) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough) || 10 * power;
  const found = [];
  for (let tick = Math.ceil(low / unit) * unit; tick <= high + unit * 1e-9; tick += unit) found.push(Math.abs(tick) < unit * 1e-9 ? 0 : tick);
  return found;
}

/** Shows ticks with as many digits as the finest of them needs. */
function alike(all) {
  const most = Math.max(...all.map(Math.abs));
  if (most >= 1e6 || most < 1e-3) return (tick) => (tick === 0 ? "0" : tick.toExponential(1).replace(".0e", "e").replace("e+", "e"));
  let digits = 0;
  while (digits < 7 && all.some((tick) => Math.abs(tick * 10 ** digits - Math.round(tick * 10 ** digits)) > 1e-6)) digits += 1;
  return (tick) => (tick === 0 ? "0" : tick.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

const counted = (count, name) => `${showStep(count)} ${name}${count === 1 ? "" : "s"}`;

/** The same for bytes: steps of 1, 2 or 5 times a power of two units. */
function byteTicks(low, high, count) {
  let unit = 1;
  while (high / unit >= 1024) unit *= 1024;
  return ticks(low / unit, high / unit, count).map((tick) => tick * unit);
}

function showTickBytes(bytes) {
  return bytes === 0 ? "0" : showBytes(bytes).replace(/\.0+(?= )/, "").replace(/(\.\d)0(?= )/, "$1");
}

const tableTitle = (text) => h("p", { class: "table-title", "aria-hidden": "true", text });

function table(title, head, rows) {
  return h("div", { class: "scroll" }, title ? tableTitle(title) : null,
    h("table", { "aria-label": title },
      h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col", text: name })))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", { text: cell })))))));
}

/**
 * A table that is sorted by any of its columns: [name, key, show]; the first column is text. Numbers begin with the smallest: the weakest
 * rows come first.
 */
function sortedTable(title, columns, rows, firstKey) {
  const [[, textKey]] = columns;
  const body = h("tbody");
  const heads = columns.map(([name, key], at) => {
    const button = h("button", { type: "button", class: "sort", onclick: () => sortBy(key, heads[at].getAttribute("aria-sort") === "ascending" ? "descending" : "ascending"), text: name });
    return h("th", { scope: "col" }, button);
  });
  const sortBy = (key, order) => {
    const value = (row) => (isNumber(row[key]) ? row[key] : -1);
    const sorted = [...rows].sort((a, b) => (key === textKey ? a[key].localeCompare(b[key], "en", { numeric: true }) : value(a) - value(b)));
    if (order === "descending") sorted.reverse();
    heads.forEach((head, at) => (columns[at][1] === key ? head.setAttribute("aria-sort", order) : head.removeAttribute("aria-sort")));
    body.replaceChildren(...sorted.map((row) => h("tr", {}, columns.map(([, key, show]) => h("td", { class: key === textKey ? "text" : null, text: key === textKey || isNumber(row[key]) ? show(row[key]) : "" })))));
  };
  sortBy(firstKey, "ascending");
  return h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": title }, h("table", { class: "classes" }, h("thead", {}, h("tr", {}, heads)), body));
}

/** A table that is made when it is first opened. */
function lateTable(name, make) {
  const details = h("details", {}, h("summary", { text: name }));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(make());
  });
  return details;
}
