// Many models: the table, as rows or sideways, the scatter, and the chosen ones side by side.

import { choose, count, el, fmt, isNumber, named, panel, replace, segments, unique } from "./dom.js";
import {
  aimsAtRetain, auditOf, cell, factList, goodness, goodWords, hasModel, isReference, metric, metricTip, modelName,
  number, report, settingsText, titled, valueTip,
} from "./data.js";
import { filterBar, passing } from "./filters.js";
import { marks } from "./order.js";
import { saving } from "./save.js";
import { scatter } from "./scatter.js";
import * as state from "./state.js";
import { columnHead, scroller, Table } from "./table.js";
import { tip } from "./tip.js";
import { signOf, titleOf } from "./verdict.js";

const FEW = 8; // so many models fit side by side as columns
const COMPARED = 8;
const NAME = "Models and their numbers";

// A model without a single number would be an empty row.
const LISTED = report.models.filter((m) => auditOf(m.id) || Object.values(m.values ?? {}).some((c) => isNumber(c.v)));

export function modelsView(root) {
  const picked = new Set(state.getAll("m.pick").filter(hasModel));
  let shown = passing(LISTED);
  const compared = el("section.panel", { id: "compare" });
  const shape = state.get("m.turn", LISTED.length <= FEW ? "columns" : "rows");
  const sideways = shape === "columns";
  const pick = { has: (m) => picked.has(m.id), toggle: (m, on) => flip(m.id, on) };
  const table = sideways ? new Sideways(shown, pick) : tableOfRows(() => shown, pick);
  const turn = (v) => {
    state.set({ "m.turn": v });
    modelsView(root);
  };
  const clicked = (id) => {
    flip(id, !picked.has(id));
    table.order();
  };
  const plot = scatter(() => shown, picked, clicked);

  function flip(id, on) {
    if (on) picked.add(id);
    else picked.delete(id);
    state.set({ "m.pick": [...picked] });
    plot.update();
    fillCompared();
  }
  function changed() {
    shown = passing(LISTED);
    table.show(shown);
    plot.update();
  }
  function clear() {
    picked.clear();
    state.set({ "m.pick": null, "m.base": null });
    table.order();
    plot.update();
    fillCompared();
  }
  function fillCompared() {
    replace(compared, comparison([...picked], clear));
  }
  fillCompared();
  const shapes = ["columns", "rows"].map((v) => [v, v]);
  return replace(
    root,
    el("h1", "Models"),
    el("p.lead", lead(sideways)),
    filterBar(changed),
    segments("models as", shapes, sideways ? "columns" : "rows", turn),
    table.node,
    panel("Two columns against each other", plot.node),
    compared,
  );
}

function listed({ length }) {
  const bare = report.models.length - LISTED.length;
  const left = bare ? `; ${count(bare, "model")} without numbers ${bare === 1 ? "is" : "are"} not listed` : "";
  return `${length.toLocaleString("en")} of ${LISTED.length.toLocaleString("en")} models${left}`;
}

function lead(sideways) {
  const methods = unique(report.models.map((m) => m.role === "unlearned" && m.method).filter(Boolean));
  const isZero = (m, k) => number(m.id, k) !== null && number(m.id, k) < 5e-4;
  const zeros = report.columns.filter(
    (k) => metric(k).group === "axis" && report.models.filter((m) => isZero(m, k)).length > report.models.length / 3,
  );
  const warn = `In ${zeros.map((k) => metric(k).label).join(", ")} many models are at 0, because one part at 0 makes a harmonic mean 0: do not rank by it among them.`;
  return [
    `${report.models.length.toLocaleString("en")} models.`,
    methods.length ? `${count(methods.length, "method")}.` : "",
    `Choose models to compare them${sideways ? "" : "; click the head of a column to sort rows"}.`,
    `Marked are the best of a ${sideways ? "row" : "column"} (▲ best, △ second, ▼ worst): what tells of knowledge is best near the retain model.`,
    zeros.length ? warn : "",
  ]
    .filter(Boolean)
    .join(" ");
}

// ---- cells of both tables ----------------------------------------------------------------------------------------------

const word = (m) => auditOf(m.id) && `${signOf(auditOf(m.id).verdict)} ${titleOf(auditOf(m.id).verdict)}`;

const shownNumber = (m, key) => (isNumber(number(m.id, key)) ? fmt(number(m.id, key)) : cell(m.id, key) ? "none" : "–");

