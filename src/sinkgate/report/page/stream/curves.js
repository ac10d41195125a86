// What a text cost along a stream, from its record: the same charts for a stored record and for one that is being filled.

import { lineChart, lineData } from "sinkgate/lib/charts.js";
import { bdi, figure, h, table } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { DASH, clean, fmt, number } from "sinkgate/lib/text.js";
import { sizesOf } from "sinkgate/stream/slots.js";

const LARGEST = 700; // nats whose exponential is still a number
const SAMPLED = 30; // predictions that make one drawn point where only some are made
const DRAWN = 128; // points of the curve of stretches at most
export const ARMS = 8; // looks of lines that can be told apart

/** What an arm keeps, in words. */
export function armName(arm) {
  const sizes = sizesOf(arm.policy);
  if (arm.policy === "dense") return t("full: everything kept");
  if (!sizes || ![arm.policy, "window", `${sizes.sinks} sinks`].includes(arm.name)) return clean(arm.name);
  if (!sizes.sinks) return t("window alone, {n}", { n: fmt(sizes.recent) });
  return t(sizes.sinks === 1 ? "1 sink + {n} recent" : "{k} sinks + {n} recent", { k: sizes.sinks, n: fmt(sizes.recent) });
}

/** Names of all arms; where two are alike, with their positions. */
export function armNames(arms) {
  const names = arms.map(armName), where = { slots: t("cache positions"), original: t("text positions"), recomputed: t("recomputed") };
  return names.map((name, i) => (names.filter((other) => other === name).length > 1 ? `${name}, ${where[arms[i].positions] ?? clean(arms[i].positions)}` : name));
}

const total = (values) => values.reduce((sum, v) => sum + v, 0);
export const perplexity = (nats, count) => (count > 0 && number(nats) ? Math.exp(Math.min(nats / count, LARGEST)) : null);
export const wholeOf = (arm) => perplexity(total(arm.sums), total(arm.counts));

/** Perplexity of everything so far, one value per point of the arm's curve; null where too little was sampled. */
export function running(arm) {
  let nats = 0, count = 0;
  return arm.sums.map((sum, k) => {
    nats += sum;
    count += arm.counts[k];
    return arm.counts[k] && count >= (arm.at ? SAMPLED : 1) ? perplexity(nats, count) : null;
  });
}

/** Perplexity of each stretch of `together` points, but for a short last one; a sampled arm's stretches are as long as it takes for enough predictions. */
export function stretches(arm, together) {
  const out = new Array(Math.ceil(arm.sums.length / together)).fill(null);
  let from = 0, nats = 0, count = 0;
  for (let g = 0; g < out.length; g++) {
    nats += total(arm.sums.slice(g * together, (g + 1) * together));
    count += total(arm.counts.slice(g * together, (g + 1) * together));
    const last = g === out.length - 1;
    if (arm.at && count < SAMPLED && !last) continue;
    // A last stretch of a few predictions says little and would stretch the scale.
    if (count >= Math.min(SAMPLED, arm.at ? SAMPLED : together * arm.every)) out.fill(perplexity(nats, count), from, g + 1);
    from = g + 1;
    nats = count = 0;
  }
  return out;
}

/** Where the points of the curves lie: tokens predicted up to there. */
const ends = (record, every, count) => Array.from({ length: count }, (_, k) => Math.min((k + 1) * every, record.meta.tokens - 1));
const looks = (i) => `c-arm${i % ARMS}`;

export function specs(record) {
  const arms = record.arms, names = armNames(arms), every = arms[0]?.every ?? record.meta.every, longest = Math.max(0, ...arms.map((arm) => arm.sums.length));
  const together = Math.max(1, Math.ceil(longest / DRAWN)), series = (of) => arms.map((arm, i) => ({ name: names[i], cls: looks(i), y: of(arm) }));
  const axis = { xlabel: t("tokens of the text"), xname: t("tokens"), ylabel: t("perplexity (log)"), ylog: true, empty: t("Nothing was read yet."), height: 250 };
  return {
    every: every * together,
    running: { ...axis, x: ends(record, every, longest), series: series(running) },
    stretches: { ...axis, x: ends(record, every * together, Math.ceil(longest / together)), series: series((arm) => stretches(arm, together)) },
  };
}

/** The figures and the table of a record; `redraw()` shows what was added to it. */
export function streamCurves(record, name) {
  const about = `${clean(record.meta.model.name)} · ${clean(record.meta.text)}`, first = specs(record);
  const make = (title, key, note) => figure({ title, name: `${name}-${key}`, about, note, data: () => lineData(specs(record)[key])(),
    draw: (width) => lineChart(width, { ...specs(record)[key], label: t("{title}. Arrow keys read the values.", { title }) }) });
  const figures = [
    make(t("Perplexity of everything so far"), "running", t("Lower is better: the mean over all predictions up to here, exponentiated. Every arm reads the same text, each token predicted from what its cache still holds.")),
    make(t("Perplexity of each stretch of {n} tokens", { n: fmt(first.every) }), "stretches", record.arms.some((arm) => arm.at) ? t("Arms of which only some predictions were made are drawn as steps of at least {n} of them.", { n: SAMPLED }) : null),
  ];
  const under = h("div", {});
  const box = h("div", { class: "curves" }, h("div", { class: "plots wide" }, figures), under);
  const redraw = () => {
    figures.forEach((fig, i) => {
      const plot = fig.querySelector(".plot"), width = Math.floor(plot.clientWidth);
      if (width) plot.replaceChildren(lineChart(width, { ...specs(record)[i ? "stretches" : "running"], label: fig.querySelector(".t").textContent }));
    });
    under.replaceChildren(armTable(record, name));
  };
  under.replaceChildren(armTable(record, name));
  return { box, redraw };
}

export function bytes(n) {
  if (!number(n) || n <= 0) return DASH;
  const power = Math.min(Math.floor(Math.log2(n) / 10), 4);
  return `${+(n / 2 ** (10 * power)).toPrecision(4)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function armTable(record, name) {
  const names = armNames(record.arms), rows = record.arms.map((arm, i) => ({ arm, i }));
  return table({ caption: t("What each cache cost"), name: `${name}-arms`, rows, columns: [
    { head: t("cache"), get: (r) => names[r.i], show: (r) => [h("i", { class: `key f-arm${r.i % ARMS}` }), bdi(names[r.i])], rowhead: true },
    { head: t("keeps"), get: (r) => r.arm.policy, show: (r) => h("code", {}, r.arm.policy ? bdi(r.arm.policy) : t("every window afresh")) },
    { head: t("positions"), get: (r) => r.arm.positions },
    { head: t("perplexity"), get: (r) => wholeOf(r.arm), num: true },
    { head: t("predictions"), get: (r) => total(r.arm.counts), num: true },
    { head: t("tokens/s"), get: (r) => (r.arm.seconds ? total(r.arm.counts) / r.arm.seconds : null), num: true },
    { head: t("cache size"), get: (r) => r.arm.cache_bytes, show: (r) => bytes(r.arm.cache_bytes), num: true },
    { head: t("tokens held"), get: (r) => r.arm.held || null, num: true },
    { head: t("note"), get: (r) => r.arm.note, show: (r) => clean(r.arm.note) || (r.arm.complete ? "" : t("not to the end")), wide: true }] });
}
