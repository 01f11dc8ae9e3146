// The report's data, and the few questions every view asks of it.

import { el, fmt, interval, isNumber, own } from "./dom.js";
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
    ...info,
    key,
    label: info.label || key,
    short: info.short || info.label || key,
    definition: info.definition || "",
  };
}

export const cell = (id, key) => own(model(id).values, key) ?? null;

export const number = (id, key) => {
  const v = cell(id, key)?.v;
  return isNumber(v) ? v : null;
};

const SYMBOLS = { full: "square", retain: "diamond", unlearned: "circle", other: "circle-open" };

export const symbolOf = (role) => SYMBOLS[role] ?? "circle";

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

/** Everything known about one number, for hover and focus. */
export function valueTip(id, key) {
  const value = cell(id, key);
  const info = metric(key);
  return el(
    "div",
    {},
    el("h4", {}, info.label),
    el("p.tip-model", {}, modelName(id)),
    valueFacts(value),
    definition(info),
  );
}

function valueFacts(value) {
  if (!value) return el("p.missing", {}, "Not measured for this model.");
  const facts = [
    ["value", isNumber(value.v) ? String(value.v) : `none: ${value.reason || "no reason given"}`],
    [
      `${Math.round((report.level ?? 0.95) * 100)} % interval`,
      interval(value, 4) + (value.of ? ` (of ${value.of})` : ""),
    ],
    ["n", isNumber(value.n) ? fmt(value.n, 0) : ""],
    ["reading", value.reading],
    ["note", value.note],
    ["dialect", value.dialect],
    ["protocol", value.protocol],
    ["source", sourcePath(value.source)],
  ];
  return factList(facts);
}

export function factList(facts) {
  const rows = facts.filter(([, v]) => v !== null && v !== undefined && v !== "");
  return el(
    "dl.facts",
    {},
    rows.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, String(v))]),
  );
}

function definition(info) {
  return [
    info.definition && el("p.definition", {}, info.definition),
    info.formula && el("p", {}, el("code", {}, info.formula)),
    info.source && el("p.from", {}, info.source),
  ]
    .filter(Boolean)
    .reduce((box, part) => (box.append(part), box), el("div", {}));
}

export const metricTip = (key) => el("div", {}, el("h4", {}, metric(key).label), definition(metric(key)));

/** [key, label] pairs for a menu of metrics. */
export const metricOptions = (keys) => keys.map((key) => [key, metric(key).label]);