/** Of some models a function that says whether a model is the best, second or worst; references are not in the race. */
function markOf(models, key) {
  const found = marks(
    models.filter((m) => !isReference(m)).map((m) => goodness(m.id, key)),
    "high",
  );
  return (m) => (isReference(m) ? undefined : found.get(goodness(m.id, key)));
}

// ---- a row for each model ----------------------------------------------------------------------------------------------

function tableOfRows(shown, pick) {
  const text = (key, label, get) => ({ key, label, get, numeric: false });
  const used = (list) => list.filter((c) => LISTED.some((m) => c.get(m)));
  const mark = (m) => (isReference(m) ? m.role : undefined);
  const verdict = text("verdict", "did it forget?", (m) => auditOf(m.id) && titleOf(auditOf(m.id).verdict));
  const method = LISTED.some((m) => m.method && m.method !== m.name) ? [text("method", "method", (m) => m.method)] : [];
  const columns = [
    { ...text("name", "model", (m) => m.name), mark, tip: aboutModel },
    ...used([{ ...verdict, text: (m) => word(m) ?? "–" }, ...method, text("epoch", "epoch", (m) => m.epoch)]),
    ...report.columns.filter((k) => LISTED.some((m) => number(m.id, k) !== null)).map((k) => numberColumn(k, shown)),
    ...used([text("settings", "settings", settingsText)]),
  ];
  return new Table({ name: "models", caption: NAME, key: "m.sort", columns, rows: shown(), words: listed, pick });
}

function aboutModel(m) {
  const facts = ["role", "method", "epoch"].map((key) => [key, m[key]]);
  const all = [...facts, ["settings", settingsText(m)], ...Object.entries(m.provenance ?? {})];
  return el("div", el("h4", m.name), factList(all));
}

function numberColumn(key, shown) {
  const { label } = metric(key);
  let [seen, mark] = [null, null];
  const marked = (m) => {
    if (seen !== shown()) [seen, mark] = [shown(), markOf(shown(), key)];
    return mark(m);
  };
  return {
    key,
    label,
    head: () => named(label),
    numeric: true,
    get: (m) => number(m.id, key),
    text: (m) => shownNumber(m, key),
    mark: marked,
    tip: (m) => valueTip(m.id, key),
    headTip: () => el("div", metricTip(key), goodWords(key) ? el("p", `Here ${goodWords(key)}.`) : null),
  };
}

// ---- few models: each is a column, each metric a row with its plain title, so that no column is out of sight -----------

class Sideways {
  constructor(rows, pick) {
    this.pick = pick;
    this.place = el("div");
    this.said = el("span.count");
    this.node = el(
      "div.table-box",
      this.place,
      saving("models", () => this.sheet(), this.said),
    );
    this.show(rows);
  }

  show(models) {
    this.shown = models;
    this.order();
  }

  order() {
    const keys = report.columns.filter((key) => this.shown.some((m) => number(m.id, key) !== null));
    const heads = [el("th", { scope: "col" }, "what is measured"), this.shown.map((m) => this.head(m))].flat();
    const lines = keys.map((key) => this.line(key));
    replace(this.place, scroller(NAME, heads, lines, "div.scroller", "table.sideways"));
    this.said.textContent = listed(this.shown);
  }

  head(m) {
    const onchange = (e) => this.pick.toggle(m, e.target.checked);
    const facts = { type: "checkbox", checked: this.pick.has(m), "aria-label": `choose ${m.name}`, onchange };
    const about = word(m) ?? (isReference(m) && m.role !== m.name ? m.role : "");
    return el(
      `th.number${isReference(m) ? `.${m.role}` : ""}`,
      { scope: "col" },
      el("label", el("input", facts), " ", el("span.model-name", m.name)),
      about ? el("span.word", about) : null,
    );
  }

  line(key) {
    const markFor = markOf(this.shown, key);
    const one = (m) => {
      const mark = markFor(m);
      const spec = `td.number${mark ? `.${mark}` : ""}${isNumber(number(m.id, key)) ? "" : ".none"}`;
      const node = el(spec, shownNumber(m, key), mark ? el("span.hidden", ` (${mark})`) : null);
      return tip(node, () => valueTip(m.id, key), false);
    };
    const words = aimsAtRetain(key) ? "" : goodWords(key); // what holds for most is told above the table
    const name = el("th", { scope: "row" }, titled(key), words ? el("span.soft.fine.aim", words) : null);
    return el(
      "tr",
      tip(name, () => metricTip(key)),
      this.shown.map(one),
    );
  }

