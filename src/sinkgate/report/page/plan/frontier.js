// The frontier: every measured setting at what it weighs and what it costs, with what was asked as lines.

import { logTicks, step, ticks, VIRIDIS } from "sinkgate/lib/colour.js";
import { figure, h, s, say, tip } from "sinkgate/lib/dom.js";
import { language, t } from "sinkgate/lib/language.js";
import { fmt, number, tick, wide } from "sinkgate/lib/text.js";
import { hull, milliseconds, pointsOf, positionsName, said, signed, stateName } from "sinkgate/plan/data.js";
import { bytes, short } from "sinkgate/stream/curves.js";

const OUT = 2.5; // times what was kept, from which a refuted setting is drawn at the edge

/** Where the vertical axis ends: what was kept, what was asked, and refuted settings that are not far beyond. */
export function rangeOf(points, tolerance) {
  const kept = points.filter((p) => p.kind !== "trial" || p.state === "kept").map((p) => p.y), all = points.map((p) => p.y).sort((a, b) => a - b);
  const near = [0, ...kept, ...(number(tolerance) ? [1.25 * tolerance] : [])];
  let low = Math.min(...near), high = Math.max(...near);
  if (high <= 0) high = all.length ? Math.max(all[Math.floor(all.length / 2)], -low / 4) : 1;
  const edge = Math.max(OUT * high, high - low), floor = Math.min(-OUT * high, low);
  high = Math.max(high, ...all.filter((y) => y <= edge));
  low = Math.min(low, ...all.filter((y) => y >= floor));
  const pad = (high - low || 0.01) * 0.07;
  return [low - pad, high + pad];
}

/** Marks of an axis of bytes: powers of two while there is room, round numbers of a unit within less than two octaves. */
function bytesTicks(low, high, room) {
  const octaves = Math.log2(high / low);
  if (octaves >= 2) {
    const every = Math.ceil(octaves / room), first = Math.ceil(Math.log2(low) - 1e-9);
    return Array.from({ length: Math.floor(Math.log2(high) + 1e-9) - first + 1 }, (_, i) => first + i).filter((e) => e % every === 0).map((e) => 2 ** e);
  }
  const unit = 2 ** (10 * Math.min(4, Math.max(0, Math.floor(Math.log2(low) / 10))));
  return ticks(low / unit, high / unit, Math.min(room, 4)).map((v) => v * unit);
}

const SHAPES = {
  plan: (x, y) => s("path", { class: "plan-chosen", d: `M${x} ${y - 7}l7 7l-7 7l-7 -7z` }),
  baseline: (x, y) => s("rect", { class: "plan-baseline", x: x - 5, y: y - 5, width: 10, height: 10 }),
  dense: (x, y) => s("path", { class: "plan-dense", d: `M${x - 5} ${y}h10M${x} ${y - 5}v10` }),
  kept: (x, y, fill) => s("circle", { class: "plan-kept", cx: x, cy: y, r: 5, fill }),
  refuted: (x, y, fill) => [s("circle", { class: "plan-refuted", cx: x, cy: y, r: 4.5, stroke: fill }), s("path", { class: "plan-struck", d: `M${x - 3.4} ${y - 3.4}l6.8 6.8m-6.8 0l6.8 -6.8` })],
  other: (x, y) => s("rect", { class: "plan-other", x: x - 4, y: y - 4, width: 8, height: 8 }),
};
const shapeOf = (point) => (point.kind !== "trial" ? point.kind : point.state === "kept" || point.state === "refuted" ? point.state : "other");
const NAMES = () => ({ plan: t("the plan, verified"), baseline: t("recent + sinks(4) of the same bytes, verified"), dense: t("as it is"), kept: t("kept, when tuned"), refuted: t("refuted"), other: t("failed, or out of memory") });

