// Many lines in one drawing, each with places of its own: told apart without colour, read by pointer and by arrow keys.
//
// spec: { label, xlabel, ylabel, xlog, ylog, ylo, yhi, height, xfmt, yfmt, xticks, yticks, empty, lines, marks }
// line: { name, style (0, 1, …, or "reference"), x, y, lo, hi, strands: [{x, y}], events: [{x, y, kind}], strong }

import { logTicks, ticks } from "sinkgate/lib/colour.js";
import { h, s, say, tip } from "sinkgate/lib/dom.js";
import { fmt, number, tick } from "sinkgate/lib/text.js";

export const COLOURS = 5;
const DASHES = [null, "8 4", "2 4"];
const dashOf = (style) => (style === "reference" ? null : DASHES[Math.floor(style / COLOURS) % DASHES.length]);
const strokeOf = (style) => (style === "reference" ? "reference" : `a${style % COLOURS}`);
const fillOf = (style) => (style === "reference" ? "f-null" : `dot-a${style % COLOURS}`);

/** A short piece of a line, for a legend or a table. */
export const swatch = (style) => s("svg", { class: "swatch", width: 26, height: 10, "aria-hidden": "true" },
  s("path", { class: `series ${strokeOf(style)}`, "stroke-dasharray": dashOf(style), d: "M1 5H25" }));

