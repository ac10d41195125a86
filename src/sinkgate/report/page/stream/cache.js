// The cache as slots: sinks in front, the recent ones in a ring behind, what was just evicted, and both ways to count positions.

import { fill, h, s, say, segments, want, watch } from "sinkgate/lib/dom.js";
import { t, tn } from "sinkgate/lib/language.js";
import { fmt } from "sinkgate/lib/text.js";
import { within } from "sinkgate/lib/state.js";
import { cacheAt, distance } from "sinkgate/stream/slots.js";

// The beginning of a speech in the public domain; here each word stands for one token.
export const WORDS = `Four score and seven years ago our fathers brought forth on this continent a new nation conceived in liberty and dedicated to the
proposition that all men are created equal Now we are engaged in a great civil war testing whether that nation or any nation so conceived and so
dedicated can long endure We are met on a great battlefield of that war We have come to dedicate a portion of that field as a final resting place
for those who here gave their lives that that nation might live It is altogether fitting and proper that we should do this But in a larger sense we
can not dedicate we can not consecrate we can not hallow this ground`.split(/\s+/);
export const LAST = WORDS.length - 1;
export const USUAL = { c_recent: 8, c_sinks: 2, c_at: 24, c_pos: "slots" };
const EVERY = 600; // milliseconds between two tokens when it plays

export const cacheKeys = Object.keys(USUAL);
export const readCache = (asked) => ({
  c_recent: Math.round(within(asked.get("c_recent"), 1, 24, USUAL.c_recent)), c_sinks: Math.round(within(asked.get("c_sinks"), 0, 8, USUAL.c_sinks)),
  c_at: Math.round(within(asked.get("c_at"), 0, LAST, USUAL.c_at)), c_pos: asked.get("c_pos") === "original" ? "original" : "slots",
});

/** A slider with its number beside it. */
function slider(id, label, lo, hi, value, change) {
  const out = h("output", { for: id }, String(value));
  const input = h("input", { type: "range", id, min: lo, max: hi, step: 1, value, input: () => { out.textContent = input.value; change(+input.value); } });
  return { box: h("div", { class: "dial" }, h("label", { for: id }, label), input, out), show(v) { input.value = v; out.textContent = String(v); } };
}

export function buildCache(el, context) {
  const state = context.state(), set = (change) => want(el, change);
  const controls = {
    c_recent: slider("c-recent", t("recent tokens, n"), 1, 24, state.c_recent, (v) => set({ c_recent: v })),
    c_sinks: slider("c-sinks", t("sinks kept, k"), 0, 8, state.c_sinks, (v) => set({ c_sinks: v })),
    c_at: slider("c-at", t("the stream has reached token"), 0, LAST, state.c_at, (v) => { stop(); set({ c_at: v }); }),
  };
  const scheme = h("fieldset", { class: "seg", id: "c-pos" }, h("legend", { class: "sr" }, t("Positions")));
  segments(scheme, "c-pos", [["slots", t("positions counted in the cache")], ["original", t("positions of the text")]], state.c_pos, (v) => set({ c_pos: v }));
  let timer = null;
  const play = h("button", { type: "button", id: "c-play", "aria-pressed": "false", click: () => (timer ? stop() : start()) }, t("Play"));
  const one = (by) => { stop(); set({ c_at: Math.min(LAST, Math.max(0, context.state().c_at + by)) }); };
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = t("Play");
    play.setAttribute("aria-pressed", "false");
  }
  function start() {
    if (context.state().c_at >= LAST) set({ c_at: 0 });
    play.textContent = t("Pause");
    play.setAttribute("aria-pressed", "true");
    timer = setInterval(() => { if (context.state().c_at >= LAST) stop(); else set({ c_at: context.state().c_at + 1 }); }, EVERY);
  }
  const plot = h("div", { class: "slots", id: "slots" });
  el.replaceChildren(
    h("p", { class: "note lead" }, t("A bounded cache, one token after another. Each box is a slot that holds the key and value of one token; the recent ones take turns in a ring. Only what lies in a slot can be attended to: what was evicted is gone.")),
    h("div", { class: "dials" }, controls.c_recent.box, controls.c_sinks.box, controls.c_at.box),
    h("div", { class: "steps" }, h("button", { type: "button", "aria-label": t("One token back"), id: "c-back", click: () => one(-1) }, "←"), play, h("button", { type: "button", "aria-label": t("One token on"), id: "c-on", click: () => one(1) }, "→"), scheme),
    plot, h("p", { class: "readout", id: "c-said" }), h("div", { class: "plot", id: "distances" }));
  watch(plot, () => drawCache(el, context.state()));
  el.showControls = (now) => { for (const [key, control] of Object.entries(controls)) control.show(now[key]); scheme.querySelectorAll("input").forEach((input) => { input.checked = input.value === now.c_pos; }); };
  return { stop };
}

export function drawCache(el, state, change = {}) {
  const { c_recent: recent, c_sinks: sinks, c_at: at, c_pos: scheme } = state, cache = cacheAt(at, recent, sinks);
  el.showControls?.(state);
  el.querySelector("#slots").replaceChildren(drawSlots(el.clientWidth, cache, { recent, sinks, at, scheme }), drawText(cache, at, sinks));
  el.querySelector("#distances").replaceChildren(drawDistances(el.clientWidth, state));
  const first = cache.held[0], far = distance(cache, first, scheme);
  const said = t("Token {at} has come: {held} of {all} slots are filled. Its query counts as position {query}; the first token held is token {first}, {far} positions away.",
    { at, held: cache.held.length, all: recent + sinks, query: cache.query(scheme), first, far });
  const gone = cache.evicted === null ? t("Nothing has been evicted yet.") : t("Just evicted: token {token}, “{word}”.", { token: cache.evicted, word: WORDS[cache.evicted] });
  el.querySelector("#c-said").replaceChildren(`${said} ${gone}`);
  if ("c_at" in change && document.activeElement?.id?.startsWith("c-") && document.activeElement.id !== "c-at") say(`${said} ${gone}`);
}

