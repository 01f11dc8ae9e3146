// Few models: each is a column, each metric a row with its plain title, so that no column is out of sight.

import { el, fmt, isNumber, replace } from "./dom.js";
import {
  aimsAtRetain,
  auditOf,
  cell,
  goodness,
  goodWords,
  isReference,
  metricTip,
  number,
  titled,
  valueTip,
} from "./data.js";
import { marks } from "./order.js";
import { saveButtons } from "./save.js";
import { tip } from "./tip.js";
import { signOf, titleOf } from "./verdict.js";

/** Sideways({keys, pick: {has(model), toggle(model, on)}, words(models)}): the same duties as Table has. */
export class Sideways {
  constructor({ keys, pick, words, rows }) {
    Object.assign(this, { keys, pick, words });
    this.place = el("div.scroller", { tabindex: "0", role: "region", "aria-label": "Models and their numbers" });
    this.said = el("span.count");
    const tools = el("div.table-tools", this.said, ...saveButtons("models", () => this.sheet()));
    this.node = el("div.table-box", this.place, tools);
    this.show(rows);
  }

  show(models) {
    this.shown = models;
    this.order();
  }

  order() {
    const head = el(
      "tr",
      el("th", { scope: "col" }, "what is measured"),
      this.shown.map((m) => this.head(m)),
    );
    const keys = this.keys.filter((key) => this.shown.some((m) => number(m.id, key) !== null));
    const body = keys.map((key) => this.line(key));
    replace(
      this.place,
      el("table.sideways", el("caption", "Models and their numbers"), el("thead", head), el("tbody", body)),
    );
    this.said.textContent = this.words(this.shown);
  }

  head(m) {
    const flip = (e) => this.pick.toggle(m, e.target.checked);
    const box = el("input", {
      type: "checkbox",
      checked: this.pick.has(m),
      "aria-label": `choose ${m.name}`,
      onchange: flip,
    });
    const audit = auditOf(m.id);
    const word = audit ? `${signOf(audit.verdict)} ${titleOf(audit.verdict)}` : isReference(m) ? m.role : "";
    return el(
      `th.number${isReference(m) ? `.${m.role}` : ""}`,
      { scope: "col" },
      el("label", box, " ", el("span.model-name", m.name)),
      word && word !== m.name ? el("span.word", word) : null,
    );
  }

  line(key) {
    const found = marks(
      this.shown.filter((m) => !isReference(m)).map((m) => goodness(m.id, key)),
      "high",
    );
    const one = (m) => {
      const mark = isReference(m) ? undefined : found.get(goodness(m.id, key));
      const known = isNumber(number(m.id, key));
      const text = known ? fmt(number(m.id, key)) : cell(m.id, key) ? "none" : "–";
      const said = mark ? [text, el("span.hidden", ` (${mark})`)] : [text];
      return tip(
        el(`td.number${mark ? `.${mark}` : ""}${known ? "" : ".none"}`, ...said),
        () => valueTip(m.id, key),
        false,
      );
    };
    const words = aimsAtRetain(key) ? "" : goodWords(key); // what holds for most is told above the table
    const name = el("th", { scope: "row" }, titled(key), words ? el("span.soft.fine.aim", words) : null);
    return el(
      "tr",
      tip(name, () => metricTip(key)),
      this.shown.map(one),
    );
  }

  sheet() {
    return {
      columns: ["metric", ...this.shown.map((m) => m.name)],
      rows: this.keys.map((key) => [key, ...this.shown.map((m) => number(m.id, key))]),
    };
  }
}
