// Two records side by side: which ones, the map of each on one scale, what differs, and the summary numbers.

import { colour, hatch, ink, kindOf } from "sinkgate/lib/colour.js";
import { away, figure, h, s, table, tip, want } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { isDark } from "sinkgate/lib/state.js";
import { DASH, clean, fmt, number } from "sinkgate/lib/text.js";
import { legendOf, metricOf } from "sinkgate/model/map.js";
import { entryName, kindName, labelOf } from "sinkgate/model/said.js";
import { difference } from "sinkgate/model/student.js";

/** Which record is shown, and which beside it. */
export function drawChoice(el, context, state) {
  const entries = context.of("diagnosis");
  el.hidden = entries.length < 2;
  if (el.hidden) return;
  const pick = (id, label, chosen, options, change) => h("label", { for: id }, h("span", {}, label),
    h("select", { id, change: (event) => change(event.target.value) }, options.map(([value, name]) => h("option", { value, selected: value === chosen }, name))));
  const names = entries.map((entry) => [entry.id, entryName(context, entry)]);
  el.replaceChildren(
    pick("record-choice", t("Record"), state.record, names, (record) => want(el, { record, other: state.other === record ? "" : state.other, focus: "#record-choice" })),
    pick("other-choice", t("Compare with"), state.other ?? "", [["", t("none")], ...names.filter(([id]) => id !== state.record)], (other) => want(el, { other, focus: "#other-choice" })),
    state.other && h("button", { type: "button", id: "swap", click: () => want(el, { record: state.other, other: state.record, focus: "#swap" }) }, t("Swap")));
}

/** b − a of each head; a ratio's difference is the log₂ of their ratio, a kind's whether it changed. */
export function differenceMetric(a, b) {
  const minus = { log: (x, y) => (x > 0 && y > 0 ? Math.log2(y / x) : null), category: (x, y) => (x === y ? "none" : "changed") }[a.scale] ?? ((x, y) => y - x);
  const usable = a.scale === "category" ? (v) => v !== null && v !== "unmeasured" : number;
  const values = a.values.map((row, l) => row.map((x, k) => (usable(x) && usable(b.values[l][k]) ? minus(x, b.values[l][k]) : null)));
  if (a.scale === "category") return { ...a, id: `${a.id}-difference`, values, same: true };
  const top = Math.max(1e-9, ...values.flat().filter(number).map(Math.abs));
  return { ...a, id: `${a.id}-difference`, scale: "diverging", unit: a.scale === "log" ? "log₂" : a.unit, lo: -top, hi: top, values };
}

/** A small map without controls: the pointer reads it, the table below says what matters. */
export function smallMap(width, payload, metric, dark, label) {
  const { layers, heads } = payload.model, left = 26, top = 18, cw = Math.max(2, Math.min(28, (width - left - 2) / heads)), ch = Math.max(4, Math.min(16, cw * 0.66)), air = cw > 8 ? 1 : 0;
  const [id, defs] = hatch(), W = Math.ceil(left + heads * cw + 2), H = Math.ceil(top + layers * ch + 2);
  const cells = metric.values.map((row, l) => row.map((value, k) => {
    const shade = colour(metric, value, dark), none = shade === "none", blank = shade === null || shade === "hatch";
    const letter = metric.scale === "category" && !blank && !none && cw >= 12 && ch >= 9 ? kindOf(metric, value)[1] : "";
    return [s("rect", { x: left + k * cw, y: top + l * ch, width: cw - air, height: ch - air, "data-l": l, "data-k": k, fill: blank ? `url(#${id})` : none ? "transparent" : shade, class: none ? "cellframe" : null, "pointer-events": "all" }),
      letter && s("text", { x: left + k * cw + cw / 2, y: top + l * ch + ch / 2 + 3.5, "text-anchor": "middle", "pointer-events": "none", style: `fill:${ink(shade)};font-size:9px` }, letter)];
  }));
  const every = (n, size) => [1, 2, 4, 5, 8, 10, 16, 20, 32].find((step) => step * size >= n) ?? 64;
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label }, defs,
    Array.from({ length: heads }, (_, k) => k % every(16, cw) === 0 && s("text", { x: left + (k + 0.5) * cw, y: 12, "text-anchor": "middle", style: "font-size:10px" }, String(k))),
    Array.from({ length: layers }, (_, l) => l % every(11, ch) === 0 && s("text", { x: left - 5, y: top + (l + 0.5) * ch + 3.5, "text-anchor": "end", style: "font-size:10px" }, String(l))), cells);
  svg.addEventListener("pointerover", (event) => {
    const { l, k } = event.target.dataset ?? {};
    if (l !== undefined) tip(event.target.getBoundingClientRect(), [t("Layer {l} · head {k}", { l, k }), shown(metric, metric.values[l][k])]);
  });
  svg.addEventListener("pointerleave", away);
  svg.addEventListener("click", (event) => { const { l, k } = event.target.dataset ?? {}; if (l !== undefined) want(svg, { layer: +l, head: +k, open: "look" }); });
  return svg;
}

