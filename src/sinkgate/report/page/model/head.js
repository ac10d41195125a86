// One head. Its page is a list of parts, each (subject) → node or null: a new part is one function and one line.
// subject: {l, k, layer, record, payload, state, context, about, file}; record is null where nothing was recorded.

import { lines, histogram, splitBars } from "sinkgate/lib/charts.js";
import { warning } from "sinkgate/lib/colour.js";
import { h, bdi, want, figure, table, tokenColumn } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { DASH, clean, fmt, number, percent } from "sinkgate/lib/text.js";
import { evictionOfHead } from "sinkgate/model/effects.js";
import { span } from "sinkgate/model/map.js";
import { kindName, said } from "sinkgate/model/said.js";

function curves({ record, about, file, layer }) {
  const curve = record.curve, plots = h("div", { class: "plots" });
  const axis = { xlabel: t("query position t (log)"), xname: t("query position"), xlog: true, xint: true };
  if (curve?.t?.length) {
    plots.append(
      lines(t("Weight on the first token"), `${file}-mass`, about, { ...axis, x: curve.t, ylabel: t("share of the query’s weight"), ylo: 0, yhi: 1,
        series: [{ name: t("measured"), cls: "c-sink", y: curve.p ?? [] }, { name: t("null: uniform"), cls: "c-null", y: curve.null ?? [] }] }),
      lines(t("Margin of the first token’s score"), `${file}-margin`, about, { ...axis, x: curve.t, ylabel: t("zₛ − LSE(content), nats"),
        series: [{ name: t("measured"), cls: "c-sink", y: curve.margin ?? [] }, { name: t("law: ln(t − 1) + logit r"), cls: "c-null", y: curve.law ?? [] }] }));
  }
  if (record.hist?.some((v) => v > 0)) plots.append(figure({ title: t("Spread over queries"), name: `${file}-hist`, about, draw: (width) => histogram(width, record.hist),
    data: () => [[t("from"), t("to"), t("queries")], ...record.hist.map((v, i) => [i / record.hist.length, (i + 1) / record.hist.length, v])] }));
  if (record.split) plots.append(split(record, layer, about, file));
  return plots.childElementCount ? plots : null;
}

/** o = pₛ vₛ + g Σ βᵢ vᵢ: what the weights spend, what that carries, and how what is left is dealt out. */
function split(record, layer, about, file) {
  const w = record.split, others = (record.keys ?? []).filter((key) => key.position > 0 && number(key.mass));
  const most = others.reduce((best, key) => Math.max(best, key.mass), -1), beta = number(w.g) && w.g > 0 && most >= 0 ? most / w.g : null;
  const why = w.sink_write_ratio === null && layer.write_reason ? ` (${clean(layer.write_reason)})` : "";
  return figure({ title: t("Split: weight and what it carries"), name: `${file}-split`, about, draw: (width) => splitBars(width, w),
    data: () => [[t("quantity"), t("value")], ...Object.entries({ ...w, beta_top: beta })],
    note: [t("Sink write ratio, after the output map: {ratio}.", { ratio: fmt(w.sink_write_ratio) + why }), " ", t("Predicted: deleting the sink multiplies the content by {factor}.", { factor: fmt(w.amplification) }), " ",
      beta === null ? "" : t("Of what is left, g, the strongest other key has β = {beta} (its mean mass over g).", { beta: fmt(beta) })] });
}

const topKeys = ({ record, payload, file }) => table({ caption: t("Keys that receive most"), name: `${file}-keys`, rows: record.keys ?? [], empty: missing(payload), columns: [
  { head: t("position"), get: (r) => r.position, num: true }, tokenColumn(), { head: t("kind"), get: (r) => kindName(r.kind) },
  { head: t("mass"), get: (r) => r.mass, num: true }, { head: t("null"), get: (r) => r.null, num: true },
  { head: t("mass / null"), get: (r) => (r.null && number(r.mass) ? r.mass / r.null : null), show: (r) => (r.null && number(r.mass) ? fmt(r.mass / r.null, "×") : DASH), num: true },
  { head: t("write ratio"), get: (r) => r.write, num: true }] });

