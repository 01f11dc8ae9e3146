// Numbers on lines: one between two named ends, and one model's metrics between the full and the retain model.

import { el, fmt, interval, isNumber, svg } from "./dom.js";
import { cell, metric, metricTip, modelName, number, titled, valueTip } from "./data.js";
import { columnHead, scroller, textCell } from "./table.js";
import { tip } from "./tip.js";

// ---- a number and its interval on a range whose ends are named in plain words ------------------------------------------

const EDGE = 3; // percent left free at both ends

/**
 * between({share, lo, hi}, {marks: [[place, words, who]], band, bandWords, below, range, small}): a drawing. Beyond the
 * range the number is drawn at its end as an arrow. `small` leaves the words out.
 */
export function between(value, look) {
  const { share, lo, hi } = value;
  const [from, to] = look.range;
  const x = (v) => EDGE + ((100 - 2 * EDGE) * (Math.min(to, Math.max(from, v)) - from)) / (to - from);
  const at = (v) => `${x(v).toFixed(2)}%`;
  const y = 11;
  const [left, right] = look.band ?? [0, 0];
  const width = `${(x(right) - x(left)).toFixed(2)}%`;
  const picture = svg(
    "svg.between-line",
    { "aria-hidden": "true" },
    right > left && svg("rect.band", { x: at(left), width, y: 1, height: 20, rx: 3 }),
    svg("line.track", { x1: `${EDGE}%`, x2: `${100 - EDGE}%`, y1: y, y2: y }),
    look.marks.map(([place]) => svg("line.post", { x1: at(place), x2: at(place), y1: 3, y2: 19 })),
    isNumber(lo) && isNumber(hi) && svg("line.reach", { x1: at(lo), x2: at(hi), y1: y, y2: y }),
    isNumber(share) && svg("svg", { x: at(share), overflow: "visible" }, dot(share, from, to, y)),
  );
  if (look.small) return el("div.between.small", { title: said(value) }, picture);
  return el("div.between", { role: "img", "aria-label": spoken(value, look) }, picture, ends(look, x));
}

/** A dot; an arrow where the number lies beyond the range. */
function dot(v, from, to, y) {
  if (v > to) return svg("path.mark.model", { d: `M-5 ${y - 7}L7 ${y}L-5 ${y + 7}Z` });
  if (v < from) return svg("path.mark.model", { d: `M5 ${y - 7}L-7 ${y}L5 ${y + 7}Z` });
  return svg("circle.mark.model", { cx: 0, cy: y, r: 6 });
}

function ends(look, x) {
  const word = ([place, words, who]) => {
    const style = { left: `${x(place)}%` };
    return el(x(place) < 12 ? "span.end.start" : "span.end", { style }, words, who && el("span.who-end", who));
  };
  const below = look.below && el("span.end.start.narrow", { style: { left: `${EDGE}%` } }, look.below);
  return el("div.ends", { "aria-hidden": "true" }, below ?? null, look.marks.map(word));
}

const said = (value) => {
  const reach = interval(value, 2);
  return isNumber(value.share) ? `${fmt(value.share, 2)}${reach && ` (${reach})`}` : "not measured";
};

function spoken(value, look) {
  const marks = look.marks.map(([place, words, who]) => `${place} is ${words}${who ? `, the ${who}` : ""}`).join("; ");
  const band = look.band ? ` Between ${fmt(look.band[0], 2)} and ${fmt(look.band[1], 2)}: ${look.bandWords}.` : "";
  return `${said(value)}. ${marks}.${band}`;
}

// ---- a line for each metric, with marks of three models ----------------------------------------------------------------

// The references stand above the line, the model on it: equal values do not hide each other.
const SHAPES = {
  full: () => svg("rect.mark.full", { x: -4.5, y: 1.5, width: 9, height: 9 }),
  retain: () => svg("path.mark.retain", { d: "M0 -0.5 L6 6 L0 12.5 L-6 6 Z" }),
  model: () => svg("circle.mark.model", { cx: 0, cy: 19, r: 6 }),
};
const KINDS = Object.keys(SHAPES);

/** A mark at a place given in percent: an inner svg moves with the width, its shape does not stretch. */
const mark = (kind, x) => svg("svg", { x, overflow: "visible" }, SHAPES[kind]());

