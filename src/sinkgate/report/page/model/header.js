import { h, bdi } from "sinkgate/lib/dom.js";
import { t, tn } from "sinkgate/lib/language.js";
import { DASH, fmt, number, tick } from "sinkgate/lib/text.js";
import { said } from "sinkgate/model/said.js";

const isolated = (text) => h("bdi", {}, text);

export function drawHeader(el, payload) {
  const { model: m, settings } = payload;
  const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter((pair) => pair[1] !== null && pair[1] !== undefined && pair[1] !== "").map(([key, value, mono]) => [h("dt", {}, key), h("dd", { class: mono ? "mono" : null }, bdi(value))]));
  const size = number(m.parameters) ? (m.parameters >= 1e9 ? fmt(m.parameters / 1e9, "B") : m.parameters >= 1e6 ? fmt(m.parameters / 1e6, "M") : fmt(m.parameters)) : DASH;
  const count = { tokens: fmt(settings.tokens), samples: fmt(settings.samples) };
  el.replaceChildren(
    h("div", { class: "lede" },
      h("h1", {}, isolated(said(payload, payload.title))),
      h("p", {}, tn("Measured {when}", { when: bdi(payload.created) })),
      h("ul", { class: "verdict", role: "list" }, payload.verdict.map((line) => h("li", {}, isolated(said(payload, line))))),
      payload.notes.length > 0 && h("ul", { class: "notes", role: "list", "aria-label": t("Notes") }, payload.notes.map((line) => h("li", {}, isolated(said(payload, line)))))),
    h("div", {},
      facts([[t("model"), m.name, true], [t("class"), m.class, true], [t("parameters"), size],
        [t("layers × heads"), m.kv_heads && m.kv_heads !== m.heads ? t("{layers} × {heads}, {kv} key–value", { layers: m.layers, heads: m.heads, kv: m.kv_heads }) : `${m.layers} × ${m.heads}`],
        [t("head width"), m.head_dim], [t("run as"), m.dtype && m.device ? t("{dtype} on {device}", { dtype: m.dtype, device: m.device }) : m.dtype ?? m.device], [t("attention"), m.attention, true], [t("fingerprint"), m.fingerprint, true]]),
      facts([[t("text"), said(payload, settings.text)], [t("length"), t(settings.samples === 1 ? "{tokens} tokens × {samples} sample" : "{tokens} tokens × {samples} samples", count)],
        [t("begin token"), said(payload, settings.bos)], [t("sink threshold"), tick(settings.threshold)], [t("detail"), said(payload, settings.detail)], [t("local window"), t("{n} keys", { n: fmt(settings.local_window) })]])));
}
