// Page 5: what a model's key-value cache weighs under every scheme. All of it is arithmetic in this page.

import { bdi, h, segments, want } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { among } from "sinkgate/lib/state.js";
import { allowed, commandOf, labelOf, optionsOf, readChoice, shapeOf, SPECS, usual, written, wrong } from "sinkgate/kv/fields.js";
import { fewerControl, numberControl, pickControl } from "sinkgate/kv/controls.js";
import { barsFigure, contextFigure, kvTable, MEASURES } from "sinkgate/kv/drawn.js";
import { fromRecord, presets } from "sinkgate/kv/presets.js";
import { schemes } from "sinkgate/kv/schemes.js";
import "sinkgate/kv/zh.js";

const MODEL = ["layers", "heads", "kv_heads", "head_dim", "v_dim", "mla", "latent", "rotary", "sliding_layers", "window"];
const LINEAR = ["linear_layers", "linear_heads", "linear_k_dim", "linear_v_dim", "state_bits"];
const SCHEMES = ["sinks", "recent", "retrieval", "share", "top_k", "group", "residual"];
const DELAY = 200; // ms after the last movement of a slider until the address says it

let choice = usual(), controls = new Map(), parts = null, waiting = 0, shown = "kept", scale = "log";

function build(el, context) {
  controls = new Map();
  const set = (change, moved) => {
    choice = { ...choice, ...change };
    if (moved && change.heads) while (choice.heads % choice.kv_heads) choice.kv_heads -= 1; // a slider passes over what is impossible
    if (moved && change.layers) choice.sliding_layers = Math.min(choice.sliding_layers, choice.layers);
    paint();
    later(el);
  };
  const control = (id) => { const made = numberControl(SPECS[id], labelOf(id), set); controls.set(id, made); return made.box; };
  const mla = pickControl("mla", labelOf("mla"), [[0, t("keys and values of its heads")], [1, t("one latent for all heads (MLA)")]], set);
  const plain = pickControl("plain", labelOf("plain"), [[16, "16"], [32, "32"]], set), state = pickControl("state_bits", labelOf("state_bits"), [[16, "16"], [32, "32"]], set);
  const fewer = fewerControl(set);
  for (const [id, made] of [["mla", mla], ["plain", plain], ["state_bits", state], ["bits", fewer]]) controls.set(id, made);
  const own = { mla, plain, state_bits: state }, place = (id) => own[id]?.box ?? control(id);
  const measure = h("fieldset", { class: "seg", id: "kv-measure" }, h("legend", { class: "sr" }, t("What is shown"))), scales = h("fieldset", { class: "seg", id: "kv-scale" }, h("legend", { class: "sr" }, t("Scale")));
  parts = { measure, scales, problem: h("p", { class: "refused", id: "kv-problem", role: "alert", hidden: true }), of: h("p", { class: "note", id: "kv-model" }),
    bars: h("div", { id: "kv-bars" }), chart: h("div", { id: "kv-context" }), table: h("div", { id: "kv-table" }), absent: h("ul", { class: "notes", id: "kv-left" }),
    command: h("code", { id: "kv-command" }) };
  el.replaceChildren(
    h("div", { class: "opening" }, h("h1", {}, t("KV cache")),
      h("p", { class: "note" }, t("What a model has to keep of its text, under every scheme. Each row changes one thing of this model and leaves the rest as it is. The arithmetic is in this page and gives, byte for byte, what sinkgate kv prints."))),
    h("div", { class: "kv-bench" },
      h("div", { class: "kv-controls" }, chooser(el, context),
        h("fieldset", { class: "kv-group" }, h("legend", {}, t("The text")), ["context", "batch"].map(place), plain.box),
        h("fieldset", { class: "kv-group" }, h("legend", {}, t("The model")), MODEL.map(place)),
        h("details", { class: "kv-group", id: "kv-linear", open: choice.linear_layers > 0 }, h("summary", {}, t("Linear layers")), LINEAR.map(place)),
        h("details", { class: "kv-group", id: "kv-schemes", open: true }, h("summary", {}, t("The schemes")), SCHEMES.map(place), fewer.box)),
      h("div", { class: "kv-results" }, parts.problem, parts.of, h("div", { class: "kv-choices" }, measure, scales), parts.bars, parts.chart)),
    h("section", { "aria-labelledby": "kv-table-h" }, h("h2", { id: "kv-table-h" }, t("In numbers")), parts.table, parts.absent,
      h("p", { class: "note" }, t("Bytes are what has to be kept: pages that are not full, and heads that an implementation expands, come on top. The same table in a terminal:")), h("p", {}, parts.command)));
}

