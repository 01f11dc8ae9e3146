// Two panels of an audit: what the model finds likely (distributions over rows, ROC curves of membership attacks), and what
// comes back under attack.

import { choose, el, fmt, interval, isNumber, replace, unique } from "./dom.js";
import { metric, metricOptions, model, modelName, roleColour, titledText } from "./data.js";
import { chart, curve, faint, guide, lines, plain } from "./chart.js";
import { sorted } from "./order.js";
import { saving } from "./save.js";
import * as state from "./state.js";
import { columnHead, scroller } from "./table.js";
import { colours } from "./theme.js";

// ---- what it finds likely ----------------------------------------------------------------------------------------------

const SPLITS = ["forget", "retain", "holdout"];
const DASHES = { full: "dash", retain: "dot" };

export const likelyPanel = (audit) => [distributions(audit), rocCurves(audit)];

const splitColour = (split) => ({ forget: colours().red, retain: colours().green, holdout: colours().blue })[split];

/** Those of one metric: the audited model first, then full, then retain. */
function ofMetric(audit, items, key) {
  const rank = (d) => [audit.model, audit.full, audit.retain].indexOf(d.model);
  return items.filter((d) => d.metric === key).sort((a, b) => rank(a) - rank(b));
}

function distributions(audit) {
  if (!audit.likely?.length) return null;
  const splits = (key) => Math.max(...ofMetric(audit, audit.likely, key).map((d) => Object.keys(d.splits).length));
  const keys = sorted(unique(audit.likely.map((d) => d.metric)), splits, true); // what compares most splits first
  const place = el("div.small-multiples");
  const show = (key) => {
    state.set({ "d.metric": key === keys[0] ? null : key });
    const shown = ofMetric(audit, audit.likely, key);
    const bins = sharedBins(shown);
    replace(
      place,
      shown.map((d) => histogram(d, bins).node),
    );
  };
  const chosen = keys.includes(state.get("d.metric")) ? state.get("d.metric") : keys[0];
  show(chosen);
  return el("div", el("div.controls", choose("distribution of", metricOptions(keys), chosen, show)), place);
}

function sharedBins(items) {
  const all = items.flatMap((d) => SPLITS.flatMap((s) => d.splits[s] ?? []));
  const lo = all.reduce((a, b) => Math.min(a, b), Infinity);
  const hi = all.reduce((a, b) => Math.max(a, b), -Infinity);
  const pad = (hi - lo || 1) * 0.02;
  return { start: lo - pad, end: hi + pad, size: (hi - lo + 2 * pad) / 24 };
}

function histogram(d, bins) {
  const here = SPLITS.filter((s) => d.splits[s]?.length);
  const trace = (s) => ({
    type: "histogram",
    x: d.splits[s],
    name: `${s} (n ${d.splits[s].length})`,
    histnorm: "probability",
    opacity: 0.75,
    xbins: bins,
    marker: { color: faint(splitColour(s), 0.45), line: { color: splitColour(s), width: 1.2 } },
  });
  const build = () => ({
    traces: here.map(trace),
    layout: {
      xaxis: { title: d.what || metric(d.metric).label, range: [bins.start, bins.end] },
      yaxis: { title: "share of rows", rangemode: "tozero" },
    },
    says: here.map((s) => `${s}: median ${fmt(median(d.splits[s]))} of ${d.splits[s].length} rows.`).join(" "),
  });
  const { role, name } = model(d.model);
  return chart({
    name: `${d.metric}_${d.model}`,
    title: name,
    note: role === name ? "" : role,
    height: 270,
    build,
    sheet: () => ({ columns: ["split", d.metric], rows: here.flatMap((s) => d.splits[s].map((v) => [s, v])) }),
  });
}

function median(values) {
  const order = [...values].sort((a, b) => a - b);
  const mid = order.length >> 1;
  return order.length % 2 ? order[mid] : (order[mid - 1] + order[mid]) / 2;
}

function rocCurves(audit) {
  if (!audit.roc?.length) return null;
  const keys = unique(audit.roc.map((r) => r.metric));
  let chosen = keys.includes(state.get("r.metric")) ? state.get("r.metric") : keys[0];
  const shown = () => ofMetric(audit, audit.roc, chosen);
  const drawn = chart({
    name: "roc",
    title: "Can an attacker tell forget rows from unseen rows?",
    note: "ROC: 0.5 is chance; compare with the retain model",
    height: 380,
    build: () => rocPicture(shown()),
    sheet: () => ({
      columns: ["model", "false positive rate", "true positive rate"],
      rows: shown().flatMap((r) => r.fpr.map((x, i) => [modelName(r.model), x, r.tpr[i]])),
    }),
  });
  const areas = el("div", ...areaTable(shown()));
  const change = (key) => {
    chosen = key;
    state.set({ "r.metric": key });
    drawn.update();
    replace(areas, ...areaTable(shown()));
  };
  const menu = el("div.controls", choose("attack", metricOptions(keys), chosen, change));
  return el("div", menu, el("div.side-by-side", drawn.node, areas));
}

