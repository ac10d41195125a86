import { h } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import "sinkgate/lab/zh.js";

export const lab = {
  id: "lab",
  title: () => t("Lab"),
  keys: [],
  read: () => ({}),
  build(el) { el.replaceChildren(h("h1", {}, t("Lab"))); },
  draw() {},
};
