// The instrument: a row of scores as bars that can be dragged, and under each the weight that comes of it.
// Its nodes stay while the numbers change, so that a drag and the focus survive a draw.

import { ticks } from "sinkgate/lib/colour.js";
import { s, tip, away } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { tick } from "sinkgate/lib/text.js";
import { FARTHEST, rounded, writtenScores } from "sinkgate/simulator/model.js";
import { num, picture, put, set } from "sinkgate/simulator/show.js";

const TOP = 26, TALL = 190, GAP = 40, LOW = 120, FOOT = 44, RIGHT = 16;

/** The scale of the scores: around 0 unless all lie far from it. */
export function scaleOf(scores) {
  const finite = scores.filter(Number.isFinite), least = Math.min(...finite), most = Math.max(...finite);
  if (!finite.length) return [-4, 4];
  if (least > 12 || most < -12) return [Math.floor(least - 3), Math.ceil(most + 3)];
  return [-round(-least), round(most)];
}

/** The next of a few sizes, so that the scale stands still while the scores move. */
function round(size) {
  if (size <= 3.7) return 4;
  const power = 10 ** Math.floor(Math.log10(size)), far = [1, 1.5, 2, 3, 4, 6, 8, 10].find((step) => step * power >= size * 1.04);
  return (far ?? 15) * power;
}

