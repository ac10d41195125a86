// Where outputs lie: the values as points that can be moved, their hull with and without the origin, and the output.

import { ticks } from "sinkgate/lib/colour.js";
import { s } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { tick } from "sinkgate/lib/text.js";
import { WIDEST, rounded, writtenValues } from "sinkgate/simulator/model.js";
import { num, pair, picture, set } from "sinkgate/simulator/show.js";

const path = (points, X, Y) => (points.length ? `M${points.map(([x, y]) => `${X(x).toFixed(2)} ${Y(y).toFixed(2)}`).join("L")}Z` : "");

/** The output plane. `get()` is {model, row} now; `change(patch)` says what a hand asked for. */
export function plane(get, change) {
  let refs = null, held = null, scale = "";

  const reach = ({ model, row }) => {
    const all = [...model.values, row.output ?? [0, 0], model.target ?? [0, 0], [0, 0]], far = Math.max(1, ...all.flat().map(Math.abs));
    const step = 10 ** Math.floor(Math.log10(far));
    return Math.ceil((far * 1.12) / (step / 2)) * (step / 2);
  };

  const move = (what, [x, y]) => {
    const { model } = get(), to = [x, y].map((v) => Math.min(WIDEST, Math.max(-WIDEST, rounded(v, 2))));
    if (what === "target") change({ target: writtenValues([to]) });
    else change({ values: writtenValues(model.values.map((v, j) => (j === what ? to : v))), key: what });
  };

  function keyed(event, what) {
    const { model } = get(), [x, y] = what === "target" ? model.target : model.values[what], step = event.shiftKey ? 0.01 : 0.1;
    const by = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step], Home: [-x, -y] }[event.key];
    if (!by) return;
    event.preventDefault();
    move(what, [x + by[0], y + by[1]]);
  }

  const pointed = (event) => { const box = refs.svg.getBoundingClientRect(); return refs.back(event.clientX - box.left, event.clientY - box.top); };

  function build(width) {
    const { model } = get(), W = Math.max(Math.min(width, 460), 220), H = Math.round(W * 0.86), far = held === null ? reach(get()) : refs.far;
    const unit = Math.min(W, H) / 2 / far - 2 / far, X = (x) => W / 2 + x * unit, Y = (y) => H / 2 - y * unit, back = (px, py) => [(px - W / 2) / unit, (H / 2 - py) / unit];
    const marks = ticks(-far, far, 6).filter((v) => v !== 0), [wide, high] = [W / 2 / unit, H / 2 / unit];
    const hull0 = s("path", { class: "hull0" }), hull = s("path", { class: "hull" }), arrow = s("line", { x1: X(0), y1: Y(0), class: "arrow" }), end = s("circle", { r: 6, class: "end" });
    const grip = (what, ...inside) => s("g", { class: what === "target" ? "point target" : "point", role: "slider", tabindex: -1, "data-point": what, "aria-roledescription": t("point in the plane"), keydown: (event) => keyed(event, what) }, s("circle", { r: 16, class: "catch" }), ...inside);
    const points = model.values.map((_, j) => { const dot = s("circle", {}), name = s("text", { x: 0, y: -10, "text-anchor": "middle" }, model.n <= 16 ? `v${j}` : ""); return { dot, name, grip: grip(j, dot, name) }; });
    const target = grip("target", s("path", { d: "M-7 0H7M0 -7V7", class: "cross-mark" }), s("text", { x: 10, y: 14 }, t("target u")));
    const label = s("text", { class: "strong", x: 2, y: 12 });
    const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": t("Values and output. Arrow keys move the chosen point.") },
      marks.filter((v) => Math.abs(v) < wide).map((v) => [s("line", { x1: X(v), x2: X(v), y1: 0, y2: H, class: "gridline" }), s("text", { x: X(v), y: Y(0) + 14, "text-anchor": "middle" }, tick(v))]),
      marks.filter((v) => Math.abs(v) < high).map((v) => [s("line", { x1: 0, x2: W, y1: Y(v), y2: Y(v), class: "gridline" }), Y(v) > 24 && s("text", { x: X(0) - 6, y: Y(v) + 4, "text-anchor": "end" }, tick(v))]),
      s("line", { x1: 0, x2: W, y1: Y(0), y2: Y(0), class: "axis" }), s("line", { x1: X(0), x2: X(0), y1: 0, y2: H, class: "axis" }),
      hull0, hull, points.map((p) => p.grip), target, arrow, end, label);
    svg.addEventListener("pointerdown", (event) => {
      const hit = event.target.closest(".point");
      if (!hit || event.button) return;
      held = hit.dataset.point === "target" ? "target" : +hit.dataset.point;
      svg.setPointerCapture(event.pointerId);
      if (held !== "target") change({ key: held });
      hit.focus({ preventScroll: true });
      event.preventDefault();
    });
    svg.addEventListener("pointermove", (event) => { if (held !== null) move(held, pointed(event)); });
    for (const done of ["pointerup", "pointercancel"]) svg.addEventListener(done, () => { if (held !== null) { held = null; update(); } });
    refs = { svg, points, target, hull, hull0, arrow, end, label, X, Y, back, far, W };
    paint();
    return svg;
  }

  function paint() {
    const { model, row } = get(), { X, Y, points, target, hull, hull0, arrow, end, label } = refs;
    points.forEach(({ dot, grip }, j) => {
      const [x, y] = model.values[j], seen = row.seen[j], w = row.waiting ? 0 : row.shown[j];
      set(grip, { transform: `translate(${X(x)} ${Y(y)})`, tabindex: j === model.key ? 0 : -1, class: j === model.key ? "point chosen" : "point", "aria-label": t("value of key {j}", { j }),
        "aria-valuenow": x, "aria-valuemin": -WIDEST, "aria-valuemax": WIDEST, "aria-valuetext": j === model.key ? pair([x, y], 4) : null });
      set(dot, { class: !seen ? "f-gone" : j === row.sink ? "f-sink" : "f-content", r: 4 + 8 * Math.sqrt(Math.min(Math.max(w, 0), 1)) });
    });
    target.setAttribute("visibility", model.target ? "visible" : "hidden");
    target.setAttribute("tabindex", model.target ? 0 : -1);
    const [ux, uy] = model.target ?? [0, 0];
    target.setAttribute("transform", `translate(${X(ux)} ${Y(uy)})`);
    for (const [key, value] of Object.entries({ "aria-label": t("target u"), "aria-valuenow": ux, "aria-valuemin": -WIDEST, "aria-valuemax": WIDEST, "aria-valuetext": pair([ux, uy], 4) })) target.setAttribute(key, value);
    if (row.waiting) return;
    hull.setAttribute("d", path(row.hull, X, Y));
    hull0.setAttribute("d", path(row.hull0, X, Y));
    const [x, y] = row.output;
    arrow.setAttribute("x2", X(x)); arrow.setAttribute("y2", Y(y));
    end.setAttribute("cx", X(x)); end.setAttribute("cy", Y(y));
    label.textContent = `o = ${pair(row.output, 3)}, ‖o‖ = ${num(row.length, 4)}`;
  }

  const fig = picture({ title: t("Values, hull and output"), name: "simulator-output", draw: build,
    note: t("Filled: what weights that sum to 1 can output. Dashed: what a gate or an outlet adds, the hull with the origin. A larger dot has more weight."),
    data: () => { const { model, row } = get(); return [["point", "x", "y"], ...model.values.map(([x, y], j) => [`v${j}`, x, y]), ["output", ...(row.output ?? [null, null])]]; } });

  function update() {
    if (!refs || !fig.width) return;
    const { model } = get(), key = `${model.n} ${reach(get())}`;
    if (key !== scale && held === null) {
      scale = key;
      const inside = document.activeElement?.closest?.(".point")?.dataset.point;
      fig.redraw();
      if (inside) refs.svg.querySelector(`[data-point="${inside === "target" ? "target" : model.key}"]`)?.focus({ preventScroll: true });
    } else paint();
  }
  return { box: fig.box, update };
}

