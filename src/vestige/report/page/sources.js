// Where every number comes from: files, problems, definitions, formulas, models.

import { count, el, fmt, panel, replace, searchBox, unique } from "./dom.js";
import { factList, metric, modelName, report, settingsText } from "./data.js";
import * as state from "./state.js";
import { savedTable } from "./table.js";

export function sourcesView(root) {
  const facts = factList([
    ["made", report.made], ["vestige", report.vestige], ["format", report.schema],
    ["protocols", (report.protocols ?? []).join("; ")], ["interval level", fmt(report.level ?? 0.95, 2)],
  ]);
  return replace(root, el("h1", "Sources"), facts, problems(), sources(), axes(), definitions(), models());
}

function problems() {
  const list = report.problems ?? [];
  const item = (p) => el("li", p.text, p.where ? el("span.soft", ` (${p.where})`) : null);
  const none = () => el("p", "None: everything that was given could be read.");
  return panel("Problems", list.length ? el("ul.problems", list.map(item)) : none());
}

function sources() {
  const facts = (s) => Object.entries(s.facts ?? {}).map(([k, v]) => `${k} ${v}`);
  const named = (ids) => (ids.length > 4 ? count(ids.length, "model") : ids.map(modelName).join(", "));
  const row = (s) => {
    const files = [(s.files ?? []).length, (s.sha256 ?? "").slice(0, 12)];
    return [s.path, s.kind, named(s.models ?? []), ...files, facts(s).join("; ")];
  };
  const columns = ["path", "kind", "models", "files", "sha256", "facts"];
  const sheet = { columns, rows: report.sources.map(row) };
  return panel("Files", savedTable("sources", "What the report was made from", sheet));
}

function axes() {
  const { definitions: list = [], floor_words: floor } = report.axes ?? {};
  if (!list.length) return null;
  const words = (a) => el("dd", el("code", a.formula), a.words ? el("p.soft", a.words) : null);
  const all = list.flatMap((a) => [el("dt", a.label), words(a)]);
  return panel("Formulas of the axes", el("dl.definitions", all), floor ? el("p", floor) : null);
}

function definitions() {
  const keys = Object.keys(report.metrics);
  const place = el("dl.definitions");
  const textOf = (key) => `${key} ${metric(key).label} ${metric(key).definition}`.toLowerCase();
  const fill = (words) => {
    const shown = keys.filter((key) => textOf(key).includes(words.toLowerCase()));
    replace(place, shown.flatMap(defined));
  };
  fill(state.get("q.def"));
  const search = searchBox("Search definitions", state.get("q.def"), (v) => {
    state.set({ "q.def": v });
    fill(v);
  });
  return panel("Definitions", el("div.controls", search), place);
}

const ENDS = {
  high: "a high value means that the model still knows", low: "a low value means that the model still knows",
  one: "near 1 means that the model still knows", half: "away from 0.5 means that the model still knows",
};

function defined(key) {
  const m = metric(key);
  const about = el("p.soft", [m.group, ENDS[m.knows], m.source].filter(Boolean).join("; "));
  const formula = m.formula ? el("code", m.formula) : null;
  const name = m.label === key ? key : `${m.label} (${key})`;
  return [el("dt", name), el("dd", el("p.definition", m.definition), formula, about)];
}

function models() {
  const names = unique(report.models.flatMap((m) => Object.keys(m.provenance ?? {})));
  const row = (m) => {
    const facts = names.map((name) => m.provenance?.[name] ?? null);
    return [m.name, m.role, m.method, m.epoch, settingsText(m), ...facts];
  };
  const sheet = { columns: ["model", "role", "method", "epoch", "settings", ...names], rows: report.models.map(row) };
  return panel("Models", savedTable("provenance", "Provenance of the models", sheet, 100));
}
