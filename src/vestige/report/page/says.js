// What it says: generations beside the reference. Worst leaks first; filter, search, and look at one row in full.

import { announce, choose, count, el, fmt, isNumber, replace, searchBox, slide } from "./dom.js";
import { modelName } from "./data.js";
import { overlap } from "./overlap.js";
import { sorted } from "./order.js";
import { saveButtons } from "./save.js";
import * as state from "./state.js";
import { VirtualList } from "./vlist.js";

const ORDERS = {
  leak: ["worst leak first", (row) => row.leak, true],
  row: ["in the order of the data", (row) => row.i, false],
  rouge: ["most said (ROUGE)", (row, id) => row.scores?.[id]?.rouge, true],
  prob: ["most likely", (row, id) => row.scores?.[id]?.prob, true],
};

export function saysPanel(audit) {
  const rows = audit.says?.rows ?? [];
  if (!rows.length) return [];
  const view = new Says(audit, rows);
  return [view.node];
}

class Says {
  constructor(audit, rows) {
    this.audit = audit;
    this.all = rows;
    this.haystack = null;
    this.detail = el("div.detail", { "aria-live": "polite" });
    this.said = el("span.count", {});
    this.list = new VirtualList({
      height: 470,
      rowHeight: 74,
      label: "generations",
      render: (row) => this.line(row),
      onChoose: (row, byReader) => this.open(row, byReader),
    });
    const pair = el("div.says", {}, this.list.node, this.detail);
    this.node = el(
      "div",
      {},
      this.bar(),
      pair,
      el("div.table-tools", {}, this.said, ...saveButtons(`generations_${audit.model}`, () => this.sheet())),
    );
    this.update();
  }

  bar() {
    const change = (key) => (v) => {
      state.set({ [key]: v });
      this.update();
    };
    const splits = [...new Set(this.all.map((r) => r.split))];
    return el(
      "div.controls",
      {},
      searchBox("Search questions and answers", state.get("s.q"), change("s.q")),
      splits.length > 1 &&
        choose("rows", [["", "all rows"], ...splits.map((s) => [s, s])], state.get("s.split"), change("s.split")),
      choose(
        "order",
        Object.entries(ORDERS).map(([k, [text]]) => [k, text]),
        state.get("s.order", "leak"),
        change("s.order"),
      ),
      slide("leak at least", { min: 0, max: 1, step: 0.05, value: state.getNumber("s.leak", 0) }, (v) =>
        change("s.leak")(v || null),
      ),
    );
  }

  matching() {
    const split = state.get("s.split");
    const least = state.getNumber("s.leak", 0);
    const words = state.get("s.q").toLowerCase().split(/\s+/).filter(Boolean);
    const texts = words.length ? this.texts() : null;
    return this.all.filter(
      (row, i) =>
        (!split || row.split === split) &&
        (!least || (row.leak ?? 0) >= least) &&
        words.every((w) => texts[i].includes(w)),
    );
  }

  /** All text of a row in lower case, made at the first search. */
  texts() {
    this.haystack ??= this.all.map((r) =>
      [r.i, r.question, r.reference, ...Object.values(r.texts ?? {})].join("\n").toLowerCase(),
    );
    return this.haystack;
  }

  update() {
    const [, get, down] = ORDERS[state.get("s.order", "leak")] ?? ORDERS.leak;
    const hits = this.matching();
    this.rows = state.get("s.order", "leak") === "leak" ? hits : sorted(hits, (r) => get(r, this.audit.model), down); // rows come worst leak first
    this.list.show(this.rows);
    this.said.textContent = this.words();
    const wanted = this.rows.findIndex((r) => `${r.split}-${r.i}` === state.get("s.row"));
    if (this.rows.length) this.list.choose(Math.max(0, wanted), false);
    else replace(this.detail, el("p.missing", {}, "No row passes the filters."));
    announce(`${this.rows.length} rows`);
  }

  words() {
    const off = Object.entries(this.audit.says.left_off ?? {})
      .filter(([, n]) => n > 0)
      .map(([split, n]) => `${n} ${split}`);
    const left = off.length ? `; left off to keep the page small: ${off.join(", ")}` : "";
    return `${count(this.rows.length, "row")} of ${this.all.length.toLocaleString("en")}${left}`;
  }

  line(row) {
    const text = row.texts?.[this.audit.model];
    const leak = isNumber(row.leak) ? row.leak : 0;
    const bar = el("span.leak", { title: `leak ${fmt(row.leak, 2)}`, style: { "--leak": leak } }, fmt(row.leak, 2));
    return [
      bar,
      el(
        "span.texts",
        {},
        el("span.q", {}, row.question),
        el("span.g", {}, text ?? "no text"),
        el("span.r", {}, row.reference),
      ),
    ];
  }

  open(row, byReader) {
    if (byReader) state.set({ "s.row": `${row.split}-${row.i}` });
    const people = [
      [this.audit.model, "this model"],
      [this.audit.full, "full"],
      [this.audit.retain, "retain"],
    ].filter(([m]) => m && row.texts?.[m] !== undefined);
    replace(
      this.detail,
      el(
        "p.detail-head",
        {},
        `${row.split} row ${row.i}`,
        el("span.soft", {}, isNumber(row.leak) ? `  leak ${fmt(row.leak, 2)}` : "  leak unknown"),
      ),
      el("h3", {}, row.question),
      said("reference", "", row.reference, null),
      ...people.map(([m, role]) => said(modelName(m), role, row.texts[m], row, m)),
      el("p.soft.fine", {}, "Marked words stand in the reference in the same order."),
    );
  }

  sheet() {
    const ids = [this.audit.model, this.audit.full, this.audit.retain].filter(Boolean);
    const columns = [
      "row",
      "split",
      "leak",
      "question",
      "reference",
      ...ids.flatMap((m) => [modelName(m), `${modelName(m)} ROUGE`, `${modelName(m)} probability`]),
    ];
    const line = (r) =>
      [
        r.i,
        r.split,
        r.leak,
        r.question,
        r.reference,
        ...ids.flatMap((m) => [r.texts?.[m], r.scores?.[m]?.rouge, r.scores?.[m]?.prob]),
      ].map((v) => v ?? null);
    return { columns, rows: this.rows.map(line) };
  }
}

function said(name, role, text, row, id) {
  const scores = row?.scores?.[id];
  const facts = scores
    ? [
        isNumber(scores.rouge) && `ROUGE ${fmt(scores.rouge, 2)}`,
        isNumber(scores.prob) && `probability ${fmt(scores.prob, 2)}`,
      ]
        .filter(Boolean)
        .join(", ")
    : "";
  const body = row
    ? overlap(text, row.reference).map(([part, shared]) => (shared ? el("mark", {}, part) : part))
    : text;
  return el(
    "div.said",
    {},
    el(
      "p.who",
      {},
      el("strong", {}, name),
      role && role !== name ? ` ${role}` : "",
      facts && el("span.soft", {}, `  ${facts}`),
    ),
    el("blockquote", {}, body),
  );
}
