// What it finds likely: distributions of forget, retain and holdout rows for a metric, and the ROC curves of the attacks.

import { choose, el, fmt, replace } from "./dom.js";
import { model, modelName, metricOptions, metric, roleColour } from "./data.js";
import { chart, faint, lines, plain } from "./chart.js";
import { sorted } from "./order.js";
import { saveButtons } from "./save.js";
import * as state from "./state.js";
import { colours } from "./theme.js";

const SPLITS = ["forget", "retain", "holdout"];
const DASHES = { full: "dash", retain: "dot", unlearned: "solid", other: "solid" };

export function likelyPanel(audit) {
  return [spread(audit), curves(audit)].filter(Boolean);
}

const splitColour = (split) => ({ forget: colours().red, retain: colours().green, holdout: colours().blue })[split];

function spread(audit) {
  if (!audit.likely?.length) return null;
  const width = (key) =>
    Math.max(...audit.likely.filter((d) => d.metric === key).map((d) => Object.keys(d.splits).length));
  const keys = sorted([...new Set(audit.likely.map((d) => d.metric))], width, true); // what compares most splits first
  const place = el("div.small-multiples");
  const show = (key) => {
    state.set({ "d.metric": key === keys[0] ? null : key });
    const shown = inOrder(
      audit,
      audit.likely.filter((d) => d.metric === key),
    );
    replace(
      place,
      shown.map((d) => histogram(d, shared(shown)).node),
    );
  };
  const chosen = keys.includes(state.get("d.metric")) ? state.get("d.metric") : keys[0];
  show(chosen);
  return el("div", el("div.controls", choose("distribution of", metricOptions(keys), chosen, show)), place);
}

/** The audited model first, then full, then retain. */
function inOrder(audit, items) {
  const rank = (d) => [audit.model, audit.full, audit.retain].indexOf(d.model);
  return [...items].sort((a, b) => rank(a) - rank(b));
}

function shared(items) {
  const all = items.flatMap((d) => SPLITS.flatMap((s) => d.splits[s] ?? []));
  const lo = all.reduce((a, b) => Math.min(a, b), Infinity);
  const hi = all.reduce((a, b) => Math.max(a, b), -Infinity);
  const pad = (hi - lo || 1) * 0.02;
  return { lo: lo - pad, hi: hi + pad, size: (hi - lo + 2 * pad) / 24 };
}

function histogram(d, bins) {
  const here = SPLITS.filter((s) => d.splits[s]?.length);
  const trace = (s) => ({
    type: "histogram",
    x: d.splits[s],
    name: `${s} (n ${d.splits[s].length})`,
    histnorm: "probability",
    opacity: 0.75,
    xbins: { start: bins.lo, end: bins.hi, size: bins.size },
    marker: { color: faint(splitColour(s), 0.45), line: { color: splitColour(s), width: 1.2 } },
  });
  const build = () => ({
    traces: here.map(trace),
    layout: {
      barmode: "overlay",
      showlegend: true,
      xaxis: { title: d.what || metric(d.metric).label, range: [bins.lo, bins.hi] },
      yaxis: { title: "share of rows", rangemode: "tozero" },
    },
    says: here.map((s) => `${s}: median ${fmt(median(d.splits[s]))} of ${d.splits[s].length} rows.`).join(" "),
  });
  const rows = () => here.flatMap((s) => d.splits[s].map((v) => [s, v]));
  return chart({
    name: `${d.metric}_${d.model}`,
    title: modelName(d.model),
    note: model(d.model).role === modelName(d.model) ? "" : model(d.model).role,
    height: 270,
    build,
    sheet: () => ({ columns: ["split", d.metric], rows: rows() }),
  });
}

function median(values) {
  const order = [...values].sort((a, b) => a - b);
  const mid = order.length >> 1;
  return order.length % 2 ? order[mid] : (order[mid - 1] + order[mid]) / 2;
}

function curves(audit) {
  if (!audit.roc?.length) return null;
  const keys = [...new Set(audit.roc.map((r) => r.metric))];
  let chosen = keys.includes(state.get("r.metric")) ? state.get("r.metric") : keys[0];
  const own = () =>
    inOrder(
      audit,
      audit.roc.filter((r) => r.metric === chosen),
    );
  const drawn = chart({
    name: "roc",
    title: "Can an attacker tell forget rows from unseen rows?",
    note: "ROC: 0.5 is chance; compare with the retain model",
    height: 380,
    build: () => rocs(own()),
    sheet: () => rocSheet(own()),
  });
  const change = (key) => {
    chosen = key;
    state.set({ "r.metric": key });
    drawn.update();
    replace(table, ...aucList(own()));
  };
  const table = el("div", ...aucList(own()));
  return el(
    "div",
    el("div.controls", choose("attack", metricOptions(keys), chosen, change)),
    el("div.side-by-side", drawn.node, table),
  );
}

function rocs(items) {
  const trace = (r) => ({
    type: "scatter",
    mode: "lines",
    x: r.fpr,
    y: r.tpr,
    name: plain(`${modelName(r.model)} AUC ${fmt(r.auc)}`, 40),
    line: {
      color: roleColour(model(r.model).role),
      dash: DASHES[model(r.model).role] ?? "solid",
      width: 2.2,
      shape: "hv",
    },
    text: r.fpr.map((x, i) => lines(modelName(r.model), `false positives ${fmt(x)}, true positives ${fmt(r.tpr[i])}`)),
    hoverinfo: "text",
  });
  const c = colours();
  const chance = {
    type: "scatter",
    mode: "lines",
    x: [0, 1],
    y: [0, 1],
    line: { color: c.soft, width: 1, dash: "dash" },
    hoverinfo: "skip",
    showlegend: false,
  };
  return {
    traces: [chance, ...items.map(trace)],
    layout: {
      xaxis: { title: "false positive rate (holdout)", range: [-0.01, 1.01] },
      yaxis: { title: "true positive rate (forget)", range: [-0.01, 1.02] },
    },
    says: items.map((r) => `${modelName(r.model)}: AUC ${fmt(r.auc)}.`).join(" "),
  };
}

const rocSheet = (items) => ({
  columns: ["model", "false positive rate", "true positive rate"],
  rows: items.flatMap((r) => r.fpr.map((x, i) => [modelName(r.model), x, r.tpr[i]])),
});

function aucList(items) {
  const line = (r) =>
    el(
      "tr",
      el("th", { scope: "row" }, modelName(r.model)),
      el("td.number.main", fmt(r.auc)),
      el("td.number.soft", r.lo === undefined || r.lo === null ? "–" : `${fmt(r.lo)} to ${fmt(r.hi)}`),
      el("td.number", (r.n ?? []).join(" / ")),
    );
  const heads = ["model", "AUC", "95 % interval", "n forget / holdout"].map((h) =>
    el(h === "model" ? "th" : "th.number", { scope: "col" }, h),
  );
  const sheet = () => ({
    columns: ["model", "auc", "lo", "hi", "n forget", "n holdout"],
    rows: items.map((r) => [modelName(r.model), r.auc, r.lo ?? null, r.hi ?? null, r.n?.[0] ?? null, r.n?.[1] ?? null]),
  });
  return [
    el(
      "div.scroller.small",
      { tabindex: "0", role: "region", "aria-label": "Area under the curve" },
      el("table", el("caption", "Area under the curve"), el("thead", el("tr", heads)), el("tbody", items.map(line))),
    ),
    el("div.table-tools", ...saveButtons(`auc_${items[0]?.metric ?? ""}`, sheet)),
  ];
}
