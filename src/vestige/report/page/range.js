// A number and its interval on a range whose ends are named in plain words.

import { el, fmt, isNumber, svg } from "./dom.js";

const EDGE = 3; // percent left free at both ends

/**
 * between({share, lo, hi}, {marks: [[place, words, who]], band, bandWords, below, range, small}): a drawing. Beyond the
 * range the number is drawn at its end as an arrow. `small` leaves the words out.
 */
export function between({ share, lo, hi }, look) {
  const [from, to] = look.range;
  const inside = (v) => Math.min(to, Math.max(from, v));
  const x = (v) => EDGE + ((100 - 2 * EDGE) * (inside(v) - from)) / (to - from);
  const at = (v) => `${x(v).toFixed(2)}%`;
  const y = 11;
  const parts = [];
  if (look.band && look.band[1] > look.band[0])
    parts.push(
      svg("rect.band", {
        x: at(look.band[0]),
        width: `${(x(look.band[1]) - x(look.band[0])).toFixed(2)}%`,
        y: 1,
        height: 20,
        rx: 3,
      }),
    );
  parts.push(svg("line.track", { x1: `${EDGE}%`, x2: `${100 - EDGE}%`, y1: y, y2: y }));
  for (const [place] of look.marks) parts.push(svg("line.post", { x1: at(place), x2: at(place), y1: 3, y2: 19 }));
  if (isNumber(lo) && isNumber(hi)) parts.push(svg("line.reach", { x1: at(lo), x2: at(hi), y1: y, y2: y }));
  if (isNumber(share)) parts.push(svg("svg", { x: at(share), overflow: "visible" }, dot(share, from, to, y)));
  const picture = svg("svg.between-line", { "aria-hidden": "true" }, ...parts);
  if (look.small) return el("div.between.small", { title: said({ share, lo, hi }) }, picture);
  return el("div.between", { role: "img", "aria-label": spoken({ share, lo, hi }, look) }, picture, ends(look, x));
}

/** A dot; an arrow where the number lies beyond the range. */
function dot(v, from, to, y) {
  if (v > to) return svg("path.mark.model", { d: `M-5 ${y - 7}L7 ${y}L-5 ${y + 7}Z` });
  if (v < from) return svg("path.mark.model", { d: `M5 ${y - 7}L-7 ${y}L5 ${y + 7}Z` });
  return svg("circle.mark.model", { cx: 0, cy: y, r: 6 });
}

function ends(look, x) {
  const word = ([place, words, who]) =>
    el(
      x(place) < 12 ? "span.end.start" : "span.end",
      { style: { left: `${x(place)}%` } },
      words,
      who ? el("span.who-end", who) : null,
    );
  const below = look.below ? el("span.end.start.narrow", { style: { left: `${EDGE}%` } }, look.below) : null;
  return el("div.ends", { "aria-hidden": "true" }, below, look.marks.map(word));
}

const said = ({ share, lo, hi }) =>
  isNumber(share)
    ? `${fmt(share, 2)}${isNumber(lo) && isNumber(hi) ? ` (${fmt(lo, 2)} to ${fmt(hi, 2)})` : ""}`
    : "not measured";

function spoken(value, look) {
  const marks = look.marks.map(([place, words, who]) => `${place} is ${words}${who ? `, the ${who}` : ""}`).join("; ");
  const band = look.band ? ` Between ${fmt(look.band[0], 2)} and ${fmt(look.band[1], 2)}: ${look.bandWords}.` : "";
  return `${said(value)}. ${marks}.${band}`;
}