function span(info, cells) {
  if (info.range) return info.range;
  const known = cells.flatMap((c) => [c?.v, c?.of ? null : c?.lo, c?.of ? null : c?.hi]).filter(isNumber);
  const [lo, hi] = [Math.min(...known, 0), Math.max(...known, 0)];
  return lo === hi ? [lo - 1, hi + 1] : [lo, hi];
}

function track(info, cells) {
  const [lo, hi] = span(info, Object.values(cells));
  const x = (v) => `${(4 + 92 * Math.min(1, Math.max(0, (v - lo) / (hi - lo)))).toFixed(2)}%`;
  const own = cells.model;
  const reach = own && !own.of && isNumber(own.lo) && isNumber(own.hi);
  return svg(
    "svg.ruler-line",
    { "aria-hidden": "true" },
    svg("line.track", { x1: "4%", x2: "96%", y1: 19, y2: 19 }),
    reach && svg("line.reach", { x1: x(own.lo), x2: x(own.hi), y1: 19, y2: 19 }),
    KINDS.map((kind) => isNumber(cells[kind]?.v) && mark(kind, x(cells[kind].v))),
  );
}

/** A table of lines; `keys` without a value for the audited model are left to the panels. */
export function ruler(audit, keys, caption) {
  const heads = ["metric", "full, retain and this model", "value", "95 % interval"];
  const line = (key) => {
    const cells = Object.fromEntries(KINDS.map((kind) => [kind, audit[kind] && cell(audit[kind], key)]));
    const words = isNumber(cells.model?.v) ? fmt(cells.model.v) : "missing";
    return el(
      "tr",
      tip(el("th", { scope: "row" }, titled(key)), () => metricTip(key)),
      el("td.line", track(metric(key), cells)),
      tip(el("td.number.main", words), () => valueTip(audit.model, key)),
      el("td.number.soft.reach-text", interval(cells.model)),
    );
  };
  const item = (kind) => {
    const box = {
      viewBox: kind === "model" ? "0 8 22 22" : "0 -5 22 22", width: 16, height: 16, "aria-hidden": "true",
    };
    return audit[kind] && el("span", svg("svg", box, mark(kind, 11)), " ", modelName(audit[kind]));
  };
  const head = el(
    "tr",
    heads.map((t) => el("th.hidden-head", { scope: "col" }, t)),
  );
  return el(
    "div.ruler",
    el("p.legend", ["model", "full", "retain"].map(item)),
    el("table", el("caption.hidden", caption), el("thead.hidden", head), el("tbody", keys.map(line))),
  );
}

/** All numbers of a panel: value, interval, n, the two references, protocol; the missing ones with their reason. */
export function numbersTable(audit, keys, caption) {
  const shown = keys.filter((k) => cell(audit.model, k));
  if (!shown.length) return null;
  const refs = ["full", "retain"].filter((role) => audit[role]);
  const line = (key) => {
    const value = cell(audit.model, key);
    const name = tip(el("th", { scope: "row" }, titled(key)), () => metricTip(key));
    const why = `missing: ${value.reason || "no reason given"}`;
    if (!isNumber(value.v)) return el("tr", name, el("td.missing", { colspan: 4 + refs.length }, why));
    const ref = (id) => tip(el("td.number", fmt(number(id, key))), () => valueTip(id, key));
    return el(
      "tr",
      name,
      tip(el("td.number.main", fmt(value.v)), () => valueTip(audit.model, key)),
      el("td.number.soft", interval(value) + (value.of ? ` (${value.of})` : "")),
      el("td.number", isNumber(value.n) ? fmt(value.n, 0) : "–"),
      refs.map((role) => ref(audit[role])),
      el(`${textCell(value.protocol)}.soft`, value.protocol || value.dialect || ""),
    );
  };
  const heads = ["metric", "value", "95 % interval", "n", ...refs, "protocol"];
  const isText = (text) => text === "metric" || text === "protocol";
  const cells = heads.map((text) => columnHead(text, !isText(text)));
  return scroller(caption, cells, shown.map(line), "div.scroller.small", "table.numbers-table");
}
