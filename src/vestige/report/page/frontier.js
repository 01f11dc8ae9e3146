// Which looks at a training run are worth having: how much was forgotten against how much ability is left.
// Pure: no element is made here.

import { isNumber } from "./dom.js";
import { paretoFront } from "./order.js";

/** The looks that have both numbers. `closeness`: 1 as the retain model, 0 as before unlearning or as far beyond. */
export function placed(run) {
  return run.steps
    .map((step, i) => ({
      i, step, share: run.share?.[i], kept: run.kept?.[i], why: run.why?.[i] ?? "", best: step === run.best,
    }))
    .filter((p) => isNumber(p.share) && isNumber(p.kept))
    .map((p) => ({ ...p, closeness: Math.max(0, 1 - Math.abs(p.share)) }));
}

/** May a look be the best one? A look over-forgotten or ruined has no score, and `why` says so. */
export const allowed = (run, p) => p.step > 0 && isNumber(run.score?.[p.i]);

/** The looks that no other one beats in closeness and in what is kept, from least to most kept. */
export function frontier(run) {
  const points = placed(run).filter((p) => allowed(run, p));
  const front = paretoFront(
    points.map((p) => ({ x: p.kept, y: p.closeness })),
    "high",
    "high",
  );
  return front.map((i) => points[i]);
}

/** What a training run has been found to be, in a sentence. */
export function bestWords(run) {
  const i = run.steps.indexOf(run.best);
  if (run.best === null || run.best === undefined || i < 0) {
    const last = [...(run.why ?? [])].reverse().find(Boolean);
    return `No look may be the best one${last ? `: ${last}.` : "."}`;
  }
  const score = isNumber(run.score?.[i]) ? `, score ${run.score[i].toFixed(3)}` : "";
  return `The best look is that at step ${run.best}${score}.`;
}

/** Which star is which look, under a chart of some runs. */
export function starWords(runs) {
  const found = runs.filter((r) => isNumber(r.best));
  if (!found.length) return "";
  if (runs.length === 1) return `star: the best look (step ${found[0].best})`;
  return `stars: the best looks (${found.map((r) => `${r.name} step ${r.best}`).join(", ")})`;
}

/** The values that some runs have under `which` for a metric, each once, with the names of its runs. */
export function sharedValues(runs, which, key) {
  const found = new Map();
  for (const r of runs) {
    const value = r[which]?.[key];
    if (isNumber(value)) found.set(value, [...(found.get(value) ?? []), r.name]);
  }
  return [...found].map(([value, names]) => ({ value, names }));
}
