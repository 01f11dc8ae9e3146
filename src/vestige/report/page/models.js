// Many models: the table, the scatter, and the chosen ones side by side.

import { count, el, fmt, isNumber, replace } from "./dom.js";
import { cell, hasModel, metric, metricTip, number, report, settingsText, valueTip, factList } from "./data.js";
import { comparison } from "./compare.js";
import { filterBar, passing } from "./filters.js";
import { marks } from "./order.js";
import { scatter } from "./scatter.js";
import * as state from "./state.js";
import { Table } from "./table.js";

export function modelsView(root) {
  const picked = new Set(state.getAll("m.pick").filter(hasModel));
  let shown = passing(report.models);
  const compared = el("section.panel", { id: "compare" });
  const table = new Table({
    name: "models",
    caption: "Models and their numbers",
    key: "m.sort",
    columns: columns(() => shown),
    rows: shown,
    words: (rows) => `${rows.length.toLocaleString("en")} of ${report.models.length.toLocaleString("en")} models`,
    pick: { has: (m) => picked.has(m.id), toggle: (m, on) => flip(m.id, on) },
  });
  const plot = scatter(
    () => shown,
    picked,
    (id) => flip(id, !picked.has(id), true),
  );

  function flip(id, on, fromPlot = false) {
    if (on) picked.add(id);
    else picked.delete(id);
    state.set({ "m.pick": [...picked] });
    if (fromPlot) table.order();
    plot.update();
    fillCompared();
  }
  function changed() {
    shown = passing(report.models);
    table.show(shown);
    plot.update();
  }
  function fillCompared() {
    replace(compared, comparison([...picked], clear));
  }
  function clear() {
    picked.clear();
    state.set({ "m.pick": null, "m.base": null });
    table.order();
    plot.update();
    fillCompared();
  }
  fillCompared();
  replace(
    root,
    el("h1", {}, "Models"),
    el("p.lead", {}, lead()),
    filterBar(changed),
    table.node,
    el("section.panel", {}, el("h2", {}, "Two columns against each other"), plot.node),
    compared,
  );
  return root;
}

function lead() {
  const methods = new Set(
    report.models
      .filter((m) => m.role === "unlearned")
      .map((m) => m.method)
      .filter(Boolean),
  );
  const zeros = report.columns.filter(
    (k) =>
      metric(k).group === "axis" &&
      report.models.filter((m) => number(m.id, k) !== null && number(m.id, k) < 5e-4).length > report.models.length / 3,
  );
  const warn = zeros.length
    ? ` In ${zeros.map((k) => metric(k).label).join(", ")} many models are at 0, because one part at 0 makes a harmonic mean 0: do not rank by it among them.`
    : "";
  return `${report.models.length.toLocaleString("en")} models. ${methods.size ? `${count(methods.size, "method")}. ` : ""}Click a column's head to sort; choose models to compare them.${warn}`;
}

function columns(shown) {
  const text = (key, label, get) => ({ key, label, get, numeric: false });
  const used = (list) => list.filter((c) => report.models.some((m) => c.get(m)));
  const isReference = (m) => (m.role === "full" || m.role === "retain" ? m.role : undefined);
  const name = { ...text("name", "model", (m) => m.name), mark: isReference, tip: aboutModel };
  const before = used([text("method", "method", (m) => m.method), text("epoch", "epoch", (m) => m.epoch)]);
  const after = used([text("role", "role", (m) => m.role), text("settings", "settings", settingsText)]);
  return [name, ...before, ...report.columns.map((key) => numberColumn(key, shown)), ...after];
}

function aboutModel(m) {
  return el(
    "div",
    {},
    el("h4", {}, m.name),
    factList([
      ["role", m.role],
      ["method", m.method],
      ["epoch", m.epoch],
      ["settings", settingsText(m)],
      ...Object.entries(m.provenance ?? {}),
    ]),
  );
}

function numberColumn(key, shown) {
  const info = metric(key);
  let seen = null;
  let found = new Map();
  const markOf = (m) => {
    if (seen !== shown()) {
      seen = shown();
      found = marks(
        seen.filter((x) => x.role !== "full" && x.role !== "retain").map((x) => number(x.id, key)),
        info.better,
      );
    }
    return m.role === "full" || m.role === "retain" ? undefined : found.get(number(m.id, key));
  };
  const text = (m) => (isNumber(number(m.id, key)) ? fmt(number(m.id, key)) : cell(m.id, key) ? "none" : "–");
  return {
    key,
    label: info.short,
    numeric: true,
    get: (m) => number(m.id, key),
    text,
    mark: markOf,
    tip: (m) => valueTip(m.id, key),
    headTip: () => metricTip(key),
  };
}