  sheet() {
    return {
      columns: ["metric", ...this.shown.map((m) => m.name)],
      rows: report.columns.map((key) => [key, ...this.shown.map((m) => number(m.id, key))]),
    };
  }
}

// ---- chosen models side by side ----------------------------------------------------------------------------------------

function comparison(ids, clear) {
  const head = el("h2", "Comparison");
  const how = "Choose two or more models in the table, or click points, to see their differences.";
  if (ids.length < 2) return [head, el("p.soft", how)];
  const shown = ids.slice(0, COMPARED);
  const place = el("div");
  const fill = (base) => replace(place, ...differences(base, shown));
  const base = shown.includes(state.get("m.base")) ? state.get("m.base") : shown[0];
  fill(base);
  const change = (id) => {
    state.set({ "m.base": id });
    fill(id);
  };
  const options = shown.map((id) => [id, modelName(id)]);
  const none = el("button", { type: "button", onclick: clear }, "Choose none");
  const more = `The first ${COMPARED} of ${ids.length} chosen models are shown.`;
  return [
    head,
    el("div.controls", choose("compared with", options, base, change), none),
    ids.length > COMPARED ? el("p.soft", more) : null,
    place,
  ];
}

/** The paired difference other less base, or nothing. The report holds each pair once, b less a. */
function paired(base, other, key) {
  for (const { a, b, metrics, rows } of report.comparisons ?? []) {
    const sign = a === base && b === other ? 1 : a === other && b === base ? -1 : 0;
    const found = sign && metrics.find((m) => m.metric === key && !m.of);
    if (!found) continue;
    const ends = sign > 0 || !isNumber(found.lo) ? {} : { lo: -found.hi, hi: -found.lo };
    return { ...found, rows, value: sign * found.value, ...ends };
  }
  return null;
}

function whyNot(base, other, key) {
  const both = ({ a, b }) => (a === base && b === other) || (a === other && b === base);
  const pair = (report.comparisons ?? []).find(both);
  return pair ? (pair.reasons?.[key] ?? "this metric was not tested") : "this pair was not tested";
}

/** A difference is called tested only where the report holds a paired test on the same rows. */
function differences(base, ids) {
  const others = ids.filter((id) => id !== base);
  const keys = report.columns.filter((k) => ids.some((id) => isNumber(number(id, k))));
  const heads = [
    columnHead("metric"),
    columnHead(modelName(base), true),
    ...others.flatMap((id) => [columnHead(modelName(id), true), columnHead("difference")]),
  ];
  const value = (id, key) => tip(el("td.number", shownNumber({ id }, key)), () => valueTip(id, key));
  const line = (key) =>
    el(
      "tr",
      tip(el("th", { scope: "row" }, titled(key)), () => metricTip(key)),
      value(base, key),
      ...others.flatMap((id) => [value(id, key), difference(base, id, key)]),
    );
  const caption = `Differences from ${modelName(base)}. With an interval: paired on the same rows; * where it is beyond chance after Holm's correction. Without: plain difference, not tested.`;
  return [
    scroller(caption, heads, keys.map(line), "div.scroller", "table.grid"),
    saving("comparison", () => comparisonSheet(base, others, keys)),
  ];
}

const signed = (v) => (isNumber(v) && v > 0 ? `+${fmt(v)}` : fmt(v));

function difference(base, id, key) {
  const test = paired(base, id, key);
  const bare = isNumber(number(id, key)) && isNumber(number(base, key)) ? number(id, key) - number(base, key) : null;
  if (!test) return tip(el("td.soft", signed(bare)), () => el("p", `Plain difference: ${whyNot(base, id, key)}.`));
  const sure = isNumber(test.holm) && test.holm < 0.05;
  const text = `${signed(test.value)}${sure ? " *" : ""} (${fmt(test.lo)} to ${fmt(test.hi)})`;
  return tip(el(sure ? "td.main" : "td", text), () =>
    el("p", `Paired on ${test.rows}. p ${fmt(test.p)}, after Holm ${fmt(test.holm)}. ${test.reading ?? ""}`),
  );
}

const comparisonSheet = (base, others, keys) => ({
  columns: ["metric", "base", "base value", "model", "value", "paired difference", "lo", "hi", "p", "p Holm"],
  rows: keys.flatMap((key) =>
    others.map((id) => {
      const test = paired(base, id, key);
      const numbers = ["value", "lo", "hi", "p", "holm"].map((name) => test?.[name] ?? null);
      return [key, modelName(base), number(base, key), modelName(id), number(id, key), ...numbers];
    }),
  ),
});
