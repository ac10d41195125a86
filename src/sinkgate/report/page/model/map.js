import { KINDS, massLike, warning, aboutWrites, ink, kindOf, colour, ticks, logTicks, hatch } from "sinkgate/lib/colour.js";
import { h, s, want, say, tip, away, savers, fileName, standalone, segments } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { isDark } from "sinkgate/lib/state.js";
import { DASH, clean, fmt, number, tick } from "sinkgate/lib/text.js";
import { howToEvict } from "sinkgate/model/effects.js";
import { helpOf, kindName, labelOf, said } from "sinkgate/model/said.js";

export function drawMetric(el, payload, state) {
  const metric = metricOf(payload, state);
  if (el.dataset.made !== "yes") {
    el.replaceChildren(h("fieldset", { class: "seg" }, h("legend", { class: "sr" }, t("Quantity on the map"))), h("p", { class: "help" }));
    segments(el.firstChild, "metric", payload.metrics.map((m) => [m.id, labelOf(m)]), metric.id, (id) => want(el, { metric: id }));
    el.dataset.made = "yes";
  }
  el.querySelectorAll("input").forEach((input) => { input.checked = input.value === metric.id; });
  el.lastChild.textContent = helpOf(payload, metric);
}

export const metricOf = (payload, state) => payload.metrics.find((m) => m.id === state.metric) ?? payload.metrics[0];
export const span = (layer) => (layer.kind === "window" ? t("window of {n}", { n: fmt(layer.window) }) : layer.kind === "unmeasured" ? t("not measured") : t("full attention"));
const show = (metric, value) => (metric.scale === "category" ? kindName(value) : fmt(value, metric.unit));

/** What is known of one cell, as lines of text. */
export function cellLines(payload, metric, l, k) {
  const layer = payload.layers[l], found = metric.values[l][k], value = found === "unmeasured" ? null : found, kind = payload.heads[`${l}.${k}`]?.kind;
  const why = value !== null ? null : layer.kind === "unmeasured" ? layer.reason : metric.reason ?? (aboutWrites(metric) ? layer.write_reason ?? layer.reason : layer.reason);
  return [t("Layer {l} · head {k}", { l, k }), `${labelOf(metric)}: ${value === null ? t("not measurable") : show(metric, value)}`, metric.more?.(l, k),
    why ? t("Reason: {why}", { why: said(payload, why) }) : null,
    kind && metric.scale !== "category" && layer.kind !== "unmeasured" ? t("{kind} head, {span}", { kind: kindName(kind), span: span(layer) }) : layer.kind === "window" ? span(layer) : null].filter(Boolean);
}

