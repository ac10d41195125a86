// Page 4: runs of the lab with their curves as they come, and stored comparisons drawn the same way.

import { bdi, fill, h, want } from "sinkgate/lib/dom.js";
import { language, t } from "sinkgate/lib/language.js";
import { comparison } from "sinkgate/lab/comparison.js";
import { fromPayload, fromRun, take } from "sinkgate/lab/data.js";
import { isLive, runsSection } from "sinkgate/lab/runs.js";
import "sinkgate/lab/zh.js";

const KEYS = ["lab", "labview", "labseed", "labarm", "labhide", "labnumber", "labdiff"];
const SHOWN = /^(record\.[\w-]{1,40}|run\.\d{8}-\d{6}-[0-9a-f]{6})$/;
const LISTED = 2000, READ = 1000; // ms between questions for the list, and for curves

let parts = null, shown = null, paint = null, runs = [], timer = 0, turn = 0;

function build(el, context) {
  turn += 1;
  clearTimeout(timer);
  [shown, paint, runs] = [null, null, []];
  const section = runsSection(context, {
    start: async (asked) => { const run = await context.server.post("api/lab/runs", asked); await list(context); want(el, { lab: `run.${run.id}` }); },
    change: async (id, act) => { await context.server.post(`api/lab/runs/${id}/${act}`, {}); await list(context); if (shown?.run?.id === id) open(context, context.state()); },
  });
  const choose = h("div", { class: "lab-pick", id: "lab-choose" }), body = h("div", { id: "lab-body" }), status = h("p", { class: "refused", id: "lab-status", role: "status", hidden: true });
  parts = { section, choose, body, status, chosen: "" };
  el.replaceChildren(h("div", { class: "opening" }, h("h1", {}, t("Lab")), h("p", { class: "note" }, t("Arms are trained side by side: the same task, seeds, steps, data and start. What differs is drawn, with its interval; what cannot be told apart is called so."))),
    section.box, h("section", { id: "lab-shown", "aria-labelledby": "lab-shown-h" }, h("h2", { id: "lab-shown-h", tabindex: -1 }, t("Comparison")), choose, status, body));
  if (context.server) list(context);
}

/** Ask for the runs now, and again while the page is here. */
async function list(context) {
  const mine = turn;
  clearTimeout(timer);
  try {
    const said = await context.server.get("api/lab/runs");
    if (mine !== turn) return;
    runs = said.runs;
    parts.section.update(runs, context.state().lab);
    chooser(context, context.state());
    const state = context.state();
    if (!state.lab && first(context)) want(parts.body, { lab: first(context) });
  } catch (error) { if (mine === turn) parts.section.complain(error.message); }
  if (mine === turn) { clearTimeout(timer); timer = setTimeout(() => list(context), LISTED); }
}

const choices = (context) => [...context.of("comparison").map((entry) => [`record.${entry.id}`, entry.name]), ...runs.filter((run) => run.task).map((run) => [`run.${run.id}`, `${run.id} · ${run.task}: ${run.arms.join(", ")}`])];
const first = (context) => choices(context)[0]?.[0] ?? "";

function chooser(context, state) {
  const all = choices(context), said = JSON.stringify([all, state.lab, language()]);
  if (parts.chosen === said) return;
  parts.chosen = said;
  const select = h("select", { id: "lab-select", change: () => want(select, { lab: select.value }) }, all.map(([value, label]) => fill(h("option", { value }, bdi(label)), { selected: value === state.lab }, [])));
  const focused = document.activeElement?.id === "lab-select";
  parts.choose.replaceChildren(...(all.length ? [h("label", { for: "lab-select" }, t("Shown")), select] : [h("p", { class: "empty" }, context.server ? t("Nothing to show yet: start a comparison above.") : t("No comparison is stored in this file. sinkgate compare writes one; sinkgate studio DIR shows it here."))]));
  if (focused) parts.choose.querySelector("select")?.focus();
}

const say = (text) => { parts.status.hidden = !text; parts.status.textContent = text ?? ""; };

/** Bring what the state asks for onto the page. */
async function open(context, state) {
  const mine = ++turn, { lab } = state;
  shown = paint = null;
  parts.body.replaceChildren();
  parts.body.dataset.shown = "";
  say(null);
  if (context.server) { clearTimeout(timer); timer = setTimeout(() => list(context), LISTED); }
  if (!lab) return;
  const [kind, id] = [lab.slice(0, lab.indexOf(".")), lab.slice(lab.indexOf(".") + 1)];
  try {
    if (kind === "record") {
      const entry = context.of("comparison").find((each) => each.id === id);
      if (!entry) { say(t("There is no comparison {id} here.", { id: lab })); return; }
      if (entry.payload) return present(fromPayload(lab, entry.payload), context);
      const payload = await context.load(entry);
      if (mine === turn) present(fromPayload(lab, payload), context);
    } else if (!context.server) say(t("Runs are shown by the server that started them: sinkgate studio DIR"));
    else await follow(context, id, mine);
  } catch (error) { if (mine === turn) say(error.message); }
}

function present(found, context) {
  shown = found;
  paint = comparison(parts.body, shown, context.state());
  paint(context.state());
  parts.body.dataset.shown = shown.id;
  parts.body.dataset.state = shown.run?.state ?? "done";
}

/** A run: its curves as they come; when it is done, its record. */
async function follow(context, id, mine) {
  const lab = `run.${id}`;
  let found = null;
  for (;;) {
    const answer = await context.server.get(`api/lab/runs/${id}/curves${found?.next ? `?after=${encodeURIComponent(found.next)}` : ""}`);
    if (mine !== turn) return;
    if (answer.run.state === "done") {
      const payload = await context.server.get(`api/lab/runs/${id}/record`);
      if (mine === turn) present({ ...fromPayload(lab, payload), run: answer.run }, context);
      return;
    }
    const begins = !found;
    found ??= fromRun(lab, answer.run);
    take(found, answer);
    if (begins || found.plan && !shown?.plan) present(found, context);
    else if (answer.pieces.some((piece) => piece.step !== null || piece.reset)) paint(context.state());
    parts.body.dataset.state = answer.run.state;
    if (!isLive(answer.run)) say(answer.run.error ?? (answer.run.state === "stopped" ? t("This run was stopped; resume it above.") : null));
    if (!isLive(answer.run) && !answer.more) return;
    await new Promise((done) => setTimeout(done, answer.more ? 0 : READ));
    if (mine !== turn) return;
  }
}

export const lab = {
  id: "lab",
  title: () => t("Lab"),
  keys: KEYS,

  read(asked, context) {
    const text = (key, pattern) => (pattern.test(asked.get(key) ?? "") ? asked.get(key) : "");
    return { lab: text("lab", SHOWN) || first(context), labview: text("labview", /^difference$/), labseed: text("labseed", /^\d{1,9}$/), labarm: text("labarm", /^\d{1,3}$/), labhide: text("labhide", /^\d{1,3}(-\d{1,3})*$/),
      labnumber: text("labnumber", /^\w{1,60}$/), labdiff: text("labdiff", /^\w{1,60}$/) };
  },

  build(el, context) { build(el, context); },

  draw(el, context, state) {
    chooser(context, state);
    parts.section.update(runs, state.lab);
    if (parts.opened !== state.lab) { parts.opened = state.lab; open(context, state); } else paint?.(state);
  },

  leave() { turn += 1; clearTimeout(timer); },
};
