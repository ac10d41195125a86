// What a model recalls of a text under bounded caches, by the distance of the fact: from its record.

import { lines } from "sinkgate/lib/charts.js";
import { bdi, h, table } from "sinkgate/lib/dom.js";
import { t } from "sinkgate/lib/language.js";
import { DASH, clean, fmt, percent } from "sinkgate/lib/text.js";
import { ARMS, armNames } from "sinkgate/stream/curves.js";

/** Outcomes of one arm and kind of question, by column of distance: {n, right, chance}. */
export function cells(run, arm, kind) {
  const edges = [0, ...run.meta.edges], found = new Map();
  for (const o of arm.result.outcomes) {
    if (o.kind !== kind) continue;
    const i = edges.findLastIndex((edge) => edge <= o.distance), cell = found.get(i) ?? { n: 0, right: 0, chance: 0 };
    found.set(i, { n: cell.n + 1, right: cell.right + (o.right ? 1 : 0), chance: cell.chance + o.chance });
  }
  return found;
}

export function recallCurves(run, name) {
  const kinds = [...new Set(run.arms.flatMap((arm) => arm.result.outcomes.map((o) => o.kind)))], names = armNames(run.arms);
  const edges = [0, ...run.meta.edges], spoken = (i) => (i + 1 < edges.length ? `${edges[i]}–${edges[i + 1] - 1}` : `${edges[i]}–`), about = clean(run.meta.model.name);
  if (!kinds.length) return h("p", { class: "empty" }, t("No question was answered."));
  return h("div", { class: "curves" }, kinds.map((kind) => {
    const per = run.arms.map((arm) => cells(run, arm, kind)), columns = [...new Set(per.flatMap((found) => [...found.keys()]))].sort((a, b) => a - b);
    const guess = columns.map((i) => { const all = per.map((found) => found.get(i)).filter(Boolean); return all.reduce((a, c) => a + c.chance, 0) / all.reduce((a, c) => a + c.n, 0); });
    const series = [...per.map((found, i) => ({ name: names[i], cls: `c-arm${i % ARMS}`, y: columns.map((c) => (found.has(c) ? found.get(c).right / found.get(c).n : null)) })),
      { name: t("guessing"), cls: "c-null", y: guess }];
    const window = run.arms.map((arm) => arm.result.window).find((w) => w !== null && w !== undefined);
    return [
      lines(t("Answers that are right: {kind}", { kind: clean(kind) }), `${name}-${kind}`, about, { x: columns.map((_, i) => i), xnames: columns.map(spoken), xlabel: t("tokens between the fact and its question"), xname: t("distance"),
        ylabel: t("answered exactly"), ylo: 0, yhi: 1, yfmt: percent, ytick: (v) => `${Math.round(100 * v)}%`, series },
      window ? t("The window holds {n} tokens: a fact further back is gone.", { n: fmt(window) }) : null),
      table({ caption: t("Right, of how many: {kind}", { kind: clean(kind) }), name: `${name}-${kind}-table`, rows: per.map((found, i) => ({ found, i })), columns: [
        { head: t("cache"), get: (r) => names[r.i], show: (r) => bdi(names[r.i]), rowhead: true },
        ...columns.map((c) => ({ head: spoken(c), get: (r) => (r.found.has(c) ? `${r.found.get(c).right}/${r.found.get(c).n}` : ""), show: (r) => (r.found.has(c) ? `${r.found.get(c).right}/${r.found.get(c).n}` : DASH), num: true }))] })];
  }));
}
