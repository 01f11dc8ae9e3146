// One metric of the meta-evaluation: how it parts models that know from those that do not, and what attacks do to it.

import { choose, el, fmt, isNumber, missing, own, replace, slide } from "./dom.js";
import { chart, faint, guide, lines, upright } from "./chart.js";
import { extent } from "./draw.js";
import * as state from "./state.js";
import { colours } from "./theme.js";

const ATTACKS = { relearning: "r", quantization: "q" };

/** `view` holds meta, chosen, setting, now, and setThreshold. */
export function oneMetric(view) {
  const node = el("section.panel", { id: "one-metric" });
  const { meta } = view;
  const metric = () => meta.metrics.find((m) => m.key === view.chosen);
  let charts = [];
  const update = () => charts.forEach((c) => c.update());
  const reset = () => {
    const m = metric();
    const pick = (key) => {
      view.chosen = key;
      state.set({ "k.metric": key });
      reset();
    };
    const states = own(meta.states, m.key);
    const measured = (attack) => states?.models.some((s) => isNumber(s.before) && isNumber(s[attack]));
    const attacks = states ? Object.keys(ATTACKS) : [];
    charts = [
      m.p && m.n && poolChart(view, m),
      states && standingChart(view, m),
      ...attacks.filter(measured).map((attack) => attackChart(view, m, attack)),
    ].filter(Boolean);
    const names = meta.metrics.map((x) => [x.key, x.label]);
    replace(
      node,
      el("h2", "One metric"),
      el("div.controls", choose("metric", names, m.key, pick), thresholdSlider(view, m, states)),
      !(m.p && m.n) && missing("No histograms:", "the values of the pools' models are not in the report"),
      el(
        "div.chart-grid",
        charts.map((c) => c.node),
      ),
      attacks
        .filter((attack) => !measured(attack))
        .map((attack) => missing(`No picture of ${attack}:`, `no model has a value before and after ${attack}`)),
    );
  };
  reset();
  return { node, update, reset };
}

const thresholdOf = (view, m) => view.setting.thresholds.get(m.key) ?? m.threshold_m ?? null;

function thresholdSlider(view, m, states) {
  const judge = m.filtered_by && view.meta.metrics.find((x) => x.key === m.filtered_by);
  if (judge && judge !== m) return el("span.soft", `its models are chosen by ${judge.label}'s threshold`);
  const before = (states?.models ?? []).map((s) => s.before);
  const found = extent([...Object.values(m.p ?? {}), ...Object.values(m.n ?? {}), ...before]);
  if (!found) return null;
  const [lo, hi] = found;
  const most = hi + ((hi - lo) / 200 || 0.01);
  const label = isNumber(m.threshold_m) ? "threshold (keep at most)" : "threshold (none delivered; move to set one)";
  const range = { min: lo, max: most, step: "any", value: thresholdOf(view, m) ?? most, digits: 3 };
  return slide(label, range, (v) => view.setThreshold(m.key, v));
}

const bars = (x, name, colour, more) => ({
  type: "histogram",
  x: x.filter(isNumber),
  name,
  marker: { color: faint(colour, 0.55), line: { color: colour, width: 1.2 } },
  ...more,
});

/** Without the empty ones, which would only fill the legend. */
const filled = (traces) => traces.filter((t) => t.x.length);

function poolChart(view, m) {
  const side = (values, name, colour) => bars(values, `${name} (${values.length})`, colour, { opacity: 0.75 });
  const pools = [m.p, m.n].map((pool) => Object.values(pool).filter(isNumber));
  const build = () => {
    const c = colours();
    const threshold = thresholdOf(view, m);
    return {
      traces: filled([side(pools[0], "know", c.red), side(pools[1], "do not know", c.green)]),
      layout: {
        xaxis: { title: "m (high: knows)" },
        yaxis: { title: "models" },
        shapes: isNumber(threshold) ? [upright(threshold, c.ink, "dash")] : [],
      },
      note: `AUC ${fmt(m.auc)}${isNumber(threshold) ? `, threshold ${fmt(threshold)}` : ""}`,
      says: `AUC ${fmt(m.auc)}.`,
    };
  };
  const rows = (pool, values) => Object.entries(values).map(([name, v]) => [pool, name, v]);
  return chart({
    name: `pools_${m.key}`,
    title: "Models that know and models that do not",
    height: 320,
    build,
    sheet: () => ({ columns: ["pool", "model", "m"], rows: [...rows("P", m.p), ...rows("N", m.n)] }),
  });
}

