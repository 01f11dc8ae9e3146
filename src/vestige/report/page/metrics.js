// Metrics put to the test: the table of the meta-evaluation, and its filters and rule, recomputed while they are moved.

import { announce, el, fmt, isNumber, missing, replace, segments, slide, tick } from "./dom.js";
import { factList, metricTip, report, sourcePath } from "./data.js";
import { live } from "./robust.js";
import { marks } from "./order.js";
import { oneMetric } from "./onemetric.js";
import * as state from "./state.js";
import { Table } from "./table.js";

const DELIVERED = [
  ["overall", "overall"],
  ["auc", "faithfulness (AUC)"],
  ["agg", "HM(R, Q)"],
  ["q", "Q"],
  ["r", "R"],
];
const NOW = [
  ["n", "n now"],
  ["q", "Q now"],
  ["r", "R now"],
  ["agg", "HM now"],
];

export function metricsView(root) {
  const meta = report.meta;
  const head = el("h1", "Metrics put to the test");
  if (!meta)
    return replace(
      root,
      head,
      missing("No meta-evaluation in this report.", "Give a meta-evaluation (vestige meta) to vestige report."),
    );
  const view = new Metrics(meta);
  return replace(root, head, ...view.parts());
}

class Metrics {
  constructor(meta) {
    this.meta = meta;
    this.now = new Map();
    const known = meta.metrics.map((m) => m.key);
    this.chosen = known.includes(state.get("k.metric")) ? state.get("k.metric") : known[0];
    this.setting = readSetting(meta);
    this.now = live(meta, this.setting);
    this.sentence = el("p.live", { role: "status" }, this.words());
    this.table = new Table({
      name: "metrics",
      caption: "Meta-evaluation",
      key: "k.sort",
      rows: meta.metrics,
      columns: this.columns(),
    });
    this.one = oneMetric(this);
    this.table.body.addEventListener("click", (e) => this.clicked(e));
  }

  parts() {
    const meta = this.meta;
    const notes = el(
      "ul.limits",
      (meta.notes ?? []).map((t) => el("li", t)),
    );
    const formulas = factList(Object.entries(meta.formulas ?? {}));
    return [
      el("p.lead", summary(meta)),
      this.controls(),
      this.sentence,
      this.table.node,
      el("p.soft.fine", "Click a row to see that metric below. Marks: best, second best and worst of a column."),
      this.one.node,
      el(
        "section.panel",
        el("h2", "How it is computed"),
        formulas,
        factList(Object.entries(meta.rules ?? {})),
        notes,
        el("p.soft", sourcePath(meta.source)),
      ),
    ];
  }

  controls() {
    const { least, rule, useThreshold } = this.setting;
    const rules = Object.keys(this.meta.rules ?? { symmetric: "", "one-sided": "" });
    if (!this.meta.states)
      return missing(
        "The filters cannot be moved.",
        "the report holds no values of single models before and after the attacks",
      );
    return el(
      "div.controls",
      slide("utility at least", { min: 0, max: 1, step: 0.01, value: least }, (v) =>
        this.put({ least: v }, { "k.u": v }),
      ),
      tick("threshold filter", useThreshold, (on) => this.put({ useThreshold: on }, { "k.thr": on ? null : "0" })),
      segments(
        "rule",
        rules.map((r) => [r, r]),
        rule,
        (r) => this.put({ rule: r }, { "k.rule": r }),
      ),
      el("button", { type: "button", onclick: () => this.reset() }, "As delivered"),
    );
  }

  put(change, address) {
    Object.assign(this.setting, change);
    if (address) state.set(address);
    this.recompute();
  }

  setThreshold(key, value) {
    if (value === null) this.setting.thresholds.delete(key);
    else this.setting.thresholds.set(key, value);
    state.set({ "k.t": [...this.setting.thresholds].map(([k, v]) => `${k}:${v}`) });
    this.recompute();
  }

  reset() {
    state.set({ "k.u": null, "k.thr": null, "k.rule": null, "k.t": null });
    const root = document.getElementById("view");
    metricsView(root);
  }

  recompute() {
    this.now = live(this.meta, this.setting);
    this.table.order();
    this.sentence.textContent = this.words();
    this.one.update();
  }

  clicked(event) {
    const row = event.target.closest("tr[data-row]");
    if (!row) return;
    this.chosen = this.table.shown[Number(row.dataset.row)].key;
    state.set({ "k.metric": this.chosen });
    this.one.reset();
    announce(`showing ${this.chosen}`);
  }

