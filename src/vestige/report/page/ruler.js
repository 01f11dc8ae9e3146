// Where one model stands between the full and the retain model: a line for each metric, with marks and the interval.

import { el, fmt, interval, isNumber, svg } from "./dom.js";
import { cell, metric, metricTip, modelName, number, titled, valueTip } from "./data.js";
import { textCell } from "./sheet.js";
import { tip } from "./tip.js";

function span(info, cells) {
  if (info.range) return info.range;
  const known = cells.flatMap((c) => [c?.v, c?.of ? null : c?.lo, c?.of ? null : c?.hi]).filter(isNumber);
  const [lo, hi] = [Math.min(...known, 0), Math.max(...known, 0)];
  return lo === hi ? [lo - 1, hi + 1] : [lo, hi];
}

// The references stand above the line, the model on it: equal values do not hide each other.
const SHAPES = {
  full: () => svg("rect.mark.full", { x: -4.5, y: 1.5, width: 9, height: 9 }),
  retain: () => svg("path.mark.retain", { d: "M0 -0.5 L6 6 L0 12.5 L-6 6 Z" }),
  model: () => svg("circle.mark.model", { cx: 0, cy: 19, r: 6 }),
};

/** A mark at a place given in percent: an inner svg moves with the width, its shape does not stretch. */
const mark = (kind, x) => svg("svg", { x, overflow: "visible" }, SHAPES[kind]());

function track(info, cells) {
  const [lo, hi] = span(info, [cells.model, cells.full, cells.retain]);
  const x = (v) => `${(4 + 92 * Math.min(1, Math.max(0, (v - lo) / (hi - lo)))).toFixed(2)}%`;
  const own = cells.model;
  const reach = own && !own.of && isNumber(own.lo) && isNumber(own.hi);
  const parts = [svg("line.track", { x1: "4%", x2: "96%", y1: 19, y2: 19 })];
  if (reach) parts.push(svg("line.reach", { x1: x(own.lo), x2: x(own.hi), y1: 19, y2: 19 }));
  for (const kind of ["full", "retain", "model"])
    if (isNumber(cells[kind]?.v)) parts.push(mark(kind, x(cells[kind].v)));
  return svg("svg.ruler-line", { "aria-hidden": "true" }, ...parts);
}

function line(audit, key) {
  const info = metric(key);
  const cells = {
    model: cell(audit.model, key),
    full: audit.full && cell(audit.full, key),
    retain: audit.retain && cell(audit.retain, key),
  };
  const name = tip(el("th", { scope: "row" }, titled(key)), () => metricTip(key));
  const said = isNumber(cells.model?.v) ? fmt(cells.model.v) : "missing";
  const value = tip(el("td.number.main", said), () => valueTip(audit.model, key));
  return el(
    "tr",
    name,
    el("td.line", track(info, cells)),
    value,
    el("td.number.soft.reach-text", interval(cells.model)),
  );
}

export function legend(audit) {
  const item = (kind, id) =>
    el(
      "span",
      svg(
        "svg",
        { viewBox: kind === "model" ? "0 8 22 22" : "0 -5 22 22", width: 16, height: 16, "aria-hidden": "true" },
        mark(kind, 11),
      ),
      " ",
      modelName(id),
    );
  return el(
    "p.legend",
    item("model", audit.model),
    audit.full && item("full", audit.full),
    audit.retain && item("retain", audit.retain),
  );
}

/** A table of lines; `keys` without a value for the audited model are left to the panels. */
export function ruler(audit, keys, caption) {
  const head = el(
    "tr",
    ["metric", "full, retain and this model", "value", "95 % interval"].map((t) =>
      el("th.hidden-head", { scope: "col" }, t),
    ),
  );
  return el(
    "div.ruler",
    legend(audit),
    el(
      "table",
      el("caption.hidden", caption),
      el("thead.hidden", head),
      el(
        "tbody",
        keys.map((k) => line(audit, k)),
      ),
    ),
  );
}

/** All numbers of a panel: value, interval, n, the two references, protocol; the missing ones with their reason. */
export function numbersTable(audit, keys, caption) {
  const shown = keys.filter((k) => cell(audit.model, k));
  if (!shown.length) return null;
  const refs = [
    ["full", audit.full],
    ["retain", audit.retain],
  ].filter(([, id]) => id);
  const heads = ["metric", "value", "95 % interval", "n", ...refs.map(([name]) => name), "protocol"];
  const head = (text) => el(text === "metric" || text === "protocol" ? "th" : "th.number", { scope: "col" }, text);
  const rows = shown.map((key) => numbersRow(audit, key, refs));
  return el(
    "div.scroller.small",
    { tabindex: "0", role: "region", "aria-label": caption },
    el("table.numbers-table", el("caption", caption), el("thead", el("tr", heads.map(head))), el("tbody", rows)),
  );
}

function numbersRow(audit, key, refs) {
  const value = cell(audit.model, key);
  const name = tip(el("th", { scope: "row" }, titled(key)), () => metricTip(key));
  if (!isNumber(value.v))
    return el(
      "tr",
      name,
      el("td.missing", { colspan: 4 + refs.length }, `missing: ${value.reason || "no reason given"}`),
    );
  const ref = (id) => tip(el("td.number", fmt(number(id, key))), () => valueTip(id, key));
  return el(
    "tr",
    name,
    tip(el("td.number.main", fmt(value.v)), () => valueTip(audit.model, key)),
    el("td.number.soft", interval(value) + (value.of ? ` (${value.of})` : "")),
    el("td.number", isNumber(value.n) ? fmt(value.n, 0) : "–"),
    ...refs.map(([, id]) => ref(id)),
    el(`${textCell(value.protocol)}.soft`, value.protocol || value.dialect || ""),
  );
}
