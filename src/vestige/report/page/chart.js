// One chart: drawn when it comes into sight or the theme changes; saved as PNG, SVG or CSV, readable as numbers.

import { choose, el, isNumber, replace } from "./dom.js";
import { draw } from "./draw.js";
import { button, csv, offer, saveButtons, saveChart } from "./save.js";
import * as state from "./state.js";
import { plainTable } from "./table.js";
import { onTheme } from "./theme.js";
import { hide, showAt } from "./tip.js";

const PAUSE = 60; // ms
const PAPER = { width: 430, height: 250 }; // of a printed chart: two or three of them are beside each other
let paper = false;
const charts = new Map();
const sight = new IntersectionObserver(
  (seen) => seen.filter((s) => s.isIntersecting).forEach((s) => charts.get(s.target)?.wake()),
  { rootMargin: "200px" },
);
const sizes = new ResizeObserver((changed) => changed.forEach((c) => charts.get(c.target)?.resized()));

/** Text for a chart, in one line and not too long. */
export function plain(text, most = 60) {
  const whole = String(text ?? "").replace(/\s+/g, " ");
  return whole.length > most ? `${whole.slice(0, most - 1)}…` : whole;
}

/** Lines of a hover label. */
export const lines = (...parts) =>
  parts
    .filter((p) => p !== "" && p !== null && p !== undefined)
    .map((p) => plain(p, 90))
    .join("\n");

/**
 * chart({name, title, note, height, build, sheet, onPoint}): `build()` gives {traces, layout, says}; `sheet()` gives
 * the numbers behind it; `onPoint` gets the customdata of a clicked point.
 */
export function chart(options) {
  const { name, title } = options;
  const height = options.height ?? 340;
  const plot = el("div.plot", { role: "img", "aria-label": title, style: { "min-height": `${height}px` } });
  const note = el("span.chart-note", options.note ?? "");
  const numbers = el("details.numbers", el("summary", "Numbers"));
  const fillNumbers = () => replace(numbers, numbers.firstElementChild, plainTable(title, options.sheet(), 400));
  numbers.addEventListener("toggle", () => numbers.open && fillNumbers());
  const picture = (format) => async () => {
    flush();
    await saveChart(plot.querySelector("svg"), name, format);
  };
  const tools = [
    button("PNG", `Download the chart ${title} as PNG`, picture("png")),
    button("SVG", `Download the chart ${title} as SVG`, picture("svg")),
    button("CSV", `Download the numbers of ${title} as CSV`, () =>
      offer(`${name}.csv`, "text/csv", csv(options.sheet())),
    ),
    saveButtons(name, options.sheet)[1],
  ];
  const caption = el("figcaption", el("strong", title), " ", note);
  const node = el("figure.chart", caption, plot, el("div.chart-tools", numbers, ...tools));
  const me = { node, awake: false, waiting: 0, width: 0, find: null, wake, update, flush, resized };
  charts.set(plot, me);
  sight.observe(plot);
  sizes.observe(plot);
  listen(plot, me, options.onPoint);
  return me;

  function wake() {
    if (me.awake || !plot.isConnected) return;
    me.awake = true;
    update();
  }
  function redraw() {
    clearTimeout(me.waiting);
    plot.setAttribute("aria-busy", "false");
    const { traces, layout, says, note: words } = options.build();
    if (words !== undefined) note.textContent = words;
    plot.setAttribute("aria-label", `${title}. ${says ?? ""} The numbers can be opened below or saved as CSV.`);
    me.width = paper ? PAPER.width : Math.max(240, plot.clientWidth);
    const shown = { traces: traces.filter(Boolean), layout };
    const drawn = draw(me.width, paper ? Math.min(height, PAPER.height) : height, shown);
    me.find = drawn.find;
    replace(plot, drawn.node);
  }
  // A slider asks for many pictures in a row: only the last one is drawn, and never before the page has answered.
  function update() {
    clearTimeout(me.waiting);
    if (me.awake) {
      plot.setAttribute("aria-busy", "true");
      me.waiting = setTimeout(redraw, PAUSE);
    }
    if (numbers.open) fillNumbers();
  }
  function resized() {
    if (me.width && !paper && Math.abs(plot.clientWidth - me.width) > 1) update();
  }
  function flush() {
    wake();
    if (plot.getAttribute("aria-busy") === "true") redraw();
  }
}

