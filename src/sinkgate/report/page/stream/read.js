// *Read*: several caches side by side on one text, from the studio's server.

import { bdi, h, save, say, want } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { among, within } from "sinkgate/lib/state.js";
import { fmt } from "sinkgate/lib/text.js";
import { areaField, canWork, choiceField, command, job, numberField, pickField, quoted, textField } from "sinkgate/stream/controls.js";
import { armName, streamCurves, wholeOf } from "sinkgate/stream/curves.js";

export const readKeys = ["r_model", "r_tokens", "r_window", "r_pos", "r_arms", "r_policy"];
const ARMS = ["full", "window", "sink1", "sink4"];
export const policiesOf = (state) => state.r_arms.split(" ").filter(Boolean).map((arm) => ({
  full: "dense", window: `recent(${state.r_window})`, sink1: `recent(${state.r_window - 1}) + sinks(1)`, sink4: `recent(${state.r_window - 4}) + sinks(4)` })[arm]);

export const readRead = (asked, context) => ({
  r_model: among(asked.get("r_model"), context.live?.models ?? [], context.live?.models[0] ?? "smollm2-135m"),
  r_tokens: Math.round(within(asked.get("r_tokens"), 128, 16384, 2048)), r_window: Math.round(within(asked.get("r_window"), 8, 8192, 256)),
  r_pos: asked.get("r_pos") === "original" ? "original" : "slots",
  r_arms: ARMS.filter((arm) => (asked.get("r_arms") ?? ARMS.join(" ")).split(" ").includes(arm)).join(" "),
  r_policy: (asked.get("r_policy") ?? "").slice(0, 200),
});

const wanted = (state) => [...policiesOf(state), ...(state.r_policy ? [state.r_policy] : [])];
const shell = (state, own) => `sinkgate stream ${quoted(state.r_model)} ${wanted(state).map((p) => `--policy ${quoted(p)}`).join(" ")} --positions ${state.r_pos} --tokens ${state.r_tokens} --chunk 64 --every 64${own ? " --input text.txt" : ""} --out read`;

export function buildRead(el, context) {
  const state = context.state(), live = (context.streamRead ??= { job: job(), text: "", record: null, refused: null });
  const set = (change) => want(el, change), works = canWork(context);
  const chosen = new Set(state.r_arms.split(" "));
  const arms = h("fieldset", { class: "checks", id: "r-arms" }, h("legend", {}, t("Caches")), [["full", t("full: everything kept")], ["window", t("window alone")], ["sink1", t("window + 1 sink")], ["sink4", t("window + 4 sinks")]].map(([id, label]) =>
    h("label", {}, h("input", { type: "checkbox", value: id, checked: chosen.has(id), change: (event) => { if (event.target.checked) chosen.add(id); else chosen.delete(id); set({ r_arms: ARMS.filter((arm) => chosen.has(arm)).join(" ") }); } }), " ", label)));
  const go = h("button", { type: "button", class: "go", id: "r-go", disabled: !works, click: () => start(el, context) }, t("Read"));
  const halt = h("button", { type: "button", id: "r-stop", disabled: true, click: () => live.job.stop() }, t("Stop"));
  const form = h("fieldset", { class: "form", id: "r-form", disabled: !works }, h("legend", { class: "sr" }, t("What is read, and how")),
    works && pickField("r-model", t("model"), context.live.models.map((name) => [name, name]), state.r_model, (v) => set({ r_model: v })),
    numberField("r-tokens", t("tokens at most"), 128, 16384, state.r_tokens, (v) => set({ r_tokens: v }), 1),
    numberField("r-window", t("tokens a cache holds"), 8, 8192, state.r_window, (v) => set({ r_window: v }), 1),
    choiceField("r-pos", t("Positions"), [["slots", t("of the cache")], ["original", t("of the text")]], state.r_pos, (v) => set({ r_pos: v })),
    arms,
    textField("r-policy", t("another policy (optional)"), state.r_policy, (v) => set({ r_policy: v }), null, { placeholder: "recent(128) + heavy(64) + sinks(4)", maxlength: 200 }),
    areaField("r-text", t("text (empty: the packaged speeches)"), live.text, (v) => { live.text = v; drawRead(el, context, context.state()); }, 3));
  el.replaceChildren(
    h("p", { class: "note lead" }, t("One real text, read under several caches: every token is predicted from what a cache still holds, and then shown to it (teacher-forced). Watch the window alone degrade once the first token has left it, and a single kept sink save it.")),
    form, h("div", { class: "steps" }, go, halt, h("span", { class: "muted", id: "r-said", role: "status" })), h("div", { id: "r-command" }), h("div", { id: "r-found" }));
  show(el, context);
}

