// What it says: generations beside the reference. Worst leaks first; filter, search, and look at one row in full.

import { announce, choose, count, el, fmt, isNumber, replace, searchBox, slide, tick } from "./dom.js";
import { modelName, report } from "./data.js";
import { noteBox } from "./notes.js";
import { compare, sorted } from "./order.js";
import { marked } from "./overlap.js";
import { saveButtons } from "./save.js";
import * as state from "./state.js";
import { VirtualList } from "./vlist.js";

const ON_PAPER = 8; // rows
const MOST_VALUES = 400; // of a column that can be chosen from

const ORDERS = {
  leak: ["worst leak first", (row) => row.leak, true],
  row: ["in the order of the data", (row) => row.i, false],
  rouge: ["most said (ROUGE)", (row, id) => row.scores?.[id]?.rouge, true],
  prob: ["most likely", (row, id) => row.scores?.[id]?.prob, true],
};
const BESIDE = {
  gap: ["says most more than the other model", (row, id, other) => gap(row, id, other, 1), true],
  pag: ["says most less than the other model", (row, id, other) => gap(row, id, other, -1), true],
};

function gap(row, id, other, sign) {
  const [a, b] = [row.scores?.[id]?.rouge, other?.scores?.rouge];
  return isNumber(a) && isNumber(b) ? sign * (a - b) : null;
}

const keyOf = (row) => `${row.split}-${row.i}`;

