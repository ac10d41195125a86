// *Write*: a model goes on from a prompt; its text, its speed and how much it repeats itself, as they come.

import { lineChart } from "sinkgate/lib/charts.js";
import { bdi, figure, h, want } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { among, within } from "sinkgate/lib/state.js";
import { clean, fmt, percent } from "sinkgate/lib/text.js";
import { areaField, canWork, choiceField, command, job, numberField, pickField, quoted, textField } from "sinkgate/stream/controls.js";
import { bytes } from "sinkgate/stream/curves.js";

const PROMPT = "The history of the lighthouse begins with";
const LATELY = 32; // tokens over which the speed now is told
export const writeKeys = ["w_model", "w_policy", "w_pos", "w_tokens", "w_heat", "w_seed"];
export const readWrite = (asked, context) => ({
  w_model: among(asked.get("w_model"), context.live?.models ?? [], context.live?.models[0] ?? "smollm2-135m"),
  w_policy: (asked.get("w_policy") || "recent(252) + sinks(4)").slice(0, 200), w_pos: asked.get("w_pos") === "original" ? "original" : "slots",
  w_tokens: Math.round(within(asked.get("w_tokens"), 1, 4096, 512)), w_heat: within(asked.get("w_heat"), 0, 5, 0), w_seed: Math.round(within(asked.get("w_seed"), 0, 999999, 0)),
});

const shell = (state, prompt) => `sinkgate generate ${quoted(state.w_model)} --prompt ${quoted(prompt.slice(0, 200))} --policy ${quoted(state.w_policy)} --positions ${state.w_pos} --max-new-tokens ${state.w_tokens} --temperature ${state.w_heat} --seed ${state.w_seed}`;

export function buildWrite(el, context) {
  const state = context.state(), live = (context.streamWrite ??= { job: job(), prompt: PROMPT, text: "", points: [], told: null, refused: null, gram: 4, span: 256 });
  const set = (change) => want(el, change), works = canWork(context);
  const form = h("fieldset", { class: "form", id: "w-form", disabled: !works }, h("legend", { class: "sr" }, t("What is written, and how")),
    works && pickField("w-model", t("model"), context.live.models.map((name) => [name, name]), state.w_model, (v) => set({ w_model: v })),
    textField("w-policy", t("the cache keeps"), state.w_policy, (v) => set({ w_policy: v || "recent(252) + sinks(4)" }), null, { maxlength: 200, list: "w-policies" }),
    h("datalist", { id: "w-policies" }, ["recent(252) + sinks(4)", "recent(255) + sinks(1)", "recent(256)", "dense"].map((value) => h("option", { value }))),
    choiceField("w-pos", t("Positions"), [["slots", t("of the cache")], ["original", t("of the text")]], state.w_pos, (v) => set({ w_pos: v })),
    numberField("w-tokens", t("tokens at most"), 1, 4096, state.w_tokens, (v) => set({ w_tokens: v })),
    numberField("w-heat", t("temperature (0: the most likely)"), 0, 5, state.w_heat, (v) => set({ w_heat: v }), 0.1),
    numberField("w-seed", t("seed"), 0, 999999, state.w_seed, (v) => set({ w_seed: v })),
    areaField("w-prompt", t("prompt"), live.prompt, (v) => { live.prompt = v; drawWrite(el, context, context.state()); }, 2));
  el.replaceChildren(
    h("p", { class: "note lead" }, t("The model goes on by itself, through a bounded cache. The perplexity of a model’s own text says nothing, so it is not shown: look at the speed, which stays, and at how much the text repeats itself.")),
    form, h("div", { class: "steps" },
      h("button", { type: "button", class: "go", id: "w-go", disabled: !works, click: () => start(el, context) }, t("Write")),
      h("button", { type: "button", id: "w-stop", disabled: true, click: () => live.job.stop() }, t("Stop")), h("span", { class: "muted", id: "w-said", role: "status" })),
    h("div", { id: "w-command" }), h("div", { id: "w-refused" }),
    h("dl", { class: "gauges", id: "w-gauges" }), h("p", { class: "written", id: "w-text", tabindex: 0, dir: "auto", role: "region", "aria-label": t("What was written") }), h("div", { id: "w-plot", class: "plots wide" }));
  showText(live);
  showTold(live);
}

export function drawWrite(el, context, state) {
  const live = context.streamWrite;
  el.querySelector("#w-command").replaceChildren(command(context, shell(state, live.prompt), "w-shell"));
  el.querySelector("#w-go").disabled = !canWork(context) || live.job.running || !live.prompt;
  el.querySelector("#w-stop").disabled = !live.job.running;
  el.querySelector("#w-refused").replaceChildren(...(live.refused ? [h("p", { class: "refused", role: "alert" }, bdi(live.refused))] : []));
}

