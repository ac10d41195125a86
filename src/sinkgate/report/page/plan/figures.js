// The small drawings of a plan: the promise beside the tolerance, and what each layer loses when it alone forgets.

import { ticks } from "sinkgate/lib/colour.js";
import { figure, h, s, say, tip } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { fmt, number, tick } from "sinkgate/lib/text.js";
import { mean, signed, spread } from "sinkgate/plan/data.js";

/** What was measured, its interval and its promise on one scale with the tolerance; null where there is nothing to promise. */
export function promiseFigure(payload) {
  const found = mean(payload.measured.increase), { promise } = payload.measured, tolerance = payload.request.max_increase;
  if (!found || !number(tolerance)) return null;
  const title = t("The promise beside the tolerance");
  const rows = [[t("measured"), found.mean], ...(number(promise) ? [[t("promised for other texts"), promise]] : []), [t("the tolerance"), tolerance]];
  const draw = (width) => {
    const W = Math.max(width, 240), H = 96, left = 12, right = W - 12, y = 44, edge = 3 * Math.max(tolerance, Math.abs(found.mean), number(promise) ? Math.abs(promise) : 0);
    const reach = [0, found.mean, tolerance, promise, found.low, found.high].filter((v) => number(v)).map((v) => Math.min(edge, Math.max(-edge, v)));
    let [lo, hi] = [Math.min(...reach), Math.max(...reach)];
    const pad = (hi - lo || 1) * 0.06;
    [lo, hi] = [lo - pad, hi + pad];
    const X = (v) => Math.min(right, Math.max(left, left + ((right - left) * (v - lo)) / (hi - lo))), anchor = (x) => (x < left + 70 ? "start" : x > right - 70 ? "end" : "middle");
    return s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", id: "plan-promise", "aria-label": `${title}. ${t("measured")}: ${spread(found)}. ${rows.slice(1).map(([name, v]) => `${name}: ${signed(v)}`).join(". ")}` },
      s("rect", { class: "plan-allowed", x: X(lo), y: y - 12, width: Math.max(0, X(tolerance) - X(lo)), height: 24 }),
      s("path", { class: "axis", d: `M${X(0)} ${y - 16}v32` }),
      number(found.low) && number(found.high) ? s("path", { class: "plan-whisker plan", d: `M${X(found.low)} ${y}H${X(found.high)}` }) : null,
      s("path", { class: "plan-limit", "data-limit": "tolerance", d: `M${X(tolerance)} ${y - 20}v40` }), s("text", { x: X(tolerance), y: 14, "text-anchor": anchor(X(tolerance)), class: "strong" }, `${t("the tolerance")} ${signed(tolerance)}`),
      number(promise) ? [s("path", { class: "plan-promised", "data-at": X(promise), d: `M${X(promise)} ${y - 9}v18` }), s("text", { x: X(promise), y: y + 30, "text-anchor": anchor(X(promise)) }, t("promised ≤ {n}", { n: signed(promise) }))] : null,
      s("path", { class: "plan-chosen", "data-at": X(found.mean), d: `M${X(found.mean)} ${y - 6}l6 6l-6 6l-6 -6z` }), s("text", { x: X(found.mean), y: y + (number(promise) && Math.abs(X(promise) - X(found.mean)) < 150 ? 48 : 30), "text-anchor": anchor(X(found.mean)) }, t("measured {n}", { n: signed(found.mean) })));
  };
  return figure({ title, name: "promise", about: payload.meta.model.name.slice(0, 200), draw, data: () => [[t("quantity"), t("increase"), t("low"), t("high")], ...rows.map(([name, v], i) => [name, v, i ? null : found.low, i ? null : found.high])],
    note: number(promise) ? t("The interval is that of these texts; the promise is a bound for other texts of the same kind, which allows for as many settings as could be tried.") : null });
}

/** Bars, one a layer. */
export function layersFigure(payload) {
  const rows = Object.entries(payload.meta.forgetting ?? {}).filter(([layer, nats]) => /^\d{1,5}$/.test(layer) && number(nats)).map(([layer, nats]) => [+layer, nats]).sort((a, b) => a[0] - b[0]);
  if (!rows.length) return null;
  const title = t("What a layer loses when it alone forgets");
  const draw = (width) => {
    const W = Math.max(width, 240), H = 176, top = 24, foot = 36, values = rows.map(([, v]) => v), yticks = ticks(Math.min(0, ...values), Math.max(0, ...values) || 1, 3), left = Math.max(34, 10 + 6.6 * Math.max(0, ...yticks.map((v) => tick(v).length)));
    const y0 = Math.min(0, ...values), y1 = Math.max(0, ...values) || 1, each = (W - left - 8) / rows.length, Y = (v) => top + (H - top - foot) * (1 - (v - y0) / (y1 - y0)), every = Math.ceil(rows.length / Math.max(1, Math.floor((W - left) / 34)));
    const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0, id: "plan-forgetting", "aria-label": t("{title}. Arrow keys read the values.", { title }) },
      s("text", { x: 0, y: 11 }, t("nats a token")),
      yticks.map((v) => [s("path", { class: "gridline", d: `M${left} ${Y(v)}H${W - 8}` }), s("text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end", "data-y": v, "data-at": Y(v) }, tick(v))]),
      rows.map(([layer, nats], i) => s("rect", { class: "f-content", "data-layer": layer, x: left + i * each + Math.min(2, each / 6), y: Math.min(Y(0), Y(nats)), width: Math.max(1, Math.min(each - Math.min(4, each / 3), 44)), height: Math.max(0.75, Math.abs(Y(nats) - Y(0))) })),
      s("path", { class: "axis", d: `M${left} ${Y(0)}H${W - 8}` }),
      rows.map(([layer], i) => i % every === 0 && s("text", { x: left + i * each + Math.min(each / 2, 24), y: H - foot + 16, "text-anchor": "middle" }, layer)), s("text", { x: (left + W) / 2, y: H - 4, "text-anchor": "middle" }, t("layer")));
    const mark = s("g", { class: "ui" });
    svg.append(mark);
    let at = -1;
    const show = (i) => {
      at = Math.min(Math.max(i, 0), rows.length - 1);
      const [layer, nats] = rows[at], box = svg.getBoundingClientRect(), x = left + at * each + Math.min(each / 2, 24), said = [t("layer {n}", { n: layer }), t("{name}: {value}", { name: t("nats a token"), value: fmt(nats) })];
      mark.replaceChildren(s("path", { class: "cross", d: `M${x} ${top}V${H - foot}` }));
      tip({ left: box.left + x, width: 0, top: box.top + top, bottom: box.top + H }, said, true);
      return said.join(", ");
    };
    const hide = () => { mark.replaceChildren(); tip(null); };
    svg.addEventListener("pointermove", (event) => show(Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / each)));
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
      if (by === undefined) { if (event.key === "Escape") hide(); return; }
      event.preventDefault();
      say(show(at + by));
    });
    return svg;
  };
  return h("div", { id: "plan-layers" }, figure({ title, name: "layers", about: payload.meta.model.name.slice(0, 200), draw, data: () => [[t("layer"), t("nats a token")], ...rows],
    note: t("One layer keeps a short window and its sinks, all others keep everything: the rise of the loss on one of the tuning texts. It decides which layers may keep less.") }));
}
