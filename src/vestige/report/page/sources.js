// Where every number comes from: files, problems, definitions, formulas, models.

import { count, el, fmt, replace, searchBox } from "./dom.js";
import { factList, metric, modelName, report, settingsText } from "./data.js";
import { saveButtons } from "./save.js";
import { plainTable } from "./sheet.js";
import * as state from "./state.js";

export function sourcesView(root) {
  const facts = factList([
    ["made", report.made],
    ["vestige", report.vestige],
    ["format", report.schema],
    ["protocols", (report.protocols ?? []).join("; ")],
    ["interval level", fmt(report.level ?? 0.95, 2)],
  ]);
  return replace(root, el("h1", "Sources"), facts, problems(), sources(), axes(), definitions(), models());
}

const section = (title, ...parts) => el("section.panel", el("h2", title), ...parts);

function problems() {
  const list = report.problems ?? [];
  const item = (p) => el("li", p.text, p.where ? el("span.soft", ` (${p.where})`) : null);
  return section(
    "Problems",
    list.length ? el("ul.problems", list.map(item)) : el("p", "None: everything that was given could be read."),
  );
}

function sources() {
  const columns = ["path", "kind", "models", "files", "sha256", "facts"];
  const facts = (s) =>
    Object.entries(s.facts ?? {})
      .map(([k, v]) => `${k} ${v}`)
      .join("; ");
  const named = (s) =>
    (s.models ?? []).length > 4 ? count(s.models.length, "model") : (s.models ?? []).map(modelName).join(", ");
  const rows = report.sources.map((s) => [
    s.path,
    s.kind,
    named(s),
    (s.files ?? []).length,
    (s.sha256 ?? "").slice(0, 12),
    facts(s),
  ]);
  return section(
    "Files",
    plainTable("What the report was made from", { columns, rows }),
    el("div.table-tools", ...saveButtons("sources", () => ({ columns, rows }))),
  );
}

function axes() {
  const list = report.axes?.definitions ?? [];
  if (!list.length) return null;
  const one = (a) => [el("dt", a.label), el("dd", el("code", a.formula), a.words ? el("p.soft", a.words) : null)];
  return section(
    "Formulas of the axes",
    el("dl.definitions", list.flatMap(one)),
    report.axes.floor_words ? el("p", report.axes.floor_words) : null,
  );
}

function definitions() {
  const keys = Object.keys(report.metrics);
  const place = el("dl.definitions");
  const fill = (words) => {
    const wanted = words.toLowerCase();
    const shown = keys.filter((k) => `${k} ${metric(k).label} ${metric(k).definition}`.toLowerCase().includes(wanted));
    replace(place, shown.flatMap(defined));
  };
  fill(state.get("q.def"));
  const search = searchBox("Search definitions", state.get("q.def"), (v) => {
    state.set({ "q.def": v });
    fill(v);
  });
  return section("Definitions", el("div.controls", search), place);
}

const ENDS = {
  high: "a high value means that the model still knows",
  low: "a low value means that the model still knows",
  one: "near 1 means that the model still knows",
  half: "away from 0.5 means that the model still knows",
};

function defined(key) {
  const m = metric(key);
  const name = m.label === key ? key : `${m.label} (${key})`;
  return [
    el("dt", name),
    el(
      "dd",
      el("p.definition", m.definition),
      m.formula ? el("code", m.formula) : null,
      el("p.soft", [m.group, ENDS[m.knows], m.source].filter(Boolean).join("; ")),
    ),
  ];
}

function models() {
  const names = [...new Set(report.models.flatMap((m) => Object.keys(m.provenance ?? {})))];
  const columns = ["model", "role", "method", "epoch", "settings", ...names];
  const rows = report.models.map((m) => [
    m.name,
    m.role,
    m.method,
    m.epoch,
    settingsText(m),
    ...names.map((n) => m.provenance?.[n] ?? null),
  ]);
  return section(
    "Models",
    plainTable("Provenance of the models", { columns, rows }, 100),
    el("div.table-tools", ...saveButtons("provenance", () => ({ columns, rows }))),
  );
}
