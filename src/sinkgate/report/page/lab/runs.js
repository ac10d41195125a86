// The runs of the lab: a form that starts a small comparison, and the list with its buttons. In a file there is no
// server: the form composes the command instead.

import { bdi, fill, h, want } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { DASH, clean, fmt } from "sinkgate/lib/text.js";

const ARMS = "softmax, softmax + g1";
/** What the studio takes; a test holds it to sinkgate/studio/orders.py. */
export const LIMITS = { tasks: { backcopy: { least: 20, most: 3000, usual: 500 }, trigger: { least: 20, most: 5000, usual: 1000 }, text: { least: 20, most: 600, usual: 200 } }, seeds: 5, arms: 6, at_once: 2 };
const TASKS = () => ({ backcopy: t("backcopy: bigrams, and a copy behind triggers"), trigger: t("trigger: the mean of what came before, at one token"), text: t("text: next token of real text (preset tiny)") });

export const STATES = () => ({ starting: t("starting"), running: t("running"), stopping: t("stopping"), stopped: t("stopped"), done: t("done"), failed: t("failed") });
export const isLive = (run) => ["starting", "running", "stopping"].includes(run?.state);

/** The section; its `update(list)` shows what the server said of its runs. */
export function runsSection(context, { start, change }) {
  const { server } = context, limits = LIMITS;
  const task = h("select", { id: "lab-task", change: () => { budget.value = limits.tasks[task.value].usual; bound(); compose(); } }, Object.entries(TASKS()).map(([id, label]) => h("option", { value: id }, label)));
  const arms = h("input", { type: "text", id: "lab-arms-asked", value: ARMS, maxlength: 400, autocomplete: "off", spellcheck: "false", "aria-describedby": "lab-arms-help", input: () => compose() });
  const seeds = h("input", { type: "number", id: "lab-seeds-asked", min: 1, max: limits.seeds, value: 3, input: () => compose() }), budget = h("input", { type: "number", id: "lab-budget", step: 1, input: () => compose() });
  const command = h("code", { id: "lab-command" }), refused = h("p", { class: "refused", id: "lab-refused", role: "alert", hidden: true });
  const go = fill(h("button", { type: "submit", id: "lab-start", class: "go" }, t("Start")), { disabled: !server }, []);
  const list = h("ul", { class: "lab-list", id: "lab-list" }), empty = h("p", { class: "empty" }, t("No runs yet."));
  const asked = () => ({ task: task.value, arms: arms.value, seeds: Number(seeds.value || NaN), budget: Number(budget.value || NaN) });
  const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);
  const bound = () => { const { least, most } = limits.tasks[task.value]; budget.min = least; budget.max = most; };
  const compose = () => {
    const { task: name, arms: list_, seeds: n, budget: steps } = asked();
    command.textContent = clean(["sinkgate compare --task", name, ...(name === "text" ? ["--preset tiny"] : []), "--arms", quote(list_), "--seeds", n, "--budget", steps, "--out", `runs/${name}`].join(" "));
  };
  budget.value = limits.tasks[task.value].usual;
  bound();
  compose();
  const form = h("form", { id: "lab-form", novalidate: true, submit: async (event) => {
    event.preventDefault();
    if (!server || go.disabled) return;
    go.disabled = true;
    complain(null);
    try { await start(asked()); } catch (error) { complain(error.message); }
    go.disabled = false;
  } },
  field("lab-task", t("Task"), task), field("lab-arms-asked", t("Arms, the first one the baseline"), arms), field("lab-seeds-asked", t("Seeds"), seeds), field("lab-budget", t("Steps of each run"), budget), go);
  const complain = (text) => { refused.hidden = !text; refused.textContent = clean(text ?? ""); };
  const note = server ? t("Runs go on when the page or the server is closed; {n} at once. What would run:", { n: limits.at_once })
    : t("A file cannot start anything. This command trains the same in a terminal; sinkgate studio DIR serves these pages with the buttons working:");
  const box = h("section", { id: "lab-runs", "aria-labelledby": "lab-runs-h" }, h("h2", { id: "lab-runs-h" }, t("Train a small comparison")), form,
    h("p", { class: "note", id: "lab-arms-help" }, t("An arm is a weighting (softmax, sink_softmax, softpick, sigmoid, …) and what is added to it: + g1, + window(32), + keep(4), + sink_token, + head_norm. At most {n} arms.", { n: limits.arms })),
    h("p", { class: "note" }, note), h("p", {}, command), refused, server ? [h("h3", {}, t("Runs")), empty, list] : null);
  const rows = new Map();
  return {
    box, complain,
    update(runs, chosen) {
      empty.hidden = runs.length > 0;
      const ids = new Set(runs.map((run) => run.id));
      for (const [id, row] of rows) if (!ids.has(id)) { row.box.remove(); rows.delete(id); }
      runs.forEach((run, i) => {
        if (!rows.has(run.id)) rows.set(run.id, item(run, change, complain));
        const row = rows.get(run.id);
        row.show(run, chosen === `run.${run.id}`);
        if (list.children[i] !== row.box) list.insertBefore(row.box, list.children[i] ?? null);
      });
    },
  };
}

const field = (id, label, control) => h("div", { class: "lab-field" }, h("label", { for: id }, label), control);

/** One run of the list: what it is, how far it is, what can be done with it. */
function item(run, change, complain) {
  const state = h("span", { class: "chip" }), far = h("span", { class: "muted" }), error = h("p", { class: "lab-error", hidden: true }), bar = h("progress", { max: 1, value: 0, "aria-label": t("Progress of {id}", { id: run.id }) });
  const act = (name, label) => h("button", { type: "button", "data-act": name, "aria-label": t("{act} run {id}", { act: label, id: run.id }), click: async (event) => {
    event.target.disabled = true;
    complain(null);
    try { await change(run.id, name); } catch (err) { complain(err.message); }
    event.target.disabled = false;
  } }, label);
  const [show, stop, resume] = [h("button", { type: "button", "data-act": "show", "aria-label": t("{act} run {id}", { act: t("Show"), id: run.id }), click: (event) => want(event.target, { lab: `run.${run.id}` }) }, t("Show")), act("stop", t("Stop")), act("resume", t("Resume"))];
  const box = h("li", { "data-run": run.id }, h("div", { class: "lab-what" }, h("code", {}, run.id), state, h("span", {}, run.task ? [`${run.task}: `, bdi(run.arms.join(", "))] : DASH), far), bar, h("div", { class: "lab-acts" }, show, stop, resume), error);
  return { box, show(now, chosen) {
    const p = now.progress;
    state.textContent = STATES()[now.state] ?? clean(now.state);
    box.dataset.state = now.state;
    far.textContent = p ? t("{made} of {steps} steps, {ended} of {pieces} pieces", { made: fmt(p.made), steps: fmt(p.steps), ended: p.ended, pieces: p.pieces }) : "";
    bar.value = p && p.steps ? (now.state === "done" ? 1 : p.made / p.steps) : 0;
    stop.hidden = !isLive(now);
    resume.hidden = !["stopped", "failed"].includes(now.state) || !now.task;
    show.hidden = !now.task;
    show.setAttribute("aria-pressed", String(chosen));
    error.hidden = !now.error;
    error.textContent = clean(now.error ?? "");
  } };
}
