// What the page says of its runs, section by section.

const CATEGORIES = ["weights", "optimizer", "gradients", "features", "inputs", "activations", "workspace"];
const chosenOf = (run) => (run.plan && run.plan.chosen) || {};
const runColour = (index) => `run${index % 6}`;

/** Numbers of a run, from its summary or, where it has none, from its lines. */
function facts(run) {
  const summary = run.summary || {};
  const totals = run.totals;
  const peak = isNumber(summary.process_bytes) ? summary.process_bytes : highest(run.memory.process_bytes);
  return {
    finished: Boolean(run.summary),
    steps: run.last_step || 0,
    speed: isNumber(summary.samples_per_s) ? summary.samples_per_s : totals.seconds > 0 ? totals.samples / totals.seconds : null,
    waited: isNumber(summary.waited_for_data) ? summary.waited_for_data : totals.seconds > 0 ? totals.waited / totals.seconds : null,
    seconds: isNumber(summary.seconds) ? summary.seconds : totals.seconds > 0 ? totals.seconds : null,
    peak, best: run.best,
    planned: isNumber(summary.planned_bytes) ? summary.planned_bytes : chosenOf(run).process_bytes,
    budget: (run.plan && run.plan.budget_bytes) || summary.budget_bytes || null,
    precision: summary.precision || chosenOf(run).precision,
    device: summary.device || (run.plan && run.plan.device),
    advice: summary.reading && summary.reading.advice,
  };
}

function highest(curve) {
  const ys = ((curve && curve.y) || []).filter(isNumber);
  return ys.length ? ys.reduce((a, b) => Math.max(a, b)) : null;
}

const showMetric = (value, isShare) => (isShare ? showShare(value) : showNumber(value));
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// The verdict.

function verdictBox(runs) {
  return h("div", {}, runs.map((run) => oneVerdict(run, runs.length > 1)));
}

function oneVerdict(run, named) {
  const fact = facts(run);
  const words = { healthy: ["good", "✓", "Healthy memory"], warning: ["warn", "!", "Warning"], problem: ["bad", "✕", "Problem"] };
  const verdict = run.analysis && words[run.analysis.verdict];
  const over = isNumber(fact.peak) && isNumber(fact.planned) && fact.peak > fact.planned;
  let [kind, mark, title] = verdict || (over ? words.warning : ["good", "✓", "Done"]);
  if (!fact.finished) {
    if (kind === "good") kind = "plain";
    mark = kind === "plain" ? "…" : mark;
    title = fact.steps ? `Not finished: ${title === "Done" ? "" : title.toLowerCase() + ", "}stopped or still training after step ${showStep(fact.steps)}` : "No step yet";
  }
  const said = run.failure ? run.failure.error.split("\n") : [];
  if (run.failure) {
    [kind, mark] = words.problem;
    title = run.failure.kind === "diverged" ? capital(said.shift()) : `Failed after step ${showStep(fact.steps)}`;
  }
  const findings = (run.analysis && run.analysis.findings) || [];
  return h("section", { class: `verdict ${kind}`, "aria-label": "Verdict" },
    h("div", { class: "mark", "aria-hidden": "true", text: mark }),
    h("div", { class: "said" },
      h("strong", { text: named ? `${run.name}: ${title}` : title }),
      said.map((text) => h("p", { text })),
      h("p", { text: inWords(run, fact, over) }),
      findings.length ? h("ul", {}, findings.map((one) => h("li", {}, findingInWords(one), one.advice ? h("div", { class: "soft", text: `What to do: ${one.advice}` }) : null))) : null));
}

function findingInWords(one) {
  const where = isNumber(one.step) ? ` (step ${showStep(one.step)})` : "";
  const device = one.device ? `${one.device}: ` : "";
  return `${device}${one.message}${where}`;
}