// Seen from the side, so that the way from the origin to the face is long.
const CORNERS = [[0.56, 0.03], [0.98, 0.52], [0.5, 0.97]], ORIGIN = [0.02, 0.42];

/** The simplex of two or three candidates, the sub-simplex under it, and the weights as a point in it. */
export function simplex(get) {
  return picture({ title: t("Simplex and sub-simplex"), name: "simulator-simplex",
    note: t("Weights that sum to 1 lie on the far face. Whatever has less mass lies between it and the origin: mass is how far along the ray, the share is where the ray meets the face."),
    draw(width) {
      const { model, row } = get(), W = Math.max(Math.min(width, 420), 220), H = Math.round(W * 0.8), who = row.seen.map((seen, j) => (seen ? j : -1)).filter((j) => j >= 0);
      if (row.waiting || who.length < 2 || who.length > 3)
        return s("svg", { width: W, height: 64, viewBox: `0 0 ${W} 64`, role: "img", "aria-label": t("Drawn for two and three candidates.") }, s("text", { x: 0, y: 20 }, t("Drawn for two and three candidates.")), s("text", { x: 0, y: 40 }, t("Set the number of keys to 2 or 3 to see it.")));
      const plain = who.length === 2, pad = 34, w = W - 2 * pad, high = H - 2 * 26;
      const corners = plain ? [[1, 0], [0, 1]] : CORNERS, origin = plain ? [0, 0] : ORIGIN;
      const at = (weights) => { const rest = 1 - weights.reduce((a, b) => a + b, 0), p = [0, 1].map((i) => origin[i] * rest + weights.reduce((sum, a, k) => sum + a * corners[k][i], 0)); return [pad + p[0] * w, H - 26 - p[1] * high]; };
      const a = who.map((j) => row.shown[j]), mass = a.reduce((x, y) => x + y, 0), far = Math.min(mass, 1.25), drawn = a.map((v) => (mass > 0 ? (v * far) / mass : 0)), face = mass > 0 ? a.map((v) => v / mass) : null;
      const edge = (from, to, cls) => s("line", { x1: from[0], y1: from[1], x2: to[0], y2: to[1], class: cls });
      const tips = corners.map((_, k) => at(corners.map((__, i) => +(i === k)))), zero = at(corners.map(() => 0)), here = at(drawn), there = face && at(face);
      const outline = (list) => `M${list.map((p) => p.join(" ")).join("L")}Z`;
      return s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "data-mass": mass, "aria-label": t("Weights {a}, mass {m}", { a: a.map((v) => num(v, 3)).join(", "), m: num(mass, 4) }) },
        s("path", { d: outline([zero, ...tips]), class: "under" }),
        tips.map((p) => edge(zero, p, "inner")),
        plain ? edge(tips[0], tips[1], "face") : s("path", { d: outline(tips), class: "face" }),
        face && edge(zero, mass > 1 ? here : there, "ray"), face && s("circle", { cx: there[0], cy: there[1], r: 5, class: "share" }),
        s("circle", { cx: here[0], cy: here[1], r: 7, class: "end" }), s("circle", { cx: zero[0], cy: zero[1], r: 3, class: "zero" }),
        s("text", { x: zero[0] - 8, y: zero[1] + 16, "text-anchor": "end" }, "0"),
        tips.map(([x, y], k) => s("text", { x: k === 1 && !plain ? x + pad - 4 : x, y: y + (y < H / 3 ? -9 : k === 1 && !plain ? -12 : 18), "text-anchor": k === 1 && !plain ? "end" : "middle", class: who[k] === row.sink ? "strong" : null }, t("key {j}", { j: who[k] }) + (who[k] === row.sink ? ` (${t("sink")})` : ""))),
        mass > 1 + 1e-9 && s("text", { x: W, y: 14, "text-anchor": "end", class: "strong" }, t("outside: mass {m}", { m: num(mass, 4) })));
    },
    data: () => { const { row } = get(); return [["key", "weight"], ...(row.shown ?? []).map((w, j) => [j, w])]; } });
}
