// A plan on one page: the answer and the lines to paste, what changes, the frontier it was chosen from, and on which evidence.

import { bdi, h, say, segments, want } from "sinkgate/lib/dom.js";
import { language, t, tn } from "sinkgate/lib/language.js";
import { Refused } from "sinkgate/lib/server.js";
import { among } from "sinkgate/lib/state.js";
import { fmt, number } from "sinkgate/lib/text.js";
import { entryName } from "sinkgate/model/said.js";
import { AXES, isPlan, mean, percentOf, positionsName, said, signed } from "sinkgate/plan/data.js";
import { layersFigure, promiseFigure } from "sinkgate/plan/figures.js";
import { frontierFigure } from "sinkgate/plan/frontier.js";
import { armsTables, beforeAfter, counts, SORTS, textsTable, trialsTable } from "sinkgate/plan/tables.js";
import { bytes, short } from "sinkgate/stream/curves.js";
import { isRecall, recallCurves } from "sinkgate/stream/recall.js";
import "sinkgate/plan/zh.js";

const SHOWN = 20_000; // characters of the lines to paste that are written out; all of them are copied

/** The answer in one sentence. */
function answer(payload) {
  const { predicted: p, measured: m, meta } = payload, setting = h("code", {}, bdi(short(payload.setting.policy, 160))), size = { bytes: bytes(p.bytes), whole: bytes(p.dense_bytes), share: percentOf(p.bytes, p.dense_bytes), n: fmt(meta.context) };
  if (payload.answer === "leave it") return payload.reasons.length ? [bdi(said(payload, payload.reasons[0], language() === "zh"))] : [t("Nothing has to be given up.")];
  const keeps = tn("Keep {setting}, positions {positions}: {bytes} of {whole} ({share}) at {n} tokens.", { ...size, setting, positions: positionsName(payload.setting.positions) }), found = mean(m.increase);
  return [...keeps, " ", found ? t(found.n === 1 ? "On {n} text that the search never saw, the perplexity changes by {value}." : "On {n} texts that the search never saw, the perplexity changes by {value}.", { n: fmt(found.n), value: signed(found.mean) }) : "",
    number(m.promise) ? ` ${t("For other texts like these it is promised to stay within {value}.", { value: signed(m.promise) })}` : ""];
}

function asked({ request: r, meta }) {
  const goal = { memory: t("memory"), latency: t("latency"), quality: t("quality") }[r.goal ?? (number(r.max_increase) ? "memory" : "quality")];
  return [number(r.budget) ? t("at most {n} of keys and values", { n: bytes(r.budget) }) : "", number(r.max_increase) ? t("perplexity at most {n} higher", { n: signed(r.max_increase).slice(1) }) : "", number(r.weight_budget) ? t("at most {n} of weights", { n: bytes(r.weight_budget) }) : "",
    t("{n} tokens", { n: fmt(meta.context) }) + (r.batch > 1 ? ` × ${fmt(r.batch)}` : ""), t("goal: {goal}", { goal }), t("effort: {effort}", { effort: { quick: t("quick"), default: t("default"), thorough: t("thorough") }[r.effort] ?? short(r.effort) }), t("seed {n}", { n: fmt(r.seed) })].filter(Boolean).join(language() === "zh" ? "；" : "; ");
}

function paste(payload) {
  const code = h("code", { id: "plan-code" }, payload.code.slice(0, SHOWN).split("\n").map((line, i) => [i ? "\n" : "", bdi(line)])), box = h("pre", { class: "plan-code", tabindex: 0, role: "region", "aria-label": t("The lines to paste") }, code);
  const button = h("button", { type: "button", id: "plan-copy", click: async () => {
    let done = true;
    try { await navigator.clipboard.writeText(payload.code); } catch { done = copySelected(code); }
    button.textContent = done ? t("Copied") : t("Select and copy it");
    say(button.textContent);
    setTimeout(() => { button.textContent = t("Copy"); }, 2500);
  } }, t("Copy"));
  return h("div", { class: "plan-paste" }, h("div", { class: "plan-paste-head" }, h("h2", { class: "t" }, t("The lines to paste")), button), box);
}

/** Where no clipboard is given to the page: what is written out is selected, and copied the old way if that is allowed. */
function copySelected(code) {
  getSelection().selectAllChildren(code);
  try { return document.execCommand("copy"); } catch { return false; }
}

const sentences = (payload, list, cls, id) => h("ul", { class: cls, id, role: "list" }, list.slice(0, 200).map((line) => h("li", {}, bdi(said(payload, line, language() === "zh")))));

function chooser(context, state) {
  const all = context.of("plan");
  if (all.length < 2) return null;
  return h("p", { class: "plan-choose" }, h("label", { for: "plan-record" }, t("Plan")), " ", h("select", { id: "plan-record", change: (event) => want(event.target, { record: event.target.value, focus: "#plan-record" }) }, all.map((entry) => h("option", { value: entry.id, selected: entry.id === state.record }, entryName(context, entry)))));
}

function facts(payload) {
  const { model, versions, threads, seconds, record, texts } = payload.meta, rows = [[t("model"), short(model.name, 160)], [t("class"), short(model.class, 80)], [t("run as"), short(model.dtype, 40)], [t("fingerprint"), short(model.fingerprint, 64)],
    [t("asked for"), asked(payload)], [t("length of a text"), number(texts?.length) ? t("{n} tokens", { n: fmt(texts.length) }) : ""], [t("record"), number(record?.samples) ? t("{n} samples of {tokens} tokens", { n: fmt(record.samples), tokens: fmt(record.tokens) }) : ""],
    [t("versions"), Object.entries(versions ?? {}).slice(0, 20).map(([name, version]) => `${short(name, 40)} ${short(version, 40)}`).join(", ")], [t("threads"), number(threads) ? fmt(threads) : ""], [t("time"), number(seconds) ? (seconds < 120 ? t("{n} seconds", { n: fmt(seconds) }) : t("{n} minutes", { n: fmt(seconds / 60) })) : ""]];
  return h("dl", { class: "facts", id: "plan-facts" }, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, bdi(value))]));
}

