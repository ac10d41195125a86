import { lines } from "sinkgate/lib/charts.js";
import { h, bdi, table, tokenColumn } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { DASH, clean, fmt, percent, tick } from "sinkgate/lib/text.js";
import { span } from "sinkgate/model/map.js";
import { kindName, said } from "sinkgate/model/said.js";

export function drawSinks(el, payload) {
  const rates = payload.rates ?? [], plots = h("div", { class: "plots" }), left = h("div", {});
  left.append(table({ caption: t("Sinks found"), name: "sinks", rows: payload.sinks ?? [], empty: t("No position passed the threshold."), columns: [
    { head: t("position"), get: (r) => r.position, num: true }, tokenColumn(), { head: t("kind"), get: (r) => kindName(r.kind) }, { head: t("mass"), get: (r) => r.mass, num: true },
    { head: t("heads"), get: (r) => r.heads, num: true }, { head: t("samples"), get: (r) => r.samples, num: true }, { head: t("write ratio"), get: (r) => r.write, num: true }] }));
  plots.append(left);
  if (rates.length) {
    const spec = { x: rates.map((r) => r.eps), xlabel: t("threshold ε"), ylabel: t("share of heads"), ylo: 0, yhi: 1, yfmt: percent, ytick: (v) => `${Math.round(100 * v)}%`,
      series: [{ name: t("mean over samples, then ε"), cls: "c-sink", y: rates.map((r) => r.mean) }, { name: t("ε per sample, then mean"), cls: "c-content", y: rates.map((r) => r.sample) }] };
    const all = table({ caption: t("Sink rate"), name: "sink-rate-table", rows: rates, columns: [{ head: "ε", get: (r) => r.eps, show: (r) => tick(r.eps), rowhead: true, num: true }, { head: t("mean, then ε"), get: (r) => r.mean, show: (r) => percent(r.mean), num: true }, { head: t("ε, then mean"), get: (r) => r.sample, show: (r) => percent(r.sample), num: true }] });
    left.append(rates.length > 8 ? h("details", { class: "more" }, h("summary", {}, t("Sink rate at {n} thresholds", { n: fmt(rates.length) })), all) : all);
    plots.append(lines(t("Sink rate by threshold"), "sink-rate", payload.model.name, spec, t("The report’s own threshold is {threshold}. Both readings of the published definition are shown.", { threshold: tick(payload.settings.threshold) })));
  }
  el.replaceChildren(plots);
}

export function drawResidual(el, payload) {
  const r = payload.residual, name = payload.model.name;
  if (!r?.layer?.length) { el.replaceChildren(h("p", { class: "empty" }, t("The residual stream was not measured."))); return; }
  const axis = { x: r.layer, xlabel: t("before layer (0: embedding)"), xname: t("before layer"), xint: true, ylog: true };
  el.replaceChildren(
    h("div", { class: "plots three" },
      lines(t("Norm"), "residual-norm", name, { ...axis, ylabel: t("‖h‖ (log)"), series: [{ name: t("first token"), cls: "c-sink", y: r.norm_first }, { name: t("the rest"), cls: "c-content", y: r.norm_rest }] }),
      lines(t("Largest and median magnitude"), "residual-magnitude", name, { ...axis, ylabel: t("|h| of one coordinate (log)"), series: [{ name: t("largest"), cls: "c-sink", y: r.max }, { name: t("median"), cls: "c-null", y: r.median }] }),
      lines(t("Kurtosis of the coordinates"), "residual-kurtosis", name, { ...axis, ylabel: t("kurtosis (log)"), series: [{ name: t("kurtosis"), cls: "c-other", y: r.kurtosis }] })),
    table({ caption: t("Massive activations"), name: "massive-activations", rows: r.massive ?? [], empty: t("None stand far enough above their layer’s median."), columns: [
      { head: t("layer"), get: (x) => x.layer, num: true }, tokenColumn(), { head: t("position"), get: (x) => x.position, num: true }, { head: t("dimension"), get: (x) => String(x.dimension), num: true }, { head: t("value"), get: (x) => x.value, num: true },
      { head: t("over median"), get: (x) => x.ratio, show: (x) => fmt(x.ratio, "×"), num: true }] }));
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
    h("p", { class: "note" }, lost ? t(lost === 1 ? "1 layer of {all} could not be measured." : "{n} layers of {all} could not be measured.", { n: lost, all: payload.layers.length }) : t("All {all} layers were measured.", { all: payload.layers.length }), " ",
      mute ? t(mute === 1 ? "In 1 layer what the sink writes could not be." : "In {n} layers what the sink writes could not be.", { n: mute }) : ""),
    table({ caption: t("Layers"), name: "layers", rows: layerRuns(payload.layers), columns: [
      { head: t("layers"), get: (r) => (r.from === r.to ? String(r.from) : t("{low} to {high}", { low: r.from, high: r.to })), rowhead: true },
      { head: t("first of them"), get: (r) => r.layer.name, show: (r) => h("span", { class: "mono" }, bdi(r.layer.name)) },
      { head: t("attention"), get: (r) => span(r.layer) }, { head: t("learned sink"), get: (r) => r.layer.learned_sink },
      { head: t("why not measured, or no write ratio"), get: (r) => said(payload, r.layer.reason ?? r.layer.write_reason ?? ""), show: (r) => said(payload, r.layer.reason ?? r.layer.write_reason ?? "") || DASH, wide: true }] }));
}

export function drawSeries(el, payload) {
  const q = payload.series;
  if (!q?.names?.length) return;
  const names = q.names.map((name) => clean(name)), about = payload.model.name;
  const spec = { x: names.map((_, i) => i), xnames: names, xlabel: "", xname: "", ylabel: t("share"), ylo: 0, yhi: 1, height: 250,
    series: [{ name: t("first-token mass"), cls: "c-sink", y: q.first_token_mass, lo: q.lo, hi: q.hi }, { name: t("null"), cls: "c-null", y: q.null }, { name: t("sink rate"), cls: "c-content", y: q.sink_rate }] };
  el.replaceChildren(lines(t("First-token mass and sink rate"), "series", about, spec, t("The band is the interval of the first-token mass.")),
    table({ caption: t("The series"), name: "series-table", rows: names.map((name, i) => i), columns: [
      { head: t("name"), get: (i) => names[i], show: (i) => bdi(names[i]), rowhead: true }, { head: t("first-token mass"), get: (i) => q.first_token_mass[i], num: true },
      { head: t("low"), get: (i) => q.lo[i], num: true }, { head: t("high"), get: (i) => q.hi[i], num: true }, { head: t("null"), get: (i) => q.null[i], num: true }, { head: t("sink rate"), get: (i) => q.sink_rate[i], show: (i) => percent(q.sink_rate[i]), num: true }] }));
}
