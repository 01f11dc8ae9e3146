// Files the reader can take away: CSV and JSON of tables, PNG and SVG of charts.

import { el } from "./dom.js";

export function offer(name, type, content) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = el("a", { href: url, download: fileName(name) });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const fileName = (name) => name.replace(/[^\w.-]+/g, "_").slice(0, 80);

/** One CSV cell. A leading = + - @ would be a formula to a spreadsheet: such text gets an apostrophe, numbers do not. */
export function csvCell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  if (typeof value !== "number" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** {columns: [names], rows: [[values]]} as CSV. */
export function csv({ columns, rows }) {
  return [columns, ...rows].map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
}

export function records({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(columns.map((name, i) => [name, row[i] ?? null])));
}

/** Buttons that save a table; `sheet()` gives {columns, rows} when asked. */
export function saveButtons(name, sheet) {
  const asCsv = () => offer(`${name}.csv`, "text/csv", csv(sheet()));
  const asJson = () => offer(`${name}.json`, "application/json", JSON.stringify(records(sheet()), null, 1));
  return [button("CSV", `Download ${name} as CSV`, asCsv), button("JSON", `Download ${name} as JSON`, asJson)];
}

export const button = (text, label, onclick) =>
  el("button.quiet", { type: "button", "aria-label": label, title: label, onclick }, text);

export async function saveChart(plot, name, format) {
  const url = await Plotly.toImage(plot, {
    format,
    width: Math.max(plot.clientWidth, 700),
    height: Math.max(plot.clientHeight, 360),
    scale: format === "png" ? 2 : 1,
  });
  const body = url.slice(url.indexOf(",") + 1);
  if (format === "svg") return offer(`${name}.svg`, "image/svg+xml", decodeURIComponent(body));
  const bytes = Uint8Array.from(atob(body), (c) => c.charCodeAt(0));
  return offer(`${name}.png`, "image/png", new Blob([bytes], { type: "image/png" }));
}