function inWords(run, fact, over) {
  const said = [];
  if (!fact.steps) said.push("Curves follow once it trains; `holdall train` writes this report when it ends.");
  if (fact.steps) said.push(`${counted(fact.steps, "step")}${fact.seconds ? ` in ${showSeconds(fact.seconds)}` : ""}${fact.speed ? `, ${showNumber(fact.speed)} samples/s` : ""}.`);
  if (isNumber(fact.peak) && isNumber(fact.planned)) {
    const within = fact.budget ? ` and the budget of ${showBytes(fact.budget)}` : "";
    said.push(over ? `Memory peaked at ${showBytes(fact.peak)}, above the plan's ${showBytes(fact.planned)}.`
      : `Memory peaked at ${showBytes(fact.peak)}, within the plan's ${showBytes(fact.planned)}${within}.`);
  } else if (isNumber(fact.planned)) said.push(`The plan has ${showBytes(fact.planned)}${fact.budget ? ` of ${showBytes(fact.budget)}` : ""}.`);
  if (fact.best) said.push(`Best ${fact.best.name}: ${showMetric(fact.best.value, fact.best.is_share)}, after step ${showStep(fact.best.step)}.`);
  if (fact.advice) said.push(fact.advice.endsWith(".") ? fact.advice : `${fact.advice}.`);
  else if (isNumber(fact.waited)) said.push(`It waited for data ${showShare(fact.waited)} of the time.`);
  if (run.skipped) said.push(`${showStep(run.skipped)} pictures could not be read; skipped.csv names them.`);
  return said.join(" ");
}

// Headline numbers.

function tile(what, value, unit, more, extra) {
  return h("div", { class: "tile" }, h("div", { class: "what", text: what }),
    h("div", { class: "value" }, value, unit ? h("small", { text: ` ${unit}` }) : null), extra || null, more ? h("div", { class: "more", text: more }) : null);
}

function tiles(run) {
  const fact = facts(run);
  const loss = run.steps.loss;
  const last = run.steps.loss_smooth || loss;
  const made = [];
  if (isNumber(fact.speed)) made.push(tile("Throughput", showNumber(fact.speed), "samples/s", stepTime(run)));
  if (!isNumber(fact.peak) && isNumber(fact.planned)) made.push(tile("Planned memory", showBytes(fact.planned), "", fact.budget ? `budget ${showBytes(fact.budget)}` : null, gauge(fact)));
  if (isNumber(fact.peak)) {
    made.push(tile("Peak memory", showBytes(fact.peak), "",
      `plan ${showBytes(fact.planned)}${fact.budget ? `, budget ${showBytes(fact.budget)}` : ""}`, gauge(fact)));
  }
  if (fact.best) made.push(tile(`Best ${fact.best.name}`, showMetric(fact.best.value, fact.best.is_share), "", `after step ${showStep(fact.best.step)}${chance(fact.best)}`));
  if (loss) made.push(tile("Loss", showNumber(last.y[last.y.length - 1]), "", `${run.steps.loss_smooth ? "running mean" : "of the last step"}; from ${showNumber(loss.y.find(isNumber))}`));
  if (isNumber(fact.seconds)) made.push(tile("Time", showSeconds(fact.seconds), "", `${counted(run.last_epoch || 0, "epoch")}, ${counted(run.num_evaluations, "evaluation")}`));
  if (isNumber(fact.waited)) made.push(tile("Waited for data", showShare(fact.waited), "", "of the training time"));
  return made.length ? h("div", { class: "tiles" }, made) : null;
}

const chance = (best) => (isNumber(best.chance) ? `, by chance ${showMetric(best.chance, best.is_share)}` : "");

function stepTime(run) {
  const chosen = chosenOf(run);
  const measured = run.totals.seconds > 0 && run.num_steps ? run.totals.seconds / run.num_steps : null;
  if (!measured) return null;
  return isNumber(chosen.step_ms) ? `${showSeconds(measured)} a step, ${chosen.measured ? "timed" : "planned"} ${showSeconds(chosen.step_ms / 1000)}` : `${showSeconds(measured)} a step`;
}

