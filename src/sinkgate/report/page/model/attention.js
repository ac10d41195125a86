// The attention of this head on demand: a chosen query over every key, or a block of queries over bins of keys, computed by the
// studio from the head's queries and keys. The sink's column is taken out, or the scale is logarithmic: else it is all one sees.

import { VIRIDIS, mix } from "sinkgate/lib/colour.js";
import { away, bdi, figure, h, s, say, segments, table, tip, tokenNode, want } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { among, within } from "sinkgate/lib/state.js";
import { TITLE_LIMIT, clean, fmt, number, percent, tick, tokenText } from "sinkgate/lib/text.js";
import { canWork, choiceField, job, numberField } from "sinkgate/stream/controls.js";
import "sinkgate/model/attention_zh.js";

const MOST = 32768, FLOOR = 1e-6; // tokens of a text; a weight that a logarithmic scale begins with
export const attentionKeys = ["a_mode", "a_query", "a_from", "a_to", "a_tokens", "a_sink", "a_scale"];
const whole = (asked, key, lo, hi, other) => Math.round(within(asked.get(key), lo, hi, other));
export const readAttention = (asked) => ({
  a_mode: among(asked.get("a_mode"), ["row", "block"], "row"), a_query: whole(asked, "a_query", -1, MOST - 1, -1),
  a_from: whole(asked, "a_from", 0, MOST - 1, 0), a_to: whole(asked, "a_to", -1, MOST - 1, -1), a_tokens: whole(asked, "a_tokens", 2, MOST, 2048),
  a_sink: whole(asked, "a_sink", 0, MOST - 1, 0), a_scale: among(asked.get("a_scale"), ["without", "log", "linear"], "without"),
});

/** Append the section to a head's panel, once for each head; later only its drawing follows the state. */
export function drawAttention(panel, context, state) {
  const key = `${context.entry?.id}.${state.layer}.${state.head}`, live = (context.attention ??= { job: job(), text: "", own: false });
  let box = panel.querySelector("#attention");
  if (box?.dataset.key !== key) {
    if (live.key !== key) { live.job.stop(); Object.assign(live, { key, found: null, refused: null }); }
    box?.remove();
    box = h("section", { class: "asked", id: "attention", "aria-labelledby": "attention-h" });
    box.dataset.key = key;
    panel.append(box);
    build(box, context, state, live);
  }
  const block = state.a_mode === "block";
  box.querySelector("#a-query").closest("label").hidden = block;
  for (const id of ["a-from", "a-to"]) box.querySelector(`#${id}`).closest("label").hidden = !block;
  show(box, context, state, live);
}

function build(box, context, state, live) {
  const set = (change) => want(box, change), works = canWork(context), payload = context.payload;
  const models = context.live?.models ?? [], model = models.includes(payload.model.name) ? payload.model.name : models[0];
  const kept = payload.strip?.tokens?.length && context.entry && context.server;
  const area = h("textarea", { id: "a-text", rows: 2, spellcheck: "false", input: (event) => { live.text = event.target.value; } }, live.text);
  const field = h("label", { class: "field" }, h("span", {}, kept ? t("text (empty: the record’s)") : t("text (empty: the packaged speeches)")), area);
  const select = h("select", { id: "a-model" }, (models.length ? models : [payload.model.name]).map((name) => h("option", { value: name, selected: name === model }, clean(name))));
  const go = h("button", { type: "button", class: "go", id: "a-go", click: () => ask(box, context, live, select.value, kept && !live.text.trim() ? context.entry.id : null) }, t("Compute"));
  box.replaceChildren(
    h("h3", { id: "attention-h" }, t("Attention on demand")),
    h("p", { class: "note" }, t("The weights of this head on a text, as the model computes them now. One query over every key, or up to 64 queries over bins of keys; the matrix of all tokens by all tokens is never made.")),
    h("fieldset", { class: "form", id: "a-form", disabled: !works }, h("legend", { class: "sr" }, t("What is computed")),
      h("label", { class: "field" }, h("span", {}, t("model")), select),
      choiceField("a-mode", t("what"), [["row", t("one query")], ["block", t("a block")]], state.a_mode, (v) => set({ a_mode: v })),
      numberField("a-query", t("query (−1: the last)"), -1, MOST - 1, state.a_query, (v) => set({ a_query: v })),
      numberField("a-from", t("queries from"), 0, MOST - 1, state.a_from, (v) => set({ a_from: v })),
      numberField("a-to", t("to (−1: the last)"), -1, MOST - 1, state.a_to, (v) => set({ a_to: v })),
      numberField("a-tokens", t("tokens at most"), 2, MOST, state.a_tokens, (v) => set({ a_tokens: v })),
      numberField("a-sink", t("the sink’s position"), 0, MOST - 1, state.a_sink, (v) => set({ a_sink: v })), field),
    h("div", { class: "steps" }, h("fieldset", { class: "bare", disabled: !works }, h("legend", { class: "sr" }, t("Compute")), go), h("button", { type: "button", id: "a-stop", disabled: true, click: () => live.job.stop() }, t("Stop")), h("span", { class: "muted", id: "a-said", role: "status" })),
    works ? "" : h("p", { class: "offline" }, context.server ? t("This studio was started without a model; start it with one:") : t("This page is a file, and a file runs no model. In the studio this works:"), " ", h("code", {}, `sinkgate studio ${context.server ? "" : "DIR "}--model ${clean(payload.model.name)}`)),
    h("div", { id: "a-found" }));
}

