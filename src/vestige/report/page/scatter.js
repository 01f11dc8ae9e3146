// Models as points: any two columns, colours by method, the references marked, the front of the best trade-offs.

import { choose, el, fmt, interval, isNumber, tick } from "./dom.js";
import { cell, goodness, goodWords, metric, metricOptions, number, report } from "./data.js";
import { chart, lines, plain } from "./chart.js";
import { compare, paretoFront } from "./order.js";
import * as state from "./state.js";
import { colours, wheel } from "./theme.js";

const SHAPES = ["circle", "triangle-up", "cross", "x", "pentagon", "star", "hexagon"];
const METHODS = 14;

/** The scatter of the shown models. `shown()` gives them; `picked` is a Set of ids; a click flips a model. */
export function scatter(shown, picked, onPoint) {
  const keys = report.columns;
  const start = (name, fallback) =>
    keys.includes(state.get(name)) ? state.get(name) : keys.includes(fallback) ? fallback : keys[0];
  const axes = {
    x: start("m.x", report.pareto?.x),
    y: start("m.y", report.pareto?.y ?? keys[1]),
    front: state.get("m.front") !== "0",
  };
  const drawn = chart({
    name: "models_scatter",
    title: "Each point is a model.",
    height: 460,
    build: () => build(shown(), axes, picked),
    sheet: () => sheet(shown(), axes),
    onPoint,
  });
  const change = (name) => (value) => {
    axes[name] = value;
    state.set({ [`m.${name}`]: name === "front" ? (value ? null : "0") : value });
    drawn.update();
  };
  const node = el(
    "div",
    el(
      "div.controls",
      choose("across", metricOptions(keys), axes.x, change("x")),
      choose("up", metricOptions(keys), axes.y, change("y")),
      tick("Pareto front", axes.front, change("front")),
    ),
    drawn.node,
  );
  return { node, update: drawn.update };
}

function points(models, axes) {
  return models
    .map((m) => ({ m, x: number(m.id, axes.x), y: number(m.id, axes.y) }))
    .filter((p) => isNumber(p.x) && isNumber(p.y));
}

function build(models, axes, picked) {
  const all = points(models, axes);
  const refs = all.filter((p) => p.m.role === "full" || p.m.role === "retain");
  const rest = all.filter((p) => !refs.includes(p));
  const front = axes.front ? frontTrace(rest, axes) : null;
  const traces = [front?.trace, ...byMethod(rest, axes), ringTrace(all, picked), ...refTraces(refs, axes)].filter(
    Boolean,
  );
  const gone = models.length - all.length;
  const notes = [
    `${all.length} models`,
    gone ? `${gone} without both values` : "",
    front?.note,
    "click a point to choose the model",
  ].filter(Boolean);
  const title = (key) => `${metric(key).title || metric(key).label}${goodWords(key) ? ` (${goodWords(key)})` : ""}`;
  return {
    traces,
    note: notes.join("; "),
    says: notes.join(". "),
    layout: { xaxis: { title: title(axes.x) }, yaxis: { title: title(axes.y) } },
  };
}

/** A trace for each method (for each model, where there are few and no methods are known); where there are too many to tell apart, the smaller ones share one. */
function byMethod(rest, axes) {
  const groups = new Map();
  const byName = rest.length <= METHODS && new Set(rest.map((p) => p.m.method)).size < 2;
  for (const p of rest) {
    const method = byName ? p.m.name : (p.m.method ?? p.m.role);
    groups.set(method, [...(groups.get(method) ?? []), p]);
  }
  const bySize = [...groups.keys()].sort((a, b) => groups.get(b).length - groups.get(a).length);
  const methods = bySize.slice(0, METHODS).sort(compare);
  const others = bySize.slice(METHODS).flatMap((method) => groups.get(method));
  const palette = wheel();
  const traces = methods.map((method, i) => {
    const symbol = SHAPES[(i + Math.floor(i / palette.length)) % SHAPES.length];
    const marker = { color: palette[i % palette.length], symbol, size: 8, opacity: 0.8 };
    return dots(groups.get(method), axes, { name: plain(method, 24), marker });
  });
  if (!others.length) return traces;
  const marker = { color: colours().grey, size: 6, opacity: 0.6 };
  return [dots(others, axes, { name: `${bySize.length - METHODS} other methods`, marker }), ...traces];
}

function dots(own, axes, look) {
  const said = (m, key) => {
    const reach = interval(cell(m.id, key));
    return `${metric(key).label} ${fmt(number(m.id, key), 4)}${reach ? ` (${reach})` : ""}`;
  };
  return {
    type: "scatter",
    mode: "markers",
    x: own.map((p) => p.x),
    y: own.map((p) => p.y),
    customdata: own.map((p) => p.m.id),
    hoverinfo: "text",
    text: own.map(({ m }) => lines(m.name, m.epoch, said(m, axes.x), said(m, axes.y))),
    ...look,
  };
}

function refTraces(refs, axes) {
  const c = colours();
  const looks = { full: { symbol: "square", color: c.red }, retain: { symbol: "diamond", color: c.green } };
  return Object.keys(looks).map((role) => {
    const own = refs.filter((p) => p.m.role === role);
    const marker = { ...looks[role], size: 15, line: { color: c.ink, width: 1.5 } };
    return own.length ? dots(own, axes, { name: role, marker }) : null;
  });
}

function ringTrace(all, picked) {
  const own = all.filter((p) => picked.has(p.m.id));
  if (!own.length) return null;
  return {
    type: "scatter",
    mode: "markers",
    x: own.map((p) => p.x),
    y: own.map((p) => p.y),
    name: "chosen",
    hoverinfo: "skip",
    marker: { symbol: "circle-open", size: 18, color: colours().ink, line: { width: 2 } },
  };
}

function frontTrace(rest, axes) {
  const blind = [axes.x, axes.y].find((key) => !rest.some((p) => goodness(p.m.id, key) !== null));
  if (blind) return { trace: null, note: `no Pareto front: ${metric(blind).label} has no good end here` };
  const front = bestTradeOffs(rest, axes);
  const trace = {
    type: "scatter",
    mode: "lines",
    x: front.map((p) => p.x),
    y: front.map((p) => p.y),
    name: "Pareto front",
    line: { color: colours().soft, width: 2, dash: "dot" },
    hoverinfo: "skip",
  };
  return { trace: front.length > 1 ? trace : null, note: `${front.length} on the Pareto front` };
}

/** Points that no other one beats on both axes, from left to right. */
function bestTradeOffs(rest, axes) {
  const judged = rest
    .map((p) => ({ p, x: goodness(p.m.id, axes.x), y: goodness(p.m.id, axes.y) }))
    .filter((j) => j.x !== null && j.y !== null);
  return paretoFront(judged, "high", "high")
    .map((i) => judged[i].p)
    .sort((a, b) => a.x - b.x);
}

function sheet(models, axes) {
  const all = points(models, axes);
  const rest = all.filter((p) => p.m.role !== "full" && p.m.role !== "retain");
  const front = new Set(bestTradeOffs(rest, axes).map((p) => p.m.id));
  return {
    columns: ["model", "role", "method", axes.x, axes.y, "on the Pareto front"],
    rows: all.map((p) => [p.m.name, p.m.role, p.m.method ?? null, p.x, p.y, front.has(p.m.id)]),
  };
}
