// One chart: drawn when it comes into sight or the theme changes; saved as PNG, SVG or CSV, readable as numbers.

import { el, replace } from "./dom.js";
import { draw } from "./draw.js";
import { button, csv, offer, saveChart, saveButtons } from "./save.js";
import { plainTable } from "./sheet.js";
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
  const height = options.height ?? 340;
  const plot = el("div.plot", { role: "img", "aria-label": options.title, style: { "min-height": `${height}px` } });
  const note = el("span.chart-note", options.note ?? "");
  const title = el("figcaption", el("strong", options.title), " ", note);
  const numbers = el("details.numbers", el("summary", "Numbers"));
  numbers.addEventListener("toggle", () => numbers.open && fillNumbers(numbers, options));
  const node = el("figure.chart", title, plot, el("div.chart-tools", numbers, ...tools(plot, options)));
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
  function picture() {
    clearTimeout(me.waiting);
    plot.setAttribute("aria-busy", "false");
    const { traces, layout, says, note: words } = options.build();
    if (words !== undefined) note.textContent = words;
    plot.setAttribute("aria-label", `${options.title}. ${says ?? ""} The numbers can be opened below or saved as CSV.`);
    me.width = paper ? PAPER.width : Math.max(240, plot.clientWidth);
    const drawn = draw(me.width, paper ? Math.min(height, PAPER.height) : height, { traces, layout });
    me.find = drawn.find;
    replace(plot, drawn.node);
  }
  // A slider asks for many pictures in a row: only the last one is drawn, and never before the page has answered.
  function update() {
    clearTimeout(me.waiting);
    if (me.awake) {
      plot.setAttribute("aria-busy", "true");
      me.waiting = setTimeout(picture, PAUSE);
    }
    if (numbers.open) fillNumbers(numbers, options);
  }
  function resized() {
    if (me.width && !paper && Math.abs(plot.clientWidth - me.width) > 1) update();
  }
  function flush() {
    wake();
    if (plot.getAttribute("aria-busy") === "true") picture();
  }
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

function fillNumbers(place, options) {
  replace(place, place.firstElementChild, plainTable(options.title, options.sheet(), 400));
}

function tools(plot, options) {
  const name = options.name;
  const asCsv = () => offer(`${name}.csv`, "text/csv", csv(options.sheet()));
  const picture = (format) => async () => {
    charts.get(plot).flush();
    await saveChart(plot.querySelector("svg"), name, format);
  };
  return [
    button("PNG", `Download the chart ${options.title} as PNG`, picture("png")),
    button("SVG", `Download the chart ${options.title} as SVG`, picture("svg")),
    button("CSV", `Download the numbers of ${options.title} as CSV`, asCsv),
    saveButtons(name, options.sheet)[1],
  ];
}

/** A band between two lines, drawn as one filled outline; gaps are left out. */
export function band(x, lo, hi, colour, name) {
  const ok = x
    .map((_, i) => i)
    .filter((i) => lo?.[i] !== null && lo?.[i] !== undefined && hi?.[i] !== null && hi?.[i] !== undefined);
  if (ok.length < 2) return null;
  const back = [...ok].reverse();
  return {
    x: [...ok.map((i) => x[i]), ...back.map((i) => x[i])],
    y: [...ok.map((i) => hi[i]), ...back.map((i) => lo[i])],
    type: "scatter",
    mode: "lines",
    fill: "toself",
    fillcolor: faint(colour, 0.16),
    line: { width: 0 },
    hoverinfo: "skip",
    showlegend: false,
    name: plain(name),
  };
}

export function faint(hex, alpha) {
  const n = parseInt(hex.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
}

function redraw() {
  for (const [plot, me] of charts) {
    if (plot.isConnected) me.update();
    else forget(plot);
  }
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

onTheme(redraw);
addEventListener("beforeprint", toPaper(true));
addEventListener("afterprint", toPaper(false));