const shown = (metric, value) => (value === null || value === undefined ? t("not measurable") : metric.scale !== "category" ? fmt(value, metric.unit) : metric.same ? (value === "none" ? t("the same") : t("changed")) : kindName(value));

export function drawCompare(el, context, state) {
  const key = `${state.record} ${state.other} ${state.metric} ${isDark(state)}`;
  if (el.dataset.key === key) return;
  el.dataset.key = key;
  const { payload: a, other } = context;
  if (!other) { el.replaceChildren(); return; }
  if (other.refused) { el.replaceChildren(h("p", { class: "refused", role: "alert" }, h("bdi", {}, clean(other.refused)))); return; }
  const b = other.payload, names = [context.entry, other.entry].map((entry) => entryName(context, entry));
  const said = h("p", { class: "note" }, t("A is “{a}”, B is “{b}”; differences are B − A.", { a: names[0], b: names[1] }), " ",
    a.model.fingerprint === b.model.fingerprint ? t("Both have the same weights.") : t("Their weights differ."));
  el.replaceChildren(said, summaryTable(a, b), ...mapsOf(a, b, state, names));
}

function mapsOf(a, b, state, names) {
  const size = ({ model }) => `${model.layers} × ${model.heads}`, metric = metricOf(a, state), twin = b.metrics.find((each) => each.id === metric.id);
  if (size(a) !== size(b)) return [h("p", { class: "refused" }, t("Their maps cannot be laid over each other: A has {a} heads (layers × heads), B has {b}. Choose two records of one shape.", { a: size(a), b: size(b) }))];
  if (metric.absent || !twin) return [h("p", { class: "refused" }, t("“{label}” is not in both records; choose another quantity on the map.", { label: labelOf(metric) }))];
  const dark = isDark(state), scale = { lo: Math.min(metric.lo, twin.lo), hi: Math.max(metric.hi, twin.hi) };
  const both = [{ ...metric, ...scale }, { ...twin, ...scale }], delta = differenceMetric(metric, twin), title = t(metric.scale === "log" ? "{label}: log₂ of B / A" : "{label}: B − A", { label: labelOf(metric) });
  const csv = (each) => () => [[t("layer"), ...each.values[0].map((_, k) => t("head {k}", { k }))], ...each.values.map((row, l) => [l, ...row])];
  const one = (each, payload, name, file) => figure({ title: name, name: `compare-${file}-${metric.id}`, about: labelOf(metric), data: csv(each),
    draw: (width) => smallMap(width, payload, each, dark, t("{label} of {name}, by layer and head", { label: labelOf(metric), name })) });
  const legend = (each, payload) => { const made = legendOf(payload, each, dark, 1, 300); if (each.same) made.querySelectorAll(".keys li").forEach((li) => li.remove()); return made; };
  const changed = delta.same ? h("p", { class: "note" }, t("{n} of {all} heads changed their kind; their cells are filled.", { n: delta.values.flat().filter((v) => v === "changed").length, all: delta.values.flat().filter((v) => v !== null).length })) : legend(delta, a);
  return [h("div", { class: "plots three compare" },
    h("div", {}, one(both[0], a, t("A: {name}", { name: names[0] }), "a"), legend(both[0], a)),
    h("div", {}, one(both[1], b, t("B: {name}", { name: names[1] }), "b"), legend(both[1], b)),
    h("div", {}, figure({ title, name: `compare-difference-${metric.id}`, about: names.join(" → "), data: csv(delta), draw: (width) => smallMap(width, a, delta, dark, title) }), changed)),
  largest(metric, twin, delta)];
}

