// A long list of which only the rows in sight exist. One row is chosen; arrow keys move the choice.

import { el, replace } from "./dom.js";

const SPARE = 5;
let lists = 0;

/** VirtualList({height, rowHeight, label, render(row) -> nodes, onChoose(row, byReader)}). */
export class VirtualList {
  constructor(options) {
    Object.assign(this, { rows: [], chosen: -1, id: `list-${(lists += 1)}` }, options);
    this.inner = el("div.vlist-inner");
    this.node = el(
      "div.vlist",
      {
        role: "listbox",
        tabindex: "0",
        "aria-label": this.label,
        style: { "max-height": `${this.height}px` },
        onscroll: () => this.draw(),
        onkeydown: (e) => this.key(e),
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
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.rowHeight) - SPARE);
    const last = Math.min(this.rows.length, first + Math.ceil(this.height / this.rowHeight) + 2 * SPARE);
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
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -this.rows.length,
      End: this.rows.length,
    }[event.key];
    if (!step || !this.rows.length) return;
    event.preventDefault();
    this.choose(this.chosen + step);
  }
}
