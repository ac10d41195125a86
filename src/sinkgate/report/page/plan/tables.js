// The tables of a plan: as it is and with it, every measured setting, the arms of fewer bits, its texts.

import { bdi, h, table, want } from "sinkgate/lib/dom.js";
import { language, t } from "sinkgate/lib/language.js";
import { clean, DASH, fmt, number } from "sinkgate/lib/text.js";
import { mean, measured, milliseconds, percentOf, plus, said, signed, spread, stateName } from "sinkgate/plan/data.js";
import { bytes, short } from "sinkgate/stream/curves.js";

const times = (value) => (mean(value) ? spread(value, (v) => `×${fmt(v)}`) : DASH);
/** A mean, and its interval below it. */
const twoLines = (value) => [signed(mean(value)?.mean), mean(value) && number(value.low) && number(value.high) ? h("small", { class: "plan-interval" }, ` [${signed(value.low)}, ${signed(value.high)}]`) : null];
const positionsOf = (name) => ({ slots: t("cache"), original: t("text") })[name] ?? clean(name);
const count = (n) => t(n === 1 ? "{n} text" : "{n} texts", { n: fmt(n) });

/** Everything that has a number before and after. */
export function beforeAfter(payload) {
  const { predicted: p, measured: m, request, meta } = payload, rows = [], leave = payload.answer === "leave it";
  const row = (what, before, after, note = "", id = "") => rows.push({ what, before, after, note, id });
  row(t("cache at {n} tokens, predicted", { n: fmt(meta.context) }) + (request.batch > 1 ? ` × ${fmt(request.batch)}` : ""), bytes(p.dense_bytes), bytes(p.bytes), leave ? "" : t("{n} of it", { n: percentOf(p.bytes, p.dense_bytes) }), "bytes");
  if (number(m.bytes)) row(t("cache at {n} tokens, measured", { n: fmt(m.length) }), bytes(m.dense_bytes), bytes(m.bytes), number(m.predicted_bytes) ? t("predicted {n}", { n: bytes(m.predicted_bytes) }) : "", "measured-bytes");
  if (number(p.milliseconds)) row(t("a step at {n} tokens, predicted", { n: fmt(meta.context) }), milliseconds(p.dense_milliseconds), milliseconds(p.milliseconds), "", "milliseconds");
  if (number(m.milliseconds)) row(t("a step at {n} tokens, measured", { n: fmt(m.length) }), milliseconds(m.dense_milliseconds), milliseconds(m.milliseconds), [times(m.ratio) === DASH ? "" : times(m.ratio), number(m.predicted_ratio) ? t("predicted {n}", { n: `×${fmt(m.predicted_ratio)}` }) : ""].filter(Boolean).join("; "), "measured-milliseconds");
  if (mean(p.increase)) row(t("perplexity increase, when tuned"), DASH, spread(p.increase), count(p.increase.n), "tuned");
  if (mean(m.increase)) row(t("perplexity increase, verified on other texts"), DASH, spread(m.increase), count(m.increase.n), "increase");
  if (mean(m.late)) row(t("in the last quarter of a text"), DASH, spread(m.late), count(m.late.n), "late");
  if (number(m.promise)) row(t("promised for other texts"), DASH, `≤ ${signed(m.promise)}`, number(request.max_increase) ? t("asked: {n}", { n: `≤ ${signed(request.max_increase)}` }) : "", "promise");
  if (mean(m.kl)) row(t("KL divergence, nats a token"), DASH, spread(m.kl, fmt), count(m.kl.n), "kl");
  if (mean(m.agreement)) row(t("same most likely token"), DASH, spread(m.agreement, (v) => `${(100 * v).toFixed(1)}%`), count(m.agreement.n), "agreement");
  const box = table({ caption: t("As it is, and with the plan"), name: "plan", rows, columns: [
    { head: t("quantity"), get: (r) => r.what, show: (r) => r.what, rowhead: true }, { head: t("as it is"), get: (r) => r.before, show: (r) => r.before, num: true },
    { head: leave ? t("the plan: leave it") : t("the plan"), get: (r) => r.after, show: (r) => h("b", { "data-figure": r.id }, r.after.split(/ (?=\[)/).map((part, i) => (i ? h("small", { class: "plan-interval" }, ` ${part}`) : part))), num: true }, { head: t("beside"), get: (r) => r.note, show: (r) => r.note, wide: true }] });
  box.id = "plan-before-after";
  return box;
}

export const SORTS = ["number", "bytes", "ms", "increase", "late", "texts", "state"];
const KEYS = { number: (r) => r.number, bytes: (r) => r.bytes, ms: (r) => r.milliseconds, increase: (r) => mean(r.increase)?.mean, late: (r) => mean(r.lately)?.mean, texts: (r) => r.texts, state: (r) => r.state };

/** Every setting that was measured; a head sorts, and once more the other way. */
export function trialsTable(payload, sort) {
  const zh = language() === "zh", down = sort.startsWith("-"), key = down ? sort.slice(1) : sort, value = KEYS[key];
  const rows = payload.trials.filter((trial) => mean(trial.increase) || trial.state !== "skipped").sort((a, b) => {
    const [x, y] = [value(a) ?? null, value(b) ?? null];
    if (x === null || y === null) return (x === null) - (y === null);
    return (x < y ? -1 : x > y ? 1 : a.number - b.number) * (down && x !== y ? -1 : 1);
  });
  const why = (r) => [said(payload, r.why ?? "", zh), r.chosen && r.state === "refuted" ? t("verified all the same") : ""].filter(Boolean).join("; ");
  const columns = [
    { id: "number", head: t("trial"), get: (r) => r.number, show: (r) => [fmt(r.number), r.chosen ? h("span", { class: "chip" }, t("the plan")) : null, r.frontier ? h("span", { class: "chip" }, t("frontier")) : null], rowhead: true },
    { head: t("keeps"), get: (r) => r.setting.policy.slice(0, 2000), show: (r) => h("code", {}, bdi(short(r.setting.policy, 120))) },
    { head: t("positions"), get: (r) => positionsOf(r.setting.positions), show: (r) => positionsOf(r.setting.positions) },
    { id: "bytes", head: t("cache"), get: (r) => r.bytes, show: (r) => bytes(r.bytes), num: true },
    { id: "ms", head: t("a step, ms"), get: (r) => r.milliseconds, num: true },
    { id: "increase", head: t("perplexity increase"), get: (r) => mean(r.increase)?.mean ?? null, show: (r) => twoLines(r.increase), num: true },
    { id: "late", head: t("last quarter"), get: (r) => mean(r.lately)?.mean ?? null, show: (r) => signed(mean(r.lately)?.mean), num: true },
    { id: "texts", head: t("texts"), get: (r) => r.texts, num: true },
    { id: "state", head: t("state"), get: (r) => stateName(r.state), show: (r) => stateName(r.state) },
    { head: t("why"), get: (r) => why(r), show: (r) => bdi(why(r)), wide: true }];
  const box = table({ caption: t("Every setting that was measured"), name: "trials", rows, columns, empty: t("No setting was measured.") });
  box.id = "plan-trials";
  box.querySelectorAll("thead th").forEach((th, i) => {
    const { id, head } = columns[i];
    if (!id) return;
    const now = id === key;
    if (now) th.setAttribute("aria-sort", down ? "descending" : "ascending");
    th.replaceChildren(h("button", { type: "button", class: "plan-sort", "data-sort": id, click: (event) => want(event.target, { plan_sort: now && !down ? `-${id}` : id }) }, head, h("span", { "aria-hidden": "true" }, now ? (down ? " ↓" : " ↑") : "")));
  });
  box.querySelectorAll("tbody tr").forEach((tr, i) => { tr.dataset.trial = rows[i].number; if (rows[i].chosen) tr.className = "plan-row"; });
  return box;
}

/** What was proposed and never run, in a line. */
export function counts(payload) {
  const states = payload.counts ?? {}, all = Object.values(states).reduce((sum, n) => sum + (number(n) ? n : 0), 0);
  if (!all) return "";
  return t("{all} settings were proposed; {measured} were measured, {skipped} were decided by what was known and are only counted.", { all: fmt(all), measured: fmt(measured(payload).length), skipped: fmt(number(states.skipped) ? states.skipped : 0) });
}

const PLACES = () => ({ kv: t("Keys and values in fewer bits"), weights: t("Weights in fewer bits"), activations: t("Activations in fewer bits") });

/** The arms of fewer bits, whichever there are: a table for each place. */
export function armsTables(payload) {
  if (!Array.isArray(payload.quantization)) return [];
  return payload.quantization.filter((place) => Array.isArray(place?.arms)).map((place) => {
    const arms = place.arms, caption = PLACES()[place.place] ?? t("Fewer bits: {place}", { place: short(place.place, 60) }), told = (arm) => { const d = mean(arm.beside); return !d || !number(d.low) ? "" : d.high < 0 ? t("below, beyond the interval") : d.low > 0 ? t("above, beyond the interval") : t("not told apart"); };
    const box = !arms.length ? h("h3", {}, caption) : table({ caption, name: `bits-${short(place.place, 40)}`, rows: arms, columns: [
      { head: t("arm"), get: (r) => short(r.name), show: (r) => [bdi(short(r.name)), r.name === place.won ? h("span", { class: "chip" }, t("won")) : null], rowhead: true },
      { head: t("size"), get: (r) => r.size, show: (r) => (!number(r.size) ? DASH : r.unit === "bytes" ? bytes(r.size) : fmt(r.size, "bits")), num: true },
      { head: t("loss rises by"), get: (r) => mean(r.increase)?.mean ?? null, show: (r) => spread(r.increase, plus), num: true },
      { head: t("beside uniform"), get: (r) => mean(r.beside)?.mean ?? null, show: (r) => spread(r.beside, plus), num: true },
      { head: t("finding"), get: (r) => told(r), show: (r) => told(r) }, { head: "KL", get: (r) => (number(r.kl) ? r.kl : null), num: true },
      { head: t("how"), get: (r) => short(r.how ?? "", 300), show: (r) => bdi(short(r.how ?? "", 300)), wide: true }] });
    box.dataset.place = clean(place.place);
    const skipped = Array.isArray(place.skipped) ? place.skipped.filter((pair) => Array.isArray(pair)) : [];
    return h("div", { class: "plan-place" }, box, skipped.length ? h("ul", { class: "notes" }, skipped.map(([name, why]) => h("li", {}, bdi(t("{arm} was not measured: {why}", { arm: short(name), why: short(why, 300) }))))) : null);
  });
}

/** Which texts were tuned on, and which verified on. */
export function textsTable(payload) {
  const texts = payload.meta.texts ?? {}, part = (name, label) => (Array.isArray(texts[name]) ? texts[name] : []).slice(0, 200).map((each) => ({ ...each, label }));
  const box = table({ caption: t("The texts"), name: "texts", rows: [...part("tune", t("tuned on")), ...part("verify", t("verified on"))], columns: [
    { head: t("for what"), get: (r) => r.label, show: (r) => r.label, rowhead: true }, { head: t("source"), get: (r) => short(r.source, 160), show: (r) => bdi(short(r.source, 160)) },
    { head: t("tokens"), get: (r) => r.tokens, num: true }, { head: "id", get: (r) => short(r.id, 40), show: (r) => h("code", {}, bdi(short(r.id, 40))) }] });
  box.id = "plan-texts";
  return box;
}
