// What it says: generations beside the reference. Worst leaks first; filter, search, and look at one row in full.

import { announce, choose, count, el, fmt, isNumber, replace, searchBox, slide, tick, unique } from "./dom.js";
import { modelName, report } from "./data.js";
import { noteBox } from "./notes.js";
import { compare, sorted } from "./order.js";
import { marked } from "./overlap.js";
import { saving } from "./save.js";
import * as state from "./state.js";
import { columnHead, VirtualList } from "./table.js";

const ON_PAPER = 8; // rows
const MOST_VALUES = 400; // of a column that can be chosen from

const gap = (row, id, other) => {
  const [a, b] = [row.scores?.[id]?.rouge, other?.scores?.rouge];
  return isNumber(a) && isNumber(b) ? a - b : null;
};
// order -> [words, value of a row, large values first]
const ORDERS = {
  leak: ["worst leak first", (row) => row.leak, true],
  row: ["in the order of the data", (row) => row.i, false],
  rouge: ["most said (ROUGE)", (row, id) => row.scores?.[id]?.rouge, true],
  prob: ["most likely", (row, id) => row.scores?.[id]?.prob, true],
};
const BESIDE = {
  gap: ["says most more than the other model", gap, true],
  pag: ["says most less than the other model", gap, false],
};

const keyOf = (row) => `${row.split}-${row.i}`;
const sameQuestion = (row) => `${keyOf(row)} ${row.question}`;

/** What one model said to a row. */
const answerOf = (row, id) => ({
  text: row.texts?.[id], scores: row.scores?.[id], spans: row.marks?.[id], tells: row.tells?.[id],
});

export const saysPanel = (audit) => (audit.says?.rows?.length ? [new Says(audit).node] : []);

class Says {
  constructor(audit) {
    this.audit = audit;
    this.id = audit.model;
    this.all = audit.says.rows;
    this.columns = unique(this.all.flatMap((r) => Object.keys(r.columns ?? {})));
    this.haystack = null;
    this.putBeside(state.get("s.beside"));
    this.detail = el("div.detail", { "aria-live": "polite" });
    this.said = el("span.count");
    this.paper = el("div.paper-only");
    this.list = new VirtualList({
      height: 470, rowHeight: 74, label: "generations", render: (row) => this.line(row),
      onChoose: (row, byReader) => this.open(row, byReader),
    });
    const pair = el("div.says", this.list.node, this.detail);
    const tools = saving(`generations_${this.id}`, () => this.sheet(), this.said);
    this.node = el("div", this.bar(), pair, this.paper, tools);
    this.update();
  }

  /** Chooses the model whose texts are shown beside this one's: row -> what it said to the same row. */
  putBeside(id) {
    const other = report.audits.find((a) => a.model === id && id !== this.id);
    this.other = other ? id : null;
    this.others = new Map((other?.says?.rows ?? []).map((row) => [sameQuestion(row), answerOf(row, id)]));
  }

  otherOf(row) {
    return this.others.get(sameQuestion(row));
  }