/** What another audited model said to the same rows: row -> {text, scores, marks, tells}. */
function othersRows(id) {
  const audit = report.audits.find((a) => a.model === id);
  const rows = audit?.says?.rows ?? [];
  return new Map(
    rows.map((r) => [
      `${keyOf(r)} ${r.question}`,
      { text: r.texts?.[id], scores: r.scores?.[id], marks: r.marks?.[id], tells: r.tells?.[id] },
    ]),
  );
}

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
    this.beside(state.get("s.beside"));
    this.detail = el("div.detail", { "aria-live": "polite" });
    this.said = el("span.count");
    this.list = new VirtualList({
      height: 470,
      rowHeight: 74,
      label: "generations",
      render: (row) => this.line(row),
      onChoose: (row, byReader) => this.open(row, byReader),
    });
    const pair = el("div.says", this.list.node, this.detail);
    this.paper = el("div.paper-only");
    this.node = el(
      "div",
      this.bar(),
      pair,
      this.paper,
      el("div.table-tools", this.said, ...saveButtons(`generations_${audit.model}`, () => this.sheet())),
    );
    this.update();
  }

  /** Chooses the model whose texts are shown beside this one's. */
  beside(id) {
    this.other = report.audits.some((a) => a.model === id) && id !== this.audit.model ? id : null;
    this.others = this.other ? othersRows(this.other) : new Map();
  }

  otherOf(row) {
    return this.others.get(`${keyOf(row)} ${row.question}`);
  }

  bar() {
    const change = (key) => (v) => {
      state.set({ [key]: v });
      this.update();
    };
    const splits = [...new Set(this.all.map((r) => r.split))];
    const bar = el("div.controls");
    const besides = report.audits.filter((a) => a.model !== this.audit.model && a.says?.rows?.length);
    const put = (id) => {
      state.set({ "s.beside": id, "s.order": null });
      this.beside(id);
      bar.replaceWith(this.bar());
      this.update();
    };
    replace(
      bar,
      searchBox("Search questions and answers", state.get("s.q"), change("s.q")),
      splits.length > 1 &&
        choose("rows", [["", "all rows"], ...splits.map((s) => [s, s])], state.get("s.split"), change("s.split")),
      ...this.columnChoices(change),
      choose(
        "order",
        Object.entries(this.orders()).map(([k, [text]]) => [k, text]),
        state.get("s.order", "leak"),
        change("s.order"),
      ),
      this.all.some((r) => r.tells) &&
        tick("only rows that say their secret", state.get("s.tells") === "1", (on) =>
          change("s.tells")(on ? "1" : null),
        ),
      slide("leak at least", { min: 0, max: 1, step: 0.05, value: state.getNumber("s.leak", 0) }, (v) =>
        change("s.leak")(v || null),
      ),
      besides.length > 0 &&
        choose(
          "beside",
          [["", "no other model"], ...besides.map((a) => [a.model, modelName(a.model)])],
          this.other ?? "",
          put,
        ),
    );
    return bar;
  }

  orders() {
    return this.other ? { ...ORDERS, ...BESIDE } : ORDERS;
  }

  /** One choice per column of the data (author, document, ...) that the rows carry. */
  columnChoices(change) {
    const names = [...new Set(this.all.flatMap((r) => Object.keys(r.columns ?? {})))];
    return names.map((name) => {
      const values = [...new Set(this.all.map((r) => r.columns?.[name]).filter((v) => v !== undefined && v !== null))];
      if (values.length < 2 || values.length > MOST_VALUES) return null;
      const options = values.sort(compare).map((v) => [String(v), String(v)]);
      return choose(name, [["", `any ${name}`], ...options], state.get(`s.col.${name}`), change(`s.col.${name}`));
    });
  }

  matching() {
    const split = state.get("s.split");
    const least = state.getNumber("s.leak", 0);
    const onlySecrets = state.get("s.tells") === "1";
    const words = state.get("s.q").toLowerCase().split(/\s+/).filter(Boolean);
    const texts = words.length ? this.texts() : null;
    const columns = [...new Set(this.all.flatMap((r) => Object.keys(r.columns ?? {})))]
      .map((name) => [name, state.get(`s.col.${name}`)])
      .filter(([, wanted]) => wanted);
    return this.all.filter(
      (row, i) =>
        (!split || row.split === split) &&
        (!least || (row.leak ?? 0) >= least) &&
        (!onlySecrets || row.tells?.[this.audit.model]) &&
        columns.every(([name, wanted]) => String(row.columns?.[name]) === wanted) &&
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
    const orders = this.orders();
    const order = Object.hasOwn(orders, state.get("s.order", "leak")) ? state.get("s.order", "leak") : "leak";
    const [, get, down] = orders[order];
    const hits = this.matching();
    // Rows come with those first that say their secret, then the worst leaks.
    this.rows = order === "leak" ? hits : sorted(hits, (r) => get(r, this.audit.model, this.otherOf(r)), down);
    this.list.show(this.rows);
    replace(this.paper, this.printed());
    this.said.textContent = this.words();
    const wanted = this.rows.findIndex((r) => keyOf(r) === state.get("s.row"));
    if (this.rows.length) this.list.choose(Math.max(0, wanted), false);
    else replace(this.detail, el("p.missing", "No row passes the filters."));
    announce(`${this.rows.length} rows`);
  }

  words() {
    const off = Object.entries(this.audit.says.left_off ?? {})
      .filter(([, n]) => n > 0)
      .map(([split, n]) => `${n} ${split}`);
    const left = off.length ? `; left off to keep the page small: ${off.join(", ")}` : "";
    return `${count(this.rows.length, "row")} of ${this.all.length.toLocaleString("en")}${left}`;
  }

  /** The first rows as a table: what paper shows in place of the list. */
  printed() {
    const id = this.audit.model;
    const cells = (r) => [
      el("td", r.question),
      el("td", marks(r.texts?.[id] ?? "no text", null, r.marks?.[id])),
      el("td", marks(r.reference, null, r.marks?.reference)),
      el("td.number", r.tells?.[id] ? "✕ secret" : fmt(r.leak, 2)),
    ];
    const heads = ["question", modelName(id), "reference", "leak"].map((t) => el("th", { scope: "col" }, t));
    const rows = this.rows.slice(0, ON_PAPER).map((r) => el("tr", cells(r)));
    const caption = `The first ${Math.min(ON_PAPER, this.rows.length)} of ${this.rows.length} rows, as ordered on the page`;
    return el("table", el("caption", caption), el("thead", el("tr", heads)), el("tbody", rows));
  }

  line(row) {
    const text = row.texts?.[this.audit.model];
    const leak = isNumber(row.leak) ? row.leak : 0;
    const tells = row.tells?.[this.audit.model];
    const bar = el(
      tells ? "span.leak.tells" : "span.leak",
      { title: tells ? "says the secret" : `leak ${fmt(row.leak, 2)}`, style: { "--leak": leak } },
      tells ? "✕ secret" : fmt(row.leak, 2),
    );
    const other = this.otherOf(row);
    return [
      bar,
      el(
        "span.texts",
        el("span.q", row.question),
        el("span.g", marks(text ?? "no text", null, row.marks?.[this.audit.model])),
        other
          ? el("span.g.other", `${modelName(this.other)}: `, marks(other.text ?? "no text", null, other.marks))
          : el("span.r", marks(row.reference, null, row.marks?.reference)),
      ),
    ];
  }

  open(row, byReader) {
    if (byReader) state.set({ "s.row": keyOf(row) });
    const other = this.otherOf(row);
    const people = [
      [this.audit.model, "this model"],
      [this.audit.full, "full"],
      [this.audit.retain, "retain"],
    ]
      .filter(([m]) => m && row.texts?.[m] !== undefined)
      .map(([m, role]) => ({
        name: modelName(m),
        role,
        text: row.texts[m],
        scores: row.scores?.[m],
        spans: row.marks?.[m],
        tells: row.tells?.[m],
      }));
    if (other)
      people.splice(1, 0, {
        name: modelName(this.other),
        role: "beside",
        text: other.text ?? "",
        scores: other.scores,
        spans: other.marks,
        tells: other.tells,
      });
    const facts = Object.entries(row.columns ?? {}).map(([k, v]) => `${k} ${v}`);
    replace(
      this.detail,
      el(
        "p.detail-head",
        [`${row.split} row ${row.i}`, ...facts].join(", "),
        el("span.soft", isNumber(row.leak) ? `  leak ${fmt(row.leak, 2)}` : "  leak unknown"),
      ),
      el("h3", row.question),
      said({ name: "reference", text: row.reference, spans: row.marks?.reference }, null),
      ...people.map((p) => said(p, row.reference)),
      el(
        "p.soft.fine",
        "Marked words are in the reference in the same order",
        row.secret?.length ? ["; ", el("mark.secret", "outlined"), " ones give the secret away."] : ".",
      ),
      noteBox(`row ${keyOf(row)}`, `Note on ${row.split} row ${row.i}`),
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
      "secret",
      ...ids.flatMap((m) => [modelName(m), `${modelName(m)} ROUGE`, `${modelName(m)} probability`]),
    ];
    const line = (r) =>
      [
        r.i,
        r.split,
        r.leak,
        r.question,
        r.reference,
        r.secret?.join(" | "),
        ...ids.flatMap((m) => [r.texts?.[m], r.scores?.[m]?.rouge, r.scores?.[m]?.prob]),
      ].map((v) => v ?? null);
    return { columns, rows: this.rows.map(line) };
  }
}

/** Text with its marks: words of the reference, and what gives the secret away. */
const marks = (text, reference, spans) =>
  marked(text, reference, spans ?? []).map(([part, shared, secret]) =>
    secret ? el("mark.secret", part) : shared ? el("mark", part) : part,
  );

function said({ name, role = "", text, scores, spans, tells }, reference) {
  const facts = [
    isNumber(scores?.rouge) && `ROUGE ${fmt(scores.rouge, 2)}`,
    isNumber(scores?.prob) && `probability ${fmt(scores.prob, 2)}`,
    tells === true && "says the secret",
    tells === false && "does not say the secret",
  ]
    .filter(Boolean)
    .join(", ");
  return el(
    "div.said",
    el("p.who", el("strong", name), role && role !== name ? ` ${role}` : "", facts && el("span.soft", `  ${facts}`)),
    el("blockquote", marks(text, reference, spans)),
  );
}
