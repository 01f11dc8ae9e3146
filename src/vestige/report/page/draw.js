// Draws one chart as SVG: lines, marks, bars and heat maps.
// In: traces (scatter, histogram, heatmap) and a layout, as the views describe them. Out: the element, and what lies
// under a point of it. Colours are attributes, so that a saved picture looks like the page.

import { fmt, isNumber, svg } from "./dom.js";
import { binned, extent, linear, ramp, rangeOf, sharedBins, ticks } from "./scales.js";
import { isOpen, outline } from "./shapes.js";
import { colours } from "./theme.js";

const FONT = "system-ui, sans-serif";
const DASHES = { dash: "7 4", dot: "2 3", solid: null };
const NEAR = 22; // px: a point this close is meant
const SHADES = 48; // of a heat map; cells of one shade share a path
const BAR = 58; // px beside a heat map for its scale

const measure = { context: null };

/** About how wide a text is, in px. */
export function widthOf(text, size = 11) {
  measure.context ??= document.createElement("canvas").getContext?.("2d") ?? {
    measureText: (t) => ({ width: t.length * 6 }),
  };
  measure.context.font = `${size}px system-ui, sans-serif`;
  return measure.context.measureText(String(text)).width;
}

const label = (x, y, text, more = {}) =>
  svg("text", { x, y, "font-size": 11, "font-family": FONT, fill: colours().ink, ...more }, text);