  bar() {
    const change = (key) => (v) => {
      state.set({ [key]: v });
      this.update();
    };
    const bar = el("div.controls");
    const menu = (label, key, none, values) =>
      choose(label, [["", none], ...values.map((v) => [String(v), String(v)])], state.get(key), change(key));
    const splits = unique(this.all.map((r) => r.split));
    const columnMenu = (name) => {
      const values = unique(this.all.map((r) => r.columns?.[name]).filter((v) => v !== undefined && v !== null));
      if (values.length < 2 || values.length > MOST_VALUES) return null;
      return menu(name, `s.col.${name}`, `any ${name}`, values.sort(compare));
    };
    const orders = Object.entries(this.orders()).map(([k, [text]]) => [k, text]);
    const besides = report.audits.filter((a) => a.model !== this.id && a.says?.rows?.length);
    const put = (id) => {
      state.set({ "s.beside": id, "s.order": null });
      this.putBeside(id);
      bar.replaceWith(this.bar());
      this.update();
    };
    const others = [["", "no other model"], ...besides.map((a) => [a.model, modelName(a.model)])];
    const least = { min: 0, max: 1, step: 0.05, value: state.getNumber("s.leak", 0) };
    const onlySecrets = (on) => change("s.tells")(on ? "1" : null);
    return replace(
      bar,
      searchBox("Search questions and answers", state.get("s.q"), change("s.q")),
      splits.length > 1 && menu("rows", "s.split", "all rows", splits),
      ...this.columns.map(columnMenu),
      choose("order", orders, state.get("s.order", "leak"), change("s.order")),
      this.all.some((r) => r.tells) &&
        tick("only rows that say their secret", state.get("s.tells") === "1", onlySecrets),
      slide("leak at least", least, (v) => change("s.leak")(v || null)),
      besides.length > 0 && choose("beside", others, this.other ?? "", put),
    );
  }

  orders() {
    return this.other ? { ...ORDERS, ...BESIDE } : ORDERS;
  }

  matching() {
    const split = state.get("s.split");
    const least = state.getNumber("s.leak", 0);
    const onlySecrets = state.get("s.tells") === "1";
    const words = state.get("s.q").toLowerCase().split(/\s+/).filter(Boolean);
    const columns = this.columns.map((name) => [name, state.get(`s.col.${name}`)]).filter(([, wanted]) => wanted);
    // All text of a row in lower case, made at the first search.
    const textOf = (r) => [r.i, r.question, r.reference, ...Object.values(r.texts ?? {})].join("\n").toLowerCase();
    if (words.length) this.haystack ??= this.all.map(textOf);
    return this.all.filter(
      (row, i) =>
        (!split || row.split === split) &&
        (!least || (row.leak ?? 0) >= least) &&
        (!onlySecrets || row.tells?.[this.id]) &&
        columns.every(([name, wanted]) => String(row.columns?.[name]) === wanted) &&
        words.every((w) => this.haystack[i].includes(w)),
    );
  }

  update() {
    const orders = this.orders();
    const order = Object.hasOwn(orders, state.get("s.order", "leak")) ? state.get("s.order", "leak") : "leak";
    const [, get, down] = orders[order];
    const hits = this.matching();
    // Rows come with those first that say their secret, then the worst leaks.
    this.rows = order === "leak" ? hits : sorted(hits, (r) => get(r, this.id, this.otherOf(r)), down);
    this.list.show(this.rows);
    replace(this.paper, this.printed());
    const off = Object.entries(this.audit.says.left_off ?? {}).filter(([, n]) => n > 0);
    const left = `; left off to keep the page small: ${off.map(([split, n]) => `${n} ${split}`).join(", ")}`;
    const all = this.all.length.toLocaleString("en");
    this.said.textContent = `${count(this.rows.length, "row")} of ${all}${off.length ? left : ""}`;
    const wanted = this.rows.findIndex((r) => keyOf(r) === state.get("s.row"));
    if (this.rows.length) this.list.choose(Math.max(0, wanted), false);
    else replace(this.detail, el("p.missing", "No row passes the filters."));
    announce(`${this.rows.length} rows`);
  }

  /** The first rows as a table: what paper shows in place of the list. */
  printed() {
    const line = (r) =>
      el(
        "tr",
        el("td", r.question),
        el("td", marks(r.texts?.[this.id] ?? "no text", null, r.marks?.[this.id])),
        el("td", marks(r.reference, null, r.marks?.reference)),
        el("td.number", r.tells?.[this.id] ? "✕ secret" : fmt(r.leak, 2)),
      );
    const heads = ["question", modelName(this.id), "reference", "leak"].map((text) => columnHead(text));
    const rows = this.rows.slice(0, ON_PAPER);
    const caption = `The first ${rows.length} of ${this.rows.length} rows, as ordered on the page`;
    return el("table", el("caption", caption), el("thead", el("tr", heads)), el("tbody", rows.map(line)));
  }

