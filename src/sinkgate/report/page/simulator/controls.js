// The simulator's controls: a dial is a slider with a field beside it that takes the exact number.

import { fill, h } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { clean } from "sinkgate/lib/text.js";
import { MOST, RANGES, WIDEST, parameter, real, rounded, usualValue, writtenGiven, writtenScores, writtenValues, written } from "sinkgate/simulator/model.js";
import { formula as readable, num } from "sinkgate/simulator/show.js";
import { TWINS } from "sinkgate/simulator/weightings.js";

let counter = 0;
const exact = (v) => (v === null ? "" : v === -Infinity ? "−∞" : String(+v.toPrecision(12)).replace("-", "−"));

/** {label, name, lo, hi, step, least, most, to?, from?}: slider positions are from(value), values are to(position). */
export function dial({ label, name, lo, hi, step, least = lo, most = hi, to = (v) => v, from = (v) => v, note }, pick) {
  const id = `dial${++counter}`;
  const slider = h("input", { type: "range", id, min: lo, max: hi, step, "data-dial": name, input: () => pick(to(+slider.value)) });
  const field = h("input", { type: "text", inputmode: "text", class: "exact", size: 8, autocomplete: "off", spellcheck: "false", "aria-label": t("{label}, exact", { label }), "data-exact": name,
    change: () => { const value = real(field.value.replace("−∞", "-inf"), least, most, null); if (value === null) show(shown); else pick(value); },
    keydown: (event) => { if (event.key === "Enter") field.dispatchEvent(new Event("change")); } });
  let shown, closed = null, stop = null;
  function show(value, off = false) {
    if (value === shown && off === closed && slider.value === stop && field.value === exact(value)) return;
    shown = value;
    closed = off;
    const at = value === null ? lo : from(value);
    slider.value = String(at === -Infinity ? lo : Math.min(hi, Math.max(lo, at)));
    slider.setAttribute("aria-valuetext", value === null ? t("none") : num(value, 6));
    field.value = exact(value);
    slider.disabled = field.disabled = off;
    stop = slider.value;
  }
  return { box: h("div", { class: "knob" }, h("label", { for: id }, label), slider, field, note && h("p", { class: "note" }, note)), show };
}

const check = (label, name, pick) => {
  const input = h("input", { type: "checkbox", "data-check": name, change: () => pick(input.checked) });
  return { box: h("label", { class: "tick" }, input, h("span", {}, label)), show(on, off = false) { input.checked = on; input.disabled = off; } };
};

// The leftmost stop of the sink logit's slider is −∞.
const Z = { lo: -6.25, hi: 6, step: 0.05, least: -Infinity, most: 100, to: (v) => (v <= -6.2 ? -Infinity : rounded(v)), from: (v) => v };

/** The parameters of a weighting: one control each, made anew when the weighting changes. */
function parameters(box, change) {
  let of = null, made = [];
  return ({ weighting, given }) => {
    const put = (name, value) => { const next = { ...given, [name]: value }; change({ given: writtenGiven(weighting, TWINS[weighting.name]?.settle?.(next) ?? next) }); };
    if (of !== weighting.name) {
      of = weighting.name;
      made = weighting.parameters.filter((p) => p.name !== "z").map((p) => {
        if (p.kind === "choice") { const one = check(p.name, p.name, (on) => one.put(p.name, on)); return { p, ...one, show: (v) => one.show(v), link: (fn) => { one.put = fn; } }; }
        const range = RANGES[p.name] ?? { least: -WIDEST, lo: -8, hi: 8, most: WIDEST, step: 0.05 };
        const state = {}, one = dial({ label: p.name, name: p.name, ...range }, (v) => state.put(p.name, parameter(p, written(p.kind === "whole" ? Math.round(v) : v), p.default)));
        const auto = p.optional ? check(t("{name} as the formula has it", { name: p.name }), `${p.name}-auto`, (on) => state.put(p.name, on ? null : Math.min(Math.max(0, range.lo), range.hi))) : null;
        return { p, box: h("div", { class: "param" }, auto?.box, one.box), show: (v) => { auto?.show(v === null); one.show(v, v === null); }, link: (fn) => { state.put = fn; } };
      });
      box.replaceChildren(...made.map((each) => each.box));
    }
    for (const each of made) { each.link(put); each.show(given[each.p.name]); }
  };
}

