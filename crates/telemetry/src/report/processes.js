// Several processes: which of them the others wait for, and what each holds.

function processes(view) {
  const run = view.runs[view.detail];
  const each = run.processes;
  if (!each || !each.ranks.length) return null;
  const told = (run.summary && run.summary.processes) || {};
  // A summary of a run that was resumed with others says nothing of these.
  const ofRank = (list, rank) => (Array.isArray(list) && list.length === each.count ? list[rank] : null);
  const rows = each.ranks.map((one, rank) => [String(rank), ofRank(told.hosts, rank) || "", one.peak_bytes === null ? "" : showBytes(one.peak_bytes),
    each.num_steps ? showShare(one.slowest_in / each.num_steps) : "", isNumber(ofRank(told.seconds, rank)) ? showSeconds(ofRank(told.seconds, rank)) : ""]);
  const bytes = each.ranks.map((one) => one.peak_bytes).filter(isNumber);
  const most = bytes.length ? ` The one with the most memory held ${showBytes(Math.max(...bytes))}.` : "";
  const often = each.ranks.reduce((best, one, rank) => (one.slowest_in > each.ranks[best].slowest_in ? rank : best), 0);
  const host = ofRank(told.hosts, often);
  const slowest = each.num_steps ? ` Rank ${often}${host ? ` on ${host}` : ""} was the slowest in ${showShare(each.ranks[often].slowest_in / each.num_steps)} of ${showStep(each.num_steps)} steps.` : "";
  return section("processes", "Processes", `${showStep(each.count)} processes share every step, and the slowest decides how long it takes.${slowest}${most}`, [
    h("div", { class: "card scroll" }, table("By rank", ["rank", "machine", "most memory", "slowest in", "busy, last epoch"], rows)),
    stepChart(view, "How much longer the slowest took than the others", [["slowest", "longer"]], { show: showShare, zero: true }),
  ]);
}
