// Puts the page together. What a test asks of it is on <html>: data-ready, data-curves, data-boxes, data-errors, data-requests.

const root = document.documentElement;
const faults = [];
window.addEventListener("error", (event) => fault(event.message));
window.addEventListener("unhandledrejection", (event) => fault(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => fault(`${event.violatedDirective}: ${event.blockedURI}`));

function fault(text) {
  faults.push(text);
  root.dataset.errors = faults.join("; ");
}

const data = JSON.parse(document.getElementById("data").textContent);
const view = { runs: data.runs, hidden: new Set(), x: "step", detail: 0 };

function header() {
  const [first] = view.runs;
  const chosen = chosenOf(first);
  const about = [];
  const model = first.config && /^model: *(.+)$/m.exec(first.config);
  if (view.runs.length === 1) {
    if (model) about.push(model[1]);
    const fact = facts(first);
    if (fact.device) about.push(fact.device === "cuda" ? "GPU" : fact.device.toUpperCase());
    if (fact.precision) about.push(fact.precision);
    if (chosen.batch_size) about.push(`effective batch ${first.plan.effective_batch || chosen.batch_size * chosen.gradient_accumulation} (${chosen.batch_size} × ${chosen.gradient_accumulation}${first.processes ? ` × ${first.processes.count} processes` : ""})`);
    if (first.summary && first.summary.weights) about.push(first.summary.weights.replace(/^Weights: /, "weights "));
  } else about.push(`${view.runs.length} runs`);
  const theme = h("button", { type: "button", id: "theme", onclick: () => setTheme(isDark() ? "light" : "dark") });
  document.getElementById("top").append(
    h("div", { class: "names" }, h("p", { class: "brand", text: "Holdall report" }), h("h1", { text: view.runs.map((run) => run.name).join(" · ") }), h("p", { class: "sub", text: about.join(" · ") })),
    theme, h("nav", { "aria-label": "Sections", id: "nav" }));
  nameTheme();
}

function isDark() {
  const asked = root.dataset.theme;
  return asked ? asked === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(name) {
  root.dataset.theme = name;
  nameTheme();
  drawPictures();
}

/** What is drawn in pixels has its colours from the theme. */
function drawPictures() {
  arenas.forEach(drawArena);
  matrices.forEach(drawMatrix);
}

function nameTheme() {
  document.getElementById("theme").textContent = isDark() ? "Light" : "Dark";
  document.getElementById("theme").setAttribute("aria-label", `Show in ${isDark() ? "light" : "dark"} colours`);
}

function controls() {
  const bar = h("div", { class: "controls" });
  const x = h("select", { onchange: () => { view.x = x.value; draw(); } }, h("option", { value: "step", text: "steps" }), h("option", { value: "time", text: "training time" }));
  x.value = view.x;
  bar.append(h("label", {}, "Curves over", x));
  if (view.runs.length > 1) {
    const detail = h("select", { onchange: () => { view.detail = Number(detail.value); draw(); } }, view.runs.map((run, index) => h("option", { value: index, text: run.name })));
    detail.value = String(view.detail);
    bar.append(h("label", {}, "Memory, operations and predictions of", detail));
    bar.append(h("span", { class: "chips" }, view.runs.map((run, index) => h("button", { type: "button", class: "chip", "aria-pressed": String(!view.hidden.has(index)), onclick: () => {
      if (!view.hidden.delete(index)) view.hidden.add(index);
      draw();
    } }, swatch(runColour(index)), run.name))));
  }
  return bar;
}

/** Everything below the header, for what is to be seen now. */
function draw() {
  const focused = document.activeElement && document.activeElement.tagName;
  charts.length = 0;
  arenas.length = 0;
  matrices.length = 0;
  const main = document.getElementById("main");
  const sections = [learning(view), classes(view), segmentation(view), captions(view), predictions(view), pace(view), processes(view), memory(view), operations(view), configuration(view)].filter(Boolean);
  const hasCurves = view.runs.some((run) => run.num_steps > 0);
  const many = view.runs.length > 1;
  const held = main.querySelector(":scope > .controls");
  main.replaceChildren(verdictBox(view.runs), many ? comparison(view.runs) : tiles(view.runs[0]) || "", hasCurves ? controls() : "", ...sections);
  document.getElementById("nav").replaceChildren(...sections.map((one) => h("a", { href: `#${one.id}`, text: one.querySelector("h2").textContent })));
  if (held && focused === "SELECT") main.querySelector(":scope > .controls select").focus();
}

function foot() {
  document.getElementById("foot").append(h("p", { text: `Made by Holdall ${data.version} from the files of the run. This page asks nothing of the network.` }));
}

/** What was drawn, for whoever checks. */
function tell() {
  root.dataset.curves = document.querySelectorAll("path.curve").length;
  root.dataset.areas = document.querySelectorAll("path.area").length;
  root.dataset.points = [...document.querySelectorAll("path.curve")].reduce((sum, path) => sum + path.getAttribute("d").split(/[ML]/).length - 1, 0);
  root.dataset.boxes = arenas.reduce((sum, state) => sum + state.plan.tensors.length, 0);
  root.dataset.painted = arenas.filter(isPainted).length;
  root.dataset.matrices = matrices.filter(isPainted).length;
  root.dataset.pictures = document.querySelectorAll(".samples img, .views img, .clip-frames img").length;
  root.dataset.requests = performance.getEntriesByType("resource").filter((entry) => !entry.name.startsWith("data:")).map((entry) => entry.name).join(" ");
  root.dataset.wide = document.documentElement.scrollWidth > window.innerWidth ? "too wide" : "fits";
  root.dataset.ready = "true";
}

/** Whether a canvas has more than one colour. */
function isPainted(state) {
  const { width, height } = state.canvas;
  if (!width) return false;
  const { data: pixels } = state.canvas.getContext("2d").getImageData(0, 0, width, height);
  const seen = new Set();
  for (let at = 0; at < pixels.length && seen.size < 5; at += 4 * 97) seen.add((pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2]);
  return seen.size >= 5;
}

const asked = location.hash.slice(1);
if (asked === "dark" || asked === "light") root.dataset.theme = asked;
header();
draw();
foot();
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { nameTheme(); drawPictures(); });
// Observers draw in the first frame.
requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(tell, 0)));