  line(row) {
    const { text, spans, tells } = answerOf(row, this.id);
    const leak = fmt(row.leak, 2);
    const title = tells ? "says the secret" : `leak ${leak}`;
    const style = { "--leak": isNumber(row.leak) ? row.leak : 0 };
    const other = this.otherOf(row);
    const said = (one) => marks(one.text ?? "no text", null, one.spans);
    return [
      el(tells ? "span.leak.tells" : "span.leak", { title, style }, tells ? "✕ secret" : leak),
      el(
        "span.texts",
        el("span.q", row.question),
        el("span.g", said({ text, spans })),
        other
          ? el("span.g.other", `${modelName(this.other)}: `, said(other))
          : el("span.r", marks(row.reference, null, row.marks?.reference)),
      ),
    ];
  }

  open(row, byReader) {
    if (byReader) state.set({ "s.row": keyOf(row) });
    const roles = [[this.id, "this model"], [this.audit.full, "full"], [this.audit.retain, "retain"]];
    const people = roles
      .filter(([id]) => id && row.texts?.[id] !== undefined)
      .map(([id, role]) => ({ name: modelName(id), role, ...answerOf(row, id) }));
    const other = this.otherOf(row);
    if (other) people.splice(1, 0, { name: modelName(this.other), role: "beside", ...other, text: other.text ?? "" });
    const facts = Object.entries(row.columns ?? {}).map(([k, v]) => `${k} ${v}`);
    const leak = isNumber(row.leak) ? `  leak ${fmt(row.leak, 2)}` : "  leak unknown";
    const secret = row.secret?.length ? ["; ", el("mark.secret", "outlined"), " ones give the secret away."] : ".";
    replace(
      this.detail,
      el("p.detail-head", [`${row.split} row ${row.i}`, ...facts].join(", "), el("span.soft", leak)),
      el("h3", row.question),
      answer({ name: "reference", text: row.reference, spans: row.marks?.reference }, null),
      ...people.map((p) => answer(p, row.reference)),
      el("p.soft.fine", "Marked words are in the reference in the same order", secret),
      noteBox(`row ${keyOf(row)}`, `Note on ${row.split} row ${row.i}`),
    );
  }

  sheet() {
    const ids = [this.id, this.audit.full, this.audit.retain].filter(Boolean);
    const heads = (name) => [name, `${name} ROUGE`, `${name} probability`];
    const facts = ["row", "split", "leak", "question", "reference", "secret"];
    const numbers = (r, id) => [r.texts?.[id], r.scores?.[id]?.rouge, r.scores?.[id]?.prob];
    const line = (r) => {
      const about = [r.i, r.split, r.leak, r.question, r.reference, r.secret?.join(" | ")];
      return [...about, ...ids.flatMap((id) => numbers(r, id))].map((v) => v ?? null);
    };
    return { columns: [...facts, ...ids.map(modelName).flatMap(heads)], rows: this.rows.map(line) };
  }
}

/** Text with its marks: words of the reference, and what gives the secret away. */
const marks = (text, reference, spans) =>
  marked(text, reference, spans ?? []).map(([part, shared, secret]) =>
    secret ? el("mark.secret", part) : shared ? el("mark", part) : part,
  );

function answer({ name, role = "", text, scores, spans, tells }, reference) {
  const facts = [
    isNumber(scores?.rouge) && `ROUGE ${fmt(scores.rouge, 2)}`,
    isNumber(scores?.prob) && `probability ${fmt(scores.prob, 2)}`,
    tells === true && "says the secret",
    tells === false && "does not say the secret",
  ].filter(Boolean);
  const about = facts.length ? el("span.soft", `  ${facts.join(", ")}`) : null;
  const head = el("p.who", el("strong", name), role && role !== name ? ` ${role}` : "", about);
  return el("div.said", head, el("blockquote", marks(text, reference, spans)));
}
