// Tables: plain ones, one that sorts and draws only the rows in sight, and a long list to choose from.

import { announce, el, fmt, isNumber, replace } from "./dom.js";
import { sorted } from "./order.js";
import { saving } from "./save.js";
import * as state from "./state.js";
import { tip } from "./tip.js";

// ---- small plain tables: all rows at once, a caption, heads with scope -------------------------------------------------

/** A table that scrolls by itself. `heads`: texts or elements; `rows`: elements. */
export const scroller = (caption, heads, rows, spec = "div.scroller.small", table = "table") =>
  el(
    spec,
    { tabindex: "0", role: "region", "aria-label": caption },
    el(table, el("caption", caption), el("thead", el("tr", heads)), el("tbody", rows)),
  );

/** A column's head; numbers stand to the right. */
export const columnHead = (text, numeric) => el(numeric ? "th.number" : "th", { scope: "col" }, text);

/** {columns, rows} as a table. `most` rows are shown and the rest is counted. */
export function plainTable(caption, { columns, rows }, most = 200) {
  const shown = rows.slice(0, most);
  const known = columns.map((_, j) => shown.map((row) => row[j]).filter((v) => v !== null && v !== undefined));
  const numeric = known.map((values) => values.length > 0 && values.every(isNumber));
  const digits = known.map((values) => (values.every(Number.isInteger) ? 0 : 4));
  const show = (v, j) =>
    v === null || v === undefined ? "–" : isNumber(v) ? fmt(v, digits[j]) : v instanceof Node ? v : String(v);
  const line = (row) =>
    el(
      "tr",
      columns.map((_, j) => el(numeric[j] ? "td.number" : textCell(row[j]), show(row[j], j))),
    );
  const heads = columns.map((name, j) => columnHead(name, numeric[j]));
  const note = rows.length > most ? ` (the first ${most} of ${rows.length} rows; the CSV has all)` : "";
  return scroller(caption + note, heads, shown.map(line));
}

/** The same with buttons to save it. */
export const savedTable = (name, caption, sheet, most) => [plainTable(caption, sheet, most), saving(name, () => sheet)];

/** Long text gets width, so that a row does not become a tower. */
export function textCell(text) {
  const length = String(text ?? "").length;
  return length > 160 ? "td.longer" : length > 50 ? "td.long" : "td";
}

// ---- a table that sorts, keeps its sort in the address, and can be walked with the arrow keys --------------------------

const ROW = 34; // px; the style sheet gives every body row this height
const SPARE = 8;
const STEPS = {
  ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], PageDown: [15, 0], PageUp: [-15, 0],
};
const ALL = 80; // so many rows are drawn at once; more are drawn as they come into sight

/**
 * table({name, caption, columns, rows, key, pick}). A column: {key, label, get(row), text?(row), mark?(row), tip?(row),
 * head?(), headTip?, numeric, digits}. `key` names the sort in the address. `pick`: {has(row), toggle(row)} adds a box to each row.
 */
export class Table {
  constructor(options) {
    Object.assign(this, { rows: [], active: [0, 0], printing: false }, options);
    this.body = el("tbody", { onkeydown: (e) => this.walk(e) });
    this.heads = el("tr");
    this.table = el("table.grid", el("caption", this.caption), el("thead", this.heads), this.body);
    this.scroller = el(
      "div.scroller",
      { onscroll: () => this.draw(), role: "region", "aria-label": this.caption },
      this.table,
    );
    this.said = el("span.count");
    const tools = saving(this.name, () => this.sheet(), this.said);
    this.node = el("div.table-box", this.scroller, tools);
    this.node.addEventListener("print-rows", (e) => this.print(e.detail));
    this.show(this.rows);
  }

  show(rows) {
    this.rows = rows;
    this.order();
  }

  order() {
    const sort = state.get(this.key);
    const name = sort.replace(/^-/, "");
    const column = this.columns.find((c) => c.key === name);
    this.shown = column ? sorted(this.rows, column.get, sort.startsWith("-")) : this.rows;
    this.drawHeads(column?.key, sort.startsWith("-"));
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    this.said.textContent = this.words ? this.words(this.shown) : `${this.shown.length.toLocaleString("en")} rows`;
    this.drawn = "";
    this.draw();
  }