async function ask(box, context, live, model, record) {
  const state = context.state(), said = (text) => { const at = document.getElementById("a-said"); if (at) at.textContent = text; }, key = live.key;
  const { a_query: query, a_from: from, a_to: to, a_tokens: tokens, a_sink: sink, a_mode: mode } = state;
  Object.assign(live, { found: null, refused: null });
  box.querySelector("#a-go").disabled = true;
  box.querySelector("#a-stop").disabled = false;
  const refused = await live.job.start((signal) => context.server.stream("api/attention", {
    model, layer: state.layer, head: state.head, mode, tokens, sink, ...(mode === "row" ? { query } : { from, to }), ...(record !== null ? { record } : live.text.trim() ? { text: live.text } : {}),
  }, (line) => {
    if (line.loading) said(t("Loading {model}…", { model: line.loading }));
    else if (line.mode) { if (live.key === key) live.found = line; }
    else if (line.of) said(t("Layer {l} of {n}…", { l: line.layer, n: line.of - 1 }));
  }, signal));
  if (live.key !== key) return;
  live.refused = refused;
  const at = document.getElementById("attention");
  if (!at) return;
  said(live.found || refused ? "" : t("Stopped."));
  at.querySelector("#a-go").disabled = false;
  at.querySelector("#a-stop").disabled = true;
  at.querySelector("#a-found").dataset.key = "";
  show(at, context, context.state(), live);
  if (live.found) say(t("Computed over {n} tokens.", { n: fmt(live.found.tokens) }));
}

function show(box, context, state, live) {
  const el = box.querySelector("#a-found"), found = live.found, key = `${state.a_scale} ${state.theme} ${Boolean(found)} ${live.refused ?? ""}`;
  if (el.dataset.key === key) return;
  el.dataset.key = key;
  if (live.refused) { el.replaceChildren(h("p", { class: "refused", role: "alert" }, bdi(live.refused))); return; }
  if (!found) { el.replaceChildren(); return; }
  const scales = h("fieldset", { class: "seg", id: "a-scale" }, h("legend", { class: "sr" }, t("Scale")));
  segments(scales, "a-scale", [["without", t("without the sink")], ["log", t("log scale")], ["linear", t("everything, linear")]], state.a_scale, (v) => want(box, { a_scale: v }));
  const about = `${t("layer {l}, head {k}", { l: found.layer, k: found.head })} · ${clean(found.source)}`;
  el.replaceChildren(h("div", { class: "steps" }, scales), ...(found.mode === "row" ? rowParts(found, state, about) : blockParts(found, state, about)));
}

const sums = (values) => values.reduce((sum, v) => sum + (v ?? 0), 0);
const outlet = (share) => (share > 5e-4 ? ` ${t("A learned outlet takes {share}.", { share: percent(share) })}` : "");