/** A text as it is written: line ends stay, everything else that cannot be seen is written out. */
const written = (text) => text.split("\n").map(clean).join("\n");

function showText(live) {
  const at = document.getElementById("w-text");
  if (!at) return;
  at.hidden = !live.started;
  at.replaceChildren(h("span", { class: "muted" }, written(live.started ?? "")), written(live.text));
}

function showTold(live) {
  const at = document.getElementById("w-gauges"), told = live.told;
  if (!at) return;
  at.hidden = !told;
  if (!told) { document.getElementById("w-plot").replaceChildren(); return; }
  const before = live.points.at(-LATELY) ?? { written: 0, seconds: 0 }, now = told.seconds - before.seconds > 0 ? (told.written - before.written) / (told.seconds - before.seconds) : null;
  const gauge = (id, name, value, help) => h("div", { id }, h("dt", {}, name), h("dd", {}, value), help && h("dd", { class: "muted" }, help));
  at.replaceChildren(
    gauge("w-count", t("tokens written"), fmt(told.written)),
    gauge("w-rate", t("tokens a second"), fmt(told.seconds ? told.written / told.seconds : null), t("lately {now}", { now: fmt(now) })),
    gauge("w-again", t("said again"), percent(told.repeated), t("share of the {n}-token sequences in the last {span} tokens that stood there before", { n: live.gram, span: live.span })),
    gauge("w-held", t("held in the cache"), fmt(told.held), bytes(told.bytes)));
  const plot = document.getElementById("w-plot");
  if (live.points.length < 2) { plot.replaceChildren(); live.figure = null; return; }
  const spec = () => ({ x: live.points.map((p) => p.written), xlabel: t("tokens written"), xname: t("tokens written"), ylabel: t("share said again"), ylo: 0, yhi: 1, yfmt: percent, ytick: (v) => `${Math.round(100 * v)}%`, height: 170,
    label: t("Share of sequences said again, along the text"), series: [{ name: t("said again"), cls: "c-sink", y: live.points.map((p) => p.repeated) }] });
  if (!live.figure || !plot.contains(live.figure)) {
    live.figure = figure({ title: t("How much it repeats itself"), name: "repetition", draw: (width) => lineChart(width, spec()), data: () => [["tokens", "repeated", "seconds"], ...live.points.map((p) => [p.written, p.repeated, p.seconds])] });
    plot.replaceChildren(live.figure);
  } else {
    const inner = live.figure.querySelector(".plot"), width = Math.floor(inner.clientWidth);
    if (width) inner.replaceChildren(lineChart(width, spec()));
  }
}

async function start(el, context) {
  const live = context.streamWrite, state = context.state(), said = (text) => { const at = document.getElementById("w-said"); if (at) at.textContent = text; };
  Object.assign(live, { text: "", started: live.prompt, points: [], told: null, refused: null, why: null });
  showText(live);
  showTold(live);
  let waiting = false;
  const redraw = () => { waiting = false; showTold(live); };
  const ended = live.job.start((signal) => context.server.stream("api/write", {
    model: state.w_model, prompt: live.prompt, policy: state.w_policy, positions: state.w_pos, tokens: state.w_tokens, temperature: state.w_heat, seed: state.w_seed,
  }, (line) => {
    if (line.loading) said(t("Loading {model}…", { model: line.loading }));
    if (line.prompt) { live.asked = line.prompt; live.gram = line.gram; live.span = line.span; }
    if (line.read) said(t("Reading the prompt: {done} of {all} tokens", { done: fmt(line.read), all: fmt(live.asked) }));
    if (line.text) { live.text += line.text; document.getElementById("w-text")?.append(written(line.text)); said(t("Writing…")); }
    if (line.written !== undefined) { live.told = line; if (live.points.at(-1)?.written !== line.written) live.points.push({ written: line.written, seconds: line.seconds, repeated: line.repeated }); }
    if (line.done) live.why = line.done;
    if (!waiting) { waiting = true; requestAnimationFrame(redraw); }
  }, signal));
  drawWrite(el, context, state);
  live.refused = await ended;
  const at = document.getElementById("w-text")?.closest(".inside");
  if (!at) return;
  const ends = { end: t("The model ended its text."), length: t("As many tokens as were asked for."), stop: t("A stop text was reached.") };
  said(live.refused ? "" : ends[live.why] ?? t("Stopped."));
  showTold(live);
  drawWrite(at, context, context.state());
}