  drawHeads(sortedBy, down) {
    const head = (c) => {
      const on = c.key === sortedBy;
      const facts = { type: "button", "data-sort": c.key, onclick: () => this.sortBy(c) };
      const button = el("button", facts, c.head ? c.head() : c.label, on ? (down ? " ↓" : " ↑") : "");
      if (c.headTip) tip(button, c.headTip, false);
      const order = on ? (down ? "descending" : "ascending") : "none";
      return el(c.numeric ? "th.number" : "th", { scope: "col", "aria-sort": order }, button);
    };
    const focused = this.heads.contains(document.activeElement) ? document.activeElement.dataset.sort : null;
    replace(
      this.heads,
      this.pick ? el("th.pick", { scope: "col" }, el("span.hidden", "chosen")) : null,
      this.columns.map(head),
    );
    if (focused !== null) [...this.heads.querySelectorAll("button")].find((b) => b.dataset.sort === focused)?.focus();
  }

  /** First the interesting end (large numbers, A to Z), then the other, then the given order. */
  sortBy(column) {
    const cycle = column.numeric ? [`-${column.key}`, column.key, null] : [column.key, `-${column.key}`, null];
    const next = cycle[(cycle.indexOf(state.get(this.key) || null) + 1) % 3];
    state.set({ [this.key]: next });
    this.order();
    announce(
      next ? `sorted by ${column.label}, ${next.startsWith("-") ? "descending" : "ascending"}` : "order as given",
    );
  }

  range() {
    const n = this.shown.length;
    if (n <= ALL || this.printing) return [0, n];
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - SPARE);
    const rows = Math.ceil((this.scroller.clientHeight || 600) / ROW) + 2 * SPARE;
    return [Math.min(first, n), Math.min(n, first + rows)];
  }

  draw() {
    const [from, to] = this.range();
    if (this.drawn === `${from}-${to}`) return;
    this.drawn = `${from}-${to}`;
    const rows = [];
    for (let i = from; i < to; i += 1) rows.push(this.rowNode(this.shown[i], i));
    replace(this.body, this.gap(from), rows, this.gap(this.shown.length - to));
    if (!this.shown.length)
      this.body.append(el("tr", el("td.empty", { colspan: this.columns.length + 1 }, "No row passes the filters.")));
  }

  gap(rows) {
    const style = { height: `${rows * ROW}px` };
    const cell = el("td", { colspan: this.columns.length + 1, style });
    return rows ? el("tr.gap", { "aria-hidden": "true" }, cell) : null;
  }

  rowNode(row, i) {
    const cells = this.columns.map((c, j) => this.cellNode(row, c, i, j));
    if (this.pick) cells.unshift(this.pickNode(row));
    return el(this.pick?.has(row) ? "tr.picked" : "tr", { "aria-rowindex": i + 2, "data-row": i }, cells);
  }

  pickNode(row) {
    const flip = (e) => {
      this.pick.toggle(row, e.target.checked);
      e.target.closest("tr").classList.toggle("picked", e.target.checked);
    };
    const label = `choose ${this.columns[0].get(row)}`;
    const checked = this.pick.has(row);
    return el("td.pick", el("input", { type: "checkbox", checked, "aria-label": label, onchange: flip }));
  }

  cellNode(row, column, i, j) {
    const value = column.get(row);
    const text = column.text ? column.text(row) : column.numeric ? fmt(value, column.digits ?? 3) : (value ?? "–");
    const mark = column.mark?.(row);
    const here = this.active[0] === i && this.active[1] === j;
    const spec = (j === 0 ? "th" : "td") + (column.numeric ? ".number" : "") + (mark ? `.${mark}` : "");
    const node = el(spec, { scope: j === 0 ? "row" : null, tabindex: here ? "0" : "-1", "data-col": j }, text);
    if (mark) node.append(el("span.hidden", ` (${mark})`));
    if (column.numeric && !isNumber(value)) node.classList.add("none");
    if (column.tip) tip(node, () => column.tip(row), false);
    return node;
  }

  walk(event) {
    const step = STEPS[event.key];
    const cell = event.target.closest("[data-col]");
    if (!step || !cell) return;
    event.preventDefault();
    this.focus(Number(cell.parentNode.dataset.row) + step[0], Number(cell.dataset.col) + step[1]);
  }

  focus(i, j) {
    this.active = [Math.min(Math.max(0, i), this.shown.length - 1), Math.min(Math.max(0, j), this.columns.length - 1)];
    const top = this.active[0] * ROW;
    if (top < this.scroller.scrollTop || top > this.scroller.scrollTop + this.scroller.clientHeight - 3 * ROW)
      this.scroller.scrollTop = top - 2 * ROW;
    this.drawn = "";
    this.draw();
    this.body
      .querySelector(`[data-row="${this.active[0]}"] [data-col="${this.active[1]}"]`)
      ?.focus({ preventScroll: false });
  }

  print(on) {
    this.printing = on;
    this.draw();
  }

  sheet() {
    return {
      columns: this.columns.map((c) => c.label),
      rows: this.shown.map((row) => this.columns.map((c) => c.get(row) ?? null)),
    };
  }
}