  words() {
    const utility = this.meta.utility ?? {};
    const names = Object.keys(utility);
    if (!names.length) return "No utility is known: models are not filtered by it.";
    const kept = names.filter((name) => isNumber(utility[name]) && utility[name] >= this.setting.least).length;
    return `${kept} of ${names.length} models have a relative utility of at least ${fmt(this.setting.least, 2)}. Rule: ${this.setting.rule}.`;
  }

  columns() {
    const rows = this.meta.metrics;
    const name = { key: "label", label: "metric", get: (m) => m.label, tip: (m) => this.about(m) };
    const tags = { key: "tags", label: "tags", get: (m) => (m.tags ?? []).join(" ") };
    const given = DELIVERED.map(([key, label]) => {
      const found = marks(
        rows.map((m) => m[key]),
        "high",
      );
      return {
        key,
        label,
        numeric: true,
        digits: 4,
        get: (m) => (isNumber(m[key]) ? m[key] : null),
        mark: (m) => found.get(m[key]),
        tip: (m) => reach(m, key),
      };
    });
    const kept = {
      key: "n_models",
      label: "n",
      numeric: true,
      digits: 0,
      get: (m) => m.n_models ?? null,
      text: (m) => (isNumber(m.n_models) ? String(m.n_models) : "–"),
    };
    const now = NOW.map(([key, label]) => ({
      key: `now_${key}`,
      label,
      numeric: true,
      digits: 4,
      get: (m) => this.now.get(m.key)?.[key] ?? null,
      text: (m) => nowText(this.now.get(m.key), key),
      tip: (m) => this.nowTip(m),
    }));
    return [name, tags, ...given, kept, ...(this.meta.states ? now : [])];
  }

  about(m) {
    const facts = [
      ["turned", m.space],
      ["P mean", fmt(m.p_mean)],
      ["N mean", fmt(m.n_mean)],
      ["threshold", fmt(m.threshold)],
      ["filtered by", m.filtered_by],
      ["protocol", m.protocol],
      ["missing", m.reason],
    ];
    return el("div", metricTip(m.key), factList(facts.filter(([, v]) => v !== "–")));
  }

  nowTip(m) {
    const found = this.now.get(m.key);
    if (!found) return el("p", "The report holds no values of single models for this metric.");
    const facts = [
      ["kept", `${found.n} of ${found.total} models`],
      ["R", fmt(found.r, 6)],
      ["Q", fmt(found.q, 6)],
      ["HM(R, Q)", fmt(found.agg, 6)],
      ["missing", found.reason],
    ];
    return el("div", el("h4", `${m.label}, with the filters as set`), factList(facts));
  }
}

const nowText = (found, key) =>
  !found ? "–" : key === "n" ? `${found.n} / ${found.total}` : isNumber(found[key]) ? fmt(found[key], 4) : "none";

function reach(m, key) {
  const [lo, hi] = [m[`${key}_lo`], m[`${key}_hi`]];
  const facts = [
    ["value", isNumber(m[key]) ? m[key] : `none: ${m.reason ?? "not given"}`],
    ["95 % interval", isNumber(lo) ? `${fmt(lo, 4)} to ${fmt(hi, 4)}` : "not given"],
  ];
  for (const [rule, values] of Object.entries(m.other_rules ?? {}))
    facts.push([`rule ${rule}`, isNumber(values[key]) ? fmt(values[key], 4) : ""]);
  return el("div", el("h4", `${m.label}: ${key}`), factList(facts));
}

function readSetting(meta) {
  const rule = state.get("k.rule");
  const pairs = state
    .getAll("k.t")
    .map((text) => [text.slice(0, text.lastIndexOf(":")), Number(text.slice(text.lastIndexOf(":") + 1))]);
  return {
    least: state.getNumber("k.u", meta.least_utility ?? 0.8),
    rule: Object.hasOwn(meta.rules ?? { symmetric: 1, "one-sided": 1 }, rule) ? rule : meta.rule || "symmetric",
    useThreshold: state.get("k.thr") !== "0",
    thresholds: new Map(pairs.filter(([, v]) => Number.isFinite(v))),
  };
}

function summary(meta) {
  const ranked = meta.metrics.filter((m) => isNumber(m.overall)).sort((a, b) => b.overall - a.overall);
  if (!ranked.length) return `${meta.metrics.length} metrics; none has both faithfulness and robustness.`;
  const [best, worst] = [ranked[0], ranked.at(-1)];
  return `${meta.metrics.length} metrics. A good one tells models that know from models that do not (faithfulness) and says the same after relearning (R) and quantisation (Q). Best overall: ${best.label} (${fmt(best.overall)}); worst: ${worst.label} (${fmt(worst.overall)}).`;
}
