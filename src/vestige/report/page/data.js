// The report's data, and the few questions every view asks of it.

import { el, fmt, interval, isNumber, named, own } from "./dom.js";
import { colours } from "./theme.js";

export const report = JSON.parse(document.getElementById("report-data").textContent);

const models = new Map(report.models.map((m) => [m.id, m]));
const sources = new Map(report.sources.map((s) => [s.id, s]));

export const model = (id) =>
  models.get(id) ?? { id, name: String(id ?? "?"), role: "other", values: {}, settings: {}, provenance: {} };

export const modelName = (id) => model(id).name;

export const hasModel = (id) => models.has(id);

export const sourcePath = (id) => sources.get(id)?.path ?? "";

export function metric(key) {
  const info = own(report.metrics, key) ?? {};
  return {
    ...info, key, label: info.label || key, title: info.title || "", short: info.short || info.label || key,
    definition: info.definition || "",
  };
}

export const cell = (id, key) => own(model(id).values, key) ?? null;

export const number = (id, key) => {
  const v = cell(id, key)?.v;
  return isNumber(v) ? v : null;
};

const audits = new Map((report.audits ?? []).map((a) => [a.model, a]));
const retains = report.models.filter((m) => m.role === "retain");

export const auditOf = (id) => audits.get(id) ?? null;

export const isReference = (m) => m.role === "full" || m.role === "retain";

/** The retain model a model is held against: its audit's, else the only one there is. */
export const retainOf = (id) => audits.get(id)?.retain ?? (retains.length === 1 ? retains[0].id : null);

/** Is the aim of a metric the retain model's value? Of those that tell what is known, it is: low is not good in itself. */
export const aimsAtRetain = (key) => {
  const { knows, group } = metric(key);
  return group !== "part" && group !== "axis" && (Boolean(knows) || group === "membership");
};

/** How good a model's number is: high is good, null where that is unknown. */
export function goodness(id, key) {
  const v = number(id, key);
  if (v === null) return null;
  if (aimsAtRetain(key)) {
    const aim = number(retainOf(id), key);
    return aim === null ? null : -Math.abs(v - aim);
  }
  const { better } = metric(key);
  return better === "high" ? v : better === "low" ? -v : null;
}

/** What good means for a metric, in words; empty where nothing does. */
export const goodWords = (key) =>
  aimsAtRetain(key)
    ? "near the retain model is good"
    : ({ high: "high is good", low: "low is good" }[metric(key).better] ?? "");

export function roleColour(role) {
  const c = colours();
  return { full: c.red, retain: c.green, unlearned: c.blue }[role] ?? c.grey;
}

const setting = (v) =>
  isNumber(v) && v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential().replace("e-0", "e-") : String(v);

export function settingsText(m) {
  return Object.entries(m.settings ?? {})
    .filter(([, v]) => v !== null && v !== "")
    .map(([k, v]) => `${k} ${setting(v)}`)
    .join(", ");
}

/** What a metric is, for hover and focus; with a model everything known about its number. */
function explain(key, name, facts) {
  const { title, label, definition, formula, source } = metric(key);
  return el(
    "div",
    el("h4", title || label),
    el("p.tip-model", [title ? label : "", name].filter(Boolean).join(", ")),
    facts,
    definition && el("p.definition", definition),
    formula && el("p", el("code", formula)),
    source && el("p.from", source),
  );
}

export const metricTip = (key) => explain(key, "", null);

export function valueTip(id, key) {
  const value = cell(id, key);
  if (!value) return explain(key, modelName(id), el("p.missing", "Not measured for this model."));
  const level = Math.round((report.level ?? 0.95) * 100);
  const facts = [
    ["value", isNumber(value.v) ? String(value.v) : `none: ${value.reason || "no reason given"}`],
    [`${level} % interval`, interval(value, 4) + (value.of ? ` (of ${value.of})` : "")],
    ["n", isNumber(value.n) ? fmt(value.n, 0) : ""],
    ...["reading", "note", "dialect", "protocol"].map((name) => [name, value[name]]),
    ["source", sourcePath(value.source)],
  ];
  return explain(key, modelName(id), factList(facts));
}

export function factList(facts) {
  const known = facts.filter(([, v]) => v !== null && v !== undefined && v !== "");
  const lines = known.flatMap(([name, v]) => [el("dt", name), el("dd", String(v))]);
  return el("dl.facts", lines);
}

/** A metric's plain title with its technical name beside it; the name alone where nothing else is known. */
export function titled(key) {
  const { title, label } = metric(key);
  return title ? [title, " ", el("span.technical", named(label))] : named(label);
}

/** The same as one line of text. */
export const titledText = (key) =>
  metric(key).title ? `${metric(key).title} (${metric(key).label})` : metric(key).label;

/** [key, label] pairs for a menu of metrics. */
export const metricOptions = (keys) => keys.map((key) => [key, titledText(key)]);