function rowParts(found, state, about) {
  const sink = found.weights[found.sink], rest = sums(found.weights) - (sink ?? 0), name = `attention-${found.layer}-${found.head}-${found.query}`;
  return [
    h("p", { class: "note" }, t("Query {q} of {n} tokens", { q: fmt(found.query), n: fmt(found.tokens) }), ", ", tokenNode(found.name), found.cut ? ` (${t("the text goes on")})` : "", ". ",
      t("The sink (token {s}) takes {share}, all other keys together {rest}.", { s: found.sink, share: percent(sink), rest: percent(rest) }) + outlet(found.learned)),
    figure({ title: t("Weight on every key"), name, about, draw: (width) => drawRow(width, found, state.a_scale), data: () => [["key", "token", "weight"], ...found.weights.map((w, j) => [j, found.names ? tokenText(found.names[j], TITLE_LIMIT) : "", w])] }),
    table({ caption: t("Keys with most weight"), name: `${name}-top`, rows: found.top, columns: [
      { head: t("key"), get: (r) => r[0], num: true }, { head: t("token"), get: (r) => tokenText(r[1], TITLE_LIMIT), show: (r) => tokenNode(r[1]), rowhead: true }, { head: t("weight"), get: (r) => r[2], num: true },
      { head: t("of what the sink leaves"), get: (r) => (r[0] === found.sink || !(rest > 0) ? null : r[2] / rest), show: (r) => percent(r[0] === found.sink || !(rest > 0) ? null : r[2] / rest), num: true }] })];
}

/** One bar per pixel column at most: the largest weight of the keys that it stands for. */
function drawRow(width, found, scale) {
  const W = Math.max(width, 200), H = 170, left = 46, top = 22, foot = 34, n = found.query + 1, bars = Math.min(n, Math.max(1, Math.floor((W - left - 6) / 2)));
  const shown = (j) => scale !== "without" || j !== found.sink, cells = Array.from({ length: bars }, (_, i) => {
    const from = Math.floor((i * n) / bars), to = Math.max(from + 1, Math.floor(((i + 1) * n) / bars));
    let best = null;
    for (let j = from; j < to; j++) if (shown(j) && number(found.weights[j]) && (best === null || found.weights[j] > found.weights[best])) best = j;
    return { from, to, best };
  });
  const most = Math.max(...cells.map((c) => (c.best === null ? 0 : found.weights[c.best])), FLOOR), log = scale === "log";
  const Y = (v) => top + (H - top - foot) * (1 - (log ? Math.log(Math.max(v, FLOOR) / FLOOR) / Math.log(Math.max(1, most) / FLOOR) : v / most)), step = (W - left - 6) / bars;
  const marks = log ? [1e-6, 1e-4, 1e-2, 1] : [0, most / 2, most];
  return s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": t("Weights of query {q} over its keys; the largest shown is {most}", { q: found.query, most: fmt(most) }) },
    s("text", { x: 0, y: 11 }, bars < n ? t("weight (largest of {k} neighbouring keys)", { k: fmt(Math.ceil(n / bars)) }) : t("weight")),
    marks.map((v) => [s("line", { x1: left, x2: W - 6, y1: Y(v), y2: Y(v), class: "gridline" }), s("text", { x: left - 6, y: Y(v) + 4, "text-anchor": "end" }, tick(v))]),
    cells.map((c, i) => {
      if (c.best === null) return null;
      const w = found.weights[c.best], y = Y(w), show = (event) => tip(event.currentTarget.getBoundingClientRect(), [t("Key {j}", { j: c.best }), found.names && h("span", {}, tokenNode(found.names[c.best])), t("weight {w}", { w: fmt(w) }), c.to - c.from > 1 && t("largest of keys {a} to {b}", { a: c.from, b: c.to - 1 })]);
      return s("g", { pointerenter: show, pointerleave: away }, s("rect", { x: left + i * step, y: top, width: step, height: H - top - foot, fill: "none", "pointer-events": "all" }),
        s("rect", { x: left + i * step, y, width: Math.max(step - (step > 3 ? 1 : 0), 0.8), height: Math.max(H - foot - y, w > 0 ? 0.7 : 0), class: c.best === found.sink ? "weightbar sinkbar" : "weightbar" }));
    }),
    s("line", { x1: left, x2: W - 6, y1: H - foot, y2: H - foot, class: "axis" }),
    [0, found.query].map((v) => s("text", { x: v ? W - 6 : left, y: H - foot + 15, "text-anchor": v ? "end" : "start" }, fmt(v))),
    s("text", { x: (left + W) / 2, y: H - 4, "text-anchor": "middle" }, t("key")));
}

