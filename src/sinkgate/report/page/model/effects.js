// What eviction did, from an effects record (sinkgate intervene) of the same model: choices of the map, and tables.

import { h, table } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { DASH, clean, fmt, number } from "sinkgate/lib/text.js";
import { argument, said } from "sinkgate/model/said.js";

/** The effects records of this model, read; what cannot be read is left out, with its reason. */
export async function effectsOf(context, payload) {
  const found = { records: [], refused: [] };
  for (const entry of context.of("effects")) {
    try {
      const effects = await context.load(entry);
      if (payload.model.fingerprint && effects.model.fingerprint === payload.model.fingerprint) found.records.push({ ...effects, called: entry.name });
    } catch (error) {
      found.refused.push(`${clean(entry.name)}: ${clean(error.message)}`);
    }
  }
  return found;
}

const grid = (payload, items, value) => {
  const rows = payload.layers.map(() => Array(payload.model.heads).fill(null));
  for (const item of items) if (item.layer in rows && item.head in rows[item.layer]) rows[item.layer][item.head] = value(item);
  return rows;
};
const reach = (rows) => Math.max(1e-6, ...rows.flat().filter(number).map(Math.abs));

/** Choices of the map: eviction measured head by head, its first-order estimate, or how to come by them. */
export function evictionMetrics(payload, effects) {
  const record = effects.records.find((each) => each.heads.length || each.estimates.length), made = [];
  const absent = { id: "eviction", label: t("effect of eviction"), unit: "", scale: "linear", lo: 0, hi: 1, help: t("What the loss changes by when a head alone no longer sees the sink."), values: grid(payload, [], null) };
  if (!record) return [{ ...absent, absent: effects.records.length ? "whole" : "none", record: effects.records[0] ?? null }];
  const about = { heads: record.heads.length, samples: record.samples, target: said(record, record.target), burn: record.settings.burn_in };
  if (record.heads.length) {
    const at = new Map(record.heads.map((head) => [`${head.layer}.${head.head}`, head]));
    const measured = (id, label, name, help, scale) => {
      const values = grid(payload, record.heads, (head) => head[name]), top = reach(values);
      made.push({ id, label, unit: "nats", scale, lo: scale === "diverging" ? -top : 0, hi: top, help, values,
        reason: t("This head was not evicted on its own; see the first-order estimate."),
        more: (l, k) => { const head = at.get(`${l}.${k}`); return head ? range(head, name) : null; } });
    };
    measured("eviction_loss", t("eviction: loss change, measured"), "loss_change", t("Measured: {heads} heads, one at a time, no longer see {target} from query {burn} on; mean change of the loss over {samples} texts against the untouched model.", about), "diverging");
    measured("eviction_kl", t("eviction: KL, measured"), "kl", t("Measured: KL(untouched ‖ evicted) of the predictions when one head alone no longer sees {target} from query {burn} on; {heads} heads, {samples} texts.", about), "linear");
  }
  if (record.estimates.length) {
    const values = grid(payload, record.estimates, (each) => each.value), top = reach(values);
    made.push({ id: "eviction_estimate", label: t("eviction: first-order estimate"), unit: "nats", scale: "diverging", lo: -top, hi: top, values,
      help: t("Screening, not a measurement: to first order (attribution patching), what the loss would change by if this head alone no longer saw {target} from query {burn} on; mean over {samples} texts.", about),
      reason: t("This head was not screened.") });
  }
  return made;
}

const range = (row, name) => (number(row[`${name}_low`]) ? t("95% interval {low} to {high}", { low: fmt(row[`${name}_low`]), high: fmt(row[`${name}_high`]) }) : t("one text: no interval"));
const interval = (row, name) => (!number(row[name]) ? DASH : number(row[`${name}_low`]) ? t("{value} ({low} to {high})", { value: fmt(row[name]), low: fmt(row[`${name}_low`]), high: fmt(row[`${name}_high`]) }) : fmt(row[name]));
const cells = (name, head) => [{ head, get: (r) => r[name], show: (r) => interval(r, name), num: true }];

/** How to measure what is not there. */
export function howToEvict(payload, metric) {
  const name = argument(payload.model.name), whole = metric.record?.rows.find((row) => row.label === "evict" && row.kind === "act");
  return h("div", { class: "absent" },
    h("p", {}, metric.absent === "whole"
      ? t("The record of effects at hand holds no single heads. Evicting {target} in all its heads at once changes the loss by {change} nats.", { target: said(metric.record, metric.record.target), change: whole ? interval(whole, "loss_change") : DASH })
      : t("Not measured yet: no record of effects of this model (fingerprint {fingerprint}) was given.", { fingerprint: clean(payload.model.fingerprint || DASH) })),
    h("p", {}, t("These commands measure it, and show it here:")),
    h("pre", { class: "mono" }, `sinkgate intervene ${name} --out effects\nsinkgate show RECORD effects --html report.html`));
}

/** What acting on the sink did: whole model and single heads. */
export function drawEffects(el, payload, effects) {
  const parts = effects.refused.map((line) => h("p", { class: "refused", role: "alert" }, h("bdi", {}, line)));
  effects.records.forEach((record, i) => {
    parts.push(
      h("p", { class: "note" }, t("On {samples} texts of up to {tokens} tokens, at {target}, from query {burn} on; losses in nats per token, with 95% intervals over texts.", { samples: record.samples, tokens: fmt(record.settings.tokens), target: said(record, record.target), burn: record.settings.burn_in })),
      table({ caption: t("Acts in all heads at once"), name: `effects-${i}`, rows: record.rows.filter((row) => row.kind !== "untouched"), columns: [
        { head: t("act"), get: (r) => said(record, r.label), show: (r) => h("bdi", {}, r.kind === "control" ? t("{act}: its control, a random other key", { act: said(record, r.label) }) : said(record, r.label)), rowhead: true },
        ...cells("loss_change", t("loss change")), ...cells("over_control", t("over its control")).map((c) => ({ ...c, get: (r) => (r.kind === "control" ? null : c.get(r)), show: (r) => (r.kind === "control" ? DASH : c.show(r)) })), ...cells("kl", "KL"), ...cells("agreement", t("same top token"))] }),
      table({ caption: t("Heads evicted one by one"), name: `effects-heads-${i}`, rows: record.heads, empty: t("None: only the whole model was acted on."), columns: [
        { head: t("layer"), get: (r) => r.layer, num: true }, { head: t("head"), get: (r) => r.head, num: true }, { head: t("chosen"), get: (r) => t(r.chosen) },
        { head: t("estimate"), get: (r) => r.screened, num: true }, ...cells("loss_change", t("loss change")), ...cells("kl", "KL")] }));
  });
  el.replaceChildren(...parts);
}

/** The same for one head, on its page. */
export function evictionOfHead({ l, k, context }) {
  const record = context?.effects?.records.find((each) => each.heads.length || each.estimates.length);
  if (!record) return null;
  const measured = record.heads.find((each) => each.layer === l && each.head === k), estimate = record.estimates.find((each) => each.layer === l && each.head === k);
  return h("p", { class: "note" },
    measured ? t("Evicting the sink in this head alone changed the loss by {change} nats, measured on {samples} texts.", { change: interval(measured, "loss_change"), samples: record.samples }) : t("The sink was not evicted in this head alone."), " ",
    estimate ? t("First-order estimate of that: {value} nats.", { value: fmt(estimate.value) }) : "");
}
