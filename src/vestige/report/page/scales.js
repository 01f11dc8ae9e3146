// From values to places in a chart: ranges, round ticks, categories, bins, colour ramps. Pure: no element is made here.

import { isNumber } from "./dom.js";

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
  const i = Math.max(
    1,
    stops.findIndex(([place]) => place >= at),
  );
  const [[from, a], [to, b]] = [stops[i - 1], stops[i]];
  const share = (at - from) / (to - from || 1);
  const [start, end] = [channels(a), channels(b)];
  return `#${start
    .map((c, j) =>
      Math.round(c + share * (end[j] - c))
        .toString(16)
        .padStart(2, "0"),
    )
    .join("")}`;
}
