// Page 3: what a bounded cache holds, what it costs a model to read through one, and what it writes.

import { bdi, h, want } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { among } from "sinkgate/lib/state.js";
import { clean } from "sinkgate/lib/text.js";
import { buildCache, cacheKeys, drawCache, readCache } from "sinkgate/stream/cache.js";
import { streamCurves } from "sinkgate/stream/curves.js";
import { buildRead, drawRead, readKeys, readRead } from "sinkgate/stream/read.js";
import { recallCurves } from "sinkgate/stream/recall.js";
import { buildWrite, drawWrite, readWrite, writeKeys } from "sinkgate/stream/write.js";
import "sinkgate/stream/zh.js";

const recordsOf = (context) => [...context.of("stream"), ...context.of("recall")];
const SECTIONS = (context) => [["cache", t("What the cache holds")], ["read", t("Read: caches side by side")], ["write", t("Write: on and on")], ...(recordsOf(context).length ? [["records", t("Stored curves")]] : [])];
let player = null, here = null;

/** The stored record that is chosen, once it is here. */
async function drawRecord(el, context, state) {
  const entry = recordsOf(context).find((each) => each.id === state.curve), key = entry.id;
  if (el.dataset.key === key) return;
  el.dataset.key = key;
  const inside = el.querySelector("#stored");
  inside.replaceChildren(h("p", { class: "note", role: "status" }, t("Reading the record…")));
  try {
    const payload = await context.load(entry);
    if (el.dataset.key !== key) return;
    if (!Array.isArray(payload?.arms) || !payload.meta?.model) throw new TypeError(t("This record lacks its arms or its model; it cannot be drawn."));
    const name = clean(payload.meta.model.name);
    inside.replaceChildren(h("p", { class: "note" }, entry.kind === "stream" ? [name, " · ", bdi(payload.meta.text), payload.meta.stopped ? ` · ${t("not complete")}` : ""] : [name, " · ", t("facts asked for by distance")]),
      entry.kind === "stream" ? streamCurves(payload, "stored").box : recallCurves(payload, "recall"));
  } catch (error) {
    inside.replaceChildren(h("p", { class: "refused", role: "alert" }, bdi(error.message)));
  }
}

export const stream = {
  id: "stream",
  title: () => t("Stream"),
  keys: [...cacheKeys, ...readKeys, ...writeKeys, "curve"],

  read: (asked, context) => ({ ...readCache(asked), ...readRead(asked, context), ...readWrite(asked, context),
    curve: among(asked.get("curve"), recordsOf(context).map((entry) => entry.id), recordsOf(context)[0]?.id ?? "") }),

  build(el, context) {
    el.replaceChildren(
      h("div", { class: "opening" }, h("h1", {}, t("Endless text in bounded memory")), h("p", { class: "note" }, t("A key–value cache grows with every token. Keep only the last ones, and a model that leans on its first token falls apart when that token leaves; keep a few first tokens besides, and it goes on. What is evicted is gone: a bounded stream is fluent, and no memory."))),
      ...SECTIONS(context).map(([id, title]) => h("section", { id: `s-${id}`, "aria-labelledby": `s-${id}-h` }, h("h2", { id: `s-${id}-h`, tabindex: -1 }, title), h("div", { class: "inside" }))));
    const at = (id) => el.querySelector(`#s-${id} > .inside`);
    here = context;
    player = buildCache(at("cache"), context);
    buildRead(at("read"), context);
    buildWrite(at("write"), context);
    if (at("records")) {
      const many = recordsOf(context);
      at("records").replaceChildren(many.length > 1 && h("label", { class: "field" }, h("span", {}, t("record")), h("select", { id: "s-curve", change: (event) => want(el, { curve: event.target.value }) },
        many.map((entry) => h("option", { value: entry.id, selected: entry.id === context.state().curve }, `${clean(entry.name)} (${entry.kind === "stream" ? t("perplexity along a text") : t("recall by distance")})`)))) || "", h("div", { id: "stored" }));
    }
  },

  draw(el, context, state, change = {}) {
    const at = (id) => el.querySelector(`#s-${id} > .inside`), keys = Object.keys(change), any = (prefix) => !keys.length || keys.some((key) => key.startsWith(prefix) || key === "theme");
    if (any("c_")) drawCache(at("cache"), state, change);
    if (any("r_")) drawRead(at("read"), context, state);
    if (any("w_")) drawWrite(at("write"), context, state);
    if (at("records") && any("curve")) drawRecord(at("records"), context, state);
  },

  /** Live work ends with its page. */
  leave() {
    player?.stop();
    here?.streamRead?.job.stop();
    here?.streamWrite?.job.stop();
  },
};
