// What the page's quantities mean, each with its formula.

import { h } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";

const sub = (text) => h("sub", {}, text);

const ENTRIES = () => [
  [t("Mass on key k"), ["α", sub("k"), " = Σ", sub("i≥k"), " A", sub("ik"), " ⁄ (T − k + 1)"], t("The mean weight over the queries that can see the key (Gu et al., ICLR 2025, arXiv 2410.10781). A head counts as a sink head when α₁ is above a threshold ε; the sink rate is the share of such heads.")],
  [t("Null"), ["ν", sub("k"), " = (H", sub("T"), " − H", sub("k−1"), ") ⁄ (T − k + 1);   k = 1:  H", sub("T"), " ⁄ T"], t("What uniform causal attention would give the same key; H is the harmonic number. Early keys are seen by more queries with short rows, so their null is not small: 0.074 for the first of 64 keys, above 0.3 for 9 or fewer. A key that fewer than 32 queries see is no evidence.")],
  [t("Mass over null"), ["α", sub("k"), " ⁄ ν", sub("k")], t("1× is what a head without preference shows.")],
  [t("Share and gate"), ["o = p", sub("s"), " v", sub("s"), " + g Σ β", sub("i"), " v", sub("i"), ",   g = 1 − p", sub("s")], t("pₛ is the weight on the sink, g what is left for content. When vₛ is near zero the sink is a scalar output gate: pₛ = 0.9 lets a tenth of the content through.")],
  [t("Margin"), ["z", sub("s"), " − LSE", sub("i≠s"), " z", sub("i"), " = logit p", sub("s")], t("How far the sink's score stands above all content together. Against n − 1 equal content scores, keeping a share r at query t takes a score lead of ln(t − 1) + logit r: the law drawn beside the margin.")],
  [t("Sink write ratio"), ["Σ ‖p", sub("s"), " W", sub("O"), " v", sub("s"), "‖ ⁄ Σ ‖W", sub("O"), " o‖"], t("How much of what the head adds to the residual stream comes from the sink. It can exceed 1 when sink and content cancel. A sink with high mass and a ratio near 0 is an idle head, not an important token.")],
  [t("Amplification"), ["1 ⁄ (1 − p", sub("s"), ")"], t("What deleting the sink, with the rest renormalised, multiplies the content by.")],
  [t("Massive activation"), null, t("A single coordinate of the residual stream far above the median magnitude of its layer; sink tokens often carry one.")],
];

export function drawGlossary(el) {
  el.replaceChildren(h("details", { class: "glossary", id: "glossary" },
    h("summary", {}, t("Quantities and formulas")),
    h("p", {}, t("One attention head, one query that sees t keys, weights A that add up to 1 (to less, where a learned outlet takes a share). Over T queries:")),
    h("dl", {}, ENTRIES().map(([name, formula, text]) => [h("dt", {}, name), h("dd", {}, formula && h("p", { class: "f" }, formula), text)])),
    h("p", {}, t("“—” means not measurable; a hatched cell gives its reason. Keys: arrows move over the map, Home and End go to the ends of a row, Page Up and Page Down jump five layers, Enter opens the head. The address holds what you look at, so a view can be shared."))));
}