/** What a point says, as lines. */
function lines(payload, point, view) {
  const zh = language() === "zh", { trial } = point, setting = trial?.setting ?? (point.kind === "baseline" ? payload.baseline.setting : point.kind === "plan" ? payload.setting : null);
  const p = payload.predicted, size = trial ? trial.bytes : { plan: p.bytes, dense: p.dense_bytes, baseline: payload.baseline?.bytes }[point.kind];
  const time = trial ? trial.milliseconds : { plan: p.milliseconds, dense: p.dense_milliseconds }[point.kind], what = view.y === "late" ? t("last quarter") : t("perplexity");
  const head = point.kind === "trial" ? (trial.chosen ? t("trial {n}, the plan when tuned", { n: trial.number }) : t("trial {n}", { n: trial.number })) : NAMES()[point.kind];
  const value = number(point.low) && number(point.high) ? t("{name}: {value} ({low} to {high})", { name: what, value: signed(point.y), low: signed(point.low), high: signed(point.high) }) : t("{name}: {value}", { name: what, value: signed(point.y) });
  return [head, setting && `${short(setting.policy, 120)}${setting.positions ? `, ${t("positions")} ${positionsName(setting.positions)}` : ""}`,
    `${bytes(size)}${number(time) ? `, ${milliseconds(time)}` : ""}`, point.kind === "dense" ? null : `${value}${number(point.n) ? `, ${t(point.n === 1 ? "{n} text" : "{n} texts", { n: point.n })}` : ""}`,
    trial && `${stateName(trial.state)}${trial.why ? `: ${said(payload, trial.why, zh)}` : ""}${trial.frontier ? `; ${t("on the frontier")}` : ""}`].filter(Boolean);
}

