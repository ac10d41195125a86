import { t } from "sinkgate/lib/language.js";

export const LIMIT = 40, TITLE_LIMIT = 200;
export const GAP = "\u2009", DASH = "—", MINUS = "−";

/** One code point as it should be read: itself, or a visible escape when it cannot be seen or moves others;
    `strict` counts the wide, thin and unbreakable spaces among those. */
export function glyph(c, strict) {
  const code = c.codePointAt(0);
  if (c === "\n") return "↵";
  if (c === "\t") return "⇥";
  if (/[\p{C}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u034f\ufe00-\ufe0f\u{e0100}-\u{e01ef}\u2800]/u.test(c) || (strict && c !== " " && /\p{Zs}/u.test(c)))
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return c;
}

/** Split text into [string, escaped?] runs; `edges` marks the spaces at both ends and in runs. */
export function visible(text, edges = false) {
  const chars = [...text], runs = [];
  let marks = 0;
  chars.forEach((c, i) => {
    let shown = glyph(c, edges), escaped = shown !== c;
    if (edges && c === " " && (i === 0 || i === chars.length - 1 || chars[i - 1] === " " || chars[i + 1] === " ")) {
      shown = "·";
      escaped = true;
    }
    marks = /\p{M}/u.test(c) ? marks + 1 : 0;
    if (marks > 2) {
      shown = `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
      escaped = true;
    } else if (marks && i === 0) shown = "◌" + c;
    const last = runs.at(-1);
    if (last && last[1] === escaped) last[0] += shown;
    else runs.push([shown, escaped]);
  });
  return runs;
}

export const clean = (text) => visible(String(text ?? "")).map((run) => run[0]).join("");

/** A token as {text, length}: a long one arrives cut, with its true length. */
export function token(raw) {
  const text = raw === null || raw === undefined ? "" : typeof raw === "object" ? String(raw.text) : String(raw);
  return { text, length: typeof raw === "object" && raw ? raw.length : [...text].length };
}

export function tokenText(raw, limit = LIMIT) {
  const { text, length } = token(raw);
  const cut = [...text].slice(0, limit).join("");
  return visible(cut, true).map((run) => run[0]).join("") + (length > limit ? "…" : "");
}

const SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Three significant digits, a true minus, powers of ten written as such; null is a dash. */
export function fmt(value, unit = "") {
  if (value === null || value === undefined) return DASH;
  if (typeof value === "boolean") return value ? t("yes") : t("no");
  if (typeof value !== "number") return clean(value);
  const size = Math.abs(value);
  let text;
  if (size >= 1e7 || (size > 0 && size < 5e-4)) {
    const [digits, power] = size.toExponential(1).split("e");
    const raised = [...String(Math.abs(+power))].map((d) => SUPER[+d]).join("");
    text = `${digits}×10${+power < 0 ? "⁻" : ""}${raised}`;
  } else if (Number.isInteger(value) || size >= 1000) text = Math.round(size).toLocaleString("en-US");
  else text = size.toPrecision(size < 0.1 ? 2 : 3);
  return (value < 0 ? MINUS : "") + text + (unit ? (/^[×%]/.test(unit) ? "" : GAP) + clean(t(unit)) : "");
}

export const number = (value) => typeof value === "number";
export const percent = (value) => (number(value) ? `${(100 * value).toFixed(1)}%` : DASH);
/** Numbers for an axis: no trailing zeros. */
export const tick = (value) => fmt(value).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
export const plural = (n, word) => `${fmt(n)} ${word}${n === 1 ? "" : "s"}`;
/** How wide a text is drawn, in pixels, about: a Chinese character takes a square. */
export const wide = (text, size = 12) => [...String(text)].reduce((sum, c) => sum + (/[\u2e80-\u9fff\uff00-\uffef\u3000-\u303f]/.test(c) ? size * 1.02 : size * 0.53), 0);

