// Page 2: a row of scores to play with. What is set is in the address; row.js computes; the rest draws.

import { h, say, want } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { controls } from "sinkgate/simulator/controls.js";
import { advanced, lessonsBar, story } from "sinkgate/simulator/guide.js";
import { LESSONS } from "sinkgate/simulator/lessons.js";
import { BLANK, KEYS, modelOf, readState } from "sinkgate/simulator/model.js";
import { deletion, many, numbersOfTheRow } from "sinkgate/simulator/panels.js";
import { plane, simplex } from "sinkgate/simulator/plane.js";
import { PRESETS } from "sinkgate/simulator/presets.js";
import { rowOf } from "sinkgate/simulator/row.js";
import { instrument, massBar } from "sinkgate/simulator/scores.js";
import { server } from "sinkgate/simulator/server.js";
import { num, pair } from "sinkgate/simulator/show.js";
import "sinkgate/simulator/zh.js";
import "sinkgate/simulator/stories_zh.js";

let parts = null;

export const simulator = {
  id: "simulator",
  title: () => t("Simulator"),
  keys: KEYS,
  read: (asked, context) => readState(asked, context.weightings, PRESETS.map((each) => each.id), LESSONS.map((each) => each.id)),

  build(el, context) {
    const now = { model: null, row: null }, get = () => now, ask = server(context.server, () => this.draw(el, context, context.state()));
    const computed = (state) => { const model = modelOf(state, context.weightings); return { model, row: rowOf(model, ask.weights) }; };
    // Every hand on a control comes through here, so that a lesson's step is judged by the numbers that the change made.
    const change = (patch) => {
      const asked = patch === "blank" ? { ...BLANK } : patch, next = { ...context.state(), ...asked }, { model, row } = computed(next);
      want(el, { ...asked, did: advanced(next, row, model) });
    };
    Object.assign(now, computed(context.state()));
    const guide = lessonsBar(change), tale = story(change), row = instrument(get, change), bar = massBar(get), hands = controls(get, change, context), list = numbersOfTheRow();
    const space = plane(get, change), shape = simplex(get), cut = deletion(change), crowd = many(get, change), wait = h("p", { class: "refused", role: "status", hidden: true });
    el.replaceChildren(h("div", { class: "simulator" },
      h("header", { class: "intro" }, h("h1", {}, t("Simulator")), h("p", { class: "note" }, t("One row of attention, computed here as you drag. Pull a bar; everything else follows."))),
      guide.box, tale.box,
      h("div", { class: "desk" }, h("div", { class: "row-col" }, wait, row.box, bar.box, h("div", { class: "plots" }, space.box, shape.box)), hands.box),
      h("div", { class: "below" }, h("section", { class: "card", "aria-labelledby": "numbers-h" }, h("h3", { id: "numbers-h" }, t("The numbers of this row")), list.box), cut.box), crowd.box));
    parts = { now, computed, ask, guide, tale, row, bar, hands, list, space, shape, cut, crowd, wait, saying: 0, first: true };
  },

  draw(el, context, state) {
    const p = parts, { now } = p;
    Object.assign(now, p.computed(state));
    const { model, row } = now;
    p.wait.hidden = !row.waiting;
    if (row.waiting) p.wait.textContent = p.ask.said() ?? (context.server ? t("Asking the server for these weights…") : t("{name} has no twin in the page, so its weights are absent in a file. The studio computes them: sinkgate studio", { name: model.weighting.name }));
    p.guide.update(state);
    p.tale.update(state, row, model);
    p.row.update();
    p.hands.update();
    p.list.update(row, model);
    p.cut.update(row, model);
    p.crowd.update(row, model);
    p.space.update();
    p.bar.redraw();
    p.shape.redraw();
    // A screen reader hears where a drag came to rest, not its every step.
    clearTimeout(p.saying);
    if (!p.first && !row.waiting) p.saying = setTimeout(() => say(t("Total mass {m}. Output {o}, length {l}.", { m: num(row.mass, 4), o: pair(row.output, 3), l: num(row.length, 4) })), 700);
    p.first = false;
  },

  leave() { clearTimeout(parts?.saying); parts?.ask.stop(); },
};