export function frontierChart(width, payload, view, label) {
  const points = pointsOf(payload, view), { max_increase: tolerance, budget } = payload.request, W = Math.max(width, 260), inBytes = view.x === "bytes";
  if (!points.some((point) => point.kind === "trial")) return h("p", { class: "empty" }, view.y === "late" ? t("No setting has a loss of its last quarter.") : t("No setting was measured."));
  const xs = [...points.map((p) => p.x), ...(inBytes && number(budget) ? [budget] : [])];
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  if (inBytes) [x0, x1] = [x0 / 1.12, x1 * 1.12];
  else { const pad = (x1 - x0 || x1 || 1) * 0.06; [x0, x1] = [x0 - pad, x1 + pad]; }
  const [y0, y1] = rangeOf(points, tolerance), yticks = ticks(y0, y1, 5), percent = (v) => `${tick(100 * v)}%`;
  const there = new Set(points.map(shapeOf)), names = NAMES(), front = hull(points), tints = points.filter((p) => p.kind === "trial" && p.tint !== null).map((p) => p.tint), [c0, c1] = [Math.min(...tints), Math.max(...tints)], coloured = c1 > 1.01 * c0;
  const share = (v) => (coloured ? (inBytes ? (v - c0) / (c1 - c0) : Math.log(v / c0) / Math.log(c1 / c0)) : 0.5), fillOf = (p) => (p.tint === null ? "var(--content)" : step(VIRIDIS, share(p.tint)));
  const left = Math.max(40, 10 + 6.6 * Math.max(...yticks.map((v) => percent(v).length))), right = 16, foot = 42, legend = [];
  // what the marks mean, as many to a line as there is room for
  const entries = [...["plan", "kept", "refuted", "other", "baseline", "dense"].filter((shape) => there.has(shape)).map((shape) => [names[shape], (x, y) => SHAPES[shape](x + 8, y, tints.length ? step(VIRIDIS, 0.5) : "var(--content)")]),
    [t("no other measured one beats it"), (x, y) => s("path", { class: "plan-front", d: `M${x} ${y}h16` })], ...(number(tolerance) ? [[view.y === "late" ? t("the tolerance, of whole texts, {n}", { n: signed(tolerance) }) : t("the tolerance, {n}", { n: signed(tolerance) }), (x, y) => s("path", { class: "plan-limit", d: `M${x} ${y}h16` })]] : []),
    ...(inBytes && number(budget) ? [[t("the budget, {n}", { n: bytes(budget) }), (x, y) => s("path", { class: "plan-limit budget", d: `M${x} ${y}h16` })]] : [])];
  let lx = 0, ly = 30;
  for (const [name, mark] of entries) {
    const need = 24 + wide(name) + 16;
    if (lx && lx + need > W) { lx = 0; ly += 18; }
    legend.push(s("g", {}, mark(lx, ly - 4), s("text", { x: lx + 22, y: ly, class: "strong" }, name)));
    lx += need;
  }
  if (coloured) {
    const name = inBytes ? t("a step, predicted: {low} to {high}", { low: milliseconds(c0), high: milliseconds(c1) }) : t("cache: {low} to {high}", { low: bytes(c0), high: bytes(c1) }), need = 70 + wide(name);
    if (lx && lx + need > W) { lx = 0; ly += 18; }
    legend.push(s("g", {}, Array.from({ length: 12 }, (_, i) => s("rect", { x: lx + i * 5, y: ly - 10, width: 5.2, height: 11, fill: step(VIRIDIS, i / 11) })), s("text", { x: lx + 66, y: ly, class: "strong" }, name)));
  }
  const top = ly + 16, H = top + 300 + foot, bottom = H - foot;
  const X = (v) => left + (W - left - right) * (inBytes ? Math.log(v / x0) / Math.log(x1 / x0) : (v - x0) / (x1 - x0)), Y = (v) => top + (bottom - top) * (1 - (v - y0) / (y1 - y0)), within = (v) => Math.min(bottom, Math.max(top, Y(v)));
  const room = Math.max(2, Math.floor((W - left - right) / 84)), xticks = inBytes ? bytesTicks(x0, x1, room) : ticks(x0, x1, Math.min(room, 7)), xmark = inBytes ? bytes : (v) => tick(v);
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0, "aria-label": label, id: "plan-chart" },
    s("text", { x: 0, y: 11 }, view.y === "late" ? t("perplexity increase in the last quarter of a text") : t("perplexity increase")), legend,
    yticks.map((v) => [s("path", { class: v === 0 ? "axis" : "gridline", d: `M${left} ${Y(v)}H${W - right}` }), s("text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end", "data-y": v, "data-at": Y(v) }, percent(v))]),
    s("path", { class: "axis", d: `M${left} ${bottom}H${W - right}` }),
    xticks.map((v) => [s("path", { class: "axis", d: `M${X(v)} ${bottom}v4` }), s("text", { x: X(v), y: bottom + 17, "text-anchor": "middle", "data-x": v, "data-at": X(v) }, xmark(v))]),
    s("text", { x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" }, inBytes ? t("bytes of the cache, predicted (log)") : t("milliseconds of a step, predicted")),
    number(tolerance) ? s("path", { class: "plan-limit", "data-limit": "tolerance", d: `M${left} ${Y(tolerance)}H${W - right}` }) : null,
    inBytes && number(budget) ? s("path", { class: "plan-limit budget", "data-limit": "budget", d: `M${X(budget)} ${top}V${bottom}` }) : null,
    front.length > 1 ? s("path", { class: "plan-front", d: front.map((p, i) => `${i ? `H${X(p.x)}V` : `M${X(p.x)} `}${within(p.y)}`).join("") }) : null);
  // A setting far beyond what was asked stands at the edge, as an arrow.
  const cut = (p) => (p.y > y1 ? "up" : p.y < y0 ? "down" : null), order = [...points].sort((a, b) => (a.kind === "trial" ? 0 : 1) - (b.kind === "trial" ? 0 : 1));
  for (const p of order) {
    const x = X(p.x), y = within(p.y), edge = cut(p), verified = p.kind === "plan" || p.kind === "baseline";
    svg.append(s("g", { class: "plan-point", "data-kind": p.kind, "data-state": p.state, "data-trial": p.trial?.number, "data-at-x": x, "data-at-y": y, "data-edge": edge, "data-chosen": p.trial?.chosen ? "yes" : null, "data-frontier": p.trial?.frontier ? "yes" : null },
      verified && number(p.low) && number(p.high) ? s("path", { class: `plan-whisker ${p.kind}`, d: `M${x} ${within(p.low)}V${within(p.high)}` }) : null,
      p.trial?.frontier ? s("circle", { class: "plan-ring", cx: x, cy: y, r: 8 }) : null, p.trial?.chosen ? s("circle", { class: "plan-ring chosen", cx: x, cy: y, r: 11 }) : null,
      edge ? s("path", { class: `plan-edge ${p.state ?? p.kind}`, d: edge === "up" ? `M${x - 6} ${y + 9}h12l-6 -9z` : `M${x - 6} ${y - 9}h12l-6 9z` }) : SHAPES[shapeOf(p)](x, y, fillOf(p))));
  }
  reading(svg, points, (p) => [X(p.x), within(p.y)], (p) => lines(payload, p, view), { top, H });
  return svg;
}