const tellTables = (on) =>
  document
    .querySelectorAll(".table-box")
    .forEach((n) => n.dispatchEvent(new CustomEvent("print-rows", { detail: on })));
addEventListener("beforeprint", () => tellTables(true));
addEventListener("afterprint", () => tellTables(false));

// ---- a long list of which only the rows in sight exist; one row is chosen, arrow keys move the choice ------------------

const MORE = 5; // rows beyond those in sight
let lists = 0;

/** VirtualList({height, rowHeight, label, render(row) -> nodes, onChoose(row, byReader)}). */
export class VirtualList {
  constructor(options) {
    Object.assign(this, { rows: [], chosen: -1, id: `list-${(lists += 1)}` }, options);
    this.inner = el("div.vlist-inner");
    this.node = el(
      "div.vlist",
      {
        role: "listbox", tabindex: "0", "aria-label": this.label, style: { "max-height": `${this.height}px` },
        onscroll: () => this.draw(), onkeydown: (e) => this.key(e),
      },
      this.inner,
    );
  }

  show(rows) {
    this.rows = rows;
    this.inner.style.setProperty("height", `${rows.length * this.rowHeight}px`);
    this.node.scrollTop = 0;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.rowHeight) - MORE);
    const last = Math.min(this.rows.length, first + Math.ceil(this.height / this.rowHeight) + 2 * MORE);
    const parts = [];
    for (let i = first; i < last; i += 1) parts.push(this.rowNode(i));
    replace(this.inner, parts);
    if (this.chosen >= 0) this.node.setAttribute("aria-activedescendant", `${this.id}-${this.chosen}`);
  }

  rowNode(i) {
    const on = i === this.chosen;
    return el(
      on ? "div.vrow.on" : "div.vrow",
      {
        role: "option",
        id: `${this.id}-${i}`,
        "aria-selected": String(on),
        "aria-posinset": i + 1,
        "aria-setsize": this.rows.length,
        style: { top: `${i * this.rowHeight}px`, height: `${this.rowHeight}px` },
        onclick: () => this.choose(i),
      },
      ...this.render(this.rows[i], i),
    );
  }

  choose(i, bring = true) {
    this.chosen = Math.min(Math.max(0, i), this.rows.length - 1);
    if (bring) this.bring();
    this.draw();
    this.onChoose(this.rows[this.chosen], bring);
  }

  bring() {
    const top = this.chosen * this.rowHeight;
    const box = this.node;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + this.rowHeight > box.scrollTop + box.clientHeight)
      box.scrollTop = top + this.rowHeight - box.clientHeight;
  }

  key(event) {
    const page = Math.floor(this.height / this.rowHeight);
    const step = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.rows.length, End: this.rows.length,
    }[event.key];
    if (!step || !this.rows.length) return;
    event.preventDefault();
    this.choose(this.chosen + step);
  }
}
