import { h } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import "sinkgate/simulator/zh.js";

export const simulator = {
  id: "simulator",
  title: () => t("Simulator"),
  keys: [],
  read: () => ({}),
  build(el) { el.replaceChildren(h("h1", {}, t("Simulator"))); },
  draw() {},
};
