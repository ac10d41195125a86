import { s } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { clean, number } from "sinkgate/lib/text.js";

export const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];
export const DIVERGING = {
  light: ["#0b4a7a", "#2f7db8", "#83b7dc", "#cfe0ea", "#efece6", "#f3d7b0", "#e5a556", "#bf6a14", "#7f3b08"],
  dark: ["#b5dcf7", "#69afe0", "#3479ab", "#24486a", "#262b30", "#6a4423", "#b06c1c", "#e5a04a", "#ffdca6"],
};
// Okabe and Ito's colours, each with a letter, so that hue is never the only sign.
export const KINDS = {
  sink: ["#d55e00", "S"], local: ["#0072b2", "L"], previous: ["#56b4e9", "P"], uniform: ["#b8b8b8", "U"],
  specific: ["#009e73", "K"], none: ["none", ""], unmeasured: ["hatch", ""],
};
export const SPARE = ["#cc79a7", "#f0e442", "#8c6d31", "#7570b3"];
export const warning = () => t("Brightness is not importance: a key holding 90% whose value is near zero writes almost nothing. See “sink write ratio”.");
export const massLike = (metric) => metric.scale !== "category" && /mass|excess|margin|other.key|sink.rate/i.test(`${metric.id} ${metric.label}`);
export const aboutWrites = (metric) => /write/i.test(`${metric.id} ${metric.label}`);

export const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

export function mix(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(at), stops.length - 2);
  const [a, b] = [channels(stops[i]), channels(stops[i + 1])];
  return "#" + a.map((v, k) => Math.round(v + (b[k] - v) * (at - i)).toString(16).padStart(2, "0")).join("");
}

const RAMPS = new Map();

/** The same in 256 steps that are mixed once: a map has thousands of cells. */
export function step(stops, share) {
  if (!RAMPS.has(stops)) RAMPS.set(stops, Array.from({ length: 256 }, (_, i) => mix(stops, i / 255)));
  return RAMPS.get(stops)[Math.round(255 * Math.min(Math.max(share, 0), 1))];
}

export function ink(hex) {
  const [r, g, b] = channels(hex).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#14171a" : "#ffffff";
}

/** Where a value lies on its metric's colour scale, 0 to 1. */
export function place(metric, value) {
  const { lo, hi, scale } = metric;
  if (scale === "log") return value <= 0 ? 0 : Math.log(value / lo) / Math.log(hi / lo);
  if (scale === "diverging") return 0.5 + (0.5 * value) / (Math.max(Math.abs(lo), Math.abs(hi)) || 1);
  return (value - lo) / (hi - lo || 1);
}

export function kindOf(metric, value) {
  if (KINDS[value]) return KINDS[value];
  const others = [...new Set(metric.values.flat().filter((v) => v !== null && !KINDS[v]))].sort();
  return [SPARE[others.indexOf(value) % SPARE.length] ?? SPARE[0], (clean(value)[0] ?? "?").toUpperCase()];
}

export function colour(metric, value, dark) {
  if (value === null || value === undefined) return null;
  if (metric.scale === "category") return kindOf(metric, value)[0];
  if (!number(value)) return null;
  return step(metric.scale === "diverging" ? DIVERGING[dark ? "dark" : "light"] : VIRIDIS, place(metric, value));
}

export function ticks(lo, hi, count) {
  const rough = (hi - lo) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= rough * 0.999) ?? power;
  const out = [];
  for (let v = Math.ceil(lo / step - 1e-9) * step; v <= hi + step * 1e-6; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : +v.toPrecision(12));
  return out;
}

export function logTicks(lo, hi, count) {
  const sets = [[1, 2, 5], [1, 3], [1]];
  for (const set of sets) {
    const out = [];
    for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++)
      for (const m of set) { const v = +`${m}e${e}`; if (v >= lo * 0.999 && v <= hi * 1.001) out.push(v); }
    if (out.length <= count + 1) return out.length >= 2 ? out : ticks(lo, hi, count).filter((v) => v > 0);
  }
  const decades = Math.log10(hi / lo), step = Math.ceil(decades / count), out = [];
  for (let e = Math.ceil(Math.log10(lo) - 1e-9); e <= Math.log10(hi) + 1e-9; e += step) out.push(+`1e${e}`);
  return out;
}

export let hatches = 0;

export function hatch(size = 6) {
  const id = `hatch${++hatches}`;
  return [id, s("defs", {}, s("pattern", { id, width: size, height: size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("rect", { width: size, height: size, class: "hatchback" }), s("line", { x1: 0, y1: 0, x2: 0, y2: size, class: "hatchline" })))];
}