function rocPicture(items) {
  const trace = (r) => {
    const { role, name } = model(r.model);
    return curve(r.fpr, r.tpr, `${name} AUC ${fmt(r.auc)}`, roleColour(role), {
      mode: "lines",
      line: { dash: DASHES[role], shape: "hv" },
      text: r.fpr.map((x, i) => lines(name, `false positives ${fmt(x)}, true positives ${fmt(r.tpr[i])}`)),
    });
  };
  return {
    traces: [guide([0, 1], [0, 1], colours().soft, { line: { dash: "dash" } }), ...items.map(trace)],
    layout: {
      xaxis: { title: "false positive rate (holdout)", range: [-0.01, 1.01] },
      yaxis: { title: "true positive rate (forget)", range: [-0.01, 1.02] },
    },
    says: items.map((r) => `${modelName(r.model)}: AUC ${fmt(r.auc)}.`).join(" "),
  };
}

function areaTable(items) {
  const line = (r) =>
    el(
      "tr",
      el("th", { scope: "row" }, modelName(r.model)),
      el("td.number.main", fmt(r.auc)),
      el("td.number.soft", interval(r) || "–"),
      el("td.number", (r.n ?? []).join(" / ")),
    );
  const heads = ["model", "AUC", "95 % interval", "n forget / holdout"].map((h) => columnHead(h, h !== "model"));
  const sheet = () => ({
    columns: ["model", "auc", "lo", "hi", "n forget", "n holdout"],
    rows: items.map((r) => [modelName(r.model), r.auc, r.lo ?? null, r.hi ?? null, r.n?.[0] ?? null, r.n?.[1] ?? null]),
  });
  return [scroller("Area under the curve", heads, items.map(line)), saving(`auc_${items[0]?.metric ?? ""}`, sheet)];
}

// ---- what comes back under attack --------------------------------------------------------------------------------------

/** A chart for each attack and metric, with the control that shows what the attack teaches by itself. */
export function attackPanel(audit) {
  const groups = new Map();
  for (const c of audit.attacks ?? []) {
    const key = `${c.attack}|${c.metric}|${c.unit}`;
    groups.set(key, [...(groups.get(key) ?? []), c]);
  }
  if (!groups.size) return [];
  return [
    el(
      "div.chart-grid",
      [...groups.values()].map((curves) => recovery(audit, curves).node),
    ),
  ];
}

const attacked = (c) => (c.is_control ? `control: ${c.name || modelName(c.model)}` : c.name || modelName(c.model));

/** Places of the budgets from the weakest attack to the strongest. */
function inOrder({ budgets, reverse }) {
  const sign = reverse ? -1 : 1;
  return budgets.map((_, i) => i).sort((a, b) => sign * (budgets[a] - budgets[b]));
}

function recovery(audit, curves) {
  const first = curves[0];
  const unit = first.unit || "budget";
  const places = ["before", ...inOrder(first).map((i) => String(first.budgets[i]))];
  const last = (c) => `${attacked(c)}: ${fmt(c.before)} before, ${fmt(c.values.at(-1))} at the last budget.`;
  return chart({
    name: `${first.attack}_${first.metric}_${audit.model}`,
    title: `${first.attack}: ${titledText(first.metric)}`,
    note: unique(curves.flatMap((c) => c.notes ?? [])).join(" "),
    height: 300,
    build: () => ({
      traces: curves.flatMap((c) => recoveryTraces(c, unit)),
      layout: {
        xaxis: { title: unit, type: "category", categoryarray: places },
        yaxis: { title: metric(first.metric).label, rangemode: "tozero" },
      },
      says: curves.map(last).join(" "),
    }),
    sheet: () => ({
      columns: ["curve", unit, first.metric],
      rows: curves.flatMap((c) => [
        [attacked(c), "before", c.before], ...c.budgets.map((b, i) => [attacked(c), b, c.values[i]]),
      ]),
    }),
  });
}

function recoveryTraces(c, unit) {
  const { red, green, blue } = colours();
  const colour = c.is_control ? green : model(c.model).role === "full" ? red : blue;
  const order = inOrder(c);
  const x = ["before", ...order.map((i) => String(c.budgets[i]))];
  const y = [c.before, ...order.map((i) => c.values[i])];
  const words = (b, i) =>
    lines(attacked(c), i ? `${unit} ${b}` : "before the attack", isNumber(y[i]) ? fmt(y[i]) : "no value");
  const main = curve(x, y, plain(attacked(c), 34), colour, {
    connectgaps: true,
    line: { dash: c.is_control ? "dash" : "solid" },
    marker: { size: 7, symbol: c.is_control ? "diamond" : "circle" },
    text: x.map(words),
  });
  if (c.is_control || !isNumber(c.before)) return [main];
  return [guide([x[0], x.at(-1)], [c.before, c.before], colour, { line: { dash: "dot" } }), main];
}