/** Peak as a bar, plan and budget as marks. */
function gauge(fact) {
  const most = Math.max(fact.budget || 0, fact.planned || 0, fact.peak || 0);
  if (!most) return null;
  const at = (bytes) => (100 * bytes) / most;
  const svg = s("svg", { class: "gauge", viewBox: "0 0 100 14", preserveAspectRatio: "none", "aria-hidden": "true" });
  const rail = s("rect", { x: 0, y: 4, width: 100, height: 6, rx: 1 });
  rail.style.fill = "var(--grid)";
  const bar = s("rect", { x: 0, y: 4, width: at(fact.peak || 0), height: 6, rx: 1 });
  bar.style.fill = fact.peak > (fact.budget || fact.planned || Infinity) ? "var(--bad)" : "var(--accent)";
  svg.append(rail, bar);
  if (fact.planned) {
    const mark = s("line", { x1: at(fact.planned), x2: at(fact.planned), y1: 0, y2: 14, "stroke-width": 2, "vector-effect": "non-scaling-stroke" });
    mark.style.stroke = "var(--ink)";
    svg.append(mark);
  }
  return svg;
}

function comparison(runs) {
  const rows = runs.map((run, index) => {
    const fact = facts(run);
    const name = h("td", { class: "text" }, h("span", { class: "chip" }, swatch(runColour(index)), run.name));
    const cells = [fact.finished ? "done" : "not finished", showStep(fact.steps), isNumber(fact.speed) ? showNumber(fact.speed) : "", showBytes(fact.peak), showBytes(fact.planned),
      fact.best ? `${fact.best.name} ${showMetric(fact.best.value, fact.best.is_share)}` : "", showSeconds(fact.seconds), showShare(fact.waited),
      `${chosenOf(run).batch_size || "?"} × ${chosenOf(run).gradient_accumulation || "?"}`, fact.precision || ""];
    return h("tr", {}, name, cells.map((text) => h("td", { text })));
  });
  const head = ["run", "", "steps", "samples/s", "peak", "plan", "best", "time", "waited", "batch", "precision"];
  return h("div", { class: "card scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col", text })))), h("tbody", {}, rows)));
}

// Curves.

/** How x is read: steps, or training time up to them. */
function axis(view) {
  if (view.x === "time") return { label: "training time", show: showClock, ticks: clockTicks, name: (x) => `after ${showSeconds(x)}` };
  return { label: "step", whole: true, show: showStep, name: (x) => `step ${showStep(x)}` };
}

/** A curve over the chosen x. */
function over(view, run, curve) {
  if (view.x !== "time" || !run.steps.elapsed) return curve;
  const { x, y } = run.steps.elapsed;
  const at = (step) => {
    const after = x.findIndex((one) => one >= step);
    if (after < 0) return y[y.length - 1];
    if (after === 0 || x[after] === step) return y[after];
    const share = (step - x[after - 1]) / (x[after] - x[after - 1]);
    return y[after - 1] + share * (y[after] - y[after - 1]);
  };
  if (curve.x.length === x.length) return { x: y, y: curve.y };
  return { x: curve.x.map(at), y: curve.y };
}

/** A chart of numbers of steps: one colour per run or, with one run, per number. */
function stepChart(view, title, wanted, y, more) {
  const series = [];
  const several = view.runs.length > 1;
  view.runs.forEach((run, index) => {
    if (view.hidden.has(index)) return;
    wanted.forEach(([key, name], number) => {
      const curve = run.steps[key];
      if (!curve || !curve.x.length) return;
      const colourName = several ? runColour(index) : runColour(number);
      const smooth = run.steps[`${key}_smooth`];
      const label = several ? (wanted.length > 1 ? `${run.name}, ${name}` : run.name) : name;
      if (smooth) series.push({ name: label, colour: colourName, faint: true, points: over(view, run, curve) });
      series.push({ name: label, colour: colourName, dash: several ? number : 0, points: over(view, run, smooth || curve), raw: smooth ? over(view, run, curve) : null });
    });
  });
  if (!series.length) return null;
  const smoothed = series.some((one) => one.faint);
  return chart({ title, series, x: axis(view), y, unit: smoothed ? "thick: running mean" : null, ...more });
}

