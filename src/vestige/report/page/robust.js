// Robustness of a metric, as vestige/meta/robustness.py computes it. A test runs both on the same numbers.

import { isNumber, own } from "./dom.js";

const EPS = 1e-12;

/** 1 when two numbers are equal (two zeros are), 0 when they have nothing in common. */
export const likeness = (a, b) => 1 - Math.min(1, Math.abs(a - b) / (Math.abs(a) + Math.abs(b) + EPS));

export function oneSidedQ(before, after) {
  if (after <= before) return 1;
  return before < 0 ? null : before / after;
}

export const oneSidedR = (change, retainChange) => (change <= 0 ? 1 : Math.min(Math.max(retainChange, 0) / change, 1));

const RULES = {
  symmetric: { quantization: likeness, relearning: likeness },
  "one-sided": { quantization: oneSidedQ, relearning: oneSidedR },
};

/** The harmonic mean of two numbers; 0 when one of them is 0, none when one is missing. */
export function harmonic(a, b) {
  if (!isNumber(a) || !isNumber(b)) return null;
  return a <= 0 || b <= 0 ? 0 : 2 / (1 / a + 1 / b);
}

/** Why a model is left out; empty when it is kept. filters: {utility: {name: x} or null, least, threshold}. */
export function whyNot(name, m, filters) {
  if (filters.utility) {
    const useful = own(filters.utility, name);
    if (!isNumber(useful)) return "no utility_rel";
    if (useful < filters.least) return `utility_rel below ${filters.least}`;
  }
  if (!isNumber(m)) return "no value before the attack";
  if (isNumber(filters.threshold) && m > filters.threshold)
    return "above the threshold: it still looks like a model that knows";
  return "";
}

function ofModel(state, retain, rule) {
  const { before, relearning, quantization } = state;
  const q = isNumber(before) && isNumber(quantization) ? rule.quantization(before, quantization) : null;
  const measured = [before, relearning, retain?.before, retain?.relearning].every(isNumber);
  const r = measured ? rule.relearning(relearning - before, retain.relearning - retain.before) : null;
  return { r, q };
}

function mean(values) {
  const known = values.filter(isNumber);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

/**
 * R, Q and their harmonic mean over the models that pass. `states`: {retain, models}; `judged`: name -> m, when another
 * metric's values choose the models.
 */
export function robustness(states, ruleName, filters, judged = null) {
  const rule = RULES[ruleName] ?? RULES.symmetric;
  const each = states.models.map((s) => ({
    ...s,
    why: whyNot(s.model, judged ? judged.get(s.model) : s.before, filters),
  }));
  const kept = each.filter((s) => !s.why);
  const scored = kept.map((s) => ofModel(s, states.retain, rule));
  const r = mean(scored.map((s) => s.r));
  const q = mean(scored.map((s) => s.q));
  const unknown = r === null && ![states.retain?.before, states.retain?.relearning].every(isNumber);
  const gone = r === null ? "relearning" : q === null ? "quantization" : "";
  let reason = gone && `no kept model has a value after ${gone}`;
  if (unknown) reason = "the retain model was not measured before and after relearning";
  if (!kept.length) reason = "no model passes the filters";
  return { each, n: kept.length, total: each.length, r, q, agg: harmonic(r, q), reason };
}

/** The live state of every metric in the meta-evaluation. `setting`: {rule, least, useThreshold, thresholds: Map}. */
export function live(meta, setting) {
  const utility = meta.utility && Object.keys(meta.utility).length ? meta.utility : null;
  const byKey = new Map(meta.metrics.map((m) => [m.key, m]));
  const found = new Map();
  for (const m of meta.metrics) {
    const states = own(meta.states, m.key);
    if (!states) continue;
    const judge = byKey.get(m.filtered_by) ?? m;
    const judges = judge === m ? null : own(meta.states, judge.key);
    const judged = judges ? new Map(judges.models.map((s) => [s.model, s.before])) : null;
    const threshold = setting.useThreshold ? (setting.thresholds.get(judge.key) ?? judge.threshold_m ?? null) : null;
    found.set(m.key, robustness(states, setting.rule, { utility, least: setting.least, threshold }, judged));
  }
  return found;
}
