// The arithmetic of one row: from what is set to weights, output, and what removing the sink does. Nothing is drawn here.

import { TWINS, weigh } from "sinkgate/simulator/weightings.js";

export const total = (list) => list.reduce((sum, v) => sum + v, 0);
export const norm = ([x, y]) => Math.hypot(x, y);
export const sigma = (x) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x)));
export const logit = (p) => Math.log(p) - Math.log1p(-p);
/** Zero where only rounding is left of a difference. */
const snap = (v, size = 1) => (Math.abs(v) < 1e-14 * size ? 0 : v);
const mixed = (weights, values) => [0, 1].map((axis) => snap(weights.reduce((sum, w, j) => sum + (w === 0 ? 0 : w * values[j][axis]), 0),
  weights.reduce((size, w, j) => size + Math.abs(w * values[j][axis]), 0)));

/** log Σ e^s over what is seen; −∞ over nothing. */
export function lse(scores, seen) {
  const top = scores.reduce((most, s, j) => (seen[j] && s > most ? s : most), -Infinity);
  return top === -Infinity ? top : top + Math.log(total(scores.map((s, j) => (seen[j] ? Math.exp(s - top) : 0))));
}

/** ln(n − 1) + logit(r): how far a score must stand over n − 1 equal ones to hold the share r. */
export const required = (n, r) => Math.log(n - 1) + logit(r);
/** Of softmax, where one score is `lead` and n − 1 are 0: its weight, and that of each other. */
export const softmaxShare = (lead, n) => { const p = sigma(lead - Math.log(n - 1)); return [p, sigma(Math.log(n - 1) - lead) / (n - 1)]; };
/** Of sparsemax, the same. */
export const sparsemaxShare = (lead, n) => { const rest = Math.max(1 - lead, 0) / n; return [Math.min(lead, 1) + rest, rest]; };

let harmonicOf = [0, 0];
/** What uniform causal attention over n tokens gives the first key on average: H_n / n. */
export function uniformNull(n) {
  if (harmonicOf[0] !== n) {
    let h = 0;
    for (let i = n; i >= 1; i--) h += 1 / i;
    harmonicOf = [n, h];
  }
  return harmonicOf[1] / n;
}

/** The corners of the convex hull, in turn; fewer than three where the points lie on a line. */
export function hull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const turn = (o, a, b) => (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  const half = (list) => list.reduce((kept, p) => {
    while (kept.length > 1 && turn(kept.at(-2), kept.at(-1), p) <= 0) kept.pop();
    return [...kept, p];
  }, []);
  const unique = sorted.filter((p, i) => !i || p[0] !== sorted[i - 1][0] || p[1] !== sorted[i - 1][1]);
  if (unique.length < 3) return unique;
  return [...half(unique).slice(0, -1), ...half([...unique].reverse()).slice(0, -1)];
}

/** What enters the weighting: shifted, then divided by the temperature. */
export const entering = (model) => model.scores.map(({ s }) => (s + model.shift) / model.temperature);

/** Everything that is shown of a row. `ask(name, given, scores, seen)` stands in for a weighting without a twin and gives null while it waits. */
export function rowOf(model, ask) {
  const { weighting, values } = model, name = weighting.name, twin = Object.hasOwn(TWINS, name) ? TWINS[name] : null;
  const given = twin?.settle ? twin.settle(model.given) : model.given, scores = entering(model), all = model.scores.map((each) => !each.hidden);
  const compute = (seen, at = scores) => (twin ? weigh(name, at, seen, given) : ask(name, given, at, seen));
  const sink = model.sink >= 0 && all[model.sink] ? model.sink : -1, without = all.map((seen, j) => seen && j !== sink);
  const whole = compute(all), rest = sink >= 0 ? compute(without) : whole;
  if (!whole || !rest) return { waiting: true, scores, seen: all, sink };

  const seen = model.cut ? without : all, weights = model.cut ? rest : whole, gate = model.gate, raw = mixed(weights, values);
  const share = sink >= 0 ? whole[sink] : 0, content = whole.map((w, j) => (j === sink ? 0 : w)), contentMass = total(content);
  const mass = total(weights), output = [gate[0] * raw[0], gate[1] * raw[1]], target = model.target;
  const before = mixed(content, values), after = mixed(rest, values), restMass = total(rest);
  const visible = values.filter((_, j) => seen[j]), lseAll = lse(scores, seen), lseContent = lse(scores, without);
  let slope = null;
  if (twin && seen[model.key]) {
    const h = 1e-5 * Math.max(1, Math.abs(scores[model.key])), at = (by) => compute(seen, scores.map((s, j) => (j === model.key ? s + by : s)))[model.key];
    slope = (at(h) - at(-h)) / (2 * h);
  }
  const f2 = raw[0] ** 2 + raw[1] ** 2;
  return {
    waiting: false, twin: twin !== null, given, scores, seen, sink, weights, mass, raw, output, length: norm(output), slope,
    shown: weights.map((w) => w * gate[0]), strength: mass * gate[0], scalar: !model.split,
    share, content: contentMass, betas: content.map((w) => (contentMass > 0 ? w / contentMass : 0)), outlet: snap(1 - total(whole)),
    sinkWrites: sink >= 0 ? share * norm(values[sink]) : 0,
    predicted: sink >= 0 ? 1 / (1 - share) : null, factor: sink >= 0 && contentMass > 0 ? restMass / contentMass : null,
    before, after, wholeWeights: whole, restWeights: rest, restMass, wholeMass: total(whole),
    lse: lseAll, margin: sink >= 0 ? scores[sink] - lseContent : null, count: seen.filter(Boolean).length,
    support: weights.filter((w) => w > 0).length, line: twin?.line && seen.some(Boolean) ? twin.line(scores, seen, given) : null,
    z: name === "sink_softmax" ? given.z : name === "softmax1" ? 0 : null,
    hull: hull(visible), hull0: hull([...visible, [0, 0]]),
    bestGate: !target ? null : f2 > 0 ? Math.min(Math.max((target[0] * raw[0] + target[1] * raw[1]) / f2, 0), 1) : NaN,
    miss: target ? norm([target[0] - output[0], target[1] - output[1]]) : null,
    gateSlope: gate[0] * (1 - gate[0]),
  };
}