function chanceLine(view, key, name) {
  const levels = new Map();
  for (const run of view.runs) {
    const curve = run.steps[key];
    // Most steps have a whole batch: their chance is the one to compare with.
    if (curve && isNumber(highest(curve))) levels.set(showNumber(highest(curve)), highest(curve));
  }
  return [...levels].map(([shown, y]) => ({ name: levels.size > 1 ? `${name} ${shown}` : name, y, colour: "soft" }));
}

/** What all runs have, in the order in which they have it. */
const namesOf = (view, key) => [...new Set(view.runs.flatMap((run) => run[key]))];

function learning(view) {
  const number = { show: showNumber };
  const losses = namesOf(view, "losses");
  const isOne = losses.length === 1 && view.runs.every((run) => run.is_one_loss || !run.num_steps);
  const guessing = (name) => ({ lines: chanceLine(view, `chance:${name}`, "guessing") });
  const charts = [stepChart(view, "Loss", [["loss", "loss"]], number, isOne ? guessing(losses[0]) : {})];
  if (!isOne) for (const name of losses) charts.push(stepChart(view, `${capital(spaced(name))} loss`, [[`loss:${name}`, spaced(name)]], number, guessing(name)));
  charts.push(...metricCharts(view));
  return section("learning", "Learning", "Losses of every step, and what evaluations found.", charts);
}

const spaced = (key) => (key === "bce" ? "BCE" : key.replaceAll("_", " "));

/** A chart for each group of metrics: shares of a whole in one, numbers in units of their own in another. */
function metricCharts(view) {
  const shown = view.runs.flatMap((run, index) => (view.hidden.has(index) ? [] : run.metrics.map((metric) => ({ run, index, metric }))));
  const panels = new Map();
  for (const one of shown) {
    const { group, is_share: isShare, name } = one.metric;
    const key = JSON.stringify([group, isShare, group || isShare ? "" : name]);
    panels.set(key, [...(panels.get(key) || []), one]);
  }
  return [...panels.values()].map((panel) => metricChart(view, panel));
}

function metricChart(view, panel) {
  const several = view.runs.length > 1;
  const names = [...new Set(panel.map(({ metric }) => metric.name))];
  const parts = [...new Set(panel.map(({ metric }) => metric.on))];
  const [{ metric: { group, is_share: isShare } }] = panel;
  const title = !group ? (names.length > 1 ? "Metrics" : names[0]) : isShare ? group : `${group}: ${names.join(", ")}`;
  const series = panel.map(({ run, index, metric }) => {
    const number = names.indexOf(metric.name);
    const labels = [several ? run.name : null, names.length > 1 || !several ? metric.name : null, parts.length > 1 ? metric.on : null].filter(Boolean);
    const dash = several ? number : metric.on === "train" && parts.length > 1 ? 2 : Math.floor(number / 6);
    return { name: labels.join(", "), colour: runColour(several ? index : number), dash, points: over(view, run, metric) };
  });
  const levels = new Map(panel.filter(({ metric }) => isNumber(metric.chance)).map(({ metric }) => [`${metric.name} ${metric.chance}`, metric]));
  const lines = [...levels.values()].map((metric) => ({ name: levels.size > 1 ? `guessing ${metric.name}` : "guessing", y: metric.chance, colour: "soft" }));
  const best = new Map(panel.filter(({ run }) => run.best).map(({ run, index }) => [index, run]));
  const marks = [...best].map(([index, run]) => ({ name: several ? `best of ${run.name}` : "best", x: over(view, run, { x: [run.best.step], y: [0] }).x[0], colour: several ? runColour(index) : "good" }));
  const y = isShare ? { show: showShare, tick: (value) => `${Math.round(100 * value)}%`, zero: true, most: 1 } : { show: showNumber, zero: true };
  const unit = parts.length > 1 ? null : parts[0] === "train" ? "training pictures" : "held out";
  return chart({ title: capital(title), series, x: axis(view), y, lines, marks, unit });
}