/** The heads that differ most. */
function largest(a, b, delta) {
  const rows = delta.values.flatMap((row, l) => row.map((d, k) => ({ l, k, d, a: a.values[l][k], b: b.values[l][k] }))).filter((row) => (delta.same ? row.d === "changed" : number(row.d) && row.d !== 0));
  if (!delta.same) rows.sort((x, y) => Math.abs(y.d) - Math.abs(x.d));
  const value = (metric, v) => shown(metric, v);
  return table({ caption: t("Heads that differ most"), name: `compare-heads-${a.id}`, rows: rows.slice(0, 10), empty: t("No head differs."), columns: [
    { head: t("layer"), get: (r) => r.l, num: true }, { head: t("head"), get: (r) => r.k, num: true },
    { head: "A", get: (r) => (number(r.a) ? r.a : value(a, r.a)), show: (r) => value(a, r.a), num: true }, { head: "B", get: (r) => (number(r.b) ? r.b : value(b, r.b)), show: (r) => value(b, r.b), num: true },
    ...(delta.same ? [] : [{ head: a.scale === "log" ? t("log₂ of B / A") : "B − A", get: (r) => r.d, num: true }])] });
}

/** Every summary number of both, with the difference and its interval over samples. */
function summaryTable(a, b) {
  if (!a.summary || !b.summary) return h("p", { class: "note" }, t("A record that keeps no numbers by sample has no table of differences."));
  const at = new Map(b.summary.ids.map((id, i) => [id, i])), paired = a.summary.ids.length === b.summary.ids.length && a.summary.ids.every((id) => at.has(id));
  const rows = a.summary.rows.flatMap((row) => {
    const twin = b.summary.rows.find((each) => each.id === row.id);
    if (!twin) return [];
    let x = row.values, y = paired ? a.summary.ids.map((id) => twin.values[at.get(id)]) : twin.values;
    const keep = paired ? x.map((v, i) => number(v) && number(y[i])) : null;
    [x, y] = keep ? [x.filter((_, i) => keep[i]), y.filter((_, i) => keep[i])] : [x.filter(number), y.filter(number)];
    if (!x.length || !y.length || [...x, ...y].every((v) => v === 0)) return [];
    const mean = (v) => v.reduce((sum, each) => sum + each, 0) / v.length;
    return [{ label: clean(t(row.label)), unit: row.unit, a: mean(x), b: mean(y), d: difference(x, y, paired) }];
  });
  const note = paired ? t("Both read the same {n} samples: intervals are Student’s, 95%, of the differences in pairs.", { n: a.summary.ids.length })
    : t("They read different samples ({a} and {b}): intervals are Welch’s, 95%, not paired; the texts’ own differences are in them.", { a: a.summary.ids.length, b: b.summary.ids.length });
  return h("div", {}, table({ caption: t("Summary numbers, means over heads and samples"), name: "compare-summary", rows, empty: t("The records have no number in common."), columns: [
    { head: t("quantity"), get: (r) => r.label, rowhead: true }, { head: "A", get: (r) => r.a, show: (r) => fmt(r.a, r.unit), num: true }, { head: "B", get: (r) => r.b, show: (r) => fmt(r.b, r.unit), num: true },
    { head: "B − A", get: (r) => r.d.mean, show: (r) => fmt(r.d.mean, r.unit), num: true }, { head: t("low"), get: (r) => r.d.low, num: true }, { head: t("high"), get: (r) => r.d.high, num: true },
    { head: t("told apart from 0"), get: (r) => (r.d.low === null ? DASH : r.d.low > 0 || r.d.high < 0 ? t("yes") : t("no")) }] }), h("p", { class: "note" }, note));
}