/** Every control of a row; returns {box, update(model, row)}. */
export function controls(get, change, context) {
  const live = context.server !== null, known = context.weightings;
  const absent = known.filter((w) => !Object.hasOwn(TWINS, w.name));
  const select = h("select", { id: "weighting", change: () => change({ weighting: select.value, given: null }) },
    known.map((w) => fill(h("option", { value: w.name }, w.name + (Object.hasOwn(TWINS, w.name) ? "" : live ? ` · ${t("by the server")}` : ` · ${t("absent offline")}`)), { disabled: !live && absent.includes(w) }, [])));
  const formula = h("p", { class: "formula", id: "formula" }), declared = h("p", { class: "note", id: "declared" }), params = h("div", { class: "params" });
  const drawParams = parameters(params, change);
  const keep = (value, usual) => (value === usual ? null : written(value));
  const n = dial({ label: t("keys n"), name: "n", lo: 1, hi: MOST, step: 1 }, (v) => {
    const { model } = get(), size = Math.round(v), scores = Array.from({ length: size }, (_, j) => model.scores[j] ?? { s: 0, hidden: false });
    change({ scores: writtenScores(scores), values: writtenValues(scores.map((_, j) => model.values[j] ?? usualValue(j))), key: Math.min(model.key, size - 1), sink: model.sink >= size ? -1 : model.sink });
  });
  const shift = dial({ label: t("shift all by c"), name: "shift", lo: -10, hi: 10, step: 0.1, least: -WIDEST, most: WIDEST }, (v) => change({ shift: keep(v, 0) }));
  const temperature = dial({ label: t("temperature"), name: "temperature", lo: -1, hi: 1, step: 0.02, least: 0.01, most: 100, to: (v) => +(10 ** v).toPrecision(3), from: Math.log10 }, (v) => change({ temperature: keep(v, 1) }));
  const z = dial({ label: t("sink logit z"), name: "z", ...Z }, (v) => {
    const sink = known.find((w) => w.name === "sink_softmax");
    change({ weighting: "sink_softmax", given: writtenGiven(sink, { ...Object.fromEntries(sink.parameters.map((p) => [p.name, p.default])), z: v }) });
  });
  const gate = dial({ label: t("gate g"), name: "gate", lo: 0, hi: 1, step: 0.01 }, (v) => change({ gate: keep(v, 1) }));
  const gatey = dial({ label: t("gate of the second coordinate"), name: "gatey", lo: 0, hi: 1, step: 0.01 }, (v) => change({ gatey: written(v) }));
  const apart = check(t("one gate per coordinate"), "apart", (on) => change({ gatey: on ? written(get().model.gate[0]) : null }));
  const score = dial({ label: t("its score"), name: "score", lo: -6, hi: 6, step: 0.01, least: -10_000, most: 10_000 }, (v) => { const { model } = get(); change({ scores: writtenScores(model.scores.map((each, j) => (j === model.key ? { ...each, s: v } : each))) }); });
  const value = (axis, label, name) => dial({ label, name, lo: -6, hi: 6, step: 0.05, least: -WIDEST, most: WIDEST }, (v) => { const { model } = get(); change({ values: writtenValues(model.values.map((each, j) => (j === model.key ? each.map((old, i) => (i === axis ? v : old)) : each))) }); });
  const vx = value(0, t("its value, first coordinate"), "vx"), vy = value(1, t("its value, second coordinate"), "vy");
  const pickKey = h("select", { id: "key", change: () => change({ key: +pickKey.value }) }), pickSink = h("select", { id: "sink", change: () => change({ sink: +pickSink.value, cut: null }) });
  const hidden = check(t("hidden (masked)"), "hidden", (on) => { const { model } = get(); change({ scores: writtenScores(model.scores.map((each, j) => (j === model.key ? { ...each, hidden: on } : each))) }); });
  const aim = check(t("a target u in the plane"), "target", (on) => change({ target: on ? "1:1" : null }));
  const reset = h("button", { type: "button", id: "reset", click: () => change("blank") }, t("Start anew"));
  let count = 0, said = "";
  const group = (title, ...inside) => h("fieldset", { class: "group" }, h("legend", {}, title), inside);
  const box = h("div", { class: "controls" },
    group(t("Weighting"), h("label", { class: "field" }, h("span", { class: "sr" }, t("Weighting")), select), formula, declared, params, z.box,
      absent.length > 0 && h("p", { class: "note", id: "absent" }, live ? t("Computed by the server, since the page has no twin of it: {names}.", { names: absent.map((w) => w.name).join(", ") })
        : t("Absent in a file, since the page has no twin of it: {names}. The studio computes it: sinkgate studio", { names: absent.map((w) => w.name).join(", ") }))),
    group(t("All scores"), n.box, shift.box, temperature.box),
    group(t("One key"), h("div", { class: "pickers" }, h("label", { class: "field" }, h("span", {}, t("key")), pickKey), h("label", { class: "field" }, h("span", {}, t("the sink is")), pickSink), hidden.box), score.box, vx.box, vy.box),
    group(t("Output gate"), gate.box, apart.box, gatey.box, aim.box), reset);
  function update() {
    const { model } = get(), w = model.weighting;
    select.value = w.name;
    if (said !== w.name) formula.replaceChildren(...readable(clean(t(w.formula))));
    if (said !== w.name) declared.textContent = t("declares: mass {mass}; {shift}; {zeros}", { mass: t(w.mass), shift: w.shift_invariant ? t("a shift changes nothing") : t("a shift changes the weights"), zeros: w.exact_zeros ? t("exact zeros") : t("no exact zeros") });
    drawParams(model);
    said = w.name;
    const zOff = !["softmax", "sink_softmax", "softmax1"].includes(w.name);
    z.show(w.name === "sink_softmax" ? model.given.z : w.name === "softmax1" ? 0 : -Infinity, zOff);
    n.show(model.n); shift.show(model.shift); temperature.show(model.temperature); gate.show(model.gate[0]); gatey.show(model.gate[1], !model.split); apart.show(model.split);
    score.show(model.scores[model.key].s); vx.show(model.values[model.key][0]); vy.show(model.values[model.key][1]); hidden.show(model.scores[model.key].hidden); aim.show(model.target !== null);
    if (count !== model.n) {
      count = model.n;
      pickKey.replaceChildren(...model.scores.map((_, j) => h("option", { value: j }, String(j))));
      pickSink.replaceChildren(h("option", { value: -1 }, t("none")), ...model.scores.map((_, j) => h("option", { value: j }, t("key {j}", { j }))));
    }
    pickKey.value = String(model.key);
    pickSink.value = String(model.sink);
  }
  return { box, update };
}