/** Known shapes, and those of the records that are here. */
function chooser(el, context) {
  const known = presets(), records = context.of("diagnosis");
  const select = h("select", { id: "kv-preset", change: async () => {
    const [kind, id] = select.value.split(":");
    if (!kind) return;
    parts.problem.hidden = true;
    const entry = records.find((each) => each.id === id);
    try {
      const shape = kind === "known" ? known.find(([name]) => name === id)[2] : fromRecord(await context.load(entry));
      if (shape) want(el, { kv: written({ ...usual(), ...shape }) });
      else complain(t("The record does not say enough of its model's shape; give the numbers."));
    } catch (error) { complain(error.message); }
  } }, h("option", { value: "" }, t("choose…")),
  records.length ? h("optgroup", { label: t("From a record") }, records.map((entry) => h("option", { value: `record:${entry.id}` }, bdi(entry.name)))) : null,
  h("optgroup", { label: t("Known shapes") }, known.map(([id, label]) => h("option", { value: `known:${id}` }, label))));
  return h("p", { class: "kv-preset" }, h("label", { for: "kv-preset" }, t("Take the shape of")), select);
}

function complain(text) { parts.problem.hidden = !text; parts.problem.textContent = text ?? ""; }

function later(el) {
  clearTimeout(waiting);
  waiting = setTimeout(() => want(el, { kv: written(choice) }), DELAY);
}

/** Everything that follows from the choice. What is impossible is said, and the last possible one stays. */
function paint() {
  for (const [id, made] of controls) made.show(choice[id], id === "kv_heads" ? choice.heads : id === "sliding_layers" ? choice.layers : null, (id === "kv_heads" && choice.mla) || false);
  const problem = wrong(choice);
  complain(problem);
  if (problem) return;
  const groups = shapeOf(choice), options = optionsOf(choice), found = schemes(groups, options);
  parts.of.replaceChildren(...describe(groups));
  parts.bars.replaceChildren(barsFigure(found, shown, scale, options));
  parts.chart.replaceChildren(contextFigure(groups, options, scale));
  parts.table.replaceChildren(kvTable(found));
  parts.absent.replaceChildren(...found.leftOut.map(([name, why]) => h("li", {}, t("No row for {scheme}: {why}.", { scheme: t(...name), why: t(...why) }))));
  parts.absent.hidden = !found.leftOut.length;
  parts.command.textContent = commandOf(choice);
}

function describe(groups) {
  const one = ({ n, layer }) => layer.latent ? t("{n} layers: a latent of {latent} and a rotated key of {rotary} for {heads} heads", { n, latent: layer.latent, rotary: layer.rotary, heads: layer.heads })
    : layer.state_heads ? t("{n} linear layers: a state of {heads} × {rows} × {columns}", { n, heads: layer.state_heads, rows: layer.k_dim, columns: layer.state_v_dim })
      : layer.window ? t("{n} layers: {heads} heads, {kv} key-value, of size {size}; the last {window} tokens", { n, heads: layer.heads, kv: layer.kv_heads, size: sizeOf(layer), window: layer.window })
        : t("{n} layers: {heads} heads, {kv} key-value, of size {size}", { n, heads: layer.heads, kv: layer.kv_heads, size: sizeOf(layer) });
  return groups.flatMap((group, i) => [i ? h("br") : "", one(group)]);
}

const sizeOf = (layer) => (layer.head_dim === layer.v_dim ? layer.head_dim : `${layer.head_dim} + ${layer.v_dim}`);

export const kv = {
  id: "kv",
  title: () => t("KV cache"),
  keys: ["kv", "kvshow", "kvscale"],

  read: (asked, context) => ({
    kv: asked.has("kv") ? written(readChoice(asked.get("kv"))) : written(start(context)),
    kvshow: among(asked.get("kvshow"), Object.keys(MEASURES()), "kept"), kvscale: among(asked.get("kvscale"), ["linear"], "log"),
  }),

  build(el, context) {
    choice = readChoice(context.state().kv);
    build(el, context);
  },

  draw(el, context, state) {
    if (written(choice) !== state.kv) { clearTimeout(waiting); choice = readChoice(state.kv); }
    [shown, scale] = [state.kvshow, state.kvscale];
    segments(parts.measure, "kv-measure", Object.entries(MEASURES()), shown, (kvshow) => again(parts.measure, { kvshow }));
    segments(parts.scales, "kv-scale", [["log", t("log scale")], ["linear", t("linear")]], scale, (kvscale) => again(parts.scales, { kvscale }));
    paint();
  },

  leave() { clearTimeout(waiting); },
};

/** A choice among segments, which are made anew when it is drawn: the focus stays on what was chosen. */
function again(box, change) {
  want(box, change);
  box.querySelector("input:checked")?.focus();
}

/** Where a reader begins: at the model of the first record whose payload is here, else at the usual one. */
function start(context) {
  const payload = context.of("diagnosis")[0]?.payload, shape = payload ? fromRecord(payload) : null;
  const fits = shape && Object.entries(shape).every(([id, value]) => allowed(SPECS[id], value));
  return { ...usual(), ...(fits ? shape : {}) };
}