export function drawRead(el, context, state) {
  el.querySelector("#r-command").replaceChildren(command(context, shell(state, context.streamRead.text.trim()), "r-shell"));
  const halt = el.querySelector("#r-stop"), go = el.querySelector("#r-go"), live = context.streamRead;
  halt.disabled = !live.job.running;
  go.disabled = !canWork(context) || live.job.running || !wanted(state).length;
}

/** What there is of the record, drawn anew. */
function show(el, context) {
  const live = context.streamRead, found = el.querySelector("#r-found");
  live.curves = live.record && live.record.arms.some((arm) => arm.sums.length) ? streamCurves(live.record, "read") : null;
  found.replaceChildren(...[live.refused && h("p", { class: "refused", role: "alert" }, bdi(live.refused)), live.curves?.box,
    live.done && h("p", { class: "tools" }, h("button", { type: "button", id: "r-save", click: () => save("stream.json", "application/json", JSON.stringify(live.done)) }, t("Save the record (stream.json)")))].filter(Boolean));
}

async function start(el, context) {
  const live = context.streamRead, state = context.state(), said = (text) => { const at = document.getElementById("r-said"); if (at) at.textContent = text; };
  Object.assign(live, { record: null, done: null, refused: null });
  show(el, context);
  let waiting = false;
  // The page may have been built anew since, in another language: what it is now is looked up each time.
  const here = () => document.getElementById("r-found")?.closest(".inside");
  const redraw = () => { waiting = false; const at = here(); if (!at) return; if (live.curves) live.curves.redraw(); else show(at, context); };
  const ended = live.job.start((signal) => context.server.stream("api/read", {
    model: state.r_model, arms: wanted(state), window: state.r_window, positions: state.r_pos, tokens: state.r_tokens, every: 64, ...(live.text.trim() ? { text: live.text } : {}),
  }, (line) => {
    if (line.loading) said(t("Loading {model}…", { model: line.loading }));
    if (line.record) { if (line.done) live.done = line.record; live.record = line.record; if (live.curves) { live.curves = null; } }
    if (line.arm !== undefined) {
      const arm = live.record.arms[line.arm];
      Object.assign(arm, { seconds: line.seconds, held: line.held, cache_bytes: line.cache_bytes });
      arm.sums[line.point] = line.sum;
      arm.counts[line.point] = line.count;
      said(t("{done} of {all} tokens; {arm}: perplexity {value}", { done: fmt((line.point + 1) * arm.every), all: fmt(live.record.meta.tokens - 1), arm: armName(arm), value: fmt(wholeOf(arm)) }));
    }
    if (!waiting) { waiting = true; requestAnimationFrame(redraw); }
  }, signal));
  drawRead(el, context, state);
  live.refused = await ended;
  const at = here();
  if (!at) return;
  said(live.done ? t("Read to the end.") : live.refused ? "" : t("Stopped."));
  if (live.done) say(live.done.arms.map((arm) => `${armName(arm)}: ${fmt(wholeOf(arm))}`).join(", "));
  show(at, context);
  drawRead(at, context, context.state());
}