function pace(view) {
  const scaled = view.runs.some((run) => run.steps.loss_scale && run.steps.loss_scale.y.some((scale) => scale !== 1));
  const share = { show: showShare, zero: true };
  const charts = [
    stepChart(view, "Throughput", [["samples_per_s", "samples/s"]], { show: showNumber, zero: true }),
    stepChart(view, "Waited for data", [["waited", "share of a step"]], { ...share, most: 0.05 }),
    stepChart(view, "Learning rate", namesOf(view, "rates").map((key) => [`rate:${key}`, spaced(key)]), { show: showNumber, zero: true }),
    stepChart(view, "Gradient norm, before clipping", [["gradient_norm", "norm"]], { show: showNumber, zero: true }),
  ];
  if (scaled) charts.push(stepChart(view, "Loss scale", [["loss_scale", "scale"]], { show: showNumber, zero: true }));
  const words = scaled ? "" : " Losses are not scaled in this number format.";
  return section("pace", "Pace", `How fast it went, and at which rates.${words}`, charts);
}

// Memory.

function memory(view) {
  const run = view.runs[view.detail];
  const plan = readTensors(run.tensors);
  const charts = [memoryOverTime(run), memoryInStep(run, plan), plan ? arenaPicture(plan) : null];
  return section("memory", "Memory", "Every tensor has its address before the first step: what is planned is what is allocated, once.", charts);
}

function memoryOverTime(run) {
  const { process_bytes: process, arena_bytes: arena, used_bytes: used, host_rss_bytes: host } = run.memory;
  const fact = facts(run);
  const main = process || used || host;
  if (!main) return null;
  const lines = [];
  if (isNumber(fact.planned)) lines.push({ name: "plan", y: fact.planned, colour: "ink" });
  if (isNumber(fact.budget)) lines.push({ name: "budget", y: fact.budget, colour: "bad" });
  const series = [{ name: process ? "the process, measured" : used ? "in use on the device, measured" : "host memory, measured", colour: "ink", points: main }];
  if (used && process && run.plan && run.plan.device !== "cpu") series.push({ name: "all processes on the device", colour: "soft", dash: 2, points: used });
  if (host && process && run.plan && run.plan.device !== "cpu") series.push({ name: "host memory", colour: "run1", dash: 3, points: host });
  const areas = categoriesOver(run, main, arena);
  const bands = [];
  run.phases.forEach(([from, name], index) => {
    const to = index + 1 < run.phases.length ? run.phases[index + 1][0] : main.x[main.x.length - 1];
    bands.push({ from, to, name: name === "train" ? "" : name, shaded: name !== "train" });
  });
  return chart({ title: "Memory over the run", wide: true, height: 260, series, areas: areas.length ? areas : undefined, areaX: areas.length ? main.x : undefined, lines, bands,
    x: { label: "time", show: showClock, ticks: clockTicks, name: (x) => `after ${showSeconds(x)}` }, y: { show: showBytes, tick: showTickBytes, ticks: byteTicks, zero: true },
    unit: `${showStep(run.num_memory_samples)} samples; bands are the arena's categories as planned, and what the process holds beside it`,
    hint: POINT });
}

/** The arena by category from the time it is there, and beside it what else the process holds. */
function categoriesOver(run, main, arena) {
  const breakdown = chosenOf(run).breakdown;
  if (!breakdown) return [];
  const whole = Object.values(breakdown).reduce((sum, bytes) => sum + bytes, 0);
  const at = (index) => {
    if (!arena || !arena.x.length) return main.y[index] >= whole ? whole : 0;
    const y = arena.y[nearest(arena.x, main.x[index])];
    return isNumber(y) ? y : 0;
  };
  const reserved = main.x.map((_, index) => (at(index) > 0 ? whole : 0));
  // Memory that is reserved but was never touched is not resident: bands end where the process does.
  const room = main.x.map((_, index) => (isNumber(main.y[index]) ? main.y[index] : 0));
  const areas = [];
  const beside = room.map((bytes, index) => Math.max(0, bytes - reserved[index]));
  const left = room.map((bytes, index) => bytes - beside[index]);
  for (const name of CATEGORIES) {
    const bytes = breakdown[name] || 0;
    if (bytes < whole / 2000) continue;
    areas.push({ name, colour: name, y: left.map((most, index) => {
      const own = Math.min(most, reserved[index] ? bytes : 0);
      left[index] = most - own;
      return own;
    }) });
  }
  areas.push({ name: "beside the arena", colour: "outside", y: beside });
  return areas;
}