export function curves(width, spec) {
  const W = Math.max(width, 200), ok = (x, y) => number(x) && number(y) && Number.isFinite(x) && Number.isFinite(y) && (!spec.xlog || x > 0) && (!spec.ylog || y > 0);
  const all = spec.lines.flatMap((line) => [line, ...(line.strands ?? [])].flatMap((part) => part.x.flatMap((x, i) => [part.y, part.lo, part.hi].filter(Boolean).map((y) => [x, y[i]]))))
    .filter(([x, y]) => ok(x, y));
  if (!all.length) return h("p", { class: "empty" }, spec.empty);
  const least = (values) => values.reduce((a, b) => Math.min(a, b)), most = (values) => values.reduce((a, b) => Math.max(a, b));
  const xs = all.map(([x]) => x), ys = all.map(([, y]) => y), yfmt = spec.yfmt ?? fmt, xfmt = spec.xfmt ?? tick, mark = spec.ymark ?? tick;
  let [x0, x1, y0, y1] = [spec.xlo ?? least(xs), most(xs), spec.ylo ?? least(ys), spec.yhi ?? most(ys)];
  if (x0 === x1) [x0, x1] = spec.xlog ? [x0 / 2, x1 * 2] : [x0 - 0.5, x1 + 0.5];
  if (spec.ylog) { y0 /= 1.15; y1 *= 1.15; }
  else { const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.06; if (spec.ylo === undefined || y0 === y1) y0 -= pad; y1 += pad; }
  const yticks = (spec.yticks ?? ((lo, hi) => (spec.ylog ? logTicks(lo, hi, 5) : ticks(lo, hi, 4))))(y0, y1);
  const left = Math.max(30, 10 + 6.6 * Math.max(0, ...yticks.map((v) => mark(v).length))), right = 14, foot = 38, legend = [];
  let lx = 0, ly = 28;
  for (const line of spec.lines) {
    const need = 32 + line.name.length * 6.5 + 12;
    if (lx && lx + need > W) { lx = 0; ly += 17; }
    legend.push([line, lx, ly]);
    lx += need;
  }
  const top = ly + 16, H = (spec.height ?? 230) + ly - 28;
  const X = (v) => left + (W - left - right) * (spec.xlog ? Math.log(v / x0) / Math.log(x1 / x0) : (v - x0) / (x1 - x0));
  const Y = (v) => Math.min(H - foot, Math.max(top, top + (H - top - foot) * (1 - (spec.ylog ? Math.log(v / y0) / Math.log(y1 / y0) : (v - y0) / (y1 - y0)))));
  const room = Math.max(2, Math.floor((W - left) / 72)), xticks = (spec.xticks ?? ((lo, hi, n) => (spec.xlog ? logTicks(lo, hi, n) : ticks(lo, hi, Math.min(n, 8)))))(x0, x1, room)
    .filter((v) => !spec.xint || Number.isInteger(v));
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0, "aria-label": spec.label },
    s("text", { x: 0, y: 11 }, spec.ylabel),
    legend.map(([line, x, y]) => s("g", { class: "legend-of" }, s("path", { class: `series ${strokeOf(line.style)}`, "stroke-dasharray": dashOf(line.style), d: `M${x} ${y - 4}h20` }), s("text", { x: x + 26, y, class: "strong" }, cut(line.name, W - x - 30)))),
    yticks.map((v) => [s("path", { d: `M${left} ${Y(v)}H${W - right}`, class: "gridline" }), s("text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, mark(v))]),
    s("path", { d: `M${left} ${H - foot}H${W - right}`, class: "axis" }),
    xticks.map((v) => [s("path", { d: `M${X(v)} ${H - foot}v4`, class: "axis" }), s("text", { x: X(v), y: H - foot + 17, "text-anchor": "middle" }, xfmt(v))]),
    s("text", { x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" }, spec.xlabel),
    (spec.marks ?? []).filter((m) => m.x >= x0 && m.x <= x1).map((m) => s("path", { class: "mark-line", d: `M${X(m.x)} ${top}V${H - foot}` })));
  const path = (x, y) => {
    let d = "", pen = false;
    x.forEach((v, i) => { if (!ok(v, y[i])) { pen = false; return; } d += `${pen ? "L" : "M"}${X(v).toFixed(1)} ${Y(y[i]).toFixed(1)}`; pen = true; });
    return d;
  };
  for (const line of spec.lines) {
    if (line.lo && line.hi) {
      const at = line.x.map((_, i) => i).filter((i) => ok(line.x[i], line.lo[i]) && ok(line.x[i], line.hi[i]));
      if (at.length > 1) svg.append(s("path", { class: `band ${fillOf(line.style)}`, d: `M${[...at.map((i) => `${X(line.x[i]).toFixed(1)} ${Y(line.hi[i]).toFixed(1)}`), ...at.reverse().map((i) => `${X(line.x[i]).toFixed(1)} ${Y(line.lo[i]).toFixed(1)}`)].join("L")}Z` }));
    }
    for (const strand of line.strands ?? []) svg.append(s("path", { class: `strand ${strokeOf(line.style)}`, d: path(strand.x, strand.y) }));
  }
  for (const line of spec.lines) {
    svg.append(s("path", { class: `series ${strokeOf(line.style)}${line.strong ? " thick" : ""}`, "stroke-dasharray": dashOf(line.style), d: path(line.x, line.y) }));
    const known = line.x.map((v, i) => ok(v, line.y[i]));
    line.x.forEach((v, i) => known[i] && (line.dots || (!known[i - 1] && !known[i + 1])) && svg.append(s("circle", { cx: X(v), cy: Y(line.y[i]), r: 2.6, class: fillOf(line.style) })));
  }
  for (const line of spec.lines) for (const event of line.events ?? []) {
    if (event.x < x0 || event.x > x1) continue;
    const x = X(event.x), y = ok(event.x, event.y) ? Y(event.y) : top + 5;
    svg.append(event.kind === "lost" ? s("path", { class: `lost ${strokeOf(line.style)}`, "data-event": "lost", d: `M${x - 4} ${y - 4}l8 8m-8 0l8 -8` })
      : s("path", { class: fillOf(line.style), "data-event": "spike", d: `M${x - 4} ${y - 4}h8l-4 7z` }));
  }
  const cross = s("g", { class: "ui" }), places = [...new Set(spec.lines.flatMap((line) => line.x.filter((x, i) => ok(x, line.y[i]))))].sort((a, b) => a - b);
  svg.append(cross);
  let at = places.length - 1;
  const show = (k) => {
    at = Math.min(Math.max(k, 0), places.length - 1);
    const here = places[at], x = X(here);
    const found = spec.lines.map((line) => [line, line.x.indexOf(here)]).filter(([line, i]) => i >= 0 && ok(here, line.y[i]));
    cross.replaceChildren(s("path", { class: "cross", d: `M${x} ${top}V${H - foot}` }), ...found.map(([line, i]) => s("circle", { cx: x, cy: Y(line.y[i]), r: 4, class: fillOf(line.style) })));
    const lines = [`${spec.xlabel} ${xfmt(here)}`, ...found.map(([line, i]) => `${line.name}: ${yfmt(line.y[i])}${line.lo && number(line.lo[i]) && number(line.hi?.[i]) ? ` (${yfmt(line.lo[i])} – ${yfmt(line.hi[i])})` : ""}`)];
    const box = svg.getBoundingClientRect();
    tip({ left: box.left + x, width: 0, top: box.top + top, bottom: box.top + H }, lines, true);
    return lines.join(", ");
  };
  const hide = () => { cross.replaceChildren(); tip(null); };
  svg.addEventListener("pointermove", (event) => {
    if (!places.length) return;
    const x = event.clientX - svg.getBoundingClientRect().left;
    show(places.reduce((best, v, k) => (Math.abs(X(v) - x) < Math.abs(X(places[best]) - x) ? k : best), 0));
  });
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined || !places.length) { if (event.key === "Escape") hide(); return; }
    event.preventDefault();
    say(show(at + step));
  });
  return svg;
}

const cut = (text, room) => (text.length * 6.5 > room ? `${text.slice(0, Math.max(4, Math.floor(room / 6.5) - 1))}…` : text);

/** The lines as a table: a row for each place, a column for each line. */
export const curveData = (spec) => {
  const places = [...new Set(spec.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const value = (line, values, x) => { const i = line.x.indexOf(x); return i < 0 ? null : values[i]; };
  return [[spec.xlabel, ...spec.lines.flatMap((line) => [line.name, ...(line.lo ? [`${line.name} lo`, `${line.name} hi`] : [])])],
    ...places.map((x) => [x, ...spec.lines.flatMap((line) => [value(line, line.y, x), ...(line.lo ? [value(line, line.lo, x), value(line, line.hi, x)] : [])])])];
};
