import { h } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import "sinkgate/stream/zh.js";

export const stream = {
  id: "stream",
  title: () => t("Stream"),
  keys: [],
  read: () => ({}),
  build(el) { el.replaceChildren(h("h1", {}, t("Stream"))); },
  draw() {},
};
