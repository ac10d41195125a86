// How the simulator writes numbers and keeps its drawings.

import { figure, h } from "sinkgate/lib/dom.js";
import { DASH, MINUS } from "sinkgate/lib/text.js";

const SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Up to `digits` significant digits without trailing zeros; far from 1 as a power of ten. */
export function num(value, digits = 6) {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  if (!Number.isFinite(value)) return value < 0 ? `${MINUS}∞` : "∞";
  const size = Math.abs(value), sign = value < 0 ? MINUS : "";
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e7) {
    const [mantissa, power] = size.toExponential(Math.min(digits, 5) - 1).split("e");
    const raised = [...String(Math.abs(+power))].map((d) => SUPER[+d]).join("");
    return `${sign}${mantissa.replace(/\.?0+$/, "")}×10${+power < 0 ? "⁻" : ""}${raised}`;
  }
  const text = size.toPrecision(digits);
  return sign + (text.includes("e") ? String(Math.round(size)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text);
}

export const pair = ([x, y], digits) => `(${num(x, digits)}, ${num(y, digits)})`;

const last = new WeakMap();
/** Write attributes, and only those that have changed: a draw is many times as often as a change of most of them. */
export function set(el, attrs) {
  let known = last.get(el);
  if (!known) last.set(el, (known = {}));
  for (const key in attrs) {
    const value = attrs[key];
    if (known[key] === value) continue;
    known[key] = value;
    if (value === null) el.removeAttribute(key);
    else el.setAttribute(key, value);
  }
}
/** The same for a text. */
export function put(el, text) {
  let known = last.get(el);
  if (!known) last.set(el, (known = {}));
  if (known.text !== text) el.textContent = known.text = text;
}

/** A formula as the registry writes it, e^{s_j} and a_j, with its indices low and its exponents high. */
export function formula(text) {
  const parts = [];
  for (let i = 0; i < text.length; ) {
    if (text[i] !== "^" && text[i] !== "_") { parts.push(text[i]); i += 1; continue; }
    const braced = text[i + 1] === "{";
    let end = i + 2;
    if (braced) for (let depth = 1; end < text.length && depth; end++) depth += text[end] === "{" ? 1 : text[end] === "}" ? -1 : 0;
    parts.push(h(text[i] === "^" ? "sup" : "sub", {}, formula(braced ? text.slice(i + 2, end - 1) : text.slice(i + 1, end))));
    i = end;
  }
  return parts;
}

/** A figure that can be drawn again at the width it has. */
export function picture({ draw, ...options }) {
  let width = 0;
  const box = figure({ ...options, draw: (found) => { width = found; return draw(found); } });
  const plot = box.querySelector(".plot");
  return { box, redraw() { if (width) plot.replaceChildren(draw(width)); }, get width() { return width; } };
}
