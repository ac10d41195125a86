// What stands beside the row: its numbers, the deletion experiment, and one key against many.

import { lineChart, lineData } from "sinkgate/lib/charts.js";
import { h } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { DASH } from "sinkgate/lib/text.js";
import { dial } from "sinkgate/simulator/controls.js";
import { MANY } from "sinkgate/simulator/model.js";
import { logit, required, softmaxShare, sparsemaxShare, uniformNull } from "sinkgate/simulator/row.js";
import { num, pair, picture, put } from "sinkgate/simulator/show.js";

/** A list of quantities; update() writes the numbers. Each entry is [id, label, value(row, model)]. */
function quantities(entries, label) {
  const cells = entries.map(([id, name]) => [id, h("dt", {}, name), h("dd", { "data-out": id })]);
  return { box: h("dl", { class: "quantities", "aria-label": label }, cells.map(([, dt, dd]) => h("div", {}, dt, dd))),
    update(row, model) { entries.forEach(([, , value], i) => { put(cells[i][2], row.waiting ? "…" : value(row, model)); }); } };
}

/** The numbers of the row, in the words of the page. */
export const numbersOfTheRow = () => quantities([
  ["mass", t("total mass Σa"), (r) => num(r.mass)],
  ["strength", t("strength g·Σa"), (r) => (r.scalar ? num(r.strength) : DASH)],
  ["output", t("output o"), (r) => pair(r.output)],
  ["length", t("its length ‖o‖"), (r) => num(r.length)],
  ["share", t("weight on the sink pₛ"), (r) => (r.sink < 0 ? DASH : num(r.share))],
  ["content", t("left for the content 1 − pₛ"), (r) => (r.sink < 0 ? DASH : num(r.content))],
  ["betas", t("shares within it β"), (r) => (r.sink < 0 ? DASH : r.betas.filter((_, j) => j !== r.sink).slice(0, 6).map((b) => num(b, 4)).join(", ") + (r.betas.length > 7 ? ", …" : ""))],
  ["outlet", t("on nothing 1 − Σa"), (r) => num(r.outlet)],
  ["lse", t("LSE of the scores"), (r) => num(r.lse)],
  ["sigma", t("σ(LSE − z)"), (r) => (r.z === null ? DASH : num(r.z === -Infinity ? 1 : 1 / (1 + Math.exp(r.z - r.lse))))],
  ["line", t("threshold on the scores"), (r) => num(r.line)],
  ["support", t("keys with weight"), (r) => String(r.support)],
  ["slope", t("slope ∂a/∂s of the chosen key"), (r) => (r.slope === null ? DASH : num(Math.abs(r.slope) < 1e-9 ? 0 : r.slope, 4))],
  ["writes", t("what the sink writes pₛ‖vₛ‖"), (r) => (r.sink < 0 ? DASH : num(r.sinkWrites))],
  ["hull", t("first coordinate, Σa = 1"), (r) => range(r.hull)],
  ["hull0", t("first coordinate, Σa ≤ 1"), (r) => range(r.hull0)],
  ["best", t("best gate for the target"), (r, m) => (m.target === null ? DASH : Number.isNaN(r.bestGate) ? t("any") : num(r.bestGate))],
  ["miss", t("distance to the target"), (r) => num(r.miss)],
  ["gateslope", t("slope of the gate g(1 − g)"), (r) => num(r.gateSlope)],
], t("The numbers of this row"));

const range = (points) => (points.length ? `[${num(Math.min(...points.map((p) => p[0])))}, ${num(Math.max(...points.map((p) => p[0])))}]` : DASH);

/** Remove the sink, weigh the rest again: what the content is multiplied by, measured and predicted. */
export function deletion(change) {
  const button = h("button", { type: "button", id: "cut", "aria-pressed": "false", click: () => change({ cut: button.getAttribute("aria-pressed") === "true" ? null : 1 }) });
  const list = quantities([
    ["before", t("content’s output, with the sink"), (r) => pair(r.before)],
    ["after", t("content’s output, without it"), (r) => pair(r.after)],
    ["factor", t("content’s mass is multiplied by"), (r) => num(r.factor)],
    ["predicted", t("predicted 1 / (1 − pₛ)"), (r) => (r.predicted === null ? DASH : num(r.predicted))],
  ], t("The deletion experiment"));
  const verdict = h("p", { class: "note" });
  return { box: h("section", { class: "card", "aria-labelledby": "cut-h" }, h("h3", { id: "cut-h" }, t("Delete the sink")), button, list.box, verdict),
    update(row, model) {
      list.update(row, model);
      button.setAttribute("aria-pressed", model.cut ? "true" : "false");
      button.textContent = model.cut ? t("Put the sink back") : t("Remove the sink");
      button.disabled = row.sink < 0;
      verdict.textContent = row.waiting ? "" : row.sink < 0 ? t("No key is marked as the sink; choose one under “One key”.") : row.factor === null ? t("There is no content to multiply.")
        : Math.abs(row.factor - row.predicted) <= 1e-9 * row.predicted ? t("As predicted: the shares β stay, and all of them grow by the same factor.")
          : t("Not as predicted: with this weighting the rest does not grow by 1 / (1 − pₛ).");
    } };
}

