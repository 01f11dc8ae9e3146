// Draws one chart as SVG: lines, marks, bars and heat maps.
// In: traces (lines and marks, unless their type is histogram or heatmap) and a layout, as the views describe them. Out:
// the element, and what lies under a point of it. Colours are attributes, so that a saved picture looks like the page.

import { fmt, isNumber, svg } from "./dom.js";
import { colours } from "./theme.js";

const FONT = "system-ui, sans-serif";
const DASHES = { dash: "7 4", dot: "2 3", solid: null };
const NEAR = 22; // px: a point this close is meant
const SHADES = 48; // of a heat map; cells of one shade share a path
const BAR = 58; // px beside a heat map for its scale

const isLine = (t) => t.type !== "histogram" && t.type !== "heatmap";

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
    left: Math.min(left, width * 0.4), right: width - (heat?.colorbar ? BAR : 12), top,
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
  for (const one of traces.filter(isLine)) inside.append(...scatterParts(one, at, spots));
  const around = { x: frame.left - 7, y: frame.top - 7 }; // marks on the frame are not cut
  const inner = Math.max(0, frame.right - frame.left + 14);
  const high = Math.max(0, frame.bottom - frame.top + 14);
  const node = svg(
    "svg.picture",
    { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", "font-family": FONT },
    svg("defs", svg("clipPath", { id: clip }, svg("rect", { ...around, width: inner, height: high }))),
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
    else if (isLine(t)) out.push(...t[side]);
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
  if (hasLine(t)) parts.push(svg("path", { d: `M${x} ${y}h24`, ...stroke(t.line) }));
  if (hasMarks(t))
    parts.push(marker(t, 0, outline(pick(t.marker.symbol, 0), x + 12, y, Math.min(11, pick(t.marker.size, 0)))));
  return parts;
}

// ---- marks ---------------------------------------------------------------------------------------------------------

const hasLine = (t) => Boolean(t.line) && t.mode !== "markers";
const hasMarks = (t) => Boolean(t.marker) && t.mode !== "lines";

const pick = (value, i) => (Array.isArray(value) ? value[i] : value);

const stroke = (line = {}) => ({
  fill: "none", stroke: line.color, "stroke-width": line.width ?? 2, "stroke-dasharray": DASHES[line.dash] ?? null,
  "stroke-linejoin": "round",
});

const paint = ({ marker: { color, line = {} }, opacity }) => ({
  fill: color, stroke: line.color, "stroke-width": line.width, opacity,
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
  if (hasLine(t))
    parts.push(
      svg("path", { d: linePath(places, t), ...(t.fill ? { fill: t.fillcolor, stroke: "none" } : stroke(t.line)) }),
    );
  if (hasMarks(t)) parts.push(...markers(t, places));
  if (!t.silent)
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
  const values = sets.map((t) => t.x);
  const shared = sharedBins(values, sets[0].nbinsx ?? 20);
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
    const path = `M${x.toFixed(1)} ${bottom.toFixed(1)}V${y.toFixed(1)}H${right.toFixed(1)}V${bottom.toFixed(1)}Z`;
    groups.set(b.trace, (groups.get(b.trace) ?? "") + path);
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
      const path = `M${x.toFixed(1)} ${y.toFixed(1)}h${w.toFixed(1)}v${h.toFixed(1)}h${(-w).toFixed(1)}z`;
      shades.set(shade, (shades.get(shade) ?? "") + path);
      spots.push({ x, y, w, h, text: t.text?.[i]?.[j] ?? fmt(z), custom: t.customdata?.[i]?.[j] });
    }),
  );
  return [...shades].map(([shade, d]) => svg("path", { d, fill: ramp(t.colorscale, shade / SHADES) }));
}

