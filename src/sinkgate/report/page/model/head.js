import { lines, histogram, splitBars } from "sinkgate/lib/charts.js";
import { WARNING } from "sinkgate/lib/colour.js";
import { h, bdi, want, figure, table, tokenColumn } from "sinkgate/lib/dom.js";
import { DASH, clean, fmt, number } from "sinkgate/lib/text.js";
import { span } from "sinkgate/model/map.js";

export function drawHead(el, payload, state) {
  const { layer: l, head: k } = state, key = `${l}.${k}`;
  if (el.dataset.key === key) return;
  el.dataset.key = key;
  const layer = payload.layers[l], record = payload.heads[key], about = `layer ${l}, head ${k} · ${payload.model.name}`, file = `layer-${l}-head-${k}`;
  const picker = (label, count, chosen, change) => h("label", {}, label, h("select", { change: (event) => change(+event.target.value) },
    Array.from({ length: count }, (_, i) => h("option", { value: i, selected: i === chosen }, String(i)))));
  const top = h("div", { class: "panel-head" },
    h("div", {}, h("h2", { id: "panel-h", tabindex: -1 }, `Layer ${l} · head ${k}`, record?.kind && h("span", { class: "chip" }, clean(record.kind))),
      h("p", {}, h("span", { class: "mono" }, bdi(layer.name)), ` · ${span(layer)}${layer.learned_sink ? " · learned sink logit" : ""}`)),
    h("div", { class: "pick" },
      picker("layer", payload.model.layers, l, (value) => want(el, { layer: value, pick: 0 })),
      picker("head", payload.model.heads, k, (value) => want(el, { head: value, pick: 1 })),
      h("button", { type: "button", class: "back", "data-go": "map" }, "Map")));
  const parts = [top];
  if (!record || layer.kind === "unmeasured") {
    parts.push(h("p", { class: "empty" }, layer.kind === "unmeasured" ? ["Not measured. ", layer.reason ? bdi(layer.reason) : "No reason was recorded."] : `Nothing was recorded for this head at detail “${clean(payload.settings.detail)}”.`));
    el.replaceChildren(...parts);
    return;
  }
  const curve = record.curve, plots = h("div", { class: "plots" });
  const axis = { xlabel: "query position t (log)", xname: "query position", xlog: true, xint: true };
  if (curve?.t?.length) {
    plots.append(
      lines("Weight on the first token", `${file}-mass`, about, { ...axis, x: curve.t, ylabel: "share of the query’s weight", ylo: 0, yhi: 1, series: [{ name: "measured", cls: "c-sink", y: curve.p ?? [] }, { name: "null: uniform", cls: "c-null", y: curve.null ?? [] }] }),
      lines("Margin of the first token’s score", `${file}-margin`, about, { ...axis, x: curve.t, ylabel: "zₛ − LSE(content), nats", series: [{ name: "measured", cls: "c-sink", y: curve.margin ?? [] }, { name: "law: ln(t − 1) + logit r", cls: "c-null", y: curve.law ?? [] }] }));
  }
  if (record.hist?.some((v) => v > 0)) plots.append(figure({ title: "Spread over queries", name: `${file}-hist`, about, draw: (width) => histogram(width, record.hist), data: () => [["from", "to", "queries"], ...record.hist.map((v, i) => [i / record.hist.length, (i + 1) / record.hist.length, v])] }));
  if (record.split) {
    const w = record.split;
    plots.append(figure({ title: "Split: weight and what it carries", name: `${file}-split`, about, draw: (width) => splitBars(width, w), data: () => [["quantity", "value"], ...Object.entries(w)],
      note: [`Sink write ratio, after the output map: ${fmt(w.sink_write_ratio)}${w.sink_write_ratio === null && layer.write_reason ? ` (${clean(layer.write_reason)})` : ""}. Predicted: deleting the sink multiplies the content by ${fmt(w.amplification)}.`] }));
  }
  parts.push(h("p", { class: "warn" }, WARNING));
  parts.push(plots.childElementCount ? plots : h("p", { class: "empty" }, `No curves at detail “${clean(payload.settings.detail)}”.`));
  parts.push(table({ caption: "Keys that receive most", name: `${file}-keys`, rows: record.keys ?? [], empty: `Not recorded at detail “${clean(payload.settings.detail)}”.`, columns: [
    { head: "position", get: (r) => r.position, num: true }, tokenColumn, { head: "kind", get: (r) => r.kind },
    { head: "mass", get: (r) => r.mass, num: true }, { head: "null", get: (r) => r.null, num: true },
    { head: "mass / null", get: (r) => (r.null ? r.mass / r.null : null), show: (r) => (r.null && number(r.mass) ? fmt(r.mass / r.null, "×") : DASH), num: true },
    { head: "write ratio", get: (r) => r.write, num: true }] }));
  parts.push(table({ caption: "Values of this head", name: `${file}-values`, rows: record.values ?? [], columns: [
    { head: "quantity", get: (r) => r[0], rowhead: true }, { head: "value", get: (r) => r[1], show: (r) => fmt(r[1], r[2] ?? ""), num: true },
    { head: "note", get: (r) => r[3] ?? "", wide: true }] }));
  el.replaceChildren(...parts);
}
