// The curves of a comparison, arms over each other, and its differences with their intervals.

import { curveData, curves } from "sinkgate/lib/curves.js";
import { figure, h, s } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { fmt, number, tick } from "sinkgate/lib/text.js";
import { ticks } from "sinkgate/lib/colour.js";
import { armLine, calmTop, differenceLine, logged, uniformMass } from "sinkgate/lab/data.js";

const RATIO = 30; // largest over smallest value from which a log scale shows more
const LAYER = /^first_mass_layer_(\d+)$/;

export const labelOf = (shown, name) => {
  const layer = LAYER.exec(name), known = shown.plan.metrics[name] ?? shown.plan.metrics[name.replace(LAYER, "first_mass")];
  if (layer) return t("first-token mass, layer {n}", { n: layer[1] });
  return known ? t(known.label) : name;
};
const titleOf = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const unitOf = (shown, name) => { const unit = shown.plan.metrics[name]?.unit; return unit ? t(unit) : ""; };

/** Which numbers can be drawn: those of every run first. */
export function drawable(shown) {
  const there = logged(shown), wanted = ["loss", "grad_norm", "held_out", shown.plan.headline, "first_mass"];
  return [...wanted.filter((name) => there.includes(name)), ...there.filter((name) => !wanted.includes(name) && !LAYER.test(name) && !name.endsWith("_null")).sort()];
}

/** One number along the training. */
export function alongFigure(shown, name, view) {
  const difference = view.view === "difference" && shown.plan.arms.length > 1, arms = shown.plan.arms.map((_, i) => i).filter((i) => !view.hidden.includes(i) && (!difference || i));
  const make = () => arms.map((arm) => (difference ? differenceLine : armLine)(shown, arm, name, view.seed));
  const known = shown.plan.metrics[name] ?? {}, label = labelOf(shown, name), title = difference ? t("{what}: difference from {base}, paired by seed", { what: titleOf(label), base: shown.plan.arms[0] }) : titleOf(name === "loss" ? t("training loss") : label);
  const spec = () => {
    const lines = make(), values = lines.flatMap((line) => [line.y, line.lo ?? [], line.hi ?? []].flat()).filter(number), low = Math.min(...values), high = Math.max(...values);
    const log = !difference && !known.share && low > 0 && high / low > RATIO, null0 = name === "first_mass" && !difference ? uniformMass(shown) : null;
    const last = lines.reduce((most, line) => Math.max(most, line.x.at(-1) ?? 0), 1);
    if (null0 !== null) lines.push({ name: t("uniform attention"), style: "reference", x: [0, last], y: [null0, null0] });
    if (difference) lines.push({ name: t("no difference"), style: "reference", x: [0, last], y: [0, 0] });
    return { label: t("{title}. Arrow keys read the values.", { title }), xlabel: t("step"), xint: true, xlo: 0, ylabel: [unitOf(shown, name) || label, log ? t("(log scale)") : ""].filter(Boolean).join(" "), ylog: log,
      ylo: known.share && !difference ? 0 : undefined, yhi: difference ? undefined : calmTop(shown, name, lines), lines, empty: t("Nothing is logged of this yet."), xfmt: (v) => tick(Math.round(v)) };
  };
  const spikes = shown.pieces.reduce((sum, piece) => sum + (view.hidden.includes(piece.arm) || (view.seed !== null && piece.seed !== view.seed) ? 0 : piece.spikes.length), 0);
  const lost = shown.pieces.filter((piece) => piece.diverged && !view.hidden.includes(piece.arm)).length;
  const says = name === "loss" ? t("Loss of the batches that were trained on.") : known.says ? t(known.says) : "";
  const note = [says, !difference && (name === "loss" || name === "grad_norm") && spikes ? t("Triangles: {n} spikes, losses over twice the median of the twenty before.", { n: spikes }) : "",
    !difference && lost ? t("Crosses: where a run diverged; it is drawn thin and is in no mean.") : "", difference ? t("Line: the mean over seeds of the difference at the same step; area: from the lowest to the highest seed.") : ""].filter(Boolean).join(" ");
  const draw = (width) => curves(width, spec());
  return redrawn(figure({ title, name: `${name} ${difference ? "difference" : ""}`, note, draw, data: () => curveData(spec()) }), `lab-of-${name}`, draw);
}

/** The figure under a name, with a way to draw it anew in place. */
function redrawn(box, id, draw) {
  box.id = id;
  box.repaint = () => { const plot = box.querySelector(".plot"), width = Math.floor(plot.clientWidth); if (width) { plot.replaceChildren(draw(width)); box.querySelector(".tools").hidden = !plot.querySelector("svg"); } };
  return box;
}

/** The first key's mass of every layer of one arm, along the training. */
export function layersFigure(shown, arm, view) {
  const names = logged(shown).filter((name) => LAYER.test(name)).sort((a, b) => +LAYER.exec(a)[1] - +LAYER.exec(b)[1]);
  if (!names.length) return null;
  const title = t("Sink mass by layer: {arm}", { arm: shown.plan.arms[arm] });
  const spec = () => {
    const lines = names.map((name, i) => ({ ...armLine(shown, arm, name, view.seed), name: t("layer {n}", { n: LAYER.exec(name)[1] }), style: i, events: [], strands: [] })), null0 = uniformMass(shown), last = lines.reduce((most, line) => Math.max(most, line.x.at(-1) ?? 0), 1);
    if (null0 !== null) lines.push({ name: t("uniform attention"), style: "reference", x: [0, last], y: [null0, null0] });
    return { label: t("{title}. Arrow keys read the values.", { title }), xlabel: t("step"), xint: true, xlo: 0, ylabel: t("weight on the first key"), ylo: 0, lines, empty: t("Nothing is logged of this yet."), xfmt: (v) => tick(Math.round(v)) };
  };
  const draw = (width) => curves(width, spec()), note = t("Mean weight of a query on the first key, over a layer's heads, on held-out data; mean over seeds.");
  return redrawn(figure({ title, name: `sink mass by layer ${shown.plan.arms[arm]}`, note, draw, data: () => curveData(spec()) }), "lab-layers", draw);
}

