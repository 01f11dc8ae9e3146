// Many models: the table, the scatter, and the chosen ones side by side.

import { count, el, fmt, isNumber, named, replace, segments } from "./dom.js";
import {
  auditOf,
  cell,
  factList,
  goodness,
  goodWords,
  hasModel,
  isReference,
  metric,
  metricTip,
  number,
  report,
  settingsText,
  valueTip,
} from "./data.js";
import { comparison } from "./compare.js";
import { filterBar, passing } from "./filters.js";
import { marks } from "./order.js";
import { scatter } from "./scatter.js";
import { Sideways } from "./sideways.js";
import * as state from "./state.js";
import { Table } from "./table.js";
import { signOf, titleOf } from "./verdict.js";

const FEW = 8; // so many models fit side by side as columns

// A model without a single number would be an empty row.
const LISTED = report.models.filter((m) => auditOf(m.id) || Object.values(m.values ?? {}).some((c) => isNumber(c.v)));

export function modelsView(root) {
  const picked = new Set(state.getAll("m.pick").filter(hasModel));
  let shown = passing(LISTED);
  const compared = el("section.panel", { id: "compare" });
  const turned = state.get("m.turn", LISTED.length <= FEW ? "columns" : "rows") === "columns";
  const pick = { has: (m) => picked.has(m.id), toggle: (m, on) => flip(m.id, on) };
  const words = (rows) => listed(rows.length);
  const asRows = () =>
    new Table({
      name: "models",
      caption: "Models and their numbers",
      key: "m.sort",
      columns: columns(() => shown),
      rows: shown,
      words,
      pick,
    });
  const table = turned ? new Sideways({ keys: report.columns, rows: shown, words, pick }) : asRows();
  const turn = segments(
    "models as",
    [
      ["columns", "columns"],
      ["rows", "rows"],
    ],
    turned ? "columns" : "rows",
    (v) => {
      state.set({ "m.turn": v });
      modelsView(root);
    },
  );
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
    shown = passing(LISTED);
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
    el("h1", "Models"),
    el("p.lead", lead(turned)),
    filterBar(changed),
    turn,
    table.node,
    el("section.panel", el("h2", "Two columns against each other"), plot.node),
    compared,
  );
  return root;
}

function listed(n) {
  const bare = report.models.length - LISTED.length;
  const left = bare ? `; ${count(bare, "model")} without numbers ${bare === 1 ? "is" : "are"} not listed` : "";
  return `${n.toLocaleString("en")} of ${LISTED.length.toLocaleString("en")} models${left}`;
}

function lead(turned) {
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
  return `${report.models.length.toLocaleString("en")} models. ${methods.size ? `${count(methods.size, "method")}. ` : ""}Choose models to compare them${turned ? "" : "; click the head of a column to sort rows"}. Marked are the best of a ${turned ? "row" : "column"} (▲ best, △ second, ▼ worst): what tells of knowledge is best near the retain model.${warn}`;
}

function columns(shown) {
  const text = (key, label, get) => ({ key, label, get, numeric: false });
  const used = (list) => list.filter((c) => LISTED.some((m) => c.get(m)));
  const mark = (m) => (isReference(m) ? m.role : undefined);
  const name = { ...text("name", "model", (m) => m.name), mark, tip: aboutModel };
  const verdict = {
    ...text("verdict", "did it forget?", (m) => auditOf(m.id) && titleOf(auditOf(m.id).verdict)),
    text: (m) => (auditOf(m.id) ? `${signOf(auditOf(m.id).verdict)} ${titleOf(auditOf(m.id).verdict)}` : "–"),
  };
  const tellsMore = (key) => LISTED.some((m) => m[key] && m[key] !== m.name);
  const before = used([
    verdict,
    ...(tellsMore("method") ? [text("method", "method", (m) => m.method)] : []),
    text("epoch", "epoch", (m) => m.epoch),
  ]);
  const after = used([text("settings", "settings", settingsText)]);
  const numbers = report.columns.filter((key) => LISTED.some((m) => number(m.id, key) !== null));
  return [name, ...before, ...numbers.map((key) => numberColumn(key, shown)), ...after];
}

function aboutModel(m) {
  return el(
    "div",
    el("h4", m.name),
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
        seen.filter((x) => !isReference(x)).map((x) => goodness(x.id, key)),
        "high",
      );
    }
    return isReference(m) ? undefined : found.get(goodness(m.id, key));
  };
  const text = (m) => (isNumber(number(m.id, key)) ? fmt(number(m.id, key)) : cell(m.id, key) ? "none" : "–");
  return {
    key,
    label: info.label,
    head: () => named(info.label),
    numeric: true,
    get: (m) => number(m.id, key),
    text,
    mark: markOf,
    tip: (m) => valueTip(m.id, key),
    headTip: () => el("div", metricTip(key), goodWords(key) ? el("p", `Here ${goodWords(key)}.`) : null),
  };
}