function memoryInStep(run, plan) {
  if (!plan) return breakdownBar(run);
  const by = aliveBy(plan);
  const xs = Array.from({ length: plan.moments }, (_, moment) => moment + 1);
  const areas = CATEGORIES.filter((name) => by.has(name)).map((name) => ({ name, colour: name, y: xs.map((number) => by.get(name)[number - 1]) })).filter((area) => area.y.some((bytes) => bytes > 0));
  const bands = plan.programs.map((one) => ({ from: one.first + 1, to: one.last + 2, name: programName(one), parted: true }));
  return chart({ title: "Bytes alive in one step", wide: true, height: 250, series: [], areas, areaX: xs, stepped: true, bands, lines: [{ name: "arena", y: plan.arena, colour: "ink" }],
    x: { label: "operation", whole: true, show: showStep, name: (x) => `operation ${showStep(x)}: ${plan.operation(x - 1)}, ${programAt(plan, x - 1).name}` },
    y: { show: showBytes, tick: showTickBytes, ticks: byteTicks, zero: true }, unit: "by operation, in the order in which they run; programs that run several times are shown once",
    hint: POINT });
}

/** Without lifetimes: what the plan says of the arena. */
function breakdownBar(run) {
  const breakdown = chosenOf(run).breakdown;
  if (!breakdown) return null;
  const whole = Object.values(breakdown).reduce((sum, bytes) => sum + bytes, 0);
  return h("figure", { class: "wide" }, h("figcaption", {}, h("h3", { text: "The arena by category" }), h("span", { class: "hint", text: showBytes(whole) })),
    table(null, ["category", "bytes", "share"], CATEGORIES.map((name) => [name, showBytes(breakdown[name] || 0), showShare((breakdown[name] || 0) / whole)])));
}

// Operations.

function operations(view) {
  const run = view.runs[view.detail];
  const file = run.operations;
  if (!file || !Array.isArray(file.operations) || !file.operations.length) return null;
  const measured = isNumber(file.step);
  const time = (one) => (isNumber(one.measured_ms) ? one.measured_ms : one.predicted_ms);
  const total = file.kinds.reduce((sum, one) => sum + time(one), 0);
  const bar = (value, most) => {
    const mark = h("span", { class: "bar" });
    mark.style.width = `${(100 * value) / most}%`;
    return h("td", { class: "barcell" }, mark);
  };
  const head = (names) => h("thead", {}, h("tr", {}, names.map((text) => h("th", { scope: "col", text, class: text === "writes" || text === "where" ? "text" : null }))));
  const own = (one) => (isNumber(one.measured_ms) || !measured ? "" : " (predicted)");
  const kinds = h("table", { "aria-label": "By kind" }, head(["operation", "", "runs", "time", "share"]),
    h("tbody", {}, file.kinds.slice(0, 14).map((one) => h("tr", {}, h("td", { text: one.operation + own(one) }), bar(time(one), time(file.kinds[0])),
      h("td", { text: showStep(one.runs) }), h("td", { text: showSeconds(time(one) / 1000) }), h("td", { text: showShare(time(one) / total) })))));
  const slowest = h("table", { "aria-label": "One by one" }, head(["operation", "writes", "where", "runs", "time", "share"]),
    h("tbody", {}, file.operations.slice(0, 18).map((one) => h("tr", {}, h("td", { text: one.operation + own(one) }), h("td", { class: "text", text: one.writes || "" }),
      h("td", { class: "text", text: [one.block, one.program].filter(Boolean).join(", ") }), h("td", { text: showStep(one.runs) }),
      h("td", { text: showSeconds(time(one) / 1000) }), h("td", { text: showShare(time(one) / total) })))));
  const words = measured ? `Timed one by one in step ${showStep(file.step)}, all runs within a step together: ${showSeconds(total / 1000)}. What was not timed is predicted.`
    : `PREDICTED from the graph's costs and the device's rates, not measured; all runs within a step together: ${showSeconds(total / 1000)}.`;
  return section("operations", "Slowest operations", words, [h("div", { class: "wide two" }, h("div", { class: "card scroll" }, tableTitle("By kind"), kinds), h("div", { class: "card scroll" }, tableTitle("One by one"), slowest))]);
}

