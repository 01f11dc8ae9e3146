// Models as points: any two columns, colours by method, the references marked, the front of the best trade-offs.

import { choose, el, fmt, interval, isNumber, tick } from "./dom.js";
import { cell, goodness, goodWords, isReference, metric, metricOptions, number, report } from "./data.js";
import { chart, guide, lines, plain } from "./chart.js";
import { compare, paretoFront } from "./order.js";
import * as state from "./state.js";
import { colours, wheel } from "./theme.js";

const SHAPES = ["circle", "triangle-up", "cross", "x", "pentagon", "star", "hexagon"];
const METHODS = 14;

/** The scatter of the shown models. `shown()` gives them; `picked` is a Set of ids; a click flips a model. */
export function scatter(shown, picked, onPoint) {
  const keys = report.columns;
  const start = (name, fallback) => [state.get(name), fallback].find((key) => keys.includes(key)) ?? keys[0];
  const axes = {
    x: start("m.x", report.pareto?.x), y: start("m.y", report.pareto?.y ?? keys[1]),
    front: state.get("m.front") !== "0",
  };
  const drawn = chart({
    name: "models_scatter",
    title: "Each point is a model.",
    height: 460,
    build: () => picture(points(shown(), axes), axes, picked, shown().length),
    sheet: () => sheet(points(shown(), axes), axes),
    onPoint,
  });
  const change = (name) => (value) => {
    axes[name] = value;
    state.set({ [`m.${name}`]: name === "front" ? (value ? null : "0") : value });
    drawn.update();
  };
  const menus = el(
    "div.controls",
    choose("across", metricOptions(keys), axes.x, change("x")),
    choose("up", metricOptions(keys), axes.y, change("y")),
    tick("Pareto front", axes.front, change("front")),
  );
  return { node: el("div", menus, drawn.node), update: drawn.update };
}

const points = (models, axes) =>
  models
    .map((m) => ({ m, x: number(m.id, axes.x), y: number(m.id, axes.y) }))
    .filter((p) => isNumber(p.x) && isNumber(p.y));

function picture(all, axes, picked, count) {
  const c = colours();
  const rest = all.filter((p) => !isReference(p.m));
  const [front, frontNote] = axes.front ? frontTrace(rest, axes) : [null, ""];
  const chosen = all.filter((p) => picked.has(p.m.id));
  const ring = { symbol: "circle-open", size: 18, color: c.ink, line: { width: 2 } };
  const reference = (role, symbol, color) => {
    const own = all.filter((p) => p.m.role === role);
    return (
      own.length &&
      dots(own, axes, { name: role, marker: { symbol, color, size: 15, line: { color: c.ink, width: 1.5 } } })
    );
  };
  const gone = count - all.length;
  const left = gone ? `${gone} without both values` : "";
  const notes = [`${all.length} models`, left, frontNote, "click a point to choose the model"].filter(Boolean);
  const title = (key) => `${metric(key).title || metric(key).label}${goodWords(key) ? ` (${goodWords(key)})` : ""}`;
  return {
    traces: [
      front,
      ...byMethod(rest, axes),
      chosen.length && { ...dots(chosen, axes, { name: "chosen", marker: ring }), silent: true },
      reference("full", "square", c.red),
      reference("retain", "diamond", c.green),
    ],
    note: notes.join("; "),
    says: notes.join(". "),
    layout: { xaxis: { title: title(axes.x) }, yaxis: { title: title(axes.y) } },
  };
}

/**
 * A trace for each method (for each model, where there are few and no methods are known); where there are too many to
 * tell apart, the smaller ones share one.
 */
function byMethod(rest, axes) {
  const groups = new Map();
  const byName = rest.length <= METHODS && new Set(rest.map((p) => p.m.method)).size < 2;
  for (const p of rest) {
    const method = byName ? p.m.name : (p.m.method ?? p.m.role);
    groups.set(method, [...(groups.get(method) ?? []), p]);
  }
  const bySize = [...groups.keys()].sort((a, b) => groups.get(b).length - groups.get(a).length);
  const palette = wheel();
  const traces = bySize
    .slice(0, METHODS)
    .sort(compare)
    .map((method, i) => {
      const symbol = SHAPES[(i + Math.floor(i / palette.length)) % SHAPES.length];
      const marker = { color: palette[i % palette.length], symbol, size: 8, opacity: 0.8 };
      return dots(groups.get(method), axes, { name: plain(method, 24), marker });
    });
  const others = bySize.slice(METHODS).flatMap((method) => groups.get(method));
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
    x: own.map((p) => p.x),
    y: own.map((p) => p.y),
    customdata: own.map((p) => p.m.id),
    text: own.map(({ m }) => lines(m.name, m.epoch, said(m, axes.x), said(m, axes.y))),
    ...look,
  };
}

function frontTrace(rest, axes) {
  const blind = [axes.x, axes.y].find((key) => !rest.some((p) => goodness(p.m.id, key) !== null));
  if (blind) return [null, `no Pareto front: ${metric(blind).label} has no good end here`];
  const front = bestTradeOffs(rest, axes);
  const look = { name: "Pareto front", line: { width: 2, dash: "dot" } };
  const trace = guide(
    front.map((p) => p.x),
    front.map((p) => p.y),
    colours().soft,
    look,
  );
  return [front.length > 1 && { ...trace, showlegend: true }, `${front.length} on the Pareto front`];
}

/** Points that no other one beats on both axes, from left to right. */
function bestTradeOffs(rest, axes) {
  const judged = rest
    .map((p) => ({ p, x: goodness(p.m.id, axes.x), y: goodness(p.m.id, axes.y) }))
    .filter((j) => j.x !== null && j.y !== null);
  const front = paretoFront(judged, "high", "high").map((i) => judged[i].p);
  return front.sort((a, b) => a.x - b.x);
}

function sheet(all, axes) {
  const front = new Set(
    bestTradeOffs(
      all.filter((p) => !isReference(p.m)),
      axes,
    ),
  );
  return {
    columns: ["model", "role", "method", axes.x, axes.y, "on the Pareto front"],
    rows: all.map((p) => [p.m.name, p.m.role, p.m.method ?? null, p.x, p.y, front.has(p)]),
  };
}
