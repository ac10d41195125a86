import { h } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import "sinkgate/kv/zh.js";

export const kv = {
  id: "kv",
  title: () => t("KV cache"),
  keys: [],
  read: () => ({}),
  build(el) { el.replaceChildren(h("h1", {}, t("KV cache"))); },
  draw() {},
};
