// One metric of the meta-evaluation: how it parts models that know from those that do not, and what attacks do to it.

import { choose, el, fmt, isNumber, missing, own, replace, slide } from "./dom.js";
import { chart, faint, lines } from "./chart.js";
import * as state from "./state.js";
import { colours } from "./theme.js";

/** `view` holds meta, chosen, setting, now, and setThreshold. */
export function oneMetric(view) {
  const node = el("section.panel", { id: "one-metric" });
  let charts = [];
  const metric = () => view.meta.metrics.find((m) => m.key === view.chosen);
  const update = () => charts.forEach((c) => c.update());
  const reset = () => {
    const m = metric();
    const pick = (key) => {
      view.chosen = key;
      state.set({ "k.metric": key });
      reset();
    };
    const states = own(view.meta.states, m.key);
    const pools =
      m.p && m.n
        ? chart({
            name: `pools_${m.key}`,
            title: "Models that know and models that do not",
            height: 320,
            build: () => poolTraces(view, metric()),
            sheet: () => poolSheet(metric()),
          })
        : null;
    const after = states ? ["relearning", "quantization"].map((what) => beforeAfter(view, metric, what)) : [];
    const drawn = after.filter((c) => c.ready);
    const standing = states
      ? chart({
          name: `before_${m.key}`,
          title: "Where the models stand before any attack",
          height: 320,
          build: () => standingTraces(view, metric()),
          sheet: () => standingSheet(view, metric()),
        })
      : null;
    charts = [pools, standing, ...drawn].filter(Boolean);
    replace(
      node,
      el("h2", "One metric"),
      el(
        "div.controls",
        choose(
          "metric",
          view.meta.metrics.map((x) => [x.key, x.label]),
          m.key,
          pick,
        ),
        thresholdSlider(view, m, states),
      ),
      !pools && missing("No histograms:", "the values of the pools' models are not in the report"),
      el(
        "div.chart-grid",
        charts.map((c) => c.node),
      ),
      after.filter((c) => !c.ready).map((c) => missing(`No picture of ${c.what}:`, c.reason)),
    );
  };
  reset();
  return { node, update, reset };
}

const thresholdOf = (view, m) => view.setting.thresholds.get(m.key) ?? m.threshold_m ?? null;

function thresholdSlider(view, m, states) {
  const judge = m.filtered_by && view.meta.metrics.find((x) => x.key === m.filtered_by);
  if (judge && judge !== m) return el("span.soft", `its models are chosen by ${judge.label}'s threshold`);
  const known = [
    ...Object.values(m.p ?? {}),
    ...Object.values(m.n ?? {}),
    ...(states?.models ?? []).map((s) => s.before),
  ].filter(isNumber);
  if (!known.length) return null;
  const [lo, hi] = [Math.min(...known), Math.max(...known)];
  const step = (hi - lo) / 200 || 0.01;
  const now = thresholdOf(view, m);
  const label = isNumber(m.threshold_m) ? "threshold (keep at most)" : "threshold (none delivered; move to set one)";
  return slide(label, { min: lo, max: hi + step, step: "any", value: now ?? hi + step, digits: 3 }, (v) =>
    view.setThreshold(m.key, v),
  );
}

function poolTraces(view, m) {
  const c = colours();
  const threshold = thresholdOf(view, m);
  const one = (values, name, colour) => ({
    type: "histogram",
    x: values,
    name: `${name} (${values.length})`,
    nbinsx: 20,
    opacity: 0.75,
    marker: { color: faint(colour, 0.5), line: { color: colour, width: 1.2 } },
  });
  const [p, n] = [m.p, m.n].map((side) => Object.values(side).filter(isNumber));
  const line = {
    type: "line",
    x0: threshold,
    x1: threshold,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { color: c.ink, width: 2, dash: "dash" },
  };
  return {
    traces: filled([one(p, "know", c.red), one(n, "do not know", c.green)]),
    layout: {
      barmode: "overlay",
      xaxis: { title: "m (high: knows)", type: "linear" },
      yaxis: { title: "models" },
      shapes: isNumber(threshold) ? [line] : [],
    },
    note: `AUC ${fmt(m.auc)}${isNumber(threshold) ? `, threshold ${fmt(threshold)}` : ""}`,
    says: `AUC ${fmt(m.auc)}.`,
  };
}

/** Without the empty ones, which would only fill the legend. */
const filled = (traces) => traces.filter((t) => t.x.length);

const poolSheet = (m) => ({
  columns: ["pool", "model", "m"],
  rows: [
    ["P", m.p],
    ["N", m.n],
  ].flatMap(([pool, side]) => Object.entries(side).map(([name, v]) => [pool, name, v])),
});