/** Makes the figure. `get()` is {model, row} now; `change(patch)` says what a hand asked for. */
export function instrument(get, change) {
  let refs = null, drawn = "", held = null;

  const drop = (j, eff) => {
    const { model } = get(), scores = model.scores.map((each) => ({ ...each }));
    // The bar shows (s + c) / T; what is written is s.
    scores[j].s = Math.min(FARTHEST, Math.max(-FARTHEST, rounded(eff * model.temperature - model.shift, model.temperature < 0.5 ? 3 : 2)));
    change({ scores: writtenScores(scores), key: j });
  };

  function keyed(event, j) {
    const { model, row } = get(), n = model.n, [lo, hi] = refs.scale, step = event.shiftKey ? 0.01 : 0.1;
    const by = { ArrowUp: step, ArrowDown: -step, PageUp: 1, PageDown: -1 }[event.key], to = { ArrowLeft: j - 1, ArrowRight: j + 1 }[event.key];
    if (by !== undefined) drop(j, row.scores[j] + by);
    else if (event.key === "Home" || event.key === "End") drop(j, event.key === "Home" ? lo : hi);
    else if (to !== undefined) { const next = Math.min(Math.max(to, 0), n - 1); change({ key: next }); refs.keys[next].hit.focus(); }
    else if (event.key === "Delete" || event.key === "Backspace") change({ scores: writtenScores(model.scores.map((each, i) => (i === j ? { ...each, hidden: !each.hidden } : each))) });
    else return;
    event.preventDefault();
  }

  function pointed(event, svg) {
    const box = svg.getBoundingClientRect(), y = event.clientY - box.top, [lo, hi] = refs.scale;
    return Math.min(hi, Math.max(lo, lo + ((hi - lo) * (TOP + TALL - y)) / TALL));
  }

  function build(width) {
    const { model, row } = get(), n = model.n, left = 42, scale = held ? refs.scale : scaleOf([...row.scores, ...(row.z !== null && Number.isFinite(row.z) ? [row.z] : [])]);
    const W = Math.max(width, 260), H = TOP + TALL + GAP + LOW + FOOT, room = (W - left - RIGHT) / (n + 1), most = row.waiting ? 1 : Math.max(1, ...row.shown);
    const wide = Math.max(Math.min(room * 0.62, 56), 2);
    const X = (j) => left + room * (j + 0.5), Y = (v) => TOP + TALL * (1 - (v - scale[0]) / (scale[1] - scale[0])), bottom = TOP + TALL + GAP + LOW, V = (w) => bottom - (LOW * w) / most;
    const base = Y(Math.min(Math.max(0, scale[0]), scale[1]));
    const keys = model.scores.map((_, j) => {
      const bar = s("rect", { x: X(j) - wide / 2, width: wide }), handle = s("rect", { x: X(j) - Math.max(wide, 6) / 2 - 2, width: Math.max(wide, 6) + 4, height: 6, rx: 3, class: "handle" });
      const said = s("text", { x: X(j), "text-anchor": "middle", class: "strong" });
      const hit = s("g", { class: "score", role: "slider", tabindex: -1, "data-key": j, "aria-orientation": "vertical", keydown: (event) => keyed(event, j),
        focus: () => { if (get().model.key !== j) change({ key: j }); } },
      s("rect", { x: X(j) - room / 2, y: TOP - 8, width: room, height: TALL + 16, class: "catch" }), bar, handle, said);
      const weight = s("rect", { x: X(j) - wide / 2, width: wide }), spoken = s("text", { x: X(j), "text-anchor": "middle", class: "strong w", "data-weight": j });
      const name = s("text", { x: X(j), y: bottom + 15, "text-anchor": "middle" }), kind = s("text", { x: X(j), y: bottom + 29, "text-anchor": "middle", class: "role" });
      const over = s("g", { pointerenter: (event) => tip(event.currentTarget.getBoundingClientRect(), [t("key {j}", { j }), t("weight {w}", { w: num(get().row.weights?.[j]) })]), pointerleave: away },
        s("rect", { x: X(j) - room / 2, y: bottom - LOW, width: room, height: LOW, class: "catch" }), weight, spoken);
      return { bar, handle, said, hit, weight, spoken, name, kind, over };
    });
    const out = { bar: s("rect", { x: X(n) - wide / 2, width: wide, class: "nothing" }), said: s("text", { x: X(n), "text-anchor": "middle", class: "strong" }), name: s("text", { x: X(n), y: bottom + 15, "text-anchor": "middle" }, t("nothing")) };
    const line = s("g", { class: "line" }, s("line", { x1: left, x2: W - RIGHT, class: "cut" }), s("text", { x: W - RIGHT, "text-anchor": "end", class: "cutname" }));
    const z = s("g", { class: "line" }, s("line", { x1: left, x2: W - RIGHT, class: "zline" }), s("text", { x: W - RIGHT, "text-anchor": "end", class: "zname" }));
    const chosen = s("rect", { y: TOP - 8, width: room, height: TALL + 16, rx: 3, class: "chosen-key ui" });
    const marks = ticks(...scale, 5), shares = ticks(0, most, 4);
    const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": t("Scores and weights. Up and down change a score, left and right choose a key, Delete hides it.") },
      chosen, s("text", { x: 0, y: 10 }, t("score")), s("text", { x: 0, y: bottom - LOW - 12 }, t("weight")),
      marks.map((v) => [s("line", { x1: left, x2: W - RIGHT, y1: Y(v), y2: Y(v), class: v === 0 ? "axis" : "gridline" }), s("text", { x: left - 8, y: Y(v) + 4, "text-anchor": "end" }, tick(v))]),
      shares.map((v) => [s("line", { x1: left, x2: W - RIGHT, y1: V(v), y2: V(v), class: v === 0 ? "axis" : "gridline" }), s("text", { x: left - 8, y: V(v) + 4, "text-anchor": "end" }, tick(v))]),
      keys.map((k) => [k.over, k.name, k.kind]), out.bar, out.said, out.name, line, z, keys.map((k) => k.hit));
    svg.addEventListener("pointerdown", (event) => {
      const hit = event.target.closest(".score");
      if (!hit || event.button) return;
      held = +hit.dataset.key;
      svg.setPointerCapture(event.pointerId);
      hit.focus({ preventScroll: true });
      drop(held, pointed(event, svg));
      event.preventDefault();
    });
    svg.addEventListener("pointermove", (event) => { if (held !== null) drop(held, pointed(event, svg)); });
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { if (held !== null) { held = null; update(); } });
    refs = { svg, chosen, keys, out, line, z, scale, X, Y, V, base, bottom, most, n, room, width };
    paint();
    return svg;
  }

  function paint() {
    const { model, row } = get(), { chosen, keys, out, line, z, X, Y, V, base, bottom, room, n } = refs, [lo, hi] = refs.scale;
    set(chosen, { x: X(model.key) - room / 2 });
    const digits = room > 54 ? 4 : 3, show = room > 34;
    keys.forEach((k, j) => {
      const eff = row.scores[j], hidden = model.scores[j].hidden, gone = model.cut && j === row.sink, y = Y(Math.min(Math.max(eff, lo), hi)), cls = hidden || gone ? "f-gone" : j === row.sink ? "f-sink" : "f-content";
      set(k.bar, { y: Math.min(y, base), height: Math.abs(y - base), class: `${cls} soft` });
      set(k.handle, { y: y - 3, class: `handle ${cls}` });
      set(k.said, { y: eff >= 0 ? Math.max(y - 8, 11) : Math.min(y + 19, TOP + TALL + 14) });
      put(k.said, show ? num(eff, 3) : "");
      set(k.hit, { class: j === model.key ? "score chosen" : "score", tabindex: j === model.key ? 0 : -1, "aria-label": t("score of key {j}", { j }), "aria-valuemin": lo, "aria-valuemax": hi, "aria-valuenow": Math.min(Math.max(rounded(eff, 4), lo), hi),
        "aria-valuetext": j !== model.key ? null : hidden ? t("{s}, hidden", { s: num(eff, 4) }) : row.waiting ? num(eff, 4) : t("{s}, weight {w}", { s: num(eff, 4), w: num(row.weights[j], 4) }) });
      put(k.name, n <= 16 || j % 8 === 0 ? String(j) : "");
      put(k.kind, n > 16 && j !== row.sink ? "" : hidden ? t("hidden") : gone ? t("removed") : j === row.sink ? t("sink") : "");
      if (row.waiting) return;
      const w = row.shown[j], top = Math.max(V(w), bottom - LOW - 4);
      set(k.weight, { y: top, height: Math.max(bottom - top, w > 0 ? 1 : 0), class: cls });
      set(k.spoken, { y: top - 5 });
      put(k.spoken, show ? num(w, digits) : "");
    });
    const free = row.waiting ? 0 : Math.max(0, 1 - row.strength), top = V(free);
    set(out.bar, { y: top, height: Math.max(bottom - top, 0) });
    set(out.said, { y: top - 5 });
    out.said.textContent = show && free > 1e-12 ? num(free, digits) : "";
    const level = (group, value, text) => {
      const on = value !== null && value !== undefined && value >= lo && value <= hi;
      group.setAttribute("visibility", on ? "visible" : "hidden");
      if (!on) return;
      set(group.firstChild, { y1: Y(value), y2: Y(value) });
      set(group.lastChild, { y: Y(value) - 5 });
      group.lastChild.textContent = text;
    };
    level(line, row.line, t("nothing under {tau}", { tau: num(row.line, 4) }));
    level(z, row.z, `z = ${num(row.z, 4)}`);
  }

  const fig = picture({ title: t("Scores, and the weights they become"), name: "simulator-row", draw: build, note: t("Drag a bar, or choose one and use the arrow keys; Delete hides a key."),
    data: () => { const { model, row } = get(); return [["key", "score", "entering", "seen", "weight"], ...model.scores.map((each, j) => [j, each.s, row.scores[j], String(row.seen[j]), row.weights?.[j] ?? null])]; } });

  function update() {
    if (!refs || !fig.width) return;
    const { model, row } = get(), scale = held !== null ? refs.scale : scaleOf([...row.scores, ...(row.z !== null && row.z !== undefined && Number.isFinite(row.z) ? [row.z] : [])]);
    const most = row.waiting ? refs.most : Math.max(1, ...row.shown), key = `${model.n} ${scale} ${most > 1 ? Math.ceil(most * 4) : 1}`;
    if (key !== drawn && held === null) {
      drawn = key;
      const inside = refs.svg.contains(document.activeElement);
      fig.redraw();
      if (inside) refs.keys[Math.min(model.key, model.n - 1)].hit.focus({ preventScroll: true });
    } else paint();
  }
  return { box: fig.box, update };
}

