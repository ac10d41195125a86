import { lines } from "sinkgate/lib/charts.js";
import { h, bdi, table, tokenColumn } from "sinkgate/lib/dom.js";
import { DASH, clean, fmt, percent, tick, plural } from "sinkgate/lib/text.js";
import { span } from "sinkgate/model/map.js";

export function drawSinks(el, payload) {
  const rates = payload.rates ?? [], plots = h("div", { class: "plots" }), left = h("div", {});
  left.append(table({ caption: "Sinks found", name: "sinks", rows: payload.sinks ?? [], empty: "No position passed the threshold.", columns: [
    { head: "position", get: (r) => r.position, num: true }, tokenColumn, { head: "kind", get: (r) => r.kind }, { head: "mass", get: (r) => r.mass, num: true },
    { head: "heads", get: (r) => r.heads, num: true }, { head: "samples", get: (r) => r.samples, num: true }, { head: "write ratio", get: (r) => r.write, num: true }] }));
  plots.append(left);
  if (rates.length) {
    const spec = { x: rates.map((r) => r.eps), xlabel: "threshold ε", ylabel: "share of heads", ylo: 0, yhi: 1, yfmt: percent, ytick: (v) => `${Math.round(100 * v)}%`,
      series: [{ name: "mean over samples, then ε", cls: "c-sink", y: rates.map((r) => r.mean) }, { name: "ε per sample, then mean", cls: "c-content", y: rates.map((r) => r.sample) }] };
    const all = table({ caption: "Sink rate", name: "sink-rate-table", rows: rates, columns: [{ head: "ε", get: (r) => r.eps, show: (r) => tick(r.eps), rowhead: true, num: true }, { head: "mean, then ε", get: (r) => r.mean, show: (r) => percent(r.mean), num: true }, { head: "ε, then mean", get: (r) => r.sample, show: (r) => percent(r.sample), num: true }] });
    left.append(rates.length > 8 ? h("details", { class: "more" }, h("summary", {}, `Sink rate at ${fmt(rates.length)} thresholds`), all) : all);
    plots.append(lines("Sink rate by threshold", "sink-rate", payload.model.name, spec, `The report’s own threshold is ${tick(payload.settings.threshold)}. Both readings of the published definition are shown.`));
  }
  el.replaceChildren(plots);
}

export function drawResidual(el, payload) {
  const r = payload.residual, name = payload.model.name;
  if (!r?.layer?.length) { el.replaceChildren(h("p", { class: "empty" }, "The residual stream was not measured.")); return; }
  const axis = { x: r.layer, xlabel: "before layer (0: embedding)", xname: "before layer", xint: true, ylog: true };
  el.replaceChildren(
    h("div", { class: "plots three" },
      lines("Norm", "residual-norm", name, { ...axis, ylabel: "‖h‖ (log)", series: [{ name: "first token", cls: "c-sink", y: r.norm_first }, { name: "the rest", cls: "c-content", y: r.norm_rest }] }),
      lines("Largest and median magnitude", "residual-magnitude", name, { ...axis, ylabel: "|h| of one coordinate (log)", series: [{ name: "largest", cls: "c-sink", y: r.max }, { name: "median", cls: "c-null", y: r.median }] }),
      lines("Kurtosis of the coordinates", "residual-kurtosis", name, { ...axis, ylabel: "kurtosis (log)", series: [{ name: "kurtosis", cls: "c-other", y: r.kurtosis }] })),
    table({ caption: "Massive activations", name: "massive-activations", rows: r.massive ?? [], empty: "None stand far enough above their layer’s median.", columns: [
      { head: "layer", get: (x) => x.layer, num: true }, tokenColumn, { head: "position", get: (x) => x.position, num: true }, { head: "dimension", get: (x) => String(x.dimension), num: true }, { head: "value", get: (x) => x.value, num: true },
      { head: "over median", get: (x) => x.ratio, show: (x) => fmt(x.ratio, "×"), num: true }] }));
}

/** Neighbouring layers of which the same is true, as one row. */
export function layerRuns(layers) {
  const same = (a, b) => ["kind", "window", "reason", "write_reason", "learned_sink"].every((key) => a[key] === b[key]);
  const runs = [];
  for (const layer of layers) {
    const last = runs.at(-1);
    if (last && same(last.layer, layer)) last.to = layer.index;
    else runs.push({ layer, from: layer.index, to: layer.index });
  }
  return runs;
}

export function drawLayers(el, payload) {
  const lost = payload.layers.filter((layer) => layer.kind === "unmeasured").length;
  const mute = payload.layers.filter((layer) => layer.kind !== "unmeasured" && layer.write_reason).length;
  el.replaceChildren(
    h("p", { class: "note" }, `${lost ? `${plural(lost, "layer")} of ${payload.layers.length} could not be measured.` : `All ${payload.layers.length} layers were measured.`} ${mute ? `In ${plural(mute, "layer")} what the sink writes could not be.` : ""}`),
    table({ caption: "Layers", name: "layers", rows: layerRuns(payload.layers), columns: [
      { head: "layers", get: (r) => (r.from === r.to ? String(r.from) : `${r.from} to ${r.to}`), rowhead: true },
      { head: "first of them", get: (r) => r.layer.name, show: (r) => h("span", { class: "mono" }, bdi(r.layer.name)) },
      { head: "attention", get: (r) => span(r.layer) }, { head: "learned sink", get: (r) => r.layer.learned_sink },
      { head: "why not measured, or no write ratio", get: (r) => r.layer.reason ?? r.layer.write_reason ?? "", show: (r) => clean(r.layer.reason ?? r.layer.write_reason ?? DASH), wide: true }] }));
}

export function drawSeries(el, payload) {
  const q = payload.series;
  if (!q?.names?.length) return;
  const names = q.names.map((name) => clean(name)), about = payload.model.name;
  const spec = { x: names.map((_, i) => i), xnames: names, xlabel: "", xname: "", ylabel: "share", ylo: 0, yhi: 1, height: 250,
    series: [{ name: "first-token mass", cls: "c-sink", y: q.first_token_mass, lo: q.lo, hi: q.hi }, { name: "null", cls: "c-null", y: q.null }, { name: "sink rate", cls: "c-content", y: q.sink_rate }] };
  el.replaceChildren(lines("First-token mass and sink rate", "series", about, spec, "The band is the interval of the first-token mass."),
    table({ caption: "The series", name: "series-table", rows: names.map((name, i) => i), columns: [
      { head: "name", get: (i) => names[i], show: (i) => bdi(names[i]), rowhead: true }, { head: "first-token mass", get: (i) => q.first_token_mass[i], num: true },
      { head: "low", get: (i) => q.lo[i], num: true }, { head: "high", get: (i) => q.hi[i], num: true }, { head: "null", get: (i) => q.null[i], num: true }, { head: "sink rate", get: (i) => q.sink_rate[i], show: (i) => percent(q.sink_rate[i]), num: true }] }));
}
