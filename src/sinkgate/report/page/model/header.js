import { h, bdi } from "sinkgate/lib/dom.js";
import { DASH, fmt, number, tick, plural } from "sinkgate/lib/text.js";

export function drawHeader(el, payload) {
  const { model: m, settings } = payload;
  const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter((pair) => pair[1] !== null && pair[1] !== undefined && pair[1] !== "").map(([key, value, mono]) => [h("dt", {}, key), h("dd", { class: mono ? "mono" : null }, bdi(value))]));
  const size = number(m.parameters) ? (m.parameters >= 1e9 ? fmt(m.parameters / 1e9, "B") : m.parameters >= 1e6 ? fmt(m.parameters / 1e6, "M") : fmt(m.parameters)) : DASH;
  el.replaceChildren(
    h("div", { class: "lede" },
      h("h1", {}, bdi(payload.title)),
      h("p", {}, "Measured ", bdi(payload.created)),
      h("ul", { class: "verdict", role: "list" }, payload.verdict.map((line) => h("li", {}, bdi(line)))),
      payload.notes.length > 0 && h("ul", { class: "notes", role: "list", "aria-label": "Notes" }, payload.notes.map((line) => h("li", {}, bdi(line))))),
    h("div", {},
      facts([["model", m.name], ["class", m.class, true], ["parameters", size], ["layers × heads", `${m.layers} × ${m.heads}${m.kv_heads && m.kv_heads !== m.heads ? `, ${m.kv_heads} key–value` : ""}`], ["head width", m.head_dim], ["run as", `${m.dtype} on ${m.device}`], ["attention", m.attention, true], ["fingerprint", m.fingerprint, true]]),
      facts([["text", settings.text], ["length", `${plural(settings.tokens, "token")} × ${plural(settings.samples, "sample")}`], ["begin token", settings.bos], ["sink threshold", tick(settings.threshold)], ["detail", settings.detail], ["local window", plural(settings.local_window, "key")]])));
}
