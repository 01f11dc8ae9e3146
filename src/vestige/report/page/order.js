// Sorting. Missing values come last in both directions; text that holds numbers sorts by them (ep5 before ep10).

import { isNumber } from "./dom.js";

const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const gone = (v) => v === null || v === undefined || v === "" || Number.isNaN(v);

export function compare(a, b) {
  if (isNumber(a) && isNumber(b)) return a - b;
  return words.compare(String(a), String(b));
}

/** Rows in order of get(row); `down` for the largest first. Equal rows keep their order. */
export function sorted(rows, get, down) {
  const keyed = rows.map((row) => [get(row), row]);
  const here = keyed.filter(([v]) => !gone(v));
  const away = keyed.filter(([v]) => gone(v));
  here.sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
  return [...here, ...away].map(([, row]) => row);
}

/** Which of the values are best, second best and worst: value -> mark. Ties share a mark. */
export function marks(values, better) {
  const known = [...new Set(values.filter(isNumber))].sort((a, b) => (better === "low" ? a - b : b - a));
  const found = new Map();
  if (known.length < 3 || !better) return found;
  found.set(known.at(-1), "worst");
  found.set(known[1], "second");
  found.set(known[0], "best");
  return found;
}

/** Indices of points that no other point beats in both directions, from left to right. */
export function paretoFront(points, betterX, betterY) {
  const sign = (better) => (better === "low" ? -1 : 1);
  const order = points
    .map((_, i) => i)
    .sort((a, b) => sign(betterX) * (points[b].x - points[a].x) || sign(betterY) * (points[b].y - points[a].y));
  let best = -Infinity;
  const front = order.filter((i) => {
    const height = sign(betterY) * points[i].y;
    if (height <= best) return false;
    best = height;
    return true;
  });
  return front.sort((a, b) => points[a].x - points[b].x);
}