/** A chart of one of several things, with a menu to choose it; the choice is kept in the address under `key`. */
export function chartOfChoice(key, label, options, start, make) {
  const values = options.map(([value]) => value);
  let chosen = values.includes(state.get(key)) ? state.get(key) : start;
  const drawn = make(() => chosen);
  const change = (value) => {
    chosen = value;
    state.set({ [key]: value });
    drawn.update();
  };
  return el("div", el("div.controls", choose(label, options, chosen, change)), drawn.node);
}

/** What the pointer is over is told beside it; a click on a mark goes to `onPoint`. */
function listen(plot, me, onPoint) {
  const under = (e) => {
    const box = plot.getBoundingClientRect();
    const scale = me.width / (box.width || 1);
    return me.find?.((e.clientX - box.left) * scale, (e.clientY - box.top) * scale) ?? null;
  };
  const isMark = (spot) => onPoint && spot && spot.custom !== undefined && spot.custom !== null;
  plot.addEventListener("pointermove", (e) => {
    const spot = under(e);
    plot.classList.toggle("pointing", Boolean(isMark(spot)));
    if (spot?.text) showAt(spot.text, e.clientX, e.clientY);
    else hide();
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("click", (e) => {
    const spot = under(e);
    if (isMark(spot)) onPoint(spot.custom);
  });
}

// ---- traces ------------------------------------------------------------------------------------------------------------

/** Points joined by a line. `more`: what is special about it. */
export const curve = (x, y, name, color, { line = {}, marker = {}, ...more } = {}) => ({
  x, y, name: plain(name, 40), line: { color, width: 2.2, ...line }, marker: { size: 6, ...marker }, ...more,
});

/** A band between two lines, drawn as one filled outline; gaps are left out. */
export function band(x, lo, hi, colour, name) {
  const ok = x.map((_, i) => i).filter((i) => isNumber(lo?.[i]) && isNumber(hi?.[i]));
  if (ok.length < 2) return null;
  const back = [...ok].reverse();
  return {
    x: [...ok.map((i) => x[i]), ...back.map((i) => x[i])], y: [...ok.map((i) => hi[i]), ...back.map((i) => lo[i])],
    fill: "toself", fillcolor: faint(colour, 0.16), line: { width: 0 }, silent: true, showlegend: false,
    name: plain(name),
  };
}

/** A straight line without marks that says nothing of itself. */
export const guide = (x, y, color, more = {}) => ({
  x, y, line: { color, width: 1, ...more.line }, silent: true, showlegend: false, name: more.name,
});

/** A line across the whole chart, upright at x. */
export const upright = (x, color, dash, width = 2) => ({
  type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color, width, dash },
});

export function faint(hex, alpha) {
  const n = parseInt(hex.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
}

function forget(plot) {
  charts.delete(plot);
  sight.unobserve(plot);
  sizes.unobserve(plot);
}

/** Lets go of charts that left the page. */
export const sweepCharts = () => [...charts.keys()].filter((plot) => !plot.isConnected).forEach(forget);

/** All charts at once, in the size they have on paper; and back. */
const toPaper = (on) => () => {
  paper = on;
  charts.forEach((me) => me.update());
  charts.forEach((me) => me.flush());
};

onTheme(() => {
  sweepCharts();
  charts.forEach((me) => me.update());
});
addEventListener("beforeprint", toPaper(true));
addEventListener("afterprint", toPaper(false));
