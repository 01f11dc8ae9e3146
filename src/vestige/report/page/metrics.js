// Metrics put to the test: the table of the meta-evaluation, and its filters and rule, recomputed while they are moved.

import { announce, el, fmt, isNumber, missing, panel, replace, segments, slide, tick } from "./dom.js";
import { factList, metricTip, report, sourcePath } from "./data.js";
import { oneMetric } from "./onemetric.js";
import { marks } from "./order.js";
import { live } from "./robust.js";
import * as state from "./state.js";
import { Table } from "./table.js";

const DELIVERED = { overall: "overall", auc: "faithfulness (AUC)", agg: "HM(R, Q)", q: "Q", r: "R" };
const NOW = { n: "n now", q: "Q now", r: "R now", agg: "HM now" };

export function metricsView(root) {
  const head = el("h1", "Metrics put to the test");
  const why = "Give a meta-evaluation (vestige meta) to vestige report.";
  if (!report.meta) return replace(root, head, missing("No meta-evaluation in this report.", why));
  return replace(root, head, ...new Metrics(report.meta).parts());
}

class Metrics {
  constructor(meta) {
    this.meta = meta;
    const known = meta.metrics.map((m) => m.key);
    this.chosen = known.includes(state.get("k.metric")) ? state.get("k.metric") : known[0];
    this.setting = readSetting(meta);
    this.now = live(meta, this.setting);
    this.sentence = el("p.live", { role: "status" }, this.words());
    const columns = this.columns();
    this.table = new Table({ name: "metrics", caption: "Meta-evaluation", key: "k.sort", rows: meta.metrics, columns });
    this.one = oneMetric(this);
    this.table.body.addEventListener("click", (e) => this.clicked(e));
  }

  parts() {
    const { meta } = this;
    const notes = (meta.notes ?? []).map((t) => el("li", t));
    const computed = [factList(Object.entries(meta.formulas ?? {})), factList(Object.entries(meta.rules ?? {}))];
    return [
      el("p.lead", summary(meta)),
      this.controls(),
      this.sentence,
      this.table.node,
      el("p.soft.fine", "Click a row to see that metric below. Marks: best, second best and worst of a column."),
      this.one.node,
      panel("How it is computed", ...computed, el("ul.limits", notes), el("p.soft", sourcePath(meta.source))),
    ];
  }

  controls() {
    const { least, rule, useThreshold } = this.setting;
    const rules = Object.keys(this.meta.rules ?? { symmetric: "", "one-sided": "" }).map((r) => [r, r]);
    const lacking = "the report holds no values of single models before and after the attacks";
    if (!this.meta.states) return missing("The filters cannot be moved.", lacking);
    const put =
      (name, key, text = (v) => v) =>
      (v) => {
        this.setting[name] = v;
        state.set({ [key]: text(v) });
        this.recompute();
      };
    const utility = { min: 0, max: 1, step: 0.01, value: least };
    const reset = () => {
      state.set({ "k.u": null, "k.thr": null, "k.rule": null, "k.t": null });
      metricsView(document.getElementById("view"));
    };
    return el(
      "div.controls",
      slide("utility at least", utility, put("least", "k.u")),
      tick(
        "threshold filter",
        useThreshold,
        put("useThreshold", "k.thr", (on) => (on ? null : "0")),
      ),
      segments("rule", rules, rule, put("rule", "k.rule")),
      el("button", { type: "button", onclick: reset }, "As delivered"),
    );
  }

  setThreshold(key, value) {
    this.setting.thresholds.set(key, value);
    state.set({ "k.t": [...this.setting.thresholds].map(([k, v]) => `${k}:${v}`) });
    this.recompute();
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
    const values = Object.values(this.meta.utility ?? {});
    if (!values.length) return "No utility is known: models are not filtered by it.";
    const { least, rule } = this.setting;
    const kept = values.filter((v) => isNumber(v) && v >= least).length;
    return `${kept} of ${values.length} models have a relative utility of at least ${fmt(least, 2)}. Rule: ${rule}.`;
  }

  columns() {
    const rows = this.meta.metrics;
    const delivered = Object.entries(DELIVERED).map(([key, label]) => {
      const found = marks(
        rows.map((m) => m[key]),
        "high",
      );
      const get = (m) => (isNumber(m[key]) ? m[key] : null);
      return { key, label, numeric: true, digits: 4, get, mark: (m) => found.get(m[key]), tip: (m) => reach(m, key) };
    });
    const now = Object.entries(NOW).map(([key, label]) => {
      const get = (m) => this.now.get(m.key)?.[key] ?? null;
      const text = (m) => nowText(this.now.get(m.key), key);
      return { key: `now_${key}`, label, numeric: true, digits: 4, get, text, tip: (m) => this.nowTip(m) };
    });
    const count = (m) => (isNumber(m.n_models) ? String(m.n_models) : "–");
    return [
      { key: "label", label: "metric", get: (m) => m.label, tip: aboutMetric },
      { key: "tags", label: "tags", get: (m) => (m.tags ?? []).join(" ") },
      ...delivered,
      { key: "n_models", label: "n", numeric: true, digits: 0, get: (m) => m.n_models ?? null, text: count },
      ...(this.meta.states ? now : []),
    ];
  }

  nowTip(m) {
    const found = this.now.get(m.key);
    if (!found) return el("p", "The report holds no values of single models for this metric.");
    const facts = [
      ["kept", `${found.n} of ${found.total} models`], ["R", fmt(found.r, 6)], ["Q", fmt(found.q, 6)],
      ["HM(R, Q)", fmt(found.agg, 6)], ["missing", found.reason],
    ];
    return el("div", el("h4", `${m.label}, with the filters as set`), factList(facts));
  }
}

function aboutMetric(m) {
  const facts = [
    ["turned", m.space], ["P mean", fmt(m.p_mean)], ["N mean", fmt(m.n_mean)], ["threshold", fmt(m.threshold)],
    ["filtered by", m.filtered_by], ["protocol", m.protocol], ["missing", m.reason],
  ];
  return el("div", metricTip(m.key), factList(facts.filter(([, v]) => v !== "–")));
}

const nowText = (found, key) =>
  !found ? "–" : key === "n" ? `${found.n} / ${found.total}` : isNumber(found[key]) ? fmt(found[key], 4) : "none";

function reach(m, key) {
  const [lo, hi] = [m[`${key}_lo`], m[`${key}_hi`]];
  const others = Object.entries(m.other_rules ?? {});
  const facts = [
    ["value", isNumber(m[key]) ? m[key] : `none: ${m.reason ?? "not given"}`],
    ["95 % interval", isNumber(lo) ? `${fmt(lo, 4)} to ${fmt(hi, 4)}` : "not given"],
    ...others.map(([rule, values]) => [`rule ${rule}`, isNumber(values[key]) ? fmt(values[key], 4) : ""]),
  ];
  return el("div", el("h4", `${m.label}: ${key}`), factList(facts));
}

function readSetting(meta) {
  const rule = state.get("k.rule");
  const pairs = state.getAll("k.t").map((text) => {
    const at = text.lastIndexOf(":");
    return [text.slice(0, at), Number(text.slice(at + 1))];
  });
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