function blockParts(found, state, about) {
  const name = `attention-${found.layer}-${found.head}-block`, column = found.edges.indexOf(found.sink);
  const sink = column < 0 ? null : sums(found.sum.map((row) => row[column])) / found.sum.length, bins = found.edges.length - 1, keys = found.edges.at(-1);
  return [
    h("p", { class: "note" }, t("{rows} queries from {a} to {b}, over {n} keys in {bins} bins.", { rows: found.queries.length, a: fmt(found.queries[0]), b: fmt(found.queries.at(-1)), n: fmt(keys), bins }) + " ",
      sink === null ? "" : t("The sink (token {s}) takes {share} on average.", { s: found.sink, share: percent(sink) }) + " ", bins < keys ? t("A cell’s shade is the largest weight in its bin; the sum is true.") : ""),
    figure({ title: t("Queries by keys"), name, about, draw: (width) => drawBlock(width, found, state.a_scale), data: () => [["query", "from key", "to key", "largest", "sum"], ...found.queries.flatMap((q, i) => found.max[i].map((v, b) => [q, found.edges[b], found.edges[b + 1] - 1, v, found.sum[i][b]]))] })];
}

function drawBlock(width, found, scale) {
  const W = Math.max(width, 200), left = 46, top = 22, rows = found.queries.length, columns = found.edges.map((_, b) => b).slice(0, -1).filter((b) => scale !== "without" || found.edges[b] !== found.sink);
  const tall = Math.max(4, Math.min(14, Math.floor(420 / rows))), step = (W - left - 6) / Math.max(columns.length, 1), H = top + rows * tall + 52;
  const most = Math.max(...found.max.flatMap((row) => columns.map((b) => row[b] ?? 0)), FLOOR), log = scale === "log";
  const share = (v) => (log ? Math.log(Math.max(v, FLOOR) / FLOOR) / Math.log(Math.max(1, most) / FLOOR) : v / most);
  const cells = found.queries.map((q, i) => columns.map((b, c) => {
    if (found.edges[b] > q) return null; // keys that this query does not see
    return s("rect", { x: (left + c * step).toFixed(2), y: top + i * tall, width: (step + 0.3).toFixed(2), height: tall, fill: mix(VIRIDIS, share(found.max[i][b] ?? 0)), class: "patch" });
  }));
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": t("Weights of {rows} queries by bins of keys; the largest shown is {most}", { rows, most: fmt(most) }) },
    s("text", { x: 0, y: 11 }, t("query ↓, key →")), cells,
    [0, rows - 1].map((i) => s("text", { x: left - 6, y: top + i * tall + Math.min(tall, 11), "text-anchor": "end" }, fmt(found.queries[i]))),
    [[left, found.edges[columns[0] ?? 0], "start"], [W - 6, found.edges.at(-1) - 1, "end"]].map(([x, v, anchor]) => s("text", { x, y: top + rows * tall + 15, "text-anchor": anchor }, fmt(v))),
    Array.from({ length: 40 }, (_, i) => s("rect", { x: left + 12 + i * 4, y: H - 20, width: 4.3, height: 8, fill: mix(VIRIDIS, i / 39), class: "patch" })),
    s("text", { x: left + 6, y: H - 12, "text-anchor": "end" }, log ? "10⁻⁶" : "0"), s("text", { x: left + 180, y: H - 12 }, fmt(log ? Math.max(1, most) : most)));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), i = Math.floor((event.clientY - box.top - top) / tall), b = columns[Math.floor((event.clientX - box.left - left) / step)];
    if (i < 0 || i >= rows || b === undefined || found.edges[b] > found.queries[i]) { tip(null); return; }
    const last = found.edges[b + 1] - 1;
    tip({ left: event.clientX, top: event.clientY, bottom: event.clientY, width: 0 }, [t("Query {q}", { q: found.queries[i] }), h("span", {}, tokenNode(found.names[i])), last > found.edges[b] ? t("keys {a} to {b}", { a: found.edges[b], b: last }) : t("Key {j}", { j: last }), t("largest {max}, sum {sum}", { max: fmt(found.max[i][b]), sum: fmt(found.sum[i][b]) })]);
  });
  svg.addEventListener("pointerleave", away);
  return svg;
}
