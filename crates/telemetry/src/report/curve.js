// What each budget buys: the planner's fastest plan over memory, which is drawn by factors.

/** Memory against speed; nothing where there is one plan to show. */
function planCurve(plan) {
  const points = (plan.curve || []).filter((one) => one && one.process_bytes > 0 && isNumber(one.step_ms));
  if (points.length < 2) return null;
  const x = points.map((one) => Math.log2(one.process_bytes));
  const y = points.map((one) => one.step_ms / 1000);
  const last = x[x.length - 1];
  const budget = plan.budget_bytes > 0 ? Math.log2(plan.budget_bytes) : null;
  // Up to a budget that is near: beyond the last point memory buys nothing.
  const isNear = isNumber(budget) && budget < last + 1.5;
  if (isNear && budget > last) {
    x.push(budget);
    y.push(y[y.length - 1]);
  }
  const marks = [];
  const chosen = points.find((one) => isSamePlan(one, plan.chosen || {}));
  if (chosen) marks.push({ name: `chosen: ${showSeconds(chosen.step_ms / 1000)} a step in ${showBytes(chosen.process_bytes)}`, x: Math.log2(chosen.process_bytes), colour: "good" });
  if (plan.knee_bytes > 0) marks.push({ name: `knee: ${showBytes(plan.knee_bytes)}`, x: Math.log2(plan.knee_bytes), colour: "warn" });
  if (isNear && budget >= x[0]) marks.push({ name: `budget: ${showBytes(plan.budget_bytes)}`, x: budget, colour: "ink" });
  const name = (at) => {
    const one = points[nearest(points.map((point) => Math.log2(point.process_bytes)), at)];
    return `${showBytes(2 ** at)}: ${one.batch_size} × ${one.gradient_accumulation}, recompute ${one.recompute}, ${one.measured ? "measured" : "predicted"}`;
  };
  return chart({ title: "Memory against speed", unit: "the fastest plan by budget, as planned", wide: true, height: 240, marks, hint: `${curveWords(plan, isNear)} ${POINT}`.trim(),
    series: [{ name: "a step", colour: "run0", points: { x, y } }],
    x: { label: "memory", show: (at) => showTickBytes(2 ** at), ticks: factorTicks, name }, y: { show: showSeconds } });
}

function curveWords(plan, isNear) {
  if (plan.budget_bytes > 0 && !isNear) return `The budget of ${showBytes(plan.budget_bytes)} is more than the fastest plan takes.`;
  return plan.knee_bytes > 0 ? "From the knee on memory buys less and less." : "";
}

const isSamePlan = (one, other) => ["batch_size", "gradient_accumulation", "recompute", "kept_micro_batches", "lanes", "weight_copies", "host_state"].every((key) => one[key] === other[key]);

/** Over a wide range factors of two, over a narrow one round sizes. */
function factorTicks(low, high, count) {
  if (high - low < 3) return byteTicks(2 ** low, 2 ** high, count).filter((bytes) => bytes > 0).map(Math.log2);
  const step = Math.max(1, Math.ceil((high - low) / Math.max(1, count)));
  const found = [];
  for (let tick = Math.ceil(low); tick <= high; tick += step) found.push(tick);
  return found;
}
