// Chosen models side by side. A difference is called tested only where the report holds a paired test on the same rows.

import { choose, el, fmt, isNumber } from "./dom.js";
import { cell, metricTip, modelName, number, report, titled, valueTip } from "./data.js";
import { saveButtons } from "./save.js";
import * as state from "./state.js";
import { tip } from "./tip.js";

const MOST = 8;

export function comparison(ids, clear) {
  const head = el("h2", "Comparison");
  if (ids.length < 2)
    return [head, el("p.soft", "Choose two or more models in the table, or click points, to see their differences.")];
  const shown = ids.slice(0, MOST);
  const place = el("div");
  const fill = (base) => place.replaceChildren(table(base, shown));
  const wanted = state.get("m.base");
  const base = shown.includes(wanted) ? wanted : shown[0];
  fill(base);
  const change = (id) => {
    state.set({ "m.base": id });
    fill(id);
  };
  const extra = ids.length > MOST ? el("p.soft", `The first ${MOST} of ${ids.length} chosen models are shown.`) : null;
  return [
    head,
    el(
      "div.controls",
      choose(
        "compared with",
        shown.map((id) => [id, modelName(id)]),
        base,
        change,
      ),
      el("button", { type: "button", onclick: clear }, "Choose none"),
    ),
    extra,
    place,
  ];
}

/** The paired difference other less base, or nothing. The report holds each pair once, b less a. */
export function paired(base, other, key) {
  for (const { a, b, metrics, rows } of report.comparisons ?? []) {
    const sign = a === base && b === other ? 1 : a === other && b === base ? -1 : 0;
    const found = sign && metrics.find((m) => m.metric === key && !m.of);
    if (found) return { ...found, rows, value: sign * found.value, ...flipped(found, sign) };
  }
  return null;
}

const flipped = ({ lo, hi }, sign) => (sign > 0 || !isNumber(lo) ? { lo, hi } : { lo: -hi, hi: -lo });

function whyNot(base, other, key) {
  const pair = (report.comparisons ?? []).find(
    (c) => (c.a === base && c.b === other) || (c.a === other && c.b === base),
  );
  return pair ? (pair.reasons?.[key] ?? "this metric was not tested") : "this pair was not tested";
}

function table(base, ids) {
  const others = ids.filter((id) => id !== base);
  const keys = report.columns.filter((k) => ids.some((id) => isNumber(number(id, k))));
  const heads = [
    el("th", { scope: "col" }, "metric"),
    el("th.number", { scope: "col" }, modelName(base)),
    ...others.flatMap((id) => [
      el("th.number", { scope: "col" }, modelName(id)),
      el("th", { scope: "col" }, "difference"),
    ]),
  ];
  const rows = keys.map((key) =>
    el(
      "tr",
      tip(el("th", { scope: "row" }, titled(key)), () => metricTip(key)),
      value(base, key),
      ...others.flatMap((id) => [value(id, key), difference(base, id, key)]),
    ),
  );
  const caption = `Differences from ${modelName(base)}. With an interval: paired on the same rows; * where it is beyond chance after Holm's correction. Without: plain difference, not tested.`;
  return el(
    "div",
    el(
      "div.scroller",
      { tabindex: "0", role: "region", "aria-label": "comparison" },
      el("table.grid", el("caption", caption), el("thead", el("tr", heads)), el("tbody", rows)),
    ),
    el("div.table-tools", ...saveButtons("comparison", () => sheet(base, others, keys))),
  );
}

const value = (id, key) =>
  tip(el("td.number", isNumber(number(id, key)) ? fmt(number(id, key)) : cell(id, key) ? "none" : "–"), () =>
    valueTip(id, key),
  );

const signed = (v) => (isNumber(v) ? `${v > 0 ? "+" : ""}${fmt(v)}` : "–");

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

function sheet(base, others, keys) {
  const rows = keys.flatMap((key) =>
    others.map((id) => {
      const test = paired(base, id, key);
      return [
        key,
        modelName(base),
        number(base, key),
        modelName(id),
        number(id, key),
        test?.value ?? null,
        test?.lo ?? null,
        test?.hi ?? null,
        test?.p ?? null,
        test?.holm ?? null,
      ];
    }),
  );
  return {
    columns: ["metric", "base", "base value", "model", "value", "paired difference", "lo", "hi", "p", "p Holm"],
    rows,
  };
}