function drawSlots(width, cache, { recent, sinks, at, scheme }) {
  const all = recent + sinks, air = 4, most = Math.max(Math.floor(width / 62), 4), rows = Math.ceil((all + 1) / Math.min(most, all + 1));
  const per = Math.ceil((all + 1) / rows), wide = Math.min(86, Math.floor(width / per)), tall = 70, W = Math.max(width, 200), H = rows * (tall + 16) + 4;
  const place = (i) => ({ x: (i % per) * wide, y: Math.floor(i / per) * (tall + 16) + 14 });
  const box = (i, token, kind, label) => {
    const { x, y } = place(i), empty = token === null, room = Math.floor((wide - air - 8) / 6.6);
    const word = empty ? "" : WORDS[token].length > room ? WORDS[token].slice(0, Math.max(1, room - 1)) + "…" : WORDS[token];
    return s("g", { class: `slot ${kind}`, "data-slot": i, "data-token": empty ? "" : token, "data-position": empty || kind === "gone" ? "" : cache.position(token, scheme) },
      s("rect", { x: x + 0.5, y: y + 0.5, width: wide - air, height: tall - 8, rx: 3 }),
      s("text", { x: x + 6, y: y - 4, class: "slotname" }, label),
      empty ? s("text", { x: x + (wide - air) / 2, y: y + 36, "text-anchor": "middle" }, "·") : [
        s("text", { x: x + 6, y: y + 18, class: "strong" }, word),
        s("text", { x: x + 6, y: y + 35 }, t("token {n}", { n: token })),
        s("text", { x: x + 6, y: y + 52, class: "counted" }, kind === "gone" ? t("gone") : `→ ${cache.position(token, scheme)}`)]);
  };
  const kindOf = (i, token) => (token === null ? "empty" : i === cache.newest ? (i < sinks ? "newest sinkslot" : "newest") : i < sinks ? "sinkslot" : "recentslot");
  const boxes = cache.slots.map((token, i) => box(i, token, kindOf(i, token), i < sinks ? t("sink") : i === cache.newest ? t("newest") : i === sinks ? t("recent") : ""));
  if (cache.evicted !== null) boxes.push(box(all, cache.evicted, "gone", t("evicted")));
  const listed = cache.held.map((token) => `${WORDS[token]} (${token} → ${cache.position(token, scheme)})`).join(", ");
  return s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": t("The slots of the cache at token {at}: {listed}", { at, listed }) }, boxes);
}

/** The text so far: kept words as they are, evicted ones struck out. */
function drawText(cache, at, sinks) {
  const held = new Set(cache.held);
  return h("p", { class: "spoken", "aria-label": t("The text; what is struck out was evicted") }, WORDS.slice(0, at + 1).map((word, i) => [
    h(held.has(i) ? "span" : "s", { class: i === at ? "now" : held.has(i) ? (i < sinks ? "first" : "kept") : "lost" }, word), " "]));
}

/** How far the query stands from the first token held, along the stream, under both schemes. */
function drawDistances(width, { c_recent: recent, c_sinks: sinks, c_at: at }) {
  const W = Math.max(Math.min(width, 760), 200), H = 170, left = 34, right = 14, top = 40, foot = 34;
  const of = (scheme) => Array.from({ length: LAST + 1 }, (_, i) => { const cache = cacheAt(i, recent, sinks); return distance(cache, cache.held[0], scheme); });
  const X = (i) => left + ((W - left - right) * i) / LAST, most = Math.max(...of("original"), 1), Y = (v) => top + (H - top - foot) * (1 - v / most);
  const path = (values) => "M" + values.map((v, i) => `${X(i).toFixed(1)} ${Y(v).toFixed(1)}`).join("L");
  const series = [[t("positions of the text"), "c-arm1", of("original")], [t("positions counted in the cache"), "c-arm2", of("slots")]];
  return s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": t("Distance from the query to the first token held: {original} with positions of the text, {slots} counted in the cache", { original: series[0][2][at], slots: series[1][2][at] }) },
    s("text", { x: 0, y: 11 }, t("distance from the query to the first token held")),
    series.map(([name, cls], i) => { const x = i * Math.min(W / 2, 230); return [s("line", { x1: x, x2: x + 20, y1: 24, y2: 24, class: `series ${cls}` }), s("text", { x: x + 26, y: 28, class: "strong" }, name)]; }),
    [0, most].map((v) => [s("line", { x1: left, x2: W - right, y1: Y(v), y2: Y(v), class: v ? "gridline" : "axis" }), s("text", { x: left - 6, y: Y(v) + 4, "text-anchor": "end" }, fmt(v))]),
    series.map(([, cls, values]) => [s("path", { d: path(values), class: `series ${cls}` }), s("circle", { cx: X(at), cy: Y(values[at]), r: 4, class: cls.replace("c-", "f-") })]),
    s("line", { x1: X(at), x2: X(at), y1: top, y2: H - foot, class: "cross" }),
    [0, LAST].map((v) => s("text", { x: X(v), y: H - foot + 15, "text-anchor": v ? "end" : "start" }, fmt(v))),
    s("text", { x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" }, t("token of the stream")));
}
