// The controls of one number: a slider for moving, a field for writing. Both say the same and both work by keyboard.

import { h } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { allowed } from "sinkgate/kv/fields.js";
import { parseCount } from "sinkgate/kv/sizes.js";

/** The slider's whole positions and the values they stand for. */
function positions(spec, other) {
  if (spec.id === "kv_heads") { // only what divides the heads
    const of = Math.max(1, other ?? 1), list = Array.from({ length: Math.min(of, 4096) }, (_, i) => i + 1).filter((n) => of % n === 0);
    return { count: list.length - 1, value: (i) => list[i], at: (v) => Math.max(0, list.findLastIndex((n) => n <= v)) };
  }
  if (spec.log) { // four to an octave; position 0 is the least
    const low = 3, most = Math.round((Math.log2(spec.slide) - low) * 4);
    return { count: most + 1, value: (i) => (i === 0 ? spec.lo : Math.round(2 ** (low + (i - 1) / 4))), at: (v) => (v < 8 ? 0 : Math.min(most + 1, Math.round((Math.log2(v) - low) * 4) + 1)) };
  }
  const most = spec.id === "sliding_layers" ? Math.min(spec.hi, Math.max(1, other ?? spec.slide)) : spec.slide;
  return { count: most - spec.lo, value: (i) => spec.lo + i, at: (v) => Math.min(most, v) - spec.lo };
}

/** A slider and a field; `set({id: value}, moved)` is called with what is chosen, and whether by the slider. */
export function numberControl(spec, label, set) {
  const id = `kv-${spec.id}`, said = h("span", { class: "kv-wrong", id: `${id}-wrong`, hidden: true });
  let scale = positions(spec);
  const slider = h("input", { type: "range", min: 0, max: scale.count, step: 1, "aria-label": label, input: () => { clear(); set({ [spec.id]: scale.value(+slider.value) }, true); } });
  const field = h("input", { type: "text", inputmode: "numeric", id, autocomplete: "off", size: 8, "aria-describedby": said.id, input: () => take(), change: () => { if (take()) field.value = String(current); } });
  let current = spec.usual;
  const clear = () => { said.hidden = true; field.removeAttribute("aria-invalid"); };
  function take() {
    const value = field.value.trim() === "0" ? 0 : parseCount(field.value);
    if (value === null || !allowed(spec, value)) {
      said.textContent = t("a whole number from {lo} to {hi}, such as {usual}", { lo: spec.lo, hi: spec.hi === 2 ** 48 ? "2**48" : spec.hi, usual: spec.log ? "4096, 4k, 2**12" : Math.max(1, spec.usual) });
      said.hidden = false;
      field.setAttribute("aria-invalid", "true");
      return false;
    }
    clear();
    current = value;
    set({ [spec.id]: value });
    return true;
  }
  return {
    box: h("div", { class: "kv-number" }, h("label", { for: id }, label), slider, field, said),
    /** Show a value; `other` is the number that bounds it, `off` says that it does not apply. */
    show(value, other, off) {
      if (other !== null) { scale = positions(spec, other); slider.max = scale.count; }
      current = value;
      slider.value = scale.at(value);
      slider.setAttribute("aria-valuetext", String(value));
      if (document.activeElement !== field || (field.getAttribute("aria-invalid") !== "true" && parseCount(field.value) !== value && field.value.trim() !== String(value))) { field.value = String(value); clear(); }
      slider.disabled = field.disabled = off;
    },
  };
}

/** One of a few, as a select. */
export function pickControl(id, label, choices, set) {
  const select = h("select", { id: `kv-${id}`, change: () => set({ [id]: +select.value }) }, choices.map(([value, text]) => h("option", { value }, text)));
  return { box: h("div", { class: "kv-number pick" }, h("label", { for: `kv-${id}` }, label), select), show: (value) => { select.value = String(value); } };
}

/** Which of the quantised rows are there. */
export function fewerControl(set) {
  const boxes = [8, 4, 3, 2].map((bits) => [bits, h("input", { type: "checkbox", id: `kv-bits-${bits}`, change: () => set({ bits: boxes.filter(([, box]) => box.checked).map(([b]) => b) }) })]);
  return {
    box: h("fieldset", { class: "kv-fewer" }, h("legend", {}, t("Rows of fewer bits")), boxes.map(([bits, box]) => h("label", {}, box, ` ${bits}`))),
    show: (value) => boxes.forEach(([bits, box]) => { box.checked = value.includes(bits); }),
  };
}