// The plan's choices and the configuration.

function configuration(view) {
  const parts = [];
  const run = view.runs[view.detail];
  if (view.runs.length > 1) parts.push(differences(view.runs));
  if (run.plan) parts.push(planCurve(run.plan), candidates(run.plan));
  view.runs.forEach((one, index) => {
    if (one.config) parts.push(h("details", { class: "wide card", open: view.runs.length === 1 }, h("summary", { text: view.runs.length > 1 ? `config.yml of ${one.name}` : "config.yml" }), h("pre", { tabindex: "0", "aria-label": `config.yml of ${one.name}`, text: one.config })));
  });
  const notes = view.runs.flatMap((one) => one.notes.map((note) => `${one.name}: ${note}`));
  if (notes.length) parts.push(h("div", { class: "wide card" }, h("h3", { text: "What could not be read" }), h("ul", {}, notes.map((text) => h("li", { text })))));
  return parts.length ? section("configuration", "Configuration", "What was asked, what the planner chose, and what else there was.", parts) : null;
}

/** Keys of the configs that are not the same everywhere. */
function differences(runs) {
  const flat = runs.map((run) => flatten(run.config || ""));
  const all = [...new Set(flat.flatMap((one) => [...one.keys()]))].filter((key) => key !== "out");
  const rows = all.filter((key) => new Set(flat.map((one) => one.get(key))).size > 1).map((key) => [key, ...flat.map((one) => one.get(key) ?? "")]);
  return h("div", { class: "wide card" }, h("h3", { text: "Where the configs differ" }),
    rows.length ? table(null, ["key", ...runs.map((run) => run.name)], rows) : h("p", { class: "soft", text: "Nowhere but in their folders." }));
}

/** `a: {b: 1}` over lines and indents -> `a.b` and `1`: as configs are written, not YAML as such. */
function flatten(text) {
  const found = new Map();
  const path = [];
  for (const line of text.split("\n")) {
    const match = /^( *)([^\s#:-][^:]*):(?: (.*))?$/.exec(line);
    if (!match) {
      const item = /^ *- (.*)$/.exec(line);
      const key = path.map(([, name]) => name).join(".");
      if (item && key) found.set(key, found.get(key) ? `${found.get(key)}, ${item[1]}` : item[1]);
      continue;
    }
    while (path.length && path[path.length - 1][0] >= match[1].length) path.pop();
    path.push([match[1].length, match[2]]);
    if (match[3]) found.set(path.map(([, name]) => name).join("."), match[3]);
  }
  return found;
}

function candidates(plan) {
  const all = [plan.chosen, ...(plan.alternatives || [])].filter(Boolean);
  const rows = all.map((one, index) => h("tr", { class: index === 0 ? "chosen" : null }, [`${one.batch_size} × ${one.gradient_accumulation}`, one.recompute, String(one.kept_micro_batches ?? ""), one.precision,
    showBytes(one.arena_bytes), showBytes(one.process_bytes), isNumber(one.step_ms) ? showSeconds(one.step_ms / 1000) : "", index === 0 ? "chosen" : plan.budget_bytes && one.process_bytes > plan.budget_bytes ? "does not fit" : "fits"].map((text) => h("td", { text }))));
  const head = ["batch", "recompute", "kept", "precision", "arena", "process", "a step", ""];
  const title = `The plan, within ${plan.budget_bytes ? showBytes(plan.budget_bytes) : "no budget"}, for an effective batch of ${showStep(plan.effective_batch || 0)}`;
  return h("div", { class: "wide card scroll" }, tableTitle(title), h("table", { "aria-label": title },
    h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col", text })))), h("tbody", {}, rows)));
}

function section(id, title, lead, parts) {
  const there = parts.filter(Boolean);
  if (!there.length) return null;
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title`, text: title }), lead ? h("p", { class: "lead", text: lead }) : null, h("div", { class: "charts" }, there));
}
