// Page 1: one record of a model. Each draw* function fills an element from (payload, state) and keeps nothing.

import { h, tip, watch } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { among, index } from "sinkgate/lib/state.js";
import { attentionKeys, drawAttention, readAttention } from "sinkgate/model/attention.js";
import { drawChoice, drawCompare } from "sinkgate/model/compare.js";
import { drawEffects, effectsOf, evictionMetrics } from "sinkgate/model/effects.js";
import { drawGlossary } from "sinkgate/model/glossary.js";
import { drawHead } from "sinkgate/model/head.js";
import { drawHeader } from "sinkgate/model/header.js";
import { drawMap, drawMetric, ranked } from "sinkgate/model/map.js";
import { drawLayers, drawResidual, drawSeries, drawSinks } from "sinkgate/model/sections.js";
import { drawStrip } from "sinkgate/model/strip.js";
import "sinkgate/model/zh.js";

const SECTIONS = () => [
  ["map", t("Layers × heads")], ["compare", t("Two records side by side")], ["effects", t("What acting on the sink did")], ["text", t("The text, shaded by what each token receives")], ["sinks", t("Sinks, and how the count depends on the threshold")],
  ["stream", t("The residual stream by layer")], ["series", t("Across the series")], ["layers", t("What each layer allowed to be measured")], ["reading", t("How to read this")],
];

function go(el, id) {
  const section = el.querySelector(`#${id}`), title = section?.querySelector("h2, h3");
  if (id === "reading") section.querySelector("details").open = true;
  section?.scrollIntoView({ block: "start" });
  title?.focus({ preventScroll: true });
}

function build(el, payload, context) {
  const section = ([id, title]) => h("section", { id, "aria-labelledby": `${id}-h`, class: id === "map" ? "bench" : null },
    id === "map"
      ? [h("div", { class: "map-col" }, h("h2", { id: "map-h", tabindex: -1 }, title), h("div", { id: "metric" }), h("div", { id: "grid" })),
        h("div", { class: "head-col", id: "panel", role: "region", "aria-labelledby": "panel-h" })]
      : [h("h2", { id: `${id}-h`, tabindex: -1 }, title), h("div", { class: "inside" })]);
  const there = { series: payload.series?.names?.length, compare: context.other, effects: context.effects.records.length || context.effects.refused.length };
  const shown = SECTIONS().filter(([id]) => !(id in there) || there[id]);
  el.replaceChildren(h("div", { id: "choice", class: "choice", role: "group", "aria-label": t("Records") }), h("div", { id: "head" }), h("nav", { class: "contents", id: "contents", "aria-label": t("Sections") }), ...shown.map(section));
  const at = (id) => el.querySelector(`#${id} > .inside`);
  drawHeader(el.querySelector("#head"), payload);
  drawStrip(at("text"), payload);
  drawSinks(at("sinks"), payload);
  drawResidual(at("stream"), payload);
  drawLayers(at("layers"), payload);
  if (at("effects")) drawEffects(at("effects"), payload, context.effects);
  if (at("series")) drawSeries(at("series"), payload);
  drawGlossary(at("reading"));
  const short = { map: t("Map"), compare: t("Comparison"), effects: t("Effects"), panel: t("Head"), text: t("Text"), sinks: t("Sinks"), stream: t("Residual stream"), series: t("Series"), layers: t("Layers"), reading: t("How to read this") };
  const links = ["map", "panel", ...shown.map(([id]) => id).slice(1)];
  el.querySelector("#contents").replaceChildren(...links.map((id) => h("button", { type: "button", click: () => go(el, id) }, short[id])));
  el.querySelector("#map").classList.toggle("side", payload.model.heads <= 16);
}

export const model = {
  id: "model",
  title: () => t("Model"),
  kind: "diagnosis",
  keys: ["metric", "layer", "head", "other", ...attentionKeys],
  reopens: ["other"],

  /** The record beside it, if one is asked for, and the effects of this model: read before the page is built. */
  async prepare(context, state, asked) {
    const id = asked.get("other"), entry = context.of("diagnosis").find((each) => each.id === id && id !== state.record);
    context.other = null;
    if (entry) {
      try { context.other = { entry, payload: await context.load(entry) }; } catch (error) { context.other = { entry, refused: error.message }; }
    }
    context.effects = await effectsOf(context, context.payload);
    context.payload = { ...context.payload, metrics: [...context.payload.metrics, ...evictionMetrics(context.payload, context.effects)] };
  },

  /** Stands above a record that cannot be shown, so that another can be chosen. */
  refused(el, context, state) {
    const box = h("div", { class: "choice", role: "group", "aria-label": t("Records") });
    el.prepend(box);
    drawChoice(box, context, state);
  },


  /** The state that the address asks for, with what it leaves out or gets wrong filled in. */
  read(asked, context) {
    const payload = context.payload;
    const { layers, heads } = payload.model, [, l, k] = ranked(payload, payload.metrics[0])[0] ?? [null, 0, 0];
    const chosen = asked.has("layer") || asked.has("head");
    return {
      metric: among(asked.get("metric"), payload.metrics.map((m) => m.id), payload.metrics[0].id),
      other: context.other?.entry.id ?? "",
      ...readAttention(asked),
      layer: index(asked.get("layer"), layers, chosen ? 0 : l), head: index(asked.get("head"), heads, chosen ? 0 : k),
    };
  },

  build(el, context) {
    build(el, context.payload, context);
    const redraw = () => { const grid = el.querySelector("#grid"); if (grid) drawMap(grid, context.payload, context.state()); };
    watch(el.querySelector("#grid"), redraw);
  },

  draw(el, context, state, change = {}) {
    const at = (id) => el.querySelector(`#${id}`), payload = context.payload;
    drawChoice(at("choice"), context, state);
    drawMetric(at("metric"), payload, state);
    drawMap(at("grid"), payload, state);
    drawHead(at("panel"), payload, state, context);
    drawAttention(at("panel"), context, state);
    const beside = el.querySelector("#compare > .inside");
    if (beside) drawCompare(beside, context, state);
    const column = el.querySelector(".map-col");
    column.classList.toggle("fits", column.offsetHeight < innerHeight - 24);
    const { open, pick } = change;
    if (pick !== undefined) at("panel").querySelectorAll("select")[pick].focus();
    const below = at("panel").getBoundingClientRect().top > innerHeight * 0.6;
    if (open === "focus" || (open === "look" && below)) {
      if (below || at("panel").getBoundingClientRect().top < 0) at("panel").scrollIntoView({ block: "start" });
      tip(null);
    }
    if (open === "focus") at("panel-h").focus({ preventScroll: true });
  },
};