/** One key whose score stands `lead` over n − 1 equal ones: what share it holds, what lead it needs. */
export function many(get, change) {
  const keep = (value, usual) => (value === usual ? null : String(value));
  const size = logarithmic({ label: t("keys n, the sink among them"), name: "many", least: 2, most: MANY, base: 2, lo: 1, hi: 17, step: 0.125, whole: true }, (v) => change({ many: keep(v, 4096) }));
  const share = dial({ label: t("share r it is to hold"), name: "share", lo: 0.01, hi: 0.99, step: 0.01, least: 0.001, most: 0.999 }, (v) => change({ share: keep(v, 0.9) }));
  const lead = dial({ label: t("its lead δ over the rest"), name: "lead", lo: 0, hi: 20, step: 0.05, least: 0, most: 30 }, (v) => change({ lead: keep(v, 0.5) }));
  const list = quantities([
    ["required", t("lead that softmax needs, ln(n − 1) + logit r"), (r, m) => num(required(m.many, m.share))],
    ["softmax-share", t("softmax at lead δ: its weight"), (r, m) => num(softmaxShare(m.lead, m.many)[0])],
    ["softmax-other", t("and each other’s"), (r, m) => num(softmaxShare(m.lead, m.many)[1], 5)],
    ["sparsemax-share", t("sparsemax at lead δ: its weight"), (r, m) => num(sparsemaxShare(m.lead, m.many)[0])],
    ["sparsemax-other", t("and each other’s"), (r, m) => num(sparsemaxShare(m.lead, m.many)[1], 5)],
    ["null", t("null: uniform causal attention gives the first key Hₙ/n"), (r, m) => num(uniformNull(m.many), 4)],
  ], t("One key against many"));
  const powers = Array.from({ length: 17 }, (_, i) => 2 ** (i + 1));
  const spec = () => {
    const { model, row } = get(), here = !row.waiting && row.margin !== null && Number.isFinite(row.margin) && row.count > 1 && !model.cut ? row.count : null;
    const x = [...new Set([...powers, model.many, ...(here ? [here] : [])])].sort((a, b) => a - b), rates = [...new Set([0.5, 0.9, 0.99, model.share])].sort((a, b) => a - b);
    return { x, xlog: true, xlabel: t("keys n (log)"), xname: "n", xint: true, ylabel: t("score over the rest, nats"), height: 230, label: t("Margin against the number of keys. Arrow keys read the values."),
      series: [...rates.map((r) => ({ name: `r = ${num(r, 3)}`, cls: r === model.share ? "c-sink" : "c-null", y: x.map((v) => (v > 1 ? Math.log(v - 1) + logit(r) : null)) })),
        ...(here ? [{ name: t("this row"), cls: "c-content", y: x.map((v) => (v === here ? row.margin + Math.log(Math.max(here - 1, 1)) : null)) }] : [])] };
  };
  const fig = picture({ title: t("Margin against n: ln(n − 1) + logit r"), name: "simulator-margin", draw: (width) => lineChart(width, spec()), data: () => lineData(spec())() });
  let last = "";
  return { box: h("section", { class: "card many", "aria-labelledby": "many-h" }, h("h3", { id: "many-h" }, t("One key against many")), h("div", { class: "split" }, h("div", {}, size.box, share.box, lead.box, list.box), fig.box)),
    update(row, model) {
      list.update(row, model);
      size.show(model.many); share.show(model.share); lead.show(model.lead);
      const key = `${model.many} ${model.share} ${row.waiting} ${row.count} ${row.margin?.toFixed(3)} ${model.cut}`;
      if (key !== last) { last = key; fig.redraw(); }
    } };
}

/** A dial whose slider moves in powers of a base. */
export function logarithmic({ base, whole, ...options }, pick) {
  const tidy = (v) => (whole ? Math.round(v) : +v.toPrecision(3));
  return dial({ ...options, to: (at) => tidy(base ** at), from: (v) => Math.log(v) / Math.log(base) }, pick);
}
