// What follows from a shape: bars, sizes against the context, the table.

import { curves } from "sinkgate/lib/curves.js";
import { figure, h, s, table } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { exact, human } from "sinkgate/kv/sizes.js";
import { ofModel, schemes } from "sinkgate/kv/schemes.js";

export const MEASURES = () => ({ kept: t("kept"), read: t("read a step"), token: t("a token adds") });
const valueOf = (row, measure) => (measure === "kept" ? row.totalBytes : measure === "read" ? row.readBytes : row.tokenBytes);
/** Bytes exactly: a whole number with its thousands apart, or the fraction that a token adds. */
const whole = (value) => (typeof value === "bigint" ? exact(value) : Number.isInteger(value) ? exact(value) : String(value));
const plain = (value) => (typeof value === "bigint" || Number.isInteger(value) ? String(BigInt(value)) : String(value));

/** Powers of two for an axis of bytes: at most `count` of them. */
function powers(lo, hi, count) {
  const from = Math.ceil(Math.log2(Math.max(lo, 1)) - 1e-9), to = Math.floor(Math.log2(Math.max(hi, 2)) + 1e-9), every = [1, 2, 5, 10, 20].find((n) => (to - from) / n <= count) ?? 20, out = [];
  for (let e = Math.ceil(from / every) * every; e <= to; e += every) out.push(2 ** e);
  return out;
}

function linearTicks(hi, count) {
  const rough = hi / count, unit = 2 ** (10 * Math.floor(Math.log2(Math.max(rough, 1)) / 10)), step = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].find((n) => n * unit >= rough) * unit, out = [];
  for (let v = 0; v <= hi; v += step) out.push(v);
  return out;
}

/** A bar for each scheme; the line marks this model. */
export function barsFigure(found, measure, scale, options) {
  const name = MEASURES()[measure], title = t("{measure}, by scheme", { measure: name });
  const draw = (width) => {
    const W = Math.max(width, 240), rows = found.rows, step = 27, label = 128, value = 88, top = 8, foot = 26, H = top + rows.length * step + foot, right = W - value;
    const sizes = rows.map((row) => Number(valueOf(row, measure))), there = sizes.filter((v) => v > 0), hi = Math.max(...there, 1), least = Math.min(...there, hi);
    const lo = scale === "log" ? 2 ** (Math.floor(Math.log2(least)) - 1) : 0, most = scale === "log" ? 2 ** Math.ceil(Math.log2(hi) + 1e-9) : hi * 1.02;
    const X = (v) => label + (right - label) * (scale === "log" ? (v > 0 ? Math.log(v / lo) / Math.log(most / lo) : 0) : v / most);
    const marks = scale === "log" ? powers(lo, most, Math.max(2, (right - label) / 76)) : linearTicks(most, Math.max(2, (right - label) / 84));
    const spoken = rows.map((row) => `${t(...row.name)}: ${human(valueOf(row, measure))}`).join("; ");
    return s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}. ${spoken}` },
      marks.map((v) => [s("path", { class: "gridline", d: `M${X(v)} ${top}V${H - foot}` }), s("text", { x: X(v), y: H - 8, "text-anchor": "middle" }, v ? human(v) : "0")]),
      rows.map((row, i) => {
        const v = valueOf(row, measure), y = top + i * step, end = X(Number(v));
        return [s("text", { x: label - 8, y: y + 17, "text-anchor": "end", class: "strong" }, t(...row.name)),
          s("rect", { x: label, y: y + 5, width: Math.max(0, end - label), height: 17, class: i ? "f-content" : "f-sink" }),
          s("text", { x: end + 6, y: y + 17, class: "strong" }, human(v))];
      }),
      s("path", { class: "axis", d: `M${label} ${top}V${H - foot}` }),
      sizes[0] > 0 ? s("path", { class: "kv-this", d: `M${X(sizes[0])} ${top}V${H - foot}` }) : null);
  };
  const note = scale === "log" ? t("Log scale: equal lengths are equal ratios; bars begin at no zero. The dashed line: this model.") : t("Linear scale. The dashed line: this model.");
  return figure({ title, name: `kv ${measure}`, about: t("{context} tokens, {batch} sequences", { context: exact(options.context), batch: options.batch }), draw, note,
    data: () => [[t("scheme"), t("bytes")], ...found.rows.map((row) => [t(...row.name), plain(valueOf(row, measure))])] });
}

/** Every scheme against the length of the text. */
export function contextFigure(groups, options, scale) {
  const most = Math.max(2 ** 20, 2 ** Math.ceil(Math.log2(options.context) + 1)), places = [];
  for (let e = 7; 2 ** e <= most; e += scale === "log" ? 0.5 : 1) places.push(Math.round(2 ** e));
  if (scale !== "log") { places.length = 0; for (let i = 1; i <= 32; i++) places.push(Math.round((options.context * 2 * i) / 32)); }
  const x = [...new Set([...places, options.context])].filter((v) => v > 0).sort((a, b) => a - b), at = x.map((context) => schemes(groups, { ...options, context }).rows);
  const lines = at[0].map((first, k) => ({ name: t(...first.name), style: k, x, y: at.map((rows) => Number(rows[k].totalBytes)), strong: k === 0 }));
  const log = scale === "log", title = t("Kept, against the length of the text");
  const spec = { label: t("{title}. Arrow keys read the values.", { title }), xlabel: t("tokens of context"), ylabel: log ? t("bytes, all sequences (log scale)") : t("bytes, all sequences"), xlog: log, ylog: log, ylo: log ? undefined : 0, height: 330,
    lines, marks: [{ x: options.context }], yfmt: human, ymark: human, xfmt: tokens, yticks: log ? (lo, hi) => powers(lo, hi, 6) : (lo, hi) => linearTicks(hi, 5), xticks: log ? (lo, hi, n) => powers(lo, hi, n) : undefined };
  return figure({ title, name: "kv against context", draw: (width) => curves(width, spec), data: () => exactRows(spec, at, x), note: t("The upright line: the context chosen.") });
}

/** The chart's numbers, in whole bytes. */
const exactRows = (spec, at, x) => [[spec.xlabel, ...spec.lines.map((line) => line.name)], ...x.map((context, i) => [String(context), ...at[i].map((row) => plain(row.totalBytes))])];

/** Tokens as people say them: 4k, 1m where it is one. */
export const tokens = (n) => (n >= 2 ** 20 && n % 2 ** 20 === 0 ? `${n / 2 ** 20}m` : n >= 1024 && n % 1024 === 0 ? `${n / 1024}k` : exact(Math.round(n)));

export function kvTable(found) {
  const first = found.rows[0], bytes = (get) => ({ num: true, get: (row) => plain(get(row)), show: (row) => [human(get(row)), h("small", {}, t("{n} B", { n: whole(get(row)) }))] });
  return table({ caption: t("Every scheme, in bytes"), name: "kv schemes", rows: found.rows, columns: [
    { head: t("scheme"), get: (row) => t(...row.name), rowhead: true },
    { head: t("a token adds"), ...bytes((row) => row.tokenBytes) },
    { head: t("kept"), ...bytes((row) => row.totalBytes) },
    { head: t("of it, states"), ...bytes((row) => row.stateBytes) },
    { head: t("read a step"), ...bytes((row) => row.readBytes) },
    { head: t("of this model"), num: true, get: (row) => ofModel(row, first), show: (row) => ofModel(row, first) },
    { head: t("what changes"), wide: true, get: (row) => t(...row.note), show: (row) => t(...row.note) },
  ] });
}

