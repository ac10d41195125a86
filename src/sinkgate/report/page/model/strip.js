import { warning } from "sinkgate/lib/colour.js";
import { h, say, tip, away, save, csv, tokenNode } from "sinkgate/lib/dom.js";
import { t, tn } from "sinkgate/lib/language.js";
import { TITLE_LIMIT, token, tokenText, fmt, number } from "sinkgate/lib/text.js";

export function drawStrip(el, payload) {
  const strip = payload.strip;
  if (!strip?.tokens?.length) { el.replaceChildren(h("p", { class: "empty" }, t("The text was not recorded."))); return; }
  const ratio = strip.tokens.map((_, i) => (number(strip.mass[i]) && number(strip.null[i]) && strip.null[i] > 0 && strip.mass[i] > 0 ? strip.mass[i] / strip.null[i] : null));
  const sizes = ratio.map((r, i) => (r === null || i === strip.position0 ? null : Math.abs(Math.log2(r)))).filter(number).sort((a, b) => a - b);
  // The scale is set by the other tokens: the first one would flatten them all.
  const limit = Math.max(2, Math.ceil(sizes[Math.floor(0.985 * (sizes.length - 1))] ?? 1));
  const shade = (r) => (r === null ? null : [r >= 1 ? "hot" : "cold", Math.min(Math.abs(Math.log2(r)) / limit, 1).toFixed(2)]);
  const lines = (i) => [t("Position {i}", { i }), h("span", {}, tn("token {token}", { token: tokenNode(strip.tokens[i]) })), t("mass {mass}, null {null}", { mass: fmt(strip.mass[i]), null: fmt(strip.null[i]) }), ratio[i] === null ? t("not measurable: too few queries see it") : t("{ratio} its null", { ratio: fmt(ratio[i], "×") })];
  const said = (i) => [t("Position {i}", { i }), t("token {token}", { token: tokenText(strip.tokens[i]) }), t("mass {mass}, null {null}", { mass: fmt(strip.mass[i]), null: fmt(strip.null[i]) }), ratio[i] === null ? t("not measurable") : t("{ratio} times its null", { ratio: fmt(ratio[i]) })].join(", ");
  const list = h("ul", { class: "strip", role: "list", "aria-label": t("Tokens of one sample") }, strip.tokens.map((raw, i) => {
    const look = shade(ratio[i]);
    const item = h("li", { role: "listitem", tabindex: i ? -1 : 0, "data-i": i, class: [look ? look[0] : "none", i === strip.position0 ? "first" : ""].join(" ").trim() }, tokenNode(raw));
    if (look) item.style.setProperty("--w", look[1]);
    return [item, /\n/.test(token(raw).text) ? h("br") : h("wbr")];
  }));
  const over = (event) => { const item = event.target.closest?.("li[data-i]"); if (item) tip(item.getBoundingClientRect(), lines(+item.dataset.i)); };
  list.addEventListener("pointerover", over);
  list.addEventListener("pointerleave", away);
  list.addEventListener("focusout", () => tip(null));
  list.addEventListener("focusin", (event) => { if (event.target.matches("li:focus-visible")) { over(event); say(said(+event.target.dataset.i)); } });
  list.addEventListener("keydown", (event) => {
    const items = list.querySelectorAll("li"), i = +event.target.dataset.i;
    const next = { ArrowRight: i + 1, ArrowLeft: i - 1, ArrowDown: i + 10, ArrowUp: i - 10, Home: 0, End: items.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const to = items[Math.min(Math.max(next, 0), items.length - 1)];
    event.target.setAttribute("tabindex", -1);
    to.setAttribute("tabindex", 0);
    to.focus();
  });
  const marks = Array.from({ length: 2 * Math.min(limit, 4) + 1 }, (_, i, n = Math.min(limit, 4)) => 2 ** (((i - n) / n) * limit));
  const name = (v) => (v >= 1 ? fmt(v, "×") : `1/${fmt(1 / v)}`);
  const ramp = h("ul", { class: "ramp", role: "list", "aria-label": t("Shading scale, mass over null") }, marks.map((v, i) => {
    const bar = h("i", { class: v >= 1 ? "hot" : "cold" });
    bar.style.setProperty("--w", Math.min(Math.abs(Math.log2(v)) / limit, 1).toFixed(2));
    return h("li", {}, bar, limit <= 4 || i % 4 === 0 ? name(v) : "\u00a0");
  }));
  const first = ratio[strip.position0];
  el.replaceChildren(
    h("p", { class: "note" }, t("Mean over heads of the mass each token receives, over what uniform attention would give it (1×), on a log scale that the other tokens set."), " ",
      first !== null && first !== undefined ? t(Math.abs(Math.log2(first)) > limit ? "The outlined token, position {i}, receives {ratio} and lies off the scale." : "The outlined token, position {i}, receives {ratio}.", { i: strip.position0, ratio: fmt(first, "×") }) : "", " ", t("Dotted: too few queries see the token to say.")),
    ramp, h("p", { class: "warn" }, warning()), list,
    h("div", { class: "tools", style: "margin-top:10px" }, h("button", { type: "button", "aria-label": t("Save the tokens and their mass as CSV"), click: () =>
      save("text.csv", "text/csv", csv([[t("position"), t("token"), t("mass"), t("null"), t("mass over null")], ...strip.tokens.map((raw, i) => [i, tokenText(raw, TITLE_LIMIT), strip.mass[i], strip.null[i], ratio[i]])])) }, "CSV")));
}