function standingTraces(view, m) {
  const c = colours();
  const found = view.now.get(m.key);
  const threshold = thresholdOf(view, m);
  const values = found.each.map((s) => s.before).filter(isNumber);
  const [lo, hi] = [
    values.reduce((a, b) => Math.min(a, b), Infinity),
    values.reduce((a, b) => Math.max(a, b), -Infinity),
  ];
  const bins = { start: lo, end: hi + (hi - lo) / 25, size: (hi - lo) / 25 || 0.01 };
  const one = (items, name, colour) => ({
    type: "histogram",
    x: items.map((s) => s.before).filter(isNumber),
    name: `${name} (${items.length})`,
    xbins: bins,
    marker: { color: faint(colour, 0.6), line: { color: colour, width: 1 } },
  });
  const line = (x, colour, dash) => ({
    type: "line",
    x0: x,
    x1: x,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { color: colour, width: 2, dash },
  });
  const retain = view.meta.states[m.key].retain?.before;
  const shapes = [
    isNumber(threshold) && view.setting.useThreshold ? line(threshold, c.ink, "dash") : null,
    isNumber(retain) ? line(retain, c.green, "dot") : null,
  ].filter(Boolean);
  return {
    traces: filled([
      one(
        found.each.filter((s) => !s.why),
        "kept",
        c.blue,
      ),
      one(
        found.each.filter((s) => s.why),
        "left out",
        c.grey,
      ),
    ]),
    layout: {
      barmode: "stack",
      xaxis: { title: "m before (high: knows)", type: "linear" },
      yaxis: { title: "models" },
      shapes,
    },
    note: `${found.n} of ${found.total} kept; dashed: threshold, dotted: retain model`,
    says: `${found.n} of ${found.total} models are kept.`,
  };
}

const standingSheet = (view, m) => ({
  columns: ["model", "m before", "left out because"],
  rows: view.now.get(m.key).each.map((s) => [s.model, s.before, s.why]),
});

function beforeAfter(view, metric, what) {
  const states = own(view.meta.states, metric().key);
  const both = states.models.some((s) => isNumber(s.before) && isNumber(s[what]));
  if (!both) return { ready: false, what, reason: `no model has a value before and after ${what}` };
  const sheet = () => {
    const found = view.now.get(metric().key);
    return {
      columns: ["model", "before", what, "left out because"],
      rows: (found?.each ?? []).map((s) => [s.model, s.before, s[what], s.why]),
    };
  };
  const made = chart({
    name: `${what}_${metric().key}`,
    title: `Before and after ${what}`,
    height: 380,
    build: () => points(view, metric(), what),
    sheet,
  });
  return { ...made, ready: true, what };
}

function points(view, m, what) {
  const c = colours();
  const found = view.now.get(m.key);
  const measured = found.each.filter((s) => isNumber(s.before) && isNumber(s[what]));
  const retain = view.meta.states[m.key].retain;
  const dots = (items, name, marker) => ({
    type: "scatter",
    mode: "markers",
    x: items.map((s) => s.before),
    y: items.map((s) => s[what]),
    name: `${name} (${items.length})`,
    marker,
    text: items.map((s) => lines(s.model, `before ${fmt(s.before)}, after ${fmt(s[what])}`, s.why)),
    hoverinfo: "text",
  });
  const values = measured.flatMap((s) => [s.before, s[what]]);
  const [lo, hi] = [values.reduce((a, b) => Math.min(a, b), 0), values.reduce((a, b) => Math.max(a, b), 0)];
  const line = (shift, name, dash) => ({
    type: "scatter",
    mode: "lines",
    x: [lo, hi],
    y: [lo + shift, hi + shift],
    name,
    line: { color: c.soft, width: 1.2, dash },
    hoverinfo: "skip",
  });
  const known = retain && isNumber(retain.before) && isNumber(retain[what]);
  const traces = [
    line(0, "y = x: robust; above it: knowledge returned", "solid"),
    known && what === "relearning" ? line(retain[what] - retain.before, "as the retain model", "dot") : null,
    dots(
      measured.filter((s) => s.why),
      "left out",
      { color: c.grey, size: 6, opacity: 0.35, symbol: "circle-open" },
    ),
    dots(
      measured.filter((s) => !s.why),
      "kept",
      { color: c.blue, size: 8, opacity: 0.85 },
    ),
    known
      ? dots([{ ...retain, model: "retain", why: "" }], "retain", {
          color: c.green,
          symbol: "diamond",
          size: 14,
          line: { color: c.ink, width: 1.5 },
        })
      : null,
  ];
  const score = what === "relearning" ? found.r : found.q;
  return {
    traces: traces.filter(Boolean),
    note: `${what === "relearning" ? "R" : "Q"} ${fmt(score, 4)} over ${found.n} kept models`,
    says: `${found.n} kept models.`,
    layout: { xaxis: { title: "m before" }, yaxis: { title: `m after ${what}` } },
  };
}
