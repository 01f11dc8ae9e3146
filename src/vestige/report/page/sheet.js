// Small plain tables: all rows at once, a caption, heads with scope.

import { el, fmt, isNumber } from "./dom.js";

/** {columns, rows} as a table; numbers to the right. `most` rows are shown and the rest is counted. */
export function plainTable(caption, { columns, rows }, most = 200) {
  const shown = rows.slice(0, most);
  const known = columns.map((_, j) => shown.map((row) => row[j]).filter((v) => v !== null && v !== undefined));
  const numeric = known.map((values) => values.length > 0 && values.every(isNumber));
  const digits = known.map((values) => (values.every(Number.isInteger) ? 0 : 4));
  const head = el(
    "tr",
    columns.map((name, j) => el(numeric[j] ? "th.number" : "th", { scope: "col" }, name)),
  );
  const body = shown.map((row) =>
    el(
      "tr",
      columns.map((_, j) => el(numeric[j] ? "td.number" : textCell(row[j]), show(row[j], digits[j]))),
    ),
  );
  const rest = rows.length - most;
  const note = rest > 0 ? ` (the first ${most} of ${rows.length} rows; the CSV has all)` : "";
  return el(
    "div.scroller.small",
    { tabindex: "0", role: "region", "aria-label": caption },
    el("table", el("caption", caption + note), el("thead", head), el("tbody", body)),
  );
}

/** Long text gets width, so that a row does not become a tower. */
export function textCell(text) {
  const length = String(text ?? "").length;
  return length > 160 ? "td.longer" : length > 50 ? "td.long" : "td";
}

const show = (v, digits) =>
  v === null || v === undefined ? "–" : isNumber(v) ? fmt(v, digits) : v instanceof Node ? v : String(v);