/** The pointer reads the nearest point, arrow keys read them from left to right. */
function reading(svg, points, place, lines, { top, H }) {
  const ring = s("g", { class: "ui" });
  svg.append(ring);
  let at = -1;
  const show = (i) => {
    at = Math.min(Math.max(i, 0), points.length - 1);
    const [x, y] = place(points[at]), box = svg.getBoundingClientRect(), said = lines(points[at]);
    ring.replaceChildren(s("circle", { class: "ring focus", cx: x, cy: y, r: 13 }));
    tip({ left: box.left + x, width: 0, top: box.top + Math.min(y + 14, H - 120), bottom: box.top + H }, said, true);
    return said.join(", ");
  };
  const hide = () => { ring.replaceChildren(); tip(null); };
  const nearest = (event) => {
    const box = svg.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    if (y < top - 10) { hide(); return; }
    const far = points.map((p) => { const [px, py] = place(p); return (px - x) ** 2 + (py - y) ** 2; });
    show(far.indexOf(Math.min(...far)));
  };
  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -1e9, End: 1e9 }[event.key];
    if (by === undefined) { if (event.key === "Escape") hide(); return; }
    event.preventDefault();
    say(show(at < 0 && by < 0 && by > -1e9 ? points.length - 1 : at + by));
  });
}

export function frontierFigure(payload, view) {
  const title = t("What each setting weighs and costs"), points = pointsOf(payload, view), [y0, y1] = points.length ? rangeOf(points, payload.request.max_increase) : [0, 0], beyond = points.filter((p) => p.y > y1 || p.y < y0).length;
  const label = `${t("{title}. Arrow keys read the values.", { title })} ${t("The table below has the same numbers.")}`;
  const note = [t("Circles are trials, on the texts that were tuned on; a ring is one that no other beats in loss, bytes and milliseconds at once; struck ones broke the tolerance."),
    points.some((p) => p.kind === "plan") ? t("A second ring marks the plan; it and what stands beside it are drawn once more where other texts put them, with their 95% intervals.") : "",
    beyond ? t("Arrows at the edge: {n} far beyond it.", { n: beyond }) : "", view.x === "ms" ? t("Milliseconds are those of the fitted model of a step; the step that was measured is in the figures above.") : ""].filter(Boolean).join(" ");
  const data = () => [[t("mark"), t("trial"), t("keeps"), t("bytes"), t("milliseconds"), t("increase"), t("low"), t("high"), t("texts"), t("state")],
    ...points.map((p) => [NAMES()[shapeOf(p)], p.trial?.number ?? "", short(p.trial?.setting.policy ?? "", 400), view.x === "bytes" ? p.x : p.tint, view.x === "bytes" ? p.tint : p.x, p.y, p.low, p.high, p.n, p.state ? stateName(p.state) : ""])];
  const box = figure({ title, name: "frontier", about: payload.meta.model.name.slice(0, 200), note, draw: (width) => frontierChart(width, payload, view, label), data });
  box.id = "plan-frontier";
  return box;
}
