// Files the reader can take away: CSV and JSON of tables, PNG and SVG of charts.

import { el, svg } from "./dom.js";
import { colours } from "./theme.js";

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

/** The tools below a table: a note on its rows, and the buttons that save it. */
export const saving = (name, sheet, ...before) => el("div.table-tools", ...before, ...saveButtons(name, sheet));

export const button = (text, label, onclick) =>
  el("button.quiet", { type: "button", "aria-label": label, title: label, onclick }, text);

/** A chart's element as a file. PNG: drawn by the browser at twice its size. */
export async function saveChart(picture, name, format) {
  const { width, height } = picture.viewBox.baseVal;
  const copy = picture.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.prepend(svg("rect", { width, height, fill: colours().paper }));
  const text = new XMLSerializer().serializeToString(copy);
  if (format === "svg") return offer(`${name}.svg`, "image/svg+xml", text);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = el("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  return offer(`${name}.png`, "image/png", blob);
}