function standingChart(view, m) {
  const build = () => {
    const c = colours();
    const found = view.now.get(m.key);
    const threshold = thresholdOf(view, m);
    const [lo, hi] = extent(found.each.map((s) => s.before)) ?? [0, 1];
    const bins = { start: lo, end: hi + (hi - lo) / 25, size: (hi - lo) / 25 || 0.01 };
    const one = (items, name, colour) =>
      bars(
        items.map((s) => s.before),
        `${name} (${items.length})`,
        colour,
        { xbins: bins },
      );
    const retain = view.meta.states[m.key].retain?.before;
    const kept = found.each.filter((s) => !s.why);
    return {
      traces: filled([
        one(kept, "kept", c.blue),
        one(
          found.each.filter((s) => s.why),
          "left out",
          c.grey,
        ),
      ]),
      layout: {
        barmode: "stack",
        xaxis: { title: "m before (high: knows)" },
        yaxis: { title: "models" },
        shapes: [
          isNumber(threshold) && view.setting.useThreshold && upright(threshold, c.ink, "dash"),
          isNumber(retain) && upright(retain, c.green, "dot"),
        ].filter(Boolean),
      },
      note: `${found.n} of ${found.total} kept; dashed: threshold, dotted: retain model`,
      says: `${found.n} of ${found.total} models are kept.`,
    };
  };
  return chart({
    name: `before_${m.key}`,
    title: "Where the models stand before any attack",
    height: 320,
    build,
    sheet: () => ({
      columns: ["model", "m before", "left out because"],
      rows: view.now.get(m.key).each.map((s) => [s.model, s.before, s.why]),
    }),
  });
}

function attackChart(view, m, attack) {
  return chart({
    name: `${attack}_${m.key}`,
    title: `Before and after ${attack}`,
    height: 380,
    build: () => points(view, m, attack),
    sheet: () => ({
      columns: ["model", "before", attack, "left out because"],
      rows: (view.now.get(m.key)?.each ?? []).map((s) => [s.model, s.before, s[attack], s.why]),
    }),
  });
}

function points(view, m, attack) {
  const c = colours();
  const found = view.now.get(m.key);
  const measured = found.each.filter((s) => isNumber(s.before) && isNumber(s[attack]));
  const dots = (items, name, marker) => ({
    x: items.map((s) => s.before),
    y: items.map((s) => s[attack]),
    name: `${name} (${items.length})`,
    marker,
    text: items.map((s) => lines(s.model, `before ${fmt(s.before)}, after ${fmt(s[attack])}`, s.why)),
  });
  const [lo, hi] = extent([0, ...measured.flatMap((s) => [s.before, s[attack]])]);
  const line = (shift, name, dash) => ({
    ...guide([lo, hi], [lo + shift, hi + shift], c.soft, { name, line: { width: 1.2, dash } }),
    showlegend: true,
  });
  const retain = view.meta.states[m.key].retain;
  const known = retain && isNumber(retain.before) && isNumber(retain[attack]);
  const mark = { color: c.green, symbol: "diamond", size: 14, line: { color: c.ink, width: 1.5 } };
  const gone = measured.filter((s) => s.why);
  const kept = measured.filter((s) => !s.why);
  return {
    traces: [
      line(0, "y = x: robust; above it: knowledge returned", "solid"),
      known && attack === "relearning" && line(retain[attack] - retain.before, "as the retain model", "dot"),
      dots(gone, "left out", { color: c.grey, size: 6, opacity: 0.35, symbol: "circle-open" }),
      dots(kept, "kept", { color: c.blue, size: 8, opacity: 0.85 }),
      known && dots([{ ...retain, model: "retain", why: "" }], "retain", mark),
    ],
    note: `${ATTACKS[attack].toUpperCase()} ${fmt(found[ATTACKS[attack]], 4)} over ${found.n} kept models`,
    says: `${found.n} kept models.`,
    layout: { xaxis: { title: "m before" }, yaxis: { title: `m after ${attack}` } },
  };
}
