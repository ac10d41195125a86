// Weightings in the page: each is the twin of one of sinkgate.weighting's, and held to it at 1e-12 by a test.
//
// A twin's weights(scores, visible, parameters) takes n scores and which of them are seen, and gives n weights, in the
// same steps as Python. settle() puts right what the parameters rule out together; line() is the score under which a
// key gets nothing, where there is one.

const top = (scores, visible, least = -Infinity) => scores.reduce((most, s, j) => (visible[j] && s > most ? s : most), least);
const sum = (list) => list.reduce((total, v) => total + v, 0);
const count = (visible) => Math.max(visible.filter(Boolean).length, 1);
const given = (value) => value !== null && value !== undefined;

/** e^{s−m} at what is seen, and its sum with e^{z−m}, where m is the largest of s and z. */
function exponentials(scores, visible, z = null) {
  let m = top(scores, visible, given(z) ? z : -Infinity);
  if (m === -Infinity) m = 0;
  const e = scores.map((s, j) => (visible[j] ? Math.exp(s - m) : 0));
  return [e, sum(e) + (given(z) ? Math.exp(z - m) : 0)];
}

const divide = ([e, total]) => e.map((v) => v / (total === 0 ? 1 : total));

function sigma(x) {
  if (x >= 0) return 1 / (1 + Math.exp(-x));
  const e = Math.exp(x);
  return e / (1 + e);
}

function sigmoid(scores, visible, { bias, n }) {
  const b = given(bias) ? bias : -Math.log(given(n) ? n : count(visible));
  return scores.map((s, j) => (visible[j] ? sigma(s + b) : 0));
}

function relu(scores, visible, { normalize, n, squared }) {
  const over = normalize ? (given(n) ? n : count(visible)) : 1;
  return scores.map((s, j) => {
    const w = visible[j] && s > 0 ? s : 0;
    return (squared ? w * w : w) / over;
  });
}

function softpick(scores, visible, { eps }) {
  const m = top(scores, visible, 0), low = Math.exp(-m);
  // e^0 − 1 = 0 at what is not seen; near 0 the difference would have no digits.
  const x = scores.map((s, j) => (!visible[j] ? 0 : s > 1 ? Math.exp(s - m) - low : Math.expm1(s) * low));
  const total = sum(x.map(Math.abs)) + eps * low;
  return x.map((v) => Math.max(v, 0) / (total === 0 ? 1 : total));
}

/** The k-th largest score that is seen. */
function kth(scores, visible, k) {
  const ordered = scores.map((s, j) => (visible[j] ? s : -Infinity)).sort((a, b) => b - a);
  return ordered[Math.min(k, ordered.length) - 1];
}

function topk(scores, visible, { k, delta, keep_rest }) {
  const least = kth(scores, visible, k), z = delta ? Math.log(delta) : null;
  const [e, total] = exponentials(scores, visible.map((seen, j) => seen && scores[j] >= least), z);
  return divide([keep_rest ? exponentials(scores, visible, z)[0] : e, total]);
}

/** Sparsemax: which keys are on the support, and τ counted from the largest score m. */
function support(scores, visible) {
  let m = top(scores, visible);
  if (m === -Infinity) m = 0;
  const x = scores.map((s, j) => (visible[j] ? s - m : -Infinity));
  const ordered = [...x].sort((a, b) => b - a).map((v) => Math.max(v, -1)); // a gap of 1 is out already
  let size = 0, total = 0;
  ordered.forEach((v, i) => {
    total += v;
    if (1 + (i + 1) * v > total) size += 1;
  });
  const least = ordered[Math.max(size - 1, 0)], on = x.map((v) => v >= least && v > -Infinity);
  const tau = (sum(x.map((v, j) => (on[j] ? v : 0))) - 1) / Math.max(on.filter(Boolean).length, 1);
  return { x, on, tau, m };
}

function sparsemax(scores, visible) {
  const { x, on, tau } = support(scores, visible);
  return x.map((v, j) => (on[j] ? Math.max(v - tau, 0) : 0));
}

/** Entmax: (α−1)(s−m), and the threshold by bisection and one step of Newton. */
function threshold(scores, visible, alpha) {
  const m = top(scores, visible), power = 1 / (alpha - 1), lowest = -Number.MAX_VALUE / 4;
  const x = scores.map((s, j) => (alpha - 1) * (visible[j] && s > -Infinity ? Math.max(s - m, lowest) : lowest));
  if (m === -Infinity) return { x, on: x.map(() => false), tau: 0, power, m: 0 };
  let low = -1, high = 0;
  for (let step = 0; step < 54; step++) {
    const middle = (low + high) / 2;
    if (sum(x.map((v) => Math.max(v - middle, 0) ** power)) >= 1) low = middle;
    else high = middle;
  }
  const on = x.map((v) => v > low), p = x.map((v, j) => (on[j] ? (v - low) ** power : 0));
  const slope = sum(x.map((v, j) => (on[j] ? p[j] / (v - low) : 0))) * power;
  const tau = low + (sum(p) - 1) / (slope === 0 ? 1 : slope);
  return { x, on: x.map((v, j) => on[j] && v > tau), tau, power, m };
}

function entmax(scores, visible, { alpha }) {
  const { x, on, tau, power } = threshold(scores, visible, alpha);
  return x.map((v, j) => (on[j] ? (v - tau) ** power : 0));
}

function clipped(scores, visible, { zeta, gamma, strength, n }) {
  const low = given(gamma) ? gamma : -strength / (given(n) ? n : count(visible));
  return divide(exponentials(scores, visible)).map((p) => Math.min(Math.max((zeta - low) * p + low, 0), 1));
}

export const TWINS = {
  softmax: { weights: (scores, visible) => divide(exponentials(scores, visible)) },
  sink_softmax: { weights: (scores, visible, { z }) => divide(exponentials(scores, visible, z)) },
  softmax1: { weights: (scores, visible) => divide(exponentials(scores, visible, 0)) },
  sigmoid: { weights: sigmoid, settle: (p) => (given(p.bias) ? { ...p, n: null } : p) },
  relu: { weights: relu, settle: (p) => (p.normalize ? p : { ...p, n: null }), line: () => 0 },
  softpick: { weights: softpick, line: () => 0 },
  topk_softmax: { weights: topk, line: (scores, visible, { k, keep_rest }) => (keep_rest ? null : kth(scores, visible, k)) },
  sparsemax: {
    weights: sparsemax,
    line: (scores, visible) => { const { tau, m } = support(scores, visible); return m + tau; },
  },
  entmax: {
    weights: entmax,
    line: (scores, visible, { alpha }) => { const { tau, m } = threshold(scores, visible, alpha); return m + tau / (alpha - 1); },
  },
  clipped_softmax: { weights: clipped },
};

/** A weighting's weights, its defaults filled in; null where this page has no twin of it. */
export function weigh(name, scores, visible = null, parameters = {}) {
  if (!Object.hasOwn(TWINS, name)) return null;
  return TWINS[name].weights(scores, visible ?? scores.map(() => true), parameters);
}
