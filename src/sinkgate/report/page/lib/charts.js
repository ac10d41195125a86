import { ticks, logTicks, hatch } from "sinkgate/lib/colour.js";
import { h, s, say, tip, away, figure } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { fmt, number, percent, tick, wide } from "sinkgate/lib/text.js";

/** Lines over one list of x. spec: {label, x, xlabel, xlog, xnames, xfmt, ylabel, ylog, ylo, yhi, yfmt, series: [{name, cls, y, lo, hi}]} */
export function lineChart(width, spec) {
  const W = Math.max(width, 200), height = spec.height ?? 218, keep = (v, log) => number(v) && (!log || v > 0);
  const xs = spec.x, use = xs.map((v, i) => keep(v, spec.xlog) && spec.series.some((line) => keep(line.y[i], spec.ylog)));
  const ys = spec.series.flatMap((line) => [line.y, line.lo ?? [], line.hi ?? []].flat()).filter((v) => keep(v, spec.ylog));
  const xv = xs.filter((_, i) => use[i]);
  if (!xv.length) return h("p", { class: "empty" }, spec.empty ?? t("Not measurable here."));
  const yfmt = spec.yfmt ?? fmt, xfmt = spec.xfmt ?? tick, mark = spec.ytick ?? tick;
  let [x0, x1] = [Math.min(...xv), Math.max(...xv)], [y0, y1] = [spec.ylo ?? Math.min(...ys), spec.yhi ?? Math.max(...ys)];
  if (x0 === x1) [x0, x1] = spec.xlog ? [x0 / 2, x1 * 2] : [x0 - 0.5, x1 + 0.5];
  if (spec.ylog) { y0 /= 1.25; y1 *= 1.25; }
  else {
    const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
    if (spec.ylo === undefined || y0 === y1) y0 -= pad;
    if (spec.yhi === undefined || y0 === y1) y1 += pad;
  }
  const yticks = spec.ylog ? logTicks(y0, y1, 5) : ticks(y0, y1, 4);
  const left = Math.max(30, 10 + 6.6 * Math.max(...yticks.map((v) => mark(v).length))), right = 14, foot = spec.xnames ? 46 : 38;
  const legend = [];
  let lx = 0, ly = 26;
  for (const line of spec.series) {
    const need = 26 + wide(line.name) + 14;
    if (lx && lx + need > W) { lx = 0; ly += 16; }
    legend.push([line, lx, ly]);
    lx += need;
  }
  const top = ly + 16, H = height + ly - 26;
  const X = (v) => left + (W - left - right) * (spec.xlog ? Math.log(v / x0) / Math.log(x1 / x0) : (v - x0) / (x1 - x0));
  const Y = (v) => top + (H - top - foot) * (1 - (spec.ylog ? Math.log(v / y0) / Math.log(y1 / y0) : (v - y0) / (y1 - y0)));
  const room = Math.max(2, Math.floor((W - left) / 64));
  let xticks = spec.xnames ? xs.slice() : spec.xlog ? logTicks(x0, x1, room) : ticks(x0, x1, Math.min(room, 8));
  if (spec.xint) xticks = xticks.filter(Number.isInteger);
  if (spec.xnames) { const every = Math.ceil(xs.length / Math.max(1, Math.floor((W - left) / 84))); xticks = xticks.filter((_, i) => i % every === 0); }
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0, "aria-label": spec.label },
    s("text", { x: 0, y: 11 }, spec.ylabel),
    legend.map(([line, x, y]) => [
      s("line", { x1: x, x2: x + 20, y1: y - 4, y2: y - 4, class: `series ${line.cls}` }),
      s("text", { x: x + 26, y, class: "strong" }, line.name)]),
    yticks.map((v) => [s("line", { x1: left, x2: W - right, y1: Y(v), y2: Y(v), class: "gridline" }), s("text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, mark(v))]),
    s("line", { x1: left, x2: W - right, y1: H - foot, y2: H - foot, class: "axis" }),
    xticks.map((v) => [s("line", { x1: X(v), x2: X(v), y1: H - foot, y2: H - foot + 4, class: "axis" }),
      s("text", { x: X(v), y: H - foot + 17, "text-anchor": spec.xnames && v === xs[0] ? "start" : spec.xnames && v === xs.at(-1) ? "end" : "middle" },
        spec.xnames ? (spec.xnames[v].length > 13 ? spec.xnames[v].slice(0, 12) + "…" : spec.xnames[v]) : xfmt(v))]),
    s("text", { x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" }, spec.xlabel));
  for (const line of spec.series) {
    const ok = (i) => keep(xs[i], spec.xlog) && keep(line.y[i], spec.ylog);
    const dots = xs.filter((_, i) => ok(i)).length;
    if (line.lo && line.hi) {
      const at = xs.map((_, i) => i).filter((i) => ok(i) && keep(line.lo[i], spec.ylog) && keep(line.hi[i], spec.ylog));
      if (at.length) svg.append(s("path", { class: `band ${line.cls.replace("c-", "f-")}`, d: `M${[...at.map((i) => `${X(xs[i])} ${Y(line.hi[i])}`), ...at.reverse().map((i) => `${X(xs[i])} ${Y(line.lo[i])}`)].join("L")}Z` }));
    }
    let path = "", pen = false;
    xs.forEach((v, i) => {
      if (!ok(i)) { pen = false; return; }
      path += `${pen ? "L" : "M"}${X(v).toFixed(1)} ${Y(line.y[i]).toFixed(1)}`;
      pen = true;
    });
    svg.append(s("path", { d: path, class: `series ${line.cls}` }));
    // A value without neighbours has no line to lie on.
    const dotted = (i) => ok(i) && ((dots <= 24 && !line.cls.includes("null")) || (!ok(i - 1) && !ok(i + 1)));
    xs.forEach((v, i) => dotted(i) && svg.append(s("circle", { cx: X(v), cy: Y(line.y[i]), r: dots > 12 ? 2.2 : 3, class: line.cls.replace("c-", "f-") })));
  }
  const cross = s("g", { class: "ui" });
  svg.append(cross);
  const order = xs.map((_, i) => i).filter((i) => use[i]);
  let at = order.length - 1;
  const show = (k) => {
    at = Math.min(Math.max(k, 0), order.length - 1);
    const i = order[at], x = X(xs[i]);
    cross.replaceChildren(s("line", { x1: x, x2: x, y1: top, y2: H - foot, class: "cross" }),
      ...spec.series.filter((line) => keep(line.y[i], spec.ylog)).map((line) => s("circle", { cx: x, cy: Y(line.y[i]), r: 4, class: line.cls.replace("c-", "f-") })));
    const lines = [`${spec.xname ?? spec.xlabel} ${spec.xnames ? spec.xnames[i] : xfmt(xs[i])}`,
      ...spec.series.map((line) => line.lo && number(line.lo[i]) && number(line.hi[i]) ? t("{name}: {value} ({low} to {high})", { name: line.name, value: yfmt(line.y[i]), low: yfmt(line.lo[i]), high: yfmt(line.hi[i]) }) : t("{name}: {value}", { name: line.name, value: yfmt(line.y[i]) }))];
    const box = svg.getBoundingClientRect();
    tip({ left: box.left + x, width: 0, top: box.top + top, bottom: box.top + H }, lines, true);
    return lines.join(", ");
  };
  const hide = () => { cross.replaceChildren(); tip(null); };
  svg.addEventListener("pointermove", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    show(order.reduce((best, i, k) => (Math.abs(X(xs[i]) - x) < Math.abs(X(xs[order[best]]) - x) ? k : best), 0));
  });
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined) { if (event.key === "Escape") hide(); return; }
    event.preventDefault();
    say(show(at + step));
  });
  return svg;
}