/** What is done to the weights: whatever the plan says of it that is a text or a number. */
function weights(payload) {
  const found = Object.entries(payload.weights ?? {}).filter(([, value]) => ["string", "number", "boolean"].includes(typeof value)).slice(0, 40);
  return found.length ? h("dl", { class: "facts", id: "plan-weights" }, found.map(([name, value]) => [h("dt", {}, short(name, 60)), h("dd", {}, bdi(typeof value === "string" ? short(value, 300) : fmt(value)))])) : null;
}

function build(el, context) {
  const payload = context.payload, leave = payload.answer === "leave it", section = (id, title, ...inside) => h("section", { id: `plan-${id}`, "aria-labelledby": `plan-${id}-h` }, h("h2", { id: `plan-${id}-h`, tabindex: -1 }, title), inside);
  const axes = ["x", "y"].map((axis) => h("fieldset", { class: "seg", id: `plan-axis-${axis}` }, h("legend", { class: "sr" }, axis === "x" ? t("Across") : t("Upwards"))));
  const run = payload.recall && isRecall(payload.recall) ? { ...payload.recall, arms: payload.recall.arms.map((arm) => ({ ...arm, name: arm.name === "the plan" ? t("the plan") : arm.name === "as it is" ? t("as it is") : arm.name })) } : null;
  const arms = armsTables(payload), changed = weights(payload), layers = layersFigure(payload), promise = promiseFigure(payload), tried = payload.trials.length > 0;
  el.replaceChildren(...[
    chooser(context, context.state()),
    h("div", { class: "plan-head" },
      h("div", {}, h("h1", { id: "plan-answer" }, leave ? t("Leave it as it is") : t("Change what the cache keeps")), h("p", { class: "note" }, bdi(short(payload.meta.model.name)), " · ", asked(payload)), h("p", { class: "plan-said", id: "plan-said" }, answer(payload)), promise),
      h("div", {}, paste(payload))),
    section("figures", t("What changes"), beforeAfter(payload)),
    tried && section("front", t("The frontier"), h("div", { class: "plan-axes" }, axes[1], axes[0]), h("div", { id: "plan-drawn" }), h("p", { class: "note", id: "plan-counts" }, counts(payload)), h("div", { id: "plan-table" })),
    payload.reasons.length > (leave ? 1 : 0) && section("why", t("Why"), sentences(payload, payload.reasons.slice(leave ? 1 : 0), "plan-why", "plan-reasons")),
    payload.refused.length > 0 && section("refused", t("Refused"), sentences(payload, payload.refused, "plan-why", "plan-refusals")),
    payload.notes.length > 0 && section("notes", t("Notes"), sentences(payload, payload.notes, "notes", "plan-remarks")),
    run && section("recall", t("What is recalled"), h("p", { class: "note" }, t("Perplexity can hide a dead memory: facts are asked for at growing distances, of the model as it is and with the plan.")), recallCurves(run, "plan-recall")),
    (arms.length > 0 || changed) && section("bits", t("Fewer bits"), changed, arms),
    layers && section("cost", t("Where forgetting hurts"), layers),
    section("evidence", t("Evidence"), facts(payload), textsTable(payload)),
  ].filter(Boolean));
}

/** Segments are made anew when they are drawn: the focus stays on what was chosen. */
function choose(box, name, choices, chosen) {
  if (!box) return;
  segments(box, name, choices, chosen, (value) => { want(box, { [name]: value }); box.querySelector("input:checked")?.focus(); });
}

export const plan = {
  id: "plan",
  title: () => t("Plan"),
  kind: "plan",
  keys: ["plan_x", "plan_y", "plan_sort"],

  read(asked, context) {
    if (!isPlan(context.payload)) throw new Refused(t("This plan lacks what its page goes by; it cannot be drawn."));
    return { plan_x: among(asked.get("plan_x"), AXES.x, "bytes"), plan_y: among(asked.get("plan_y"), AXES.y, "whole"), plan_sort: among(asked.get("plan_sort"), SORTS.flatMap((key) => [key, `-${key}`]), "bytes") };
  },

  build,

  draw(el, context, state, change = {}) {
    const keys = Object.keys(change), any = (...names) => !keys.length || keys.some((key) => names.includes(key)), payload = context.payload, drawn = el.querySelector("#plan-drawn");
    if (!drawn) return;
    if (any("plan_x", "plan_y")) {
      choose(el.querySelector("#plan-axis-x"), "plan_x", [["bytes", t("bytes")], ["ms", t("milliseconds")]], state.plan_x);
      choose(el.querySelector("#plan-axis-y"), "plan_y", [["whole", t("whole text")], ["late", t("last quarter")]], state.plan_y);
      drawn.replaceChildren(frontierFigure(payload, { x: state.plan_x, y: state.plan_y }));
    }
    if (any("plan_sort")) {
      el.querySelector("#plan-table").replaceChildren(trialsTable(payload, state.plan_sort));
      if (change.plan_sort) el.querySelector(`[data-sort="${state.plan_sort.replace("-", "")}"]`)?.focus();
    }
  },

  /** Above a plan that cannot be shown, so that another can be chosen. */
  refused(el, context, state) {
    const box = chooser(context, state);
    if (box) el.prepend(box);
  },
};