export function drawMap(el, payload, state) {
  const metric = metricOf(payload, state), dark = isDark(state), layers = payload.model.layers, heads = payload.model.heads;
  const key = `${metric.id} ${dark} ${el.clientWidth}`;
  if (el.dataset.key === key) { if (!metric.absent) { markMap(el, state); rest(el, payload, metric); } return; }
  el.dataset.key = key;
  if (metric.absent) { el.dataset.at = ""; el.replaceChildren(howToEvict(payload, metric)); return; }
  const coarse = matchMedia("(pointer: coarse)").matches, least = coarse ? 24 : 15;
  const groups = payload.model.kv_heads > 0 && payload.model.kv_heads < heads && heads % payload.model.kv_heads === 0 ? payload.model.kv_heads : 1;
  const marked = payload.layers.some((layer) => layer.kind === "window" || layer.learned_sink), left = marked ? 50 : 38, top = 30, gap = groups > 1 ? 4 : 0;
  const cw = Math.min(Math.max((el.clientWidth - left - 4 - gap * (groups - 1)) / heads, least), 44);
  const ch = Math.max(Math.min(Math.round(cw * 0.66), layers > 36 ? 18 : 23), least), air = cw > 20 ? 1.5 : 1;
  const X = (k) => left + k * cw + gap * Math.floor((k * groups) / heads), Y = (l) => top + l * ch;
  const W = Math.ceil(X(heads - 1) + cw + 4), H = Y(layers) + 4;
  const [id, defs] = hatch();
  const everyX = cw < 18 ? (heads > 40 ? 8 : 4) : 1, everyY = ch < 13 ? 5 : 1;
  // Thousands of cells: one is made and copied, and their names for a screen reader follow when there is time.
  const model = s("rect", { class: "cell", role: "gridcell", tabindex: -1, width: cw - air, height: ch - air });
  const rows = payload.layers.map((layer, l) => s("g", { role: "row" },
    metric.values[l].map((value, k) => {
      const shade = colour(metric, value, dark), blank = shade === null || shade === "hatch", hollow = shade === "none", cell = model.cloneNode();
      cell.setAttribute("x", X(k) + air / 2);
      cell.setAttribute("y", Y(l) + air / 2);
      cell.setAttribute("fill", blank ? `url(#${id})` : hollow ? "transparent" : shade);
      cell.setAttribute("data-l", l);
      cell.setAttribute("data-k", k);
      if (hollow) cell.classList.add("cellframe");
      const letter = metric.scale === "category" && !blank && cw >= 14 ? kindOf(metric, value)[1] : "";
      return letter ? [cell, s("text", { x: X(k) + cw / 2, y: Y(l) + ch / 2 + 4, "text-anchor": "middle", "pointer-events": "none", "aria-hidden": "true", style: `fill:${ink(shade)};font-size:${Math.min(11, ch - 4)}px` }, letter)] : cell;
    })));
  const labels = s("g", { "aria-hidden": "true" },
    s("rect", { x: 0, y: 0, width: left - 2, height: H, class: "backdrop" }),
    s("text", { x: 0, y: 11 }, t("layer ↓")),
    payload.layers.map((layer, l) => l % everyY === 0 && [s("text", { x: left - 8, y: Y(l) + ch / 2 + 4, "text-anchor": "end", style: "font-size:11px" }, String(l)),
      marked && s("text", { x: 0, y: Y(l) + ch / 2 + 4, style: "font-size:10px" }, `${layer.kind === "window" ? "w" : ""}${layer.learned_sink ? "z" : ""}`)]));
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}` },
    defs, s("text", { x: left + 12, y: 11, "aria-hidden": "true" }, t("head →")),
    payload.metrics[0].values[0].map((_, k) => k % everyX === 0 && s("text", { x: X(k) + cw / 2, y: 25, "text-anchor": "middle", "aria-hidden": "true", style: "font-size:11px" }, String(k))),
    s("g", { role: "grid", "aria-label": t("{label} by layer and head", { label: labelOf(metric) }), "aria-rowcount": layers, "aria-colcount": heads }, rows),
    s("rect", { class: "ring halo ui" }), s("rect", { class: "ring chosen ui" }), s("rect", { class: "ring focus ui", visibility: "hidden" }), labels);
  const had = el.contains(document.activeElement) && document.activeElement.classList.contains("cell");
  const scroll = h("div", { class: "mapscroll", scroll: () => labels.setAttribute("transform", `translate(${scroll.scrollLeft} 0)`) }, svg);
  const legend = legendOf(payload, metric, dark, groups, Math.min(el.clientWidth, 420));
  const tools = savers({ title: t("Map of {label}", { label: labelOf(metric) }), name: `map-${fileName(metric.id)}`,
    drawing: () => standalone(svg, `${labelOf(metric)} · ${clean(payload.model.name)}`, legend.querySelector(":scope > svg"), legend.querySelector(".keys")?.dataset.text),
    data: () => [[t("layer"), ...metric.values[0].map((_, k) => t("head {k}", { k }))], ...metric.values.map((row, l) => [l, ...row])] });
  el.replaceChildren(h("p", { class: "readout", id: "readout" }),
    h("figure", {}, h("figcaption", {}, h("span", { class: "t" }, labelOf(metric)), tools), scroll),
    legend, ...(massLike(metric) ? [h("p", { class: "warn" }, warning())] : []), strongest(payload, metric, state));

  const at = (node) => (node?.classList?.contains("cell") ? [+node.dataset.l, +node.dataset.k] : null);
  const describe = (node, loud) => {
    const lines = cellLines(payload, metric, ...at(node));
    tip(node.getBoundingClientRect(), lines);
    readout(el, lines);
    if (loud) say(lines.join(", "));
  };
  const open = (node, focus) => want(el, { layer: at(node)[0], head: at(node)[1], open: focus });
  svg.addEventListener("pointerover", (event) => { if (at(event.target)) describe(event.target, false); });
  svg.addEventListener("pointerleave", (event) => { away(event); rest(el, payload, metric); });
  svg.addEventListener("click", (event) => { if (at(event.target)) open(event.target, "look"); });
  svg.addEventListener("focusin", (event) => {
    if (!at(event.target)) return;
    nameCell(event.target, payload, metric);
    svg.querySelector('.cell[tabindex="0"]')?.setAttribute("tabindex", -1);
    event.target.setAttribute("tabindex", 0);
    // The layer labels stay in place and would cover a cell that scrolled in from the left.
    scroll.scrollLeft = Math.min(scroll.scrollLeft, +event.target.getAttribute("x") - left);
    frame(svg.querySelector(".ring.focus"), event.target, 0);
    svg.querySelector(".ring.focus").setAttribute("visibility", event.target.matches(":focus-visible") ? "visible" : "hidden");
    if (event.target.matches(":focus-visible")) describe(event.target, true);
  });
  svg.addEventListener("focusout", () => { svg.querySelector(".ring.focus").setAttribute("visibility", "hidden"); tip(null); rest(el, payload, metric); });
  svg.addEventListener("keydown", (event) => {
    const here = at(event.target);
    if (!here) return;
    if (event.key === "Escape") { tip(null); return; }
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(event.target, "focus"); return; }
    let [l, k] = here;
    const far = event.ctrlKey || event.metaKey;
    switch (event.key) {
      case "ArrowLeft": k--; break;
      case "ArrowRight": k++; break;
      case "ArrowUp": l--; break;
      case "ArrowDown": l++; break;
      case "PageUp": l -= 5; break;
      case "PageDown": l += 5; break;
      case "Home": k = 0; if (far) l = 0; break;
      case "End": k = heads - 1; if (far) l = layers - 1; break;
      default: return;
    }
    event.preventDefault();
    cellAt(svg, Math.min(Math.max(l, 0), layers - 1), Math.min(Math.max(k, 0), heads - 1)).focus();
  });
  markMap(el, state);
  nameCells(rows, payload, metric);
  rest(el, payload, metric);
  scroll.scrollLeft = Math.max(0, X(state.head) - left - (el.clientWidth - left) / 2);
  if (had) cellAt(svg, state.layer, state.head)?.focus();
}

const later = globalThis.requestIdleCallback ?? ((work) => setTimeout(() => work({ timeRemaining: () => 8 }), 30));
const nameCell = (cell, payload, metric) => { if (!cell.hasAttribute("aria-label")) cell.setAttribute("aria-label", cellLines(payload, metric, +cell.dataset.l, +cell.dataset.k).join(", ")); };

/** Give every cell its name, a row at a time, while nothing else is to be done. */
function nameCells(rows, payload, metric) {
  let at = 0;
  const work = (time) => {
    do {
      if (!rows[at]?.isConnected) return;
      for (const cell of rows[at].querySelectorAll(".cell")) nameCell(cell, payload, metric);
      at += 1;
    } while (time.timeRemaining() > 2);
    later(work);
  };
  later(work);
}

export const cellAt = (el, l, k) => [...(el.querySelectorAll('[role="row"]')[l]?.children ?? [])].filter((cell) => cell.classList.contains("cell"))[k];

export function frame(ring, cell, out) {
  for (const key of ["x", "y"]) ring.setAttribute(key, +cell.getAttribute(key) - out);
  for (const key of ["width", "height"]) ring.setAttribute(key, +cell.getAttribute(key) + 2 * out);
}

export function markMap(el, state) {
  const cell = cellAt(el, state.layer, state.head);
  if (!cell) return;
  for (const old of el.querySelectorAll('.cell[aria-selected="true"], .cell[tabindex="0"]')) {
    old.removeAttribute("aria-selected");
    old.setAttribute("tabindex", -1);
  }
  cell.setAttribute("aria-selected", "true");
  cell.setAttribute("tabindex", 0);
  frame(el.querySelector(".ring.halo"), cell, 1);
  frame(el.querySelector(".ring.chosen"), cell, 1);
  el.querySelectorAll(".top button").forEach((button) => button.setAttribute("aria-pressed", button.dataset.at === `${state.layer}.${state.head}`));
  el.dataset.at = `${state.layer}.${state.head}`;
}

export function readout(el, lines) {
  el.querySelector("#readout").replaceChildren(h("b", {}, lines[0]), ` ${DASH} `, lines.slice(1).join(" · "));
}

export const rest = (el, payload, metric) => { if (el.dataset.at) readout(el, cellLines(payload, metric, ...el.dataset.at.split(".").map(Number))); };

export function legendOf(payload, metric, dark, groups, width) {
  const small = (shade, letter) => {
    const [id, defs] = hatch();
    const blank = shade === "hatch", hollow = shade === "none";
    return s("svg", { width: 20, height: 14, "aria-hidden": "true" }, defs, s("rect", { x: 0.5, y: 0.5, width: 19, height: 13, fill: blank ? `url(#${id})` : hollow ? "transparent" : shade, class: hollow ? "cellframe" : null }),
      letter && s("text", { x: 10, y: 11, "text-anchor": "middle", style: `fill:${ink(shade)};font-size:11px` }, letter));
  };
  const flat = metric.values.flat(), holes = flat.some((v, i) => v === null || v === "unmeasured" || payload.layers[Math.floor(i / payload.model.heads)].kind === "unmeasured");
  const keys = [];
  let bar = null;
  if (metric.scale === "category") {
    const names = [...Object.keys(KINDS), ...new Set(flat.filter((v) => v !== null && !KINDS[v]))].filter((name) => name !== "unmeasured");
    for (const name of names) {
      const count = flat.filter((v) => v === name).length;
      if (count) keys.push(h("li", {}, small(...kindOf(metric, name)), ` ${kindName(name)} (${fmt(count)})`));
    }
  } else {
    const W = width - 24, steps = 60, { lo, hi, scale } = metric, X = (share) => 12 + share * W;
    const value = (share) => (scale === "log" ? lo * (hi / lo) ** share : lo + (hi - lo) * share);
    const where = (v) => (scale === "log" ? Math.log(v / lo) / Math.log(hi / lo) : (v - lo) / (hi - lo || 1));
    const marks = (scale === "log" ? logTicks(lo, hi, 6) : ticks(lo, hi, 5)).filter((v) => where(v) > -0.001 && where(v) < 1.001);
    const numbers = flat.filter(number), cut = [numbers.some((v) => v < lo), numbers.some((v) => v > hi)];
    bar = s("svg", { width, height: 34, viewBox: `0 0 ${width} 34`, role: "img", "aria-label": t(scale === "log" ? "Colour scale from {low} to {high}, logarithmic" : "Colour scale from {low} to {high}", { low: fmt(lo, metric.unit), high: fmt(hi, metric.unit) }) },
      Array.from({ length: steps }, (_, i) => s("rect", { x: X(i / steps), y: 0, width: W / steps + 0.6, height: 12, fill: colour(metric, value((i + 0.5) / steps), dark) })),
      cut[0] && s("path", { d: "M12 0L4 6L12 12Z", fill: colour(metric, lo, dark) }), cut[1] && s("path", { d: `M${12 + W} 0l8 6l-8 6Z`, fill: colour(metric, hi, dark) }),
      marks.map((v) => [s("line", { x1: X(where(v)), x2: X(where(v)), y1: 12, y2: 16, class: "axis" }), s("text", { x: X(where(v)), y: 28, "text-anchor": "middle", style: "font-size:11px" }, tick(v) + (metric.unit === "×" ? "×" : ""))]));
    if (scale === "log" || metric.unit) keys.push(h("li", {}, [scale === "log" ? t("logarithmic scale") : scale === "diverging" ? t("two-sided scale around 0") : t("linear scale"), metric.unit && metric.unit !== "×" ? t("in {unit}", { unit: clean(t(metric.unit)) }) : null].filter(Boolean).join(", ")));
  }
  if (holes) keys.push(h("li", {}, small("hatch"), t("not measurable")));
  if (payload.layers.some((layer) => layer.kind === "window")) keys.push(h("li", {}, h("b", {}, "w"), t("windowed layer")));
  if (payload.layers.some((layer) => layer.learned_sink)) keys.push(h("li", {}, h("b", {}, "z"), t("learned sink logit")));
  if (groups > 1) keys.push(h("li", {}, t("gaps part heads that share a key–value head")));
  return h("div", { class: "legend" }, bar, keys.length > 0 && h("ul", { class: "keys", role: "list", "data-text": keys.map((key) => key.textContent).join(" · ") }, keys));
}

export function ranked(payload, metric) {
  return metric.values.flatMap((row, l) => row.map((value, k) => [value, l, k])).filter((item) => number(item[0])).sort((a, b) => b[0] - a[0]);
}

export function strongest(payload, metric, state) {
  const best = ranked(payload, metric).slice(0, 5);
  if (!best.length) return "";
  return h("p", { class: "top" }, h("span", { class: "muted" }, t("Highest:")), best.map(([value, l, k]) =>
    h("button", { type: "button", "data-at": `${l}.${k}`, "aria-pressed": false,
      click: (event) => want(event.currentTarget, { layer: l, head: k, open: "look" }) }, h("span", { class: "sr" }, t("Open layer·head"), " "), `${l}·${k}  ${fmt(value, metric.unit)}`)));
}