export const lineData = (spec) => () => [[spec.xname ?? spec.xlabel, ...spec.series.flatMap((line) => [line.name, ...(line.lo ? [t("{name}, low", { name: line.name }), t("{name}, high", { name: line.name })] : [])])],
  ...spec.x.map((v, i) => [spec.xnames ? spec.xnames[i] : v, ...spec.series.flatMap((line) => [line.y[i], ...(line.lo ? [line.lo[i], line.hi[i]] : [])])])];

/** A figure of a lineChart. */
export const lines = (title, name, about, spec, note) => figure({ title, name, about, note, draw: (width) => lineChart(width, { ...spec, label: t("{title}. Arrow keys read the values.", { title }) }), data: lineData(spec) });

export function histogram(width, counts) {
  const W = Math.max(width, 200), H = 150, left = 44, foot = 38, top = 20, n = counts.length, total = counts.reduce((a, b) => a + b, 0);
  const most = Math.max(...counts, 1), step = (W - left - 10) / n, Y = (v) => top + (H - top - foot) * (1 - v / most);
  const marks = ticks(0, most, 3).filter(Number.isInteger);
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": t("Histogram of the sink's weight over {total} queries", { total: fmt(total) }) },
    s("text", { x: 0, y: 11 }, t("queries")),
    marks.map((v) => [s("line", { x1: left, x2: W - 10, y1: Y(v), y2: Y(v), class: "gridline" }), s("text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, fmt(v))]),
    counts.map((v, i) => {
      const lines = [t("pₛ from {low} to {high}", { low: tick(i / n), high: tick((i + 1) / n) }), t(v === 1 ? "{n} query, {share}" : "{n} queries, {share}", { n: fmt(v), share: percent(v / (total || 1)) })];
      const show = (event) => tip(event.currentTarget.getBoundingClientRect(), lines);
      return s("g", { pointerenter: show, pointerleave: away },
        s("rect", { x: left + i * step, y: top, width: step, height: H - top - foot, fill: "none", "pointer-events": "all" }),
        s("rect", { x: left + i * step + 0.75, y: v ? Math.min(Y(v), H - foot - 1) : H - foot, width: Math.max(step - 1.5, 1), height: v ? Math.max(H - foot - Y(v), 1) : 0, class: "f-sink" }));
    }),
    s("line", { x1: left, x2: W - 10, y1: H - foot, y2: H - foot, class: "axis" }),
    [0, 0.25, 0.5, 0.75, 1].map((v) => s("text", { x: left + v * n * step, y: H - foot + 16, "text-anchor": "middle" }, String(v))),
    s("text", { x: (left + W - 10) / 2, y: H - 4, "text-anchor": "middle" }, t("weight on the sink, pₛ")));
  return svg;
}

/** Two stacked bars: what the weights spend, and what that weight carries. */
export function splitBars(width, split) {
  const W = Math.max(width, 200), [id, defs] = hatch(), { p, g } = split;
  const outlet = number(p) && number(g) ? Math.max(0, 1 - p - g) : 0;
  const bars = [[t("weight spent"), [[t("sink pₛ"), p, "f-sink"], ...(outlet > 5e-4 ? [[t("learned outlet"), outlet, "f-other"]] : []), [t("content g"), g, "f-content"]]],
    [t("weight × value norm ‖v‖"), [[t("sink"), number(split.v_sink) ? p * split.v_sink : null, "f-sink"], [t("content"), number(split.v_content) ? g * split.v_content : null, "f-content"]]]];
  const spoken = [];
  const drawn = bars.map(([label, parts], i) => {
    const y = i * 60, total = parts.reduce((sum, part) => sum + part[1], 0), known = parts.every((part) => number(part[1])) && total > 0;
    spoken.push(`${label}: ${known ? parts.map(([name, v]) => `${name} ${fmt(v)}`).join(", ") : t("not measurable")}`);
    if (!known) return [s("text", { x: 0, y: y + 11 }, label), s("rect", { x: 0, y: y + 17, width: W, height: 16, fill: `url(#${id})` }), s("text", { x: 0, y: y + 48 }, t("not measurable"))];
    let x = 0;
    return [s("text", { x: 0, y: y + 11 }, label), parts.map(([name, v, cls], n) => {
      const from = x, wide = (W * v) / total, last = n === parts.length - 1;
      x += wide;
      return [s("rect", { x: from + (n ? 0.75 : 0), y: y + 17, width: Math.max(wide - (last ? 0.75 : 1.5), 0), height: 16, class: cls }),
        s("text", { x: last ? W : n ? W / 2 : 0, y: y + 48, "text-anchor": last ? "end" : n ? "middle" : "start", class: "strong" }, parts.length > 2 ? `${name} ${fmt(v)}` : `${name} ${fmt(v)} (${percent(v / total)})`)];
    })];
  });
  return s("svg", { width: W, height: 118, viewBox: `0 0 ${W} 118`, role: "img", "aria-label": spoken.join("; ") }, defs, drawn);
}
