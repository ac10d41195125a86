// Small labelled controls of the live sections, and the line that a file shows in their place.

import { fill, h, segments } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";

const labelled = (label, control, help) => h("label", { class: "field" }, h("span", {}, label), control, help && h("small", {}, help));

export function numberField(id, label, lo, hi, value, change, step = 1) {
  const input = h("input", { type: "number", id, min: lo, max: hi, step, value, inputmode: step === 1 ? "numeric" : "decimal", change: () => {
    const asked = step === 1 ? Math.round(+input.value) : +input.value, kept = Number.isFinite(asked) && input.value !== "" ? Math.min(hi, Math.max(lo, asked)) : value;
    input.value = kept;
    change(kept);
  } });
  return labelled(label, input);
}

export const textField = (id, label, value, change, help, attrs = {}) => labelled(label, h("input", { type: "text", id, value, spellcheck: "false", autocomplete: "off", ...attrs, change: (event) => change(event.target.value.trim()) }), help);
export const areaField = (id, label, value, change, rows, help) => labelled(label, fill(h("textarea", { id, rows, spellcheck: "false", input: (event) => change(event.target.value) }), {}, [value ?? ""]), help);
export const pickField = (id, label, choices, value, change) => labelled(label, h("select", { id, change: (event) => change(event.target.value) }, choices.map(([key, name]) => h("option", { value: key, selected: key === value }, name))));

export function choiceField(id, label, choices, value, change) {
  const box = h("fieldset", { class: "seg field", id }, h("legend", {}, label));
  segments(box, id, choices, value, change);
  return box;
}

/** What a page of a file says instead of working live. */
export function command(context, words, id) {
  const line = h("code", { id, tabindex: 0 }, words);
  if (!context.server) return h("p", { class: "offline" }, t("This page is a file, and a file runs no model. This does the same:"), " ", line);
  if (!context.live.models.length) return h("p", { class: "offline" }, t("This studio was started without a model; start it with one:"), " ", h("code", {}, "sinkgate studio --model smollm2-135m"), " ", t("or run:"), " ", line);
  return h("p", { class: "offline" }, t("The same from a shell:"), " ", line);
}

export const canWork = (context) => Boolean(context.server && context.live.models.length);
/** An argument of a shell, quoted when it has to be. */
export const quoted = (text) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** One live job: start(ask) runs it, stop() ends it, here and on the server. */
export function job() {
  let abort = null;
  return {
    get running() { return abort !== null; },
    stop() { abort?.abort(); },
    async start(ask) {
      if (abort) return null;
      abort = new AbortController();
      try {
        await ask(abort.signal);
        return null;
      } catch (error) {
        if (error.name === "AbortError") return null;
        if (error.constructor.name !== "Refused") throw error;
        return error.message;
      } finally {
        abort = null;
      }
    },
  };
}
