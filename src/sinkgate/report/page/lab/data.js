// What the Lab page shows, from a record's payload or from a run that is under way, in one form:
// { id, title, plan: {task, arms, seeds, headline, higher, steps, metrics}, pieces, payload, run }.
// A piece is { arm, seed, series: {name: {x, y}}, spikes, diverged, ended }.

import { clean, number } from "sinkgate/lib/text.js";

const BINS = 100; // points of a curve that is logged every step

export function fromPayload(id, payload) {
  const { task, arms, seeds, headline, higher, steps, metrics } = payload;
  return { id, title: payload.title, plan: { task, arms: arms.map(clean), seeds, headline, higher, steps, metrics }, pieces: payload.pieces, payload, run: null };
}

/** A run that is under way, before anything is known of it. */
export const fromRun = (id, run) => ({ id, title: "", plan: null, pieces: [], payload: null, run, next: "" });

/** Add what the server sent. */
export function take(shown, answer) {
  shown.run = answer.run;
  shown.next = answer.next;
  if (!answer.plan) return;
  shown.plan = { ...answer.plan, arms: answer.plan.arms.map(clean), metrics: { ...shown.plan?.metrics, ...answer.plan.metrics } };
  answer.pieces.forEach((part, i) => {
    if (part.reset || !shown.pieces[i]) shown.pieces[i] = { arm: part.arm, seed: part.seed, series: {}, spikes: [] };
    const piece = shown.pieces[i];
    Object.assign(piece, { ended: part.ended, diverged: part.diverged, step: part.step ?? piece.step });
    piece.spikes.push(...part.spikes);
    for (const [name, { x, y }] of Object.entries(part.series)) {
      const column = (piece.series[name] ??= { x: [], y: [] });
      column.x.push(...x);
      column.y.push(...y);
    }
  });
}

/** Every number that some piece has logged. */
export const logged = (shown) => [...new Set(shown.pieces.flatMap((piece) => Object.keys(piece.series)))];

/** Whether a number is logged at every step, as the loss is, and not at evaluations alone. */
function every(shown, name) {
  if (name === "loss" || name === "grad_norm") return true;
  const there = shown.pieces.filter((piece) => piece.series.loss);
  return there.length > 0 && there.every((piece) => !piece.series.held_out && piece.series[name]?.x.length === piece.series.loss.x.length);
}

const lastStep = (shown) => shown.pieces.reduce((most, piece) => Math.max(most, piece.series.loss?.x.at(-1) ?? 0), 0);

/** How many steps are taken together: the report's rule. */
export const widthOf = (shown, name) => (every(shown, name) ? Math.max(1, Math.ceil((lastStep(shown) + 1) / BINS)) : 1);

/** Mean of what was logged in each stretch of so many steps, by the stretch's middle. */
export function binned(piece, name, width) {
  const groups = new Map(), column = piece.series[name];
  column?.x.forEach((step, i) => {
    if (!number(column.y[i])) return;
    const at = Math.floor(step / width) * width + (width - 1) / 2;
    groups.set(at, [...(groups.get(at) ?? []), column.y[i]]);
  });
  return new Map([...groups].map(([x, values]) => [x, values.reduce((a, b) => a + b, 0) / values.length]));
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const common = (maps) => (maps.length ? [...maps[0].keys()].filter((x) => maps.every((map) => map.has(x))).sort((a, b) => a - b) : []);

/** One arm's curve: the mean over the seeds that did not diverge, as far as all of them go; the area from the lowest to the
    highest seed; what goes on alone, or was lost, thin. `seed`: that one alone. */
export function armLine(shown, arm, name, seed = null) {
  const pieces = shown.pieces.filter((piece) => piece.arm === arm && (seed === null || piece.seed === seed)), width = widthOf(shown, name);
  const found = pieces.map((piece) => [piece, binned(piece, name, width)]);
  const alive = found.filter(([piece, values]) => !piece.diverged && values.size).map(([, values]) => values), x = common(alive), spread = alive.length > 1;
  const column = (pick) => x.map((at) => pick(alive.map((values) => values.get(at))));
  const line = { name: shown.plan.arms[arm], style: arm, x, y: column(mean), strands: [], events: [] };
  if (spread) Object.assign(line, { lo: column((v) => Math.min(...v)), hi: column((v) => Math.max(...v)) });
  for (const [piece, values] of found) {
    const places = [...values.keys()].sort((a, b) => a - b), rest = piece.diverged || !x.length ? places : places.filter((at) => at >= x.at(-1));
    if (rest.length > 1) line.strands.push({ x: rest, y: rest.map((at) => values.get(at)) });
    if (piece.diverged) { const end = places.at(-1) ?? piece.diverged.step ?? 0; line.events.push({ x: end, y: values.get(end) ?? null, kind: "lost" }); }
    if (name === "loss" || name === "grad_norm") {
      const own = piece.series[name], byStep = new Map(own?.x.map((step, i) => [step, own.y[i]]));
      line.events.push(...piece.spikes.slice(0, 40).map((step) => ({ x: step, y: byStep.get(step) ?? null, kind: "spike" })));
    }
  }
  return line;
}

/** An arm's curve less the baseline's, seed by seed. */
export function differenceLine(shown, arm, name, seed = null) {
  const width = widthOf(shown, name), of = (a, s) => shown.pieces.find((piece) => piece.arm === a && piece.seed === s && !piece.diverged);
  const pairs = shown.plan.seeds.filter((s) => seed === null || s === seed).map((s) => [of(0, s), of(arm, s)]).filter(([a, b]) => a && b).map(([a, b]) => {
    const [base, mine] = [binned(a, name, width), binned(b, name, width)];
    return new Map([...mine].filter(([x]) => base.has(x)).map(([x, y]) => [x, y - base.get(x)]));
  }).filter((map) => map.size);
  const x = common(pairs), column = (pick) => x.map((at) => pick(pairs.map((map) => map.get(at))));
  const line = { name: `${shown.plan.arms[arm]} − ${shown.plan.arms[0]}`, style: arm, x, y: column(mean) };
  return pairs.length > 1 ? { ...line, lo: column((v) => Math.min(...v)), hi: column((v) => Math.max(...v)) } : line;
}

/** What uniform attention would give the first key: the median of what was logged. */
export function uniformMass(shown) {
  const values = shown.pieces.flatMap((piece) => piece.series.first_null?.y ?? []).filter(number).sort((a, b) => a - b);
  return values.length ? values[Math.floor(values.length / 2)] : null;
}

/** The largest value that does not belong to a spike: those set no scale. */
export function calmTop(shown, name, lines) {
  const width = widthOf(shown, name), spikes = new Set(shown.pieces.flatMap((piece) => piece.spikes.map((step) => Math.floor(step / width) * width + (width - 1) / 2)));
  const values = lines.flatMap((line) => line.x.flatMap((x, i) => (spikes.has(x) ? [] : [line.hi?.[i] ?? line.y[i]]))).filter(number);
  return spikes.size && values.length ? values.reduce((a, b) => Math.max(a, b)) : undefined;
}