function scaleBar(t, frame) {
  const [lo, hi] = scaleOf(t);
  const high = (frame.bottom - frame.top) / 24;
  const x = frame.right + 10;
  const fill = (i) => ramp(t.colorscale, i / 23);
  const step = (_, i) =>
    svg("rect", { x, y: frame.bottom - (i + 1) * high, width: 9, height: high + 0.5, fill: fill(i) });
  const ends = [label(x + 13, frame.bottom, fmt(lo, 2)), label(x + 13, frame.top + 9, fmt(hi, 2))];
  return svg("g", Array.from({ length: 24 }, step), ends);
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

// ---- from values to places: ranges, round ticks, bins, colour ramps ----------------------------------------------------

const PAD = 0.04; // of the range, beyond the outermost values

/** Smallest and largest of the numbers; nothing else counts. None: null. */
export function extent(values) {
  let [lo, hi] = [Infinity, -Infinity];
  for (const v of values) {
    if (!isNumber(v)) continue;
    if (v < lo) lo = v;
    if (v > hi) hi = v;
  }
  return lo > hi ? null : [lo, hi];
}

/** The range an axis shows: the one it was given, else all values with a little room. */
export function rangeOf(values, { range, rangemode, tight } = {}) {
  if (range) return [...range];
  if (tight) return extent(values) ?? [0, 1];
  const found = extent(values) ?? [0, 1];
  const zero = rangemode === "tozero";
  const [lo, hi] = zero ? [Math.min(0, found[0]), Math.max(0, found[1])] : found;
  const room = (hi - lo || Math.abs(hi) || 1) * PAD;
  return [zero && lo === 0 ? 0 : lo - room, zero && hi === 0 ? 0 : hi + room];
}

/** Round numbers within a range, about so many; `step` fixes their distance. */
export function ticks(lo, hi, about, step = 0) {
  const rough = (hi - lo) / Math.max(1, about);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const by = step || unit * ([1, 2, 5, 10].find((m) => m * unit >= rough * 0.999) ?? 10);
  const out = [];
  for (let i = Math.ceil(lo / by - 1e-9); i * by <= hi + by * 1e-9 && out.length < 200; i += 1) out.push(i * by + 0);
  const digits = Math.max(0, Math.min(8, -Math.floor(Math.log10(by) + 1e-9)));
  return out.map((v) => [v, tickText(v, digits)]);
}

function tickText(v, digits) {
  const size = Math.abs(v);
  if (size >= 1e6 || (digits > 5 && size > 0)) return v.toExponential(1);
  return digits ? (v + 0).toFixed(digits) : Math.round(v).toLocaleString("en");
}

/** A number's place between two pixels. */
export function linear([lo, hi], [from, to]) {
  const scale = (to - from) / (hi - lo || 1);
  return (v) => from + (v - lo) * scale;
}

/** Edges of equal bins and how many values fall into each; the last bin holds its upper edge. */
export function binned(values, { start, end, size }) {
  const n = Math.max(1, Math.min(200, Math.ceil((end - start) / size - 1e-9)));
  const counts = Array.from({ length: n }, () => 0);
  for (const v of values) {
    const at = Math.floor((v - start) / size + 1e-9);
    if (at >= 0 && at <= n) counts[Math.min(n - 1, at)] += 1;
  }
  return counts.map((count, i) => ({ lo: start + i * size, hi: start + (i + 1) * size, count }));
}

/** Bins that hold all values of several sets, so that the sets can be compared. */
export function sharedBins(sets, about) {
  const [lo, hi] = extent(sets.flat()) ?? [0, 1];
  if (lo === hi) return { start: lo - 0.5, end: hi + 0.5, size: 1 };
  return { start: lo, end: hi, size: (hi - lo) / about };
}

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/** The colour at t in 0..1 of [[place, "#rrggbb"], ...]. */
export function ramp(stops, t) {
  const at = Math.min(1, Math.max(0, t));
  const above = stops.findIndex(([place]) => place >= at);
  const i = Math.max(1, above);
  const [[from, a], [to, b]] = [stops[i - 1], stops[i]];
  const share = (at - from) / (to - from || 1);
  const [start, end] = [channels(a), channels(b)];
  const mixed = start.map((c, j) => Math.round(c + share * (end[j] - c)));
  return `#${mixed.map((c) => c.toString(16).padStart(2, "0")).join("")}`;
}

// ---- outlines of marks, as path data around a point; one path can hold many marks --------------------------------------

const polygon = (x, y, r, angles) =>
  `M${angles.map((a) => `${(x + r * Math.sin(a)).toFixed(1)} ${(y - r * Math.cos(a)).toFixed(1)}`).join("L")}Z`;

const turn = (n, shift = 0) => Array.from({ length: n }, (_, i) => ((i + shift) * 2 * Math.PI) / n);

const circle = (x, y, r) =>
  `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;

/** Arms of a plus sign, turned by an angle. */
function arms(x, y, r, angle) {
  const w = r * 0.36;
  const corners = [
    [-w, -r], [w, -r], [w, -w], [r, -w], [r, w], [w, w], [w, r], [-w, r], [-w, w], [-r, w], [-r, -w], [-w, -w],
  ]; // prettier-ignore
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  return `M${corners.map(([a, b]) => `${(x + a * c - b * s).toFixed(1)} ${(y + a * s + b * c).toFixed(1)}`).join("L")}Z`;
}

function star(x, y, r) {
  const points = turn(10).map((a, i) => [a, i % 2 ? r * 0.45 : r * 1.1]);
  return `M${points.map(([a, q]) => `${(x + q * Math.sin(a)).toFixed(1)} ${(y - q * Math.cos(a)).toFixed(1)}`).join("L")}Z`;
}

const SHAPES = {
  circle,
  square: (x, y, r) => polygon(x, y, r * 1.25, turn(4, 0.5)),
  diamond: (x, y, r) => polygon(x, y, r * 1.2, turn(4)),
  "triangle-up": (x, y, r) => polygon(x, y, r * 1.2, turn(3)),
  cross: (x, y, r) => arms(x, y, r, 0),
  x: (x, y, r) => arms(x, y, r, Math.PI / 4),
  pentagon: (x, y, r) => polygon(x, y, r * 1.1, turn(5)),
  hexagon: (x, y, r) => polygon(x, y, r * 1.1, turn(6)),
  star,
};

/** "diamond" and "diamond-open" have one outline; open marks are not filled. */
export const outline = (symbol, x, y, size) =>
  (SHAPES[String(symbol ?? "circle").replace("-open", "")] ?? circle)(x, y, size / 2);

export const isOpen = (symbol) => String(symbol ?? "").endsWith("-open");