/** A list by layer at the end of the training, all arms over each other. */
export function endLayersFigure(shown, name, view) {
  const found = shown.payload?.layers?.[name];
  if (!found?.some((seeds) => seeds.some((row) => row.length > 1))) return null;
  const title = t("At the end: {what}", { what: labelOf(shown, name) });
  const lines = found.map((seeds, arm) => {
    const depth = Math.min(...seeds.map((row) => row.length)), x = Array.from({ length: Number.isFinite(depth) ? depth : 0 }, (_, i) => i), at = (i) => seeds.map((row) => row[i]).filter(number);
    const y = x.map((i) => (at(i).length ? at(i).reduce((a, b) => a + b, 0) / at(i).length : null));
    return { name: shown.plan.arms[arm], style: arm, x, y, dots: true, ...(seeds.length > 1 ? { lo: x.map((i) => Math.min(...at(i))), hi: x.map((i) => Math.max(...at(i))) } : {}) };
  }).filter((line) => !view.hidden.includes(line.style));
  const spec = { label: t("{title}. Arrow keys read the values.", { title }), xlabel: t("layer"), xint: true, ylabel: unitOf(shown, name) || labelOf(shown, name), ylo: shown.plan.metrics[name]?.share ? 0 : undefined, lines, empty: t("Nothing is logged of this yet.") };
  return redrawn(figure({ title, name: `${name} at the end`, note: t(shown.plan.metrics[name]?.says ?? ""), draw: (width) => curves(width, spec), data: () => curveData(spec) }), `lab-end-${name}`, (width) => curves(width, spec));
}

/** Differences from the baseline: mean, 95% interval, single seeds, and what can be told. */
export function forestFigure(shown, name) {
  const rows = shown.payload.differences[name].map((found, i) => ({ ...found, arm: i + 1, name: shown.plan.arms[i + 1] })), base = shown.plan.arms[0], label = labelOf(shown, name);
  const title = t("{what}: difference from {base}", { what: titleOf(label), base });
  const draw = (width) => {
    const W = Math.max(width, 240), step = 46, top = 8, foot = 34, H = top + rows.length * step + foot, left = 12, right = W - 12;
    const values = rows.flatMap((row) => [row.mean, row.low, row.high, ...row.points]).filter(number);
    if (!values.length) return h("p", { class: "empty" }, t("No pair of runs has this number."));
    let [lo, hi] = [Math.min(0, ...values), Math.max(0, ...values)];
    const pad = (hi - lo || 1) * 0.06;
    [lo, hi] = [lo - pad, hi + pad];
    const X = (v) => left + ((right - left) * (v - lo)) / (hi - lo), better = name === shown.plan.headline ? (shown.plan.higher ? [t("worse"), t("better")] : [t("better"), t("worse")]) : [t("lower"), t("higher")];
    return s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}. ${rows.map((row) => `${row.name}: ${interval(row)}, ${t(row.told)}`).join("; ")}` },
      ticks(lo, hi, Math.max(2, (right - left) / 90)).map((v) => [s("path", { class: "gridline", d: `M${X(v)} ${top}V${H - foot}` }), s("text", { x: X(v), y: H - foot + 15, "text-anchor": "middle" }, tick(v))]),
      s("path", { class: "axis", d: `M${X(0)} ${top}V${H - foot}` }),
      s("text", { x: left, y: H - 3 }, `← ${better[0]}`), s("text", { x: right, y: H - 3, "text-anchor": "end" }, `${better[1]} →`),
      rows.map((row, i) => {
        const y = top + i * step + 30, told = number(row.low) && (row.low > 0 || row.high < 0);
        return [s("text", { x: left, y: y - 13, class: "strong" }, `${row.name}: ${interval(row)}`),
          row.points.filter(number).map((v) => s("circle", { cx: X(v), cy: y, r: 2.4, class: `dot-a${row.arm % 5}`, opacity: 0.55 })),
          number(row.low) ? s("path", { class: `series a${row.arm % 5}`, d: `M${X(row.low)} ${y}H${X(row.high)}` }) : null,
          number(row.mean) ? s("circle", { cx: X(row.mean), cy: y, r: 5, class: `series a${row.arm % 5} ${told ? `dot-a${row.arm % 5} solid` : "hollow"}` }) : null];
      }));
  };
  return redrawn(figure({ title, name: `${name} differences`, draw, note: t("Large dots: mean and 95% interval over seeds, paired, filled where it leaves out zero; small dots: single seeds."),
    data: () => [[t("arm"), t("difference"), t("low"), t("high"), t("seeds"), t("finding")], ...rows.map((row) => [row.name, row.mean, row.low, row.high, row.samples, row.told])] }), "lab-forest", draw);
}

const signed = (v) => (v > 0 ? `+${fmt(v)}` : fmt(v));
const interval = (row) => (!number(row.mean) ? "—" : number(row.low) ? `${signed(row.mean)} [${signed(row.low)}, ${signed(row.high)}]` : signed(row.mean));