/** Lengths and directions of this head's keys and values, as far as the record holds them. */
function geometry({ record, payload, file }) {
  const g = record.geometry, ratio = (a, b) => (number(a) && number(b) && b > 0 ? a / b : null);
  if (!g) return h("div", { class: "table" }, h("h3", {}, t("Geometry of keys and values")), h("p", { class: "empty" }, missing(payload)));
  const rows = [[t("length of the key, ‖k‖"), g.k_sink, g.k_rest], [t("length of the value, ‖v‖"), g.v_sink, g.v_rest]];
  return h("div", {}, table({ caption: t("Geometry of keys and values"), name: `${file}-geometry`, rows, columns: [
    { head: t("quantity"), get: (r) => r[0], rowhead: true }, { head: t("first token"), get: (r) => r[1], num: true }, { head: t("the others, mean"), get: (r) => r[2], num: true },
    { head: t("ratio"), get: (r) => ratio(r[1], r[2]), show: (r) => fmt(ratio(r[1], r[2]), "×"), num: true }] }),
    h("p", { class: "note" }, t("Cosine of the mean query with the first token’s key: {cosine}. Keys are taken after the rotary embedding; means over samples.", { cosine: fmt(g.cosine) })));
}

function values({ record, payload, layer, file }) {
  const window = fmt(payload.settings.local_window);
  // What is a share in a note is shown as one; the other numbers with three digits.
  const filled = (note, parts) => (parts ? t(note, Object.fromEntries(Object.entries(parts).map(([key, v]) => [key, key === "share" ? percent(v) : fmt(v)]))) : said(payload, note ?? ""));
  return table({ caption: t("Values of this head"), name: `${file}-values`, rows: record.values ?? [], columns: [
    { head: t("quantity"), get: (r) => clean(t(r[0], { window })), show: (r) => clean(t(r[0], { window })), rowhead: true },
    { head: t("value"), get: (r) => r[1], show: (r) => fmt(r[1], r[2] ?? ""), num: true },
    { head: t("note"), get: (r) => clean(filled(r[3], r[4])), show: (r) => clean(filled(r[3], r[4])), wide: true }] });
}

const missing = (payload) => t("Not recorded at detail “{detail}”.", { detail: clean(payload.settings.detail) });
const caution = () => h("p", { class: "warn" }, warning());
const noCurves = (subject) => (curves(subject) ?? h("p", { class: "empty" }, t("No curves at detail “{detail}”.", { detail: clean(subject.payload.settings.detail) })));

/** The parts of a head's page, in order. */
export const PARTS = [caution, noCurves, topKeys, geometry, evictionOfHead, values];

export function drawHead(el, payload, state, context) {
  const { layer: l, head: k } = state, key = `${l}.${k}`;
  if (el.dataset.key === key) return;
  el.dataset.key = key;
  const layer = payload.layers[l], record = payload.heads[key] ?? null;
  const picker = (label, count, chosen, change) => h("label", {}, label, h("select", { change: (event) => change(+event.target.value) },
    Array.from({ length: count }, (_, i) => h("option", { value: i, selected: i === chosen }, String(i)))));
  const parts = [h("div", { class: "panel-head" },
    h("div", {}, h("h2", { id: "panel-h", tabindex: -1 }, t("Layer {l} · head {k}", { l, k }), record?.kind && h("span", { class: "chip" }, kindName(record.kind))),
      h("p", {}, h("span", { class: "mono" }, bdi(layer.name)), ` · ${span(layer)}`, layer.learned_sink ? ` · ${t("learned sink logit")}` : "")),
    h("div", { class: "pick" },
      picker(t("layer"), payload.model.layers, l, (value) => want(el, { layer: value, pick: 0 })),
      picker(t("head"), payload.model.heads, k, (value) => want(el, { head: value, pick: 1 })),
      h("button", { type: "button", class: "back", click: () => {
        const map = document.getElementById("map");
        map.scrollIntoView({ block: "start" });
        map.querySelector("h2").focus({ preventScroll: true });
      } }, t("Map"))))];
  if (!record || layer.kind === "unmeasured") {
    parts.push(h("p", { class: "empty" }, layer.kind === "unmeasured"
      ? [t("Not measured."), " ", layer.reason ? h("bdi", {}, said(payload, layer.reason)) : t("No reason was recorded.")]
      : t("Nothing was recorded for this head at detail “{detail}”.", { detail: clean(payload.settings.detail) })));
  } else {
    const subject = { l, k, layer, record, payload, state, context, file: `layer-${l}-head-${k}`, about: `${t("layer {l}, head {k}", { l, k })} · ${payload.model.name}` };
    parts.push(...PARTS.map((part) => part(subject)).filter(Boolean));
  }
  el.replaceChildren(...parts);
}
