// The lessons and the presets above the row: what to load, and what a loaded one says.

import { fill, h, say } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { LESSONS } from "sinkgate/simulator/lessons.js";
import { BLANK, writtenValues } from "sinkgate/simulator/model.js";
import { GROUPS, PRESETS } from "sinkgate/simulator/presets.js";
import { num } from "sinkgate/simulator/show.js";

const titled = (preset) => t(preset.title, preset.fill);

/** The numbers of a step now, and whether it is done. */
export function measured(lesson, step, row, model) {
  if (row.waiting) return [false, {}];
  const [done, now] = step.check(row, model), kept = { values: writtenValues(model.values), target: model.target && writtenValues([model.target]) };
  const counts = (!step.needs || step.needs.includes(model.weighting.name)) && (step.keeps ?? []).every((key) => kept[key] === lesson.set[key]);
  return [done && counts, now, counts];
}

/** How many steps of the chosen lesson are done in this state: no fewer than before. */
export function advanced(state, row, model) {
  const lesson = LESSONS.find((each) => each.id === state.lesson);
  if (!lesson || state.said === null || state.said === undefined) return null;
  let did = Math.min(+(state.did ?? 0), lesson.steps.length);
  if (did < lesson.steps.length && measured(lesson, lesson.steps[did], row, model)[0]) did += 1;
  return did || null;
}

export function lessonsBar(change) {
  const buttons = LESSONS.map((lesson, i) => h("button", { type: "button", "data-lesson": lesson.id, click: (event) => change(event.currentTarget.getAttribute("aria-pressed") === "true" ? { lesson: null, said: null, did: null } : { ...BLANK, lesson: lesson.id, ...lesson.set }) },
    h("span", { class: "no" }, String(i + 1)), t(lesson.title)));
  const select = h("select", { id: "preset", change: () => { const preset = PRESETS.find((each) => each.id === select.value); change(preset ? { ...BLANK, preset: preset.id, ...preset.set } : { preset: null }); } },
    h("option", { value: "" }, t("choose one")), GROUPS.map((group) => fill(h("optgroup", { label: t(group.title) }), {}, group.presets.map((preset) => h("option", { value: preset.id }, titled(preset))))));
  const step = (by) => { const i = PRESETS.findIndex((each) => each.id === select.value), preset = PRESETS[(i + by + PRESETS.length) % PRESETS.length]; change({ ...BLANK, preset: preset.id, ...preset.set }); };
  const box = h("div", { class: "guide" },
    h("div", { class: "lessons", role: "group", "aria-label": t("Lessons") }, h("span", { class: "lead" }, t("Lessons")), buttons),
    h("div", { class: "presets" }, h("label", { class: "field" }, h("span", {}, t("Worked numbers")), select),
      h("button", { type: "button", id: "before", "aria-label": t("the worked number before"), click: () => step(select.value ? -1 : 0) }, "←"), h("button", { type: "button", id: "next", "aria-label": t("the next worked number"), click: () => step(1) }, "→")));
  return { box, update(state) {
    for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.lesson === state.lesson ? "true" : "false");
    select.value = state.preset ?? "";
  } };
}

/** What the loaded preset or lesson says. */
export function story(change) {
  const box = h("div", { class: "story", hidden: true });
  let made = "", now = null;

  function preset(one) {
    box.replaceChildren(h("div", { class: "why" }, h("h2", { id: "why-h" }, titled(one)), h("p", { id: "why" }, t(one.why)),
      h("button", { type: "button", id: "again", click: () => change({ ...BLANK, preset: one.id, ...one.set }) }, t("Load it again"))));
  }

  function lesson(one, said, did) {
    const answered = said !== null && said !== undefined, over = did >= one.steps.length;
    const answers = h("fieldset", { class: "answers" }, h("legend", {}, t(one.question)), one.choices.map((choice, i) => h("label", {},
      fill(h("input", { type: "radio", name: "said", value: i, change: () => change({ said: i }) }), { checked: said === i }, []), h("span", {}, t(choice)))));
    const parts = [h("li", { class: answered ? "done" : "open" }, h("h3", {}, t("Predict")), answers, answered && !over && h("p", { class: "note", id: "kept" }, t("Your answer is kept; now see.")))];
    now = null;
    if (answered) parts.push(h("li", { class: over ? "done" : "open" }, h("h3", {}, t("Drag")), h("ol", { class: "tasks" }, one.steps.slice(0, did + 1).map((step, i) => {
      const done = i < did, line = done ? null : h("p", { class: "now", "data-now": i });
      if (!done) now = { step, line };
      return h("li", { "data-step": i, class: done ? "done" : "open" }, h("p", {}, h("b", { class: "mark-done", "aria-hidden": "true" }, done ? "✓" : "○"), done && h("span", { class: "sr" }, t("done:")), " ", t(step.task)), line);
    }))));
    if (over) parts.push(
      h("li", { class: "done" }, h("h3", {}, t("Check")), h("p", { id: "verdict" }, said === one.right ? t("You predicted it: {answer}", { answer: t(one.choices[one.right]) }) : t("You predicted “{mine}” It is: {answer}", { mine: t(one.choices[said] ?? one.choices[0]), answer: t(one.choices[one.right]) })), h("p", {}, t(one.result))),
      h("li", { class: "done" }, h("h3", {}, t("The misconception")), h("p", { id: "misconception" }, t(one.misconception))));
    box.replaceChildren(h("div", { class: "lesson" }, h("h2", { id: "lesson-h", tabindex: -1 }, t(one.title)), h("p", {}, t(one.about)), h("ol", { class: "steps" }, parts),
      h("div", { class: "pick" }, h("button", { type: "button", id: "restart", click: () => change({ ...BLANK, lesson: one.id, ...one.set }) }, t("Begin the lesson again")),
        h("button", { type: "button", id: "leave", click: () => change({ lesson: null, said: null, did: null }) }, t("Leave the lesson")))));
    if (answered) box.querySelectorAll(".answers input").forEach((input) => { input.disabled = over; });
  }

  return { box, update(state, row, model) {
    const one = LESSONS.find((each) => each.id === state.lesson), loaded = PRESETS.find((each) => each.id === state.preset), did = Math.min(+(state.did ?? 0), one?.steps.length ?? 0);
    const key = one ? `lesson ${one.id} ${state.said} ${did}` : loaded ? `preset ${loaded.id}` : "";
    if (key !== made) {
      const kept = made.startsWith(`lesson ${one?.id} `), inside = box.contains(document.activeElement) ? document.activeElement.value : null;
      made = key;
      box.hidden = !key;
      if (one) lesson(one, state.said === null || state.said === undefined ? null : +state.said, did);
      else { now = null; if (loaded) preset(loaded); else box.replaceChildren(); }
      if (kept && inside !== null) box.querySelector(`.answers input[value="${+inside}"]`)?.focus();
      if (kept && did) say(did >= one.steps.length ? t("Done. The result and the misconception are shown.") : t("Done. The next step is shown."));
    }
    if (now?.line) {
      const [, values, counts] = measured(one, now.step, row, model);
      now.line.textContent = counts === false ? t("This step counts with {names} and with the values as the lesson set them.", { names: (now.step.needs ?? [t("any weighting")]).join(", ") })
        : t("now: {what}", { what: t(now.step.now, Object.fromEntries(Object.entries(values).map(([k, v]) => [k, num(v, 4)]))) });
    }
  } };
}
