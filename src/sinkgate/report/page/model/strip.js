import { WARNING } from "sinkgate/lib/colour.js";
import { h, say, tip, away, save, csv, tokenNode } from "sinkgate/lib/dom.js";
import { TITLE_LIMIT, token, tokenText, fmt, number } from "sinkgate/lib/text.js";

export function drawStrip(el, payload) {
  const strip = payload.strip;
  if (!strip?.tokens?.length) { el.replaceChildren(h("p", { class: "empty" }, "The text was not recorded.")); return; }
  const ratio = strip.tokens.map((_, i) => (number(strip.mass[i]) && number(strip.null[i]) && strip.null[i] > 0 && strip.mass[i] > 0 ? strip.mass[i] / strip.null[i] : null));
  const sizes = ratio.map((r, i) => (r === null || i === strip.position0 ? null : Math.abs(Math.log2(r)))).filter(number).sort((a, b) => a - b);
  // The scale is set by the other tokens: the first one would flatten them all.
  const limit = Math.max(2, Math.ceil(sizes[Math.floor(0.985 * (sizes.length - 1))] ?? 1));
  const shade = (r) => (r === null ? null : [r >= 1 ? "hot" : "cold", Math.min(Math.abs(Math.log2(r)) / limit, 1).toFixed(2)]);
  const lines = (i) => [`Position ${i}`, h("span", {}, "token ", tokenNode(strip.tokens[i])), `mass ${fmt(strip.mass[i])}, null ${fmt(strip.null[i])}`, ratio[i] === null ? "not measurable: too few queries see it" : `${fmt(ratio[i], "×")} its null`];
  const said = (i) => `position ${i}, token ${tokenText(strip.tokens[i])}, mass ${fmt(strip.mass[i])}, ${ratio[i] === null ? "not measurable" : `${fmt(ratio[i])} times its null`}`;
  const list = h("ul", { class: "strip", role: "list", "aria-label": "Tokens of one sample" }, strip.tokens.map((raw, i) => {
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
  const ramp = h("ul", { class: "ramp", role: "list", "aria-label": "Shading scale, mass over null" }, marks.map((v, i) => {
    const bar = h("i", { class: v >= 1 ? "hot" : "cold" });
    bar.style.setProperty("--w", Math.min(Math.abs(Math.log2(v)) / limit, 1).toFixed(2));
    return h("li", {}, bar, limit <= 4 || i % 4 === 0 ? name(v) : "\u00a0");
  }));
  const first = ratio[strip.position0];
  el.replaceChildren(
    h("p", { class: "note" }, "Mean over heads of the mass each token receives, over what uniform attention would give it (1×), on a log scale that the other tokens set. ",
      first !== null && first !== undefined ? `The outlined token, position ${strip.position0}, receives ${fmt(first, "×")}${Math.abs(Math.log2(first)) > limit ? " and lies off the scale" : ""}. ` : "", "Dotted: too few queries see the token to say."),
    ramp, h("p", { class: "warn" }, WARNING), list,
    h("div", { class: "tools", style: "margin-top:10px" }, h("button", { type: "button", "aria-label": "Save the tokens and their mass as CSV", click: () =>
      save("text.csv", "text/csv", csv([["position", "token", "mass", "null", "mass over null"], ...strip.tokens.map((raw, i) => [i, tokenText(raw, TITLE_LIMIT), strip.mass[i], strip.null[i], ratio[i]])])) }, "CSV")));
}
