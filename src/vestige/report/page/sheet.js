// Small plain tables: all rows at once, a caption, heads with scope.

import { el, fmt, isNumber } from "./dom.js";

/** {columns, rows} as a table; numbers to the right. `most` rows are shown and the rest is counted. */
export function plainTable(caption, { columns, rows }, most = 200) {
  const head = el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name)));
  const body = rows.slice(0, most).map((row) => el("tr", {}, row.map((v) => el(isNumber(v) ? "td.number" : "td", {}, show(v)))));
  const rest = rows.length - most;
  const note = rest > 0 ? ` (the first ${most} of ${rows.length} rows; the CSV has all)` : "";
  return el("div.scroller.small", { tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption + note), el("thead", {}, head), el("tbody", {}, body)));
}

const show = (v) => (v === null || v === undefined ? "–" : isNumber(v) ? fmt(v, 4) : v instanceof Node ? v : String(v));