/** Where the total goes: a stacked bar of sink, content and nothing, over 1. */
export function massBar(get) {
  return picture({ title: t("Where the weight goes"), name: "simulator-mass", draw(width) {
    const { row, model } = get(), W = Math.max(width, 220), g = model.gate[0];
    if (row.waiting) return s("svg", { width: W, height: 58, viewBox: `0 0 ${W} 58` });
    const sink = row.sink >= 0 && !model.cut ? row.weights[row.sink] * g : 0, content = row.mass * g - sink, free = Math.max(0, 1 - row.mass * g), whole = Math.max(1, row.mass * g);
    const parts = [[t("sink"), sink, "f-sink"], [t("content"), content, "f-content"], [t("nothing"), free, "nothing"]].filter((part) => part[1] > 1e-12);
    let x = 0, row0 = 0;
    return s("svg", { width: W, height: 58, viewBox: `0 0 ${W} 58`, role: "img", "aria-label": parts.map(([name, v]) => `${name} ${num(v, 4)}`).join(", ") || t("no weight") },
      s("rect", { x: 0.5, y: 4.5, width: W - 1, height: 20, class: "frame" }),
      parts.map(([name, v, cls]) => {
        const from = x, wide = (W * v) / whole, at = Math.min(Math.max(from, row0), W - 8), text = `${name} ${num(v, 4)}`;
        x += wide;
        row0 = at + text.length * 7.4 + 12;
        return [s("rect", { x: from, y: 5, width: Math.max(wide - 1, 0.5), height: 19, class: cls }), s("text", { x: row0 > W + 20 ? W : at, y: 42, class: "strong", "text-anchor": row0 > W + 20 ? "end" : "start" }, text)];
      }),
      whole > 1 && [s("line", { x1: W / whole, x2: W / whole, y1: 0, y2: 29, class: "cut" }), s("text", { x: W / whole + 4, y: 56 }, "1")]);
  }, data: () => { const { row, model } = get(); return [["part", "weight"], ["sink", row.share], ["total", row.mass], ["gate", model.gate[0]]]; } });
}
