// What there is to draw of a plan: its points, in the quantities that are chosen, and its numbers as a reader writes them.

import { t } from "sinkgate/lib/language.js";
import { clean, DASH, fmt, MINUS, number } from "sinkgate/lib/text.js";
import { short } from "sinkgate/stream/curves.js";

export const AXES = { x: ["bytes", "ms"], y: ["whole", "late"] };
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isMean = (value) => isObject(value) && number(value.mean);
const isSetting = (value) => isObject(value) && typeof value.policy === "string";

/** Whether a payload has what its drawing needs. */
export const isPlan = (payload) => isObject(payload) && isObject(payload.meta) && typeof payload.meta.model?.name === "string" && number(payload.meta.context) && isObject(payload.request) && isSetting(payload.setting) && typeof payload.code === "string" &&
  isObject(payload.predicted) && number(payload.predicted.bytes) && number(payload.predicted.dense_bytes) && isObject(payload.measured) && Array.isArray(payload.trials) && payload.trials.every((trial) => isObject(trial) && isSetting(trial.setting) && number(trial.bytes) && typeof trial.state === "string") &&
  ["reasons", "refused", "notes"].every((name) => Array.isArray(payload[name]) && payload[name].every((line) => typeof line === "string"));

/** A sentence of the plan in the reader's language, harmless and of a length that can be read. */
export const said = (payload, text, zh) => short(zh ? payload.chinese?.[text] ?? text : text, 900);

export const mean = (value) => (isMean(value) ? value : null);

/** A relative change as per cent with its sign. */
export function signed(value) {
  if (!number(value)) return DASH;
  const size = Math.abs(100 * value), text = size < 1e6 ? size.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : fmt(size);
  return `${value < 0 && !/^[0.]+$/.test(text) ? MINUS : "+"}${text}%`;
}

/** A mean with its interval. */
export function spread(value, show = signed) {
  if (!isMean(value)) return DASH;
  return number(value.low) && number(value.high) ? `${show(value.mean)} [${show(value.low)}, ${show(value.high)}]` : show(value.mean);
}

export const plus = (value) => (number(value) && value > 0 ? `+${fmt(value)}` : fmt(value));
export const percentOf = (part, whole) => (number(part) && whole > 0 ? `${Math.round((100 * part) / whole)}%` : DASH);
export const milliseconds = (value) => fmt(number(value) ? value : null, "ms");
export const positionsName = (name) => ({ slots: t("of the cache"), original: t("of the text") })[name] ?? clean(name);
export const stateName = (state) => ({ kept: t("held"), refuted: t("refuted"), skipped: t("skipped"), failed: t("failed"), "out of memory": t("out of memory") })[state] ?? clean(state);

/** Those trials that have a loss. */
export const measured = (payload) => payload.trials.filter((trial) => isMean(trial.increase));

/** The points of the drawing: {kind, x, y, low, high, tint, n, state, trial}; what has no place in these quantities is left out. */
export function pointsOf(payload, view) {
  const { predicted: p, measured: m, baseline: b } = payload, bytes = view.x === "bytes", late = view.y === "late", found = [];
  const add = (kind, x, other, y, more) => { if (number(x) && number(y) && (!bytes || x > 0)) found.push({ kind, x, y, tint: number(other) ? other : null, low: null, high: null, ...more }); };
  const pick = (both) => (bytes ? both : [both[1], both[0]]);
  for (const trial of measured(payload)) {
    const y = mean(late ? trial.lately : trial.increase);
    if (y) add("trial", ...pick([trial.bytes, trial.milliseconds]), y.mean, { trial, state: trial.state, n: y.n, low: number(y.low) ? y.low : null, high: number(y.high) ? y.high : null });
  }
  add("dense", ...pick([p.dense_bytes, p.dense_milliseconds]), 0, {});
  const verified = payload.answer === "change" ? mean(late ? m.late : m.increase) : null;
  if (verified) add("plan", ...pick([p.bytes, p.milliseconds]), verified.mean, { n: verified.n, low: number(verified.low) ? verified.low : null, high: number(verified.high) ? verified.high : null });
  const plain = b && !b.taken && bytes && !late ? mean(b.increase) : null;
  if (plain) add("baseline", b.bytes, null, plain.mean, { n: plain.n, low: number(plain.low) ? plain.low : null, high: number(plain.high) ? plain.high : null });
  return found.sort((one, other) => one.x - other.x || one.y - other.y);
}

/** Those of the trials that no other beats in the two quantities that are drawn, by x: what they can be joined with. */
export function hull(points) {
  let best = Infinity;
  return points.filter((point) => point.kind === "trial" && ["kept", "refuted"].includes(point.state) && point.y < best && ((best = point.y), true));
}
