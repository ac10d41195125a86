// What the simulator is set to, as the address says it: text in, numbers out, everything checked.

export const MOST = 64, FARTHEST = 10_000, WIDEST = 1000, MANY = 131_072;
export const KEYS = ["lesson", "said", "did", "preset", "weighting", "given", "scores", "values", "key", "shift", "temperature", "gate", "gatey",
  "sink", "cut", "target", "many", "share", "lead"];
/** A state in which everything is as it is at first. */
export const BLANK = Object.fromEntries(KEYS.map((key) => [key, null]));

/** A number in the way that people and toString() write one, within bounds; else the other. "-inf" is −∞ where allowed. */
export function real(text, lo, hi, other) {
  const said = String(text ?? "").trim().replace("−", "-").replace("∞", "inf");
  if (said === "-inf") return lo === -Infinity ? -Infinity : other;
  if (!/^[+-]?(\d{1,9}(\.\d{0,20})?|\.\d{1,20})(e[+-]?\d{1,2})?$/.test(said)) return other;
  return Math.min(hi, Math.max(lo, +said));
}

/** A number as the address has it; at most 6 digits after the point where a hand set it. */
export const written = (value) => (value === -Infinity ? "-inf" : String(value));
export const rounded = (value, digits = 2) => +value.toFixed(digits) + 0;

const list = (text, most, one) => {
  const parts = text ? String(text).split(",").slice(0, most).map(one) : [];
  return parts.length && parts.every((part) => part !== null) ? parts : null;
};

/** "1,x0.5": scores, an x before one that is hidden. */
function scoresOf(text) {
  return list(text, MOST, (part) => {
    const hidden = part.startsWith("x"), s = real(hidden ? part.slice(1) : part, -FARTHEST, FARTHEST, null);
    return s === null ? null : { s, hidden };
  }) ?? [{ s: 2, hidden: false }, { s: 0.5, hidden: false }, { s: -0.5, hidden: false }];
}

const point = (part) => {
  const [x, y, more] = part.split(":").map((each) => real(each, -WIDEST, WIDEST, null));
  return x === null || y === null || y === undefined || more !== undefined ? null : [x, y];
};

/** Where a key's value lies unless it was moved: the first writes nothing, the others lie around it. */
export function usualValue(j) {
  if (j === 0) return [0, 0];
  const turn = 0.5 + 2.399963 * (j - 1), far = 3 - 1.2 * ((j - 1) % 3) / 2;
  return [rounded(far * Math.cos(turn), 1), rounded(far * Math.sin(turn), 1)];
}

/** The parameters of a weighting: its defaults, and over them what the address gives. */
function givenOf(weighting, text) {
  const given = Object.fromEntries(weighting.parameters.map((p) => [p.name, p.default]));
  for (const part of text ? String(text).split(",").slice(0, 16) : []) {
    const [name, said] = part.split(":"), p = weighting.parameters.find((each) => each.name === name);
    if (p) given[name] = parameter(p, said, given[name]);
  }
  return given;
}

// What a parameter may be and what its slider reaches, by its name; one that is not here has a field and no slider.
export const RANGES = {
  z: { least: -Infinity, lo: -6, hi: 6, most: 100, step: 0.05 }, alpha: { least: 1.001, lo: 1.05, hi: 4, most: 50, step: 0.05 }, k: { least: 1, lo: 1, hi: 64, most: 64, step: 1 },
  delta: { least: 0, lo: 0, hi: 4, most: 1000, step: 0.05 }, bias: { least: -1000, lo: -8, hi: 8, most: 1000, step: 0.05 }, n: { least: 1, lo: 1, hi: 64, most: MANY, step: 1 },
  eps: { least: 0, lo: 0, hi: 1, most: 1, step: 0.01 }, zeta: { least: 0.01, lo: 0.5, hi: 2, most: 10, step: 0.01 }, gamma: { least: -10, lo: -1, hi: 0, most: 0, step: 0.01 },
  strength: { least: 0, lo: 0, hi: 8, most: 100, step: 0.1 },
};

export function parameter(p, said, other) {
  if (said === "null") return p.optional ? null : other;
  if (p.kind === "choice") return said === "true" ? true : said === "false" ? false : other;
  const { least, most } = RANGES[p.name] ?? { least: -WIDEST, most: WIDEST };
  const value = real(said, least, most, null);
  return value === null ? other : p.kind === "whole" ? Math.round(value) : value;
}

/** As "alpha:1.5,k:3", without what is at its default. */
export const writtenGiven = (weighting, given) =>
  weighting.parameters.filter((p) => given[p.name] !== p.default).map((p) => `${p.name}:${given[p.name] === null ? "null" : written(given[p.name])}`).join(",") || null;

export const writtenScores = (scores) => scores.map(({ s, hidden }) => (hidden ? "x" : "") + written(s)).join(",");
export const writtenValues = (values) => values.map(([x, y]) => `${written(x)}:${written(y)}`).join(",");

/** The state as numbers. */
export function modelOf(state, weightings) {
  const scores = scoresOf(state.scores), n = scores.length, moved = list(state.values, MOST, point) ?? [];
  const weighting = weightings.find((each) => each.name === state.weighting) ?? weightings[0];
  const gate = real(state.gate, 0, 1, 1), place = (text, other) => (/^-?\d{1,2}$/.test(text ?? "") && +text >= -1 && +text < n ? +text : other);
  return {
    scores, n, weighting, gate: [gate, real(state.gatey, 0, 1, gate)], split: real(state.gatey, 0, 1, null) !== null,
    given: givenOf(weighting, state.given),
    values: scores.map((_, j) => moved[j] ?? usualValue(j)),
    key: Math.max(place(state.key, 0), 0), sink: place(state.sink, 0), cut: state.cut === "1" || state.cut === 1,
    shift: real(state.shift, -WIDEST, WIDEST, 0), temperature: real(state.temperature, 0.01, 100, 1),
    target: state.target ? point(String(state.target)) : null,
    many: Math.round(real(state.many, 2, MANY, 4096)), share: real(state.share, 0.001, 0.999, 0.9), lead: real(state.lead, 0, 30, 0.5),
  };
}

/** What the address asks for, wrong parts left out, so that it is written again only as it was understood. */
export function readState(asked, weightings, presets, lessons) {
  const said = Object.fromEntries(KEYS.map((key) => [key, asked.get(key)])), model = modelOf(said, weightings), kept = { ...BLANK };
  const keep = (key, value) => { if (said[key] !== null) kept[key] = value; };
  keep("scores", writtenScores(model.scores));
  if (list(said.values, MOST, point)) keep("values", writtenValues(model.values));
  keep("weighting", model.weighting.name);
  keep("given", writtenGiven(model.weighting, model.given));
  for (const key of ["key", "sink", "many", "share", "lead", "shift", "temperature"]) keep(key, model[key]);
  keep("gate", model.gate[0]);
  if (model.split) kept.gatey = model.gate[1];
  if (model.cut) kept.cut = 1;
  if (model.target) kept.target = writtenValues([model.target]);
  if (presets.includes(said.preset)) kept.preset = said.preset;
  if (lessons.includes(said.lesson)) {
    kept.lesson = said.lesson;
    if (/^[0-9]$/.test(said.said ?? "")) kept.said = +said.said;
    if (kept.said !== null && /^[0-9]$/.test(said.did ?? "")) kept.did = +said.did;
  }
  return kept;
}
