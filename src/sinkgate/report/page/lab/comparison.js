// One comparison: what can be said, the table with its intervals, the curves.

import { bdi, fill, h, segments, table, want } from "sinkgate/lib/dom.js";
import { swatch } from "sinkgate/lib/curves.js";
import { t } from "sinkgate/lib/language.js";
import { clean } from "sinkgate/lib/text.js";
import { logged } from "sinkgate/lab/data.js";
import { alongFigure, drawable, endLayersFigure, forestFigure, labelOf, layersFigure } from "sinkgate/lab/figures.js";

const HEADS = () => ({ arm: t("arm"), lr: t("learning rate"), "difference [95%]": t("difference [95% interval]"), told: t("finding"), spikes: t("loss spikes"),
  diverged: t("runs that diverged"), parameters: t("parameters"), time: t("time per step, × baseline") });
const minus = (text) => text.replace(/(^|[\s[(±])-(?=\d)/g, "$1−");

/** Build the parts that stay while curves come in; returns a function that draws them anew. */
export function comparison(el, shown, state) {
  const { payload } = shown, controls = h("div", { class: "lab-controls", id: "lab-controls" }), along = h("div", { class: "lab-figures", id: "lab-along" });
  const live = h("div", { id: "lab-pieces" });
  const parts = payload ? [verdict(payload), findings(shown), differences(shown, state)] : [];
  el.replaceChildren(...parts, h("section", { "aria-labelledby": "lab-along-h" }, h("h2", { id: "lab-along-h" }, t("Along the training")), controls, along), live, payload ? allRuns(shown) : null);
  for (const child of [...el.childNodes]) if (child.nodeType === 3) child.remove(); // what replaceChildren made of null
  let drawn = null, said = "";
  return (now) => {
    if (!shown.plan) { along.replaceChildren(h("p", { class: "empty" }, t("The run is starting: its plan is not written yet."))); return; }
    const view = viewOf(shown, now);
    chooseControls(controls, shown, view);
    if (payload) {
      const box = el.querySelector("#lab-differences .inside");
      if (box && drawn !== now.labdiff) { drawn = now.labdiff; box.replaceChildren(forestFigure(shown, among(now.labdiff, Object.keys(payload.differences), shown.plan.headline))); }
    } else live.replaceChildren(pieces(shown));
    const names = drawable(shown), fixed = [...new Set(["loss", shown.plan.headline === "loss" ? "held_out" : shown.plan.headline, "first_mass", "grad_norm"])].filter((name) => names.includes(name));
    const free = among(now.labnumber, names, names.find((name) => !fixed.includes(name)) ?? "");
    const signature = JSON.stringify([names, fixed, free, view, shown.pieces.map((piece) => [piece.spikes.length, Boolean(piece.diverged)])]);
    if (signature === said) { for (const box of along.querySelectorAll("figure")) box.repaint?.(); return; } // new points alone
    said = signature;
    const boxes = [...fixed.map((name) => alongFigure(shown, name, view)), layersFigure(shown, view.arm, view), ...["first_mass_by_layer", "max_activation_by_layer"].map((name) => endLayersFigure(shown, name, view)),
      free ? h("div", { class: "lab-free" }, picker("lab-number", t("Another number"), names.map((name) => [name, labelOf(shown, name)]), free, (labnumber) => want(el, { labnumber })), other(alongFigure(shown, free, view))) : null].filter(Boolean);
    const focused = document.activeElement?.id;
    along.replaceChildren(...(boxes.length ? boxes : [h("p", { class: "empty" }, t("Nothing is logged yet."))]));
    if (focused && document.activeElement?.id !== focused) el.querySelector(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
  };
}

/** The chosen number may be among the fixed ones, too: two figures, two names. */
const other = (box) => { box.id = "lab-other"; return box; };

const among = (text, choices, other) => (choices.includes(text) ? text : other);

/** What the address says of the view, checked against what is there. */
function viewOf(shown, state) {
  const { arms, seeds } = shown.plan, seed = seeds.map(String).indexOf(state.labseed ?? ""), arm = +(state.labarm ?? arms.length - 1);
  return { view: state.labview === "difference" && arms.length > 1 ? "difference" : "values", seed: seed < 0 ? null : seeds[seed], arm: Number.isInteger(arm) && arm >= 0 && arm < arms.length ? arm : 0,
    hidden: (state.labhide ?? "").split("-").filter(Boolean).map(Number).filter((i) => Number.isInteger(i) && i >= 0 && i < arms.length) };
}

function picker(id, label, choices, chosen, pick) {
  const select = h("select", { id, change: () => pick(select.value) }, choices.map(([value, text]) => fill(h("option", { value }, text), { selected: String(value) === String(chosen) }, [])));
  return h("div", { class: "lab-pick" }, h("label", { for: id }, label), select);
}

/** Made once, then only brought up to date: a reader may be using them while curves come in. */
function chooseControls(box, shown, view) {
  const layers = logged(shown).some((name) => /^first_mass_layer_/.test(name)), said = JSON.stringify([shown.plan.arms, shown.plan.seeds, view, layers, document.documentElement.lang]);
  if (box.dataset.said === said) return;
  box.dataset.said = said;
  const focused = document.activeElement, keep = box.contains(focused) ? focused.id || focused.value : null, { arms, seeds } = shown.plan;
  const views = h("fieldset", { class: "seg", id: "lab-view" }, h("legend", { class: "sr" }, t("What the curves show")));
  segments(views, "lab-view", [["values", t("values")], ["difference", t("paired differences")]], view.view, (labview) => want(box, { labview }));
  const shownArms = h("fieldset", { class: "lab-arms", id: "lab-arms" }, h("legend", {}, t("Arms")), arms.map((arm, i) =>
    h("label", {}, fill(h("input", { type: "checkbox", id: `lab-arm-${i}`, change: (event) => want(box, { labhide: (event.target.checked ? view.hidden.filter((k) => k !== i) : [...view.hidden, i]).sort().join("-") }) }), { checked: !view.hidden.includes(i) }, []), swatch(i), bdi(arm))));
  box.replaceChildren(shownArms, ...(arms.length > 1 ? [views] : []), picker("lab-seed", t("Seeds"), [["", t("all: mean, lowest to highest")], ...seeds.map((seed) => [seed, t("seed {n}", { n: seed })])], view.seed ?? "", (labseed) => want(box, { labseed })),
    ...(layers ? [picker("lab-arm", t("Layers of"), arms.map((arm, i) => [i, clean(arm)]), view.arm, (labarm) => want(box, { labarm }))] : []));
  if (keep) [...box.querySelectorAll("input, select")].find((el) => el.id === keep || el.value === keep)?.focus();
}

/** The record's own sentences. */
function verdict(payload) {
  const lines = payload.said.map(([sentence, values]) => minus(clean(t(sentence, values))));
  const few = payload.arms.length - 1;
  return h("div", { class: "lab-said" }, h("ul", { class: "verdict", id: "lab-verdict" }, (few ? lines.slice(0, few) : [t("One arm: there is nothing to compare it with.")]).map((line) => h("li", {}, h("bdi", {}, line)))),
    lines.length > few ? h("ul", { class: "notes", id: "lab-notes" }, lines.slice(few).map((line) => h("li", {}, h("bdi", {}, line)))) : null);
}

/** The record's own table. */
function findings(shown) {
  const { columns, rows } = shown.payload.table, heads = HEADS(), kept = columns.map((_, i) => i).filter((i) => rows.some((row) => row[i]));
  const column = (i) => ({ head: heads[columns[i]] ?? labelOf(shown, columns[i]), get: (row) => row[i], rowhead: i === 0, num: i > 0 && columns[i] !== "told",
    show: (row) => (i === 0 ? [swatch(rows.indexOf(row)), bdi(row[0])] : columns[i] === "told" ? t(row[i]) : row[i] ? minus(clean(row[i])) : "—") });
  return h("section", { "aria-labelledby": "lab-table-h" }, h("h2", { id: "lab-table-h" }, t("In numbers")), h("div", { id: "lab-table" }, table({ caption: t("Each arm at its best learning rate: mean ± half the 95% interval over seeds"), name: "comparison", columns: kept.map(column), rows })),
    h("p", { class: "note" }, t("Intervals are Student's, 95%, over {n} seeds; differences are paired by seed. Same task, seeds, steps, order of the data and start of what arms have in common.", { n: shown.plan.seeds.length })));
}

function differences(shown, state) {
  const names = Object.keys(shown.payload.differences);
  if (shown.plan.arms.length < 2 || !names.length) return null;
  const box = h("section", { id: "lab-differences", "aria-labelledby": "lab-differences-h" }, h("h2", { id: "lab-differences-h" }, t("Differences from the baseline")));
  box.append(picker("lab-diff", t("Of"), names.map((name) => [name, labelOf(shown, name)]), among(state.labdiff, names, shown.plan.headline), (labdiff) => want(box, { labdiff })), h("div", { class: "inside" }));
  return box;
}

function allRuns(shown) {
  const { runs, headline } = shown.payload, label = labelOf(shown, headline);
  return h("details", { class: "more", id: "lab-runs-of" }, h("summary", {}, t("All {n} runs of this comparison", { n: runs.length })), table({ caption: t("Every run"), name: "comparison runs", rows: runs, columns: [
    { head: t("arm"), get: (row) => shown.plan.arms[row.arm], show: (row) => [swatch(row.arm), bdi(shown.plan.arms[row.arm])], rowhead: true },
    { head: t("learning rate"), num: true, get: (row) => row.lr }, { head: t("seed"), num: true, get: (row) => row.seed }, { head: t("steps"), num: true, get: (row) => row.steps },
    { head: t("{what}, choosing", { what: label }), num: true, get: (row) => row.select }, { head: t("{what}, reported", { what: label }), num: true, get: (row) => row.test },
    { head: t("spikes"), num: true, get: (row) => row.spikes }, { head: t("diverged"), wide: true, get: (row) => (row.diverged ? t("at step {n}: {why}", { n: row.diverged.step ?? "?", why: row.diverged.why }) : ""), show: (row) => (row.diverged ? bdi(t("at step {n}: {why}", { n: row.diverged.step ?? "?", why: row.diverged.why })) : "—") },
  ] }));
}

/** Where each piece of a run that is under way stands. No intervals: they are the record's, when all pieces have ended. */
function pieces(shown) {
  const last = (piece, name) => piece.series[name]?.y.at(-1) ?? null, has = (name) => shown.pieces.some((piece) => piece.series[name]);
  return h("section", { "aria-labelledby": "lab-pieces-h" }, h("h2", { id: "lab-pieces-h" }, t("So far")), table({ caption: t("Every piece, as last logged; intervals come when all have ended"), name: "run pieces", rows: shown.pieces, columns: [
    { head: t("arm"), get: (piece) => shown.plan.arms[piece.arm], show: (piece) => [swatch(piece.arm), bdi(shown.plan.arms[piece.arm])], rowhead: true },
    { head: t("seed"), num: true, get: (piece) => piece.seed }, { head: t("step"), num: true, get: (piece) => piece.step ?? null },
    ...["loss", shown.plan.headline, "first_mass"].filter((name, i, all) => has(name) && all.indexOf(name) === i).map((name) => ({ head: labelOf(shown, name), num: true, get: (piece) => last(piece, name) })),
    { head: t("spikes"), num: true, get: (piece) => piece.spikes.length },
    { head: t("state"), get: (piece) => (piece.diverged ? t("diverged") : piece.ended ? t("ended") : piece.step === undefined || piece.step === null ? t("waits") : t("trains")) },
  ] }));
}