/** draw(width, height, {traces, layout}) -> {node, find(x, y) -> {text, custom} or null}. */
export function draw(width, height, { traces, layout = {} }) {
  const bars = barsOf(traces, layout);
  const heat = traces.find((t) => t.type === "heatmap");
  const keys = layout.showlegend === false ? [] : legendItems(traces);
  const rows = legendRows(keys, width - 16);
  const top = rows.length ? 10 + 18 * rows.length : 10;
  const vertical = axisOf(layout.yaxis, valuesOf(traces, bars, "y"), height / 45, {
    rangemode: bars ? "tozero" : undefined,
    tight: Boolean(heat),
  });
  const left = 8 + Math.max(...vertical.ticks.map(([, text]) => widthOf(text)), 8) + (layout.yaxis?.title ? 20 : 6);
  const frame = {
    left: Math.min(left, width * 0.4),
    right: width - (heat?.colorbar ? BAR : 12),
    top,
    bottom: height - (layout.xaxis?.title ? 38 : 22),
  };
  const across = axisOf(layout.xaxis, valuesOf(traces, bars, "x"), (frame.right - frame.left) / 75, {
    tight: Boolean(heat),
  });
  const at = {
    x: placer(across, [frame.left, frame.right]),
    y: placer(vertical, vertical.reversed ? [frame.top, frame.bottom] : [frame.bottom, frame.top]),
  };
  const clip = `clip-${(draw.count = (draw.count ?? 0) + 1)}`;
  const spots = [];
  const inside = svg("g", { "clip-path": `url(#${clip})` }, heat ? cells(heat, at, spots) : null);
  if (bars) inside.append(...barPaths(bars, at, spots));
  for (const one of traces.filter((t) => t.type === "scatter")) inside.append(...scatterParts(one, at, spots));
  const node = svg(
    "svg.picture",
    { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", "font-family": FONT },
    svg(
      "defs",
      svg(
        "clipPath",
        { id: clip },
        svg("rect", {
          x: frame.left - 7,
          y: frame.top - 7,
          width: Math.max(0, frame.right - frame.left + 14),
          height: Math.max(0, frame.bottom - frame.top + 14),
        }),
      ),
    ),
    ...grid(across, vertical, at, frame, Boolean(heat)),
    inside,
    ...(layout.shapes ?? []).map((s) => shape(s, at, frame)),
    ...legend(rows),
    ...titles(layout, frame, width, height),
    heat?.colorbar ? scaleBar(heat, frame) : null,
  );
  return { node, find: (x, y) => nearest(spots, x, y) };
}

// ---- axes ----------------------------------------------------------------------------------------------------------

function axisOf(spec = {}, values, about, more = {}) {
  if (spec.type === "category") {
    const names = spec.categoryarray ?? [...new Set(values)];
    return { names, ticks: names.map((n, i) => [i, n]), range: [-0.5, names.length - 0.5] };
  }
  const range = rangeOf(values, { ...more, ...spec });
  const reversed = spec.autorange === "reversed";
  if (spec.tickvals) return { range, reversed, ticks: spec.tickvals.map((v, i) => [v, spec.ticktext[i]]) };
  return { range, reversed, ticks: ticks(range[0], range[1], about, spec.dtick) };
}

function placer(axis, pixels) {
  const scale = linear(axis.range, pixels);
  return axis.names ? (v) => scale(axis.names.indexOf(v)) : scale;
}

/** Everything an axis has to make room for. */
function valuesOf(traces, bars, side) {
  const out = [];
  for (const t of traces) {
    if (t.type === "heatmap") out.push(...edges(t[side]));
    else if (t.type === "scatter") out.push(...t[side]);
  }
  if (bars) out.push(...bars.flatMap((b) => (side === "x" ? [b.lo, b.hi] : [0, b.top])));
  return out;
}

function edges(places) {
  const known = places.filter(isNumber);
  if (!known.length) return places;
  const [lo, hi] = extent(known);
  return [lo - 0.5, hi + 0.5];
}

function grid(across, vertical, at, frame, bare) {
  const c = colours();
  const line = (x1, y1, x2, y2) => svg("line", { x1, y1, x2, y2, stroke: c.line, "stroke-width": 1 });
  const every = Math.ceil(
    (across.names ?? across.ticks).length / Math.max(1, (frame.right - frame.left) / widest(across)),
  );
  const x = (v) => (across.names ? at.x(across.names[v]) : at.x(v));
  const below = across.ticks.filter((_, i) => i % Math.max(1, every) === 0);
  const room = Math.max(1, Math.floor((frame.bottom - frame.top) / 13));
  const thin = Math.ceil(vertical.ticks.length / room);
  const beside = vertical.ticks.filter((_, i) => i % thin === 0);
  return [
    ...(bare ? [] : below.map(([v]) => line(x(v), frame.top, x(v), frame.bottom))),
    ...(bare ? [] : beside.map(([v]) => line(frame.left, at.y(v), frame.right, at.y(v)))),
    line(frame.left, frame.bottom, frame.right, frame.bottom),
    ...below.map(([v, text]) => label(x(v), frame.bottom + 14, text, { "text-anchor": "middle" })),
    ...beside.map(([v, text]) => label(frame.left - 6, at.y(v) + 4, text, { "text-anchor": "end" })),
  ];
}

const widest = (axis) => Math.max(...axis.ticks.map(([, text]) => widthOf(text)), 8) + 10;

function titles(layout, frame, width, height) {
  const soft = { fill: colours().soft, "font-size": 12, "text-anchor": "middle" };
  const middle = (frame.top + frame.bottom) / 2;
  const cut = (text, room) =>
    widthOf(text, 12) > room ? `${text.slice(0, Math.max(4, Math.floor(room / 7)))}…` : text;
  return [
    layout.xaxis?.title && label((frame.left + frame.right) / 2, height - 6, cut(layout.xaxis.title, width - 20), soft),
    layout.yaxis?.title &&
      label(13, middle, cut(layout.yaxis.title, height - 20), { ...soft, transform: `rotate(-90 13 ${middle})` }),
  ];
}

// ---- legend --------------------------------------------------------------------------------------------------------

const legendItems = (traces) => {
  const named = traces.filter((t) => t.type !== "heatmap" && t.showlegend !== false && t.name);
  return named.length > 1 || named.some((t) => t.type === "histogram") ? named : [];
};

/** Items in lines that fit the width: [[{trace, x}], ...]. */
function legendRows(items, room) {
  const rows = [];
  let x = room + 1;
  for (const trace of items) {
    const wide = 34 + widthOf(trace.name);
    if (x + wide > room) {
      rows.push([]);
      x = 0;
    }
    rows.at(-1).push({ trace, x });
    x += wide + 14;
  }
  return rows;
}

function legend(rows) {
  return rows.flatMap((row, j) =>
    row.flatMap(({ trace, x }) => [...sample(trace, x + 8, 14 + 18 * j), label(x + 36, 18 + 18 * j, trace.name)]),
  );
}

function sample(t, x, y) {
  if (t.type === "histogram") return [svg("rect", { x: x + 6, y: y - 5, width: 14, height: 10, ...paint(t) })];
  const parts = [];
  if (t.mode.includes("lines")) parts.push(svg("path", { d: `M${x} ${y}h24`, ...stroke(t.line) }));
  if (t.mode.includes("markers"))
    parts.push(marker(t, 0, outline(pick(t.marker.symbol, 0), x + 12, y, Math.min(11, pick(t.marker.size, 0)))));
  return parts;
}

// ---- marks ---------------------------------------------------------------------------------------------------------

const pick = (value, i) => (Array.isArray(value) ? value[i] : value);

const stroke = (line = {}) => ({
  fill: "none",
  stroke: line.color,
  "stroke-width": line.width ?? 2,
  "stroke-dasharray": DASHES[line.dash] ?? null,
  "stroke-linejoin": "round",
});

const paint = (t) => ({
  fill: t.marker.color,
  stroke: t.marker.line?.color,
  "stroke-width": t.marker.line?.width,
  opacity: t.opacity,
});

function marker(t, i, d) {
  const m = t.marker;
  const colour = pick(m.color, i) ?? t.line?.color;
  const open = isOpen(pick(m.symbol, i));
  return svg("path", {
    d,
    fill: open ? "none" : colour,
    stroke: open ? colour : (pick(m.line?.color, i) ?? null),
    "stroke-width": pick(m.line?.width, i) ?? (open ? 2 : null),
    opacity: m.opacity,
  });
}

function scatterParts(t, at, spots) {
  const places = t.x.map((v, i) =>
    isNumber(t.y[i]) && v !== null && v !== undefined ? [at.x(v), at.y(t.y[i])] : null,
  );
  const parts = [];
  if (t.mode.includes("lines"))
    parts.push(
      svg("path", { d: linePath(places, t), ...(t.fill ? { fill: t.fillcolor, stroke: "none" } : stroke(t.line)) }),
    );
  if (t.mode.includes("markers")) parts.push(...markers(t, places));
  if (t.hoverinfo !== "skip")
    places.forEach((p, i) => p && spots.push({ x: p[0], y: p[1], text: t.text?.[i] ?? "", custom: t.customdata?.[i] }));
  return parts;
}

function linePath(places, t) {
  let d = "";
  let last = null;
  for (const p of places) {
    if (!p) {
      if (!t.connectgaps) last = null;
      continue;
    }
    const [x, y] = p.map((v) => v.toFixed(1));
    d += !last ? `M${x} ${y}` : t.line?.shape === "hv" ? `H${x}V${y}` : `L${x} ${y}`;
    last = p;
  }
  return t.fill && d ? `${d}Z` : d;
}

/** Marks that look alike share one path: a thousand points are one element. */
function markers(t, places) {
  const alike = ["symbol", "color", "size"].every((k) => !Array.isArray(t.marker[k]));
  const drawn = places.map((p, i) => [p, i]).filter(([p]) => p);
  const path = ([p, i]) => outline(pick(t.marker.symbol, i), p[0], p[1], pick(t.marker.size, i) ?? 7);
  if (!drawn.length) return [];
  return alike ? [marker(t, 0, drawn.map(path).join(""))] : drawn.map((d) => marker(t, d[1], path(d)));
}

// ---- bars ----------------------------------------------------------------------------------------------------------

/** Bars of all histograms: {trace, lo, hi, base, top, count}; null without histograms. */
function barsOf(traces, layout) {
  const sets = traces.filter((t) => t.type === "histogram");
  if (!sets.length) return null;
  const shared = sharedBins(
    sets.map((t) => t.x),
    sets[0].nbinsx ?? 20,
  );
  const stacked = new Map();
  return sets.flatMap((trace) =>
    binned(trace.x, trace.xbins ?? shared).map(({ lo, hi, count }, i) => {
      const high = trace.histnorm === "probability" ? count / (trace.x.length || 1) : count;
      const base = layout.barmode === "stack" ? (stacked.get(i) ?? 0) : 0;
      stacked.set(i, base + high);
      return { trace, lo, hi, base, top: base + high, high };
    }),
  );
}

function barPaths(bars, at, spots) {
  const groups = new Map();
  for (const b of bars.filter(({ high }) => high > 0)) {
    const [x, right, y, bottom] = [at.x(b.lo), at.x(b.hi), at.y(b.top), at.y(b.base)];
    groups.set(
      b.trace,
      `${groups.get(b.trace) ?? ""}M${x.toFixed(1)} ${bottom.toFixed(1)}V${y.toFixed(1)}H${right.toFixed(1)}V${bottom.toFixed(1)}Z`,
    );
    const said = `${b.trace.name}\n${fmt(b.high)} ${b.trace.histnorm ? "of the rows" : "models"} at ${fmt(b.lo)} to ${fmt(b.hi)}`;
    spots.push({ x, y, w: right - x, h: bottom - y, text: said });
  }
  return [...groups].map(([t, d]) => svg("path", { d, ...paint(t) }));
}

// ---- heat maps -----------------------------------------------------------------------------------------------------

const scaleOf = (t) => {
  const found = extent(t.z.flat()) ?? [0, 1];
  return [t.zmin ?? found[0], t.zmax ?? found[1]];
};

function cells(t, at, spots) {
  const [lo, hi] = scaleOf(t);
  const step = (place, side) => Math.abs(place(t[side][1] ?? 1) - place(t[side][0])) || 20;
  const w = t.x.length > 1 ? step(at.x, "x") : 60;
  const h = t.y.length > 1 ? step(at.y, "y") : 40;
  const shades = new Map();
  t.z.forEach((row, i) =>
    row.forEach((z, j) => {
      if (!isNumber(z)) return;
      const [x, y] = [at.x(t.x[j]) - w / 2, at.y(t.y[i]) - h / 2];
      const shade = Math.round(SHADES * Math.min(1, Math.max(0, (z - lo) / (hi - lo || 1))));
      shades.set(
        shade,
        `${shades.get(shade) ?? ""}M${x.toFixed(1)} ${y.toFixed(1)}h${w.toFixed(1)}v${h.toFixed(1)}h${(-w).toFixed(1)}z`,
      );
      spots.push({ x, y, w, h, text: t.text?.[i]?.[j] ?? fmt(z), custom: t.customdata?.[i]?.[j] });
    }),
  );
  return [...shades].map(([shade, d]) => svg("path", { d, fill: ramp(t.colorscale, shade / SHADES) }));
}

function scaleBar(t, frame) {
  const [lo, hi] = scaleOf(t);
  const high = (frame.bottom - frame.top) / 24;
  const x = frame.right + 10;
  const step = (_, i) =>
    svg("rect", {
      x,
      y: frame.bottom - (i + 1) * high,
      width: 9,
      height: high + 0.5,
      fill: ramp(t.colorscale, i / 23),
    });
  return svg(
    "g",
    Array.from({ length: 24 }, step),
    label(x + 13, frame.bottom, fmt(lo, 2)),
    label(x + 13, frame.top + 9, fmt(hi, 2)),
  );
}

// ---- lines and boxes over everything ----------------------------------------------------------------------------------

function shape(s, at, frame) {
  const x = (v) => (s.xref === "paper" ? frame.left + v * (frame.right - frame.left) : at.x(v));
  const y = (v) => (s.yref === "paper" ? frame.bottom - v * (frame.bottom - frame.top) : at.y(v));
  if (s.type === "line") return svg("line", { x1: x(s.x0), x2: x(s.x1), y1: y(s.y0), y2: y(s.y1), ...stroke(s.line) });
  const [top, bottom] = [y(s.y0), y(s.y1)].sort((a, b) => a - b);
  return svg("rect", { x: x(s.x0), width: x(s.x1) - x(s.x0), y: top, height: bottom - top, ...stroke(s.line) });
}

/** What lies under a point: a box that holds it (the last drawn one), else the nearest mark. */
function nearest(spots, x, y) {
  let best = null;
  let least = NEAR ** 2;
  for (const s of spots) {
    if (s.w !== undefined) {
      if (x >= s.x && x <= s.x + s.w && y >= s.y && y <= s.y + s.h) best = s;
      continue;
    }
    const far = (s.x - x) ** 2 + (s.y - y) ** 2;
    if (far < least || (far === least && best?.w !== undefined)) [best, least] = [s, far];
  }
  return best;
}
