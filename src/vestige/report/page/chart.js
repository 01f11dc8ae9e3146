// One chart: drawn when it comes into sight, redrawn when the theme changes, saved as PNG, SVG or CSV, readable as numbers.

import { el, replace } from "./dom.js";
import { button, csv, offer, saveChart, saveButtons } from "./save.js";
import { plainTable } from "./sheet.js";
import { colours, onTheme } from "./theme.js";

const CONFIG = { displayModeBar: false, responsive: true, showTips: false, doubleClick: "reset" };
const PAUSE = 60; // ms
const charts = new Map();
const sight = new IntersectionObserver(
  (seen) => seen.filter((s) => s.isIntersecting).forEach((s) => charts.get(s.target)?.wake()),
  {
    rootMargin: "200px",
  },
);

/** Text for a chart. Plotly reads a few tags and entities in labels: none of ours may be one. */
export function plain(text, most = 60) {
  const whole = String(text ?? "").replace(/\s+/g, " ");
  const cut = whole.length > most ? `${whole.slice(0, most - 1)}…` : whole;
  return cut.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Lines of a hover label. */
export const lines = (...parts) =>
  parts
    .filter((p) => p !== "" && p !== null && p !== undefined)
    .map((p) => plain(p, 90))
    .join("<br>");

/**
 * chart({name, title, note, height, build, sheet, onPoint}): `build()` gives {traces, layout, says}; `sheet()` gives
 * the numbers behind it; `onPoint` gets the customdata of a clicked point.
 */
export function chart(options) {
  const plot = el("div.plot", { role: "img", style: { height: `${options.height ?? 340}px` } });
  const note = el("span.chart-note", {}, options.note ?? "");
  const title = el("figcaption", {}, el("strong", {}, options.title), " ", note);
  const numbers = el("details.numbers", {}, el("summary", {}, "Numbers"));
  numbers.addEventListener("toggle", () => numbers.open && fillNumbers(numbers, options));
  const node = el("figure.chart", {}, title, plot, el("div.chart-tools", {}, numbers, ...tools(plot, options)));
  const me = { node, awake: false, waiting: 0, wake, update, flush };
  charts.set(plot, me);
  sight.observe(plot);
  return me;

  function wake() {
    if (me.awake || !plot.isConnected) return;
    me.awake = true;
    update();
  }
  function draw() {
    clearTimeout(me.waiting);
    plot.setAttribute("aria-busy", "false");
    const { traces, layout, says, note: words } = options.build();
    if (words !== undefined) note.textContent = words;
    plot.setAttribute("aria-label", `${options.title}. ${says ?? ""} The numbers can be opened below or saved as CSV.`);
    const fresh = !plot.data;
    Plotly.react(plot, traces, dressed(layout), CONFIG);
    if (fresh && options.onPoint) plot.on("plotly_click", (e) => clicked(e, options.onPoint));
  }
  // A slider asks for many pictures in a row: only the last one is drawn, and never before the page has answered.
  function update() {
    clearTimeout(me.waiting);
    if (me.awake) {
      plot.setAttribute("aria-busy", "true");
      me.waiting = setTimeout(draw, PAUSE);
    }
    if (numbers.open) fillNumbers(numbers, options);
  }
  function flush() {
    wake();
    if (plot.getAttribute("aria-busy") === "true") draw();
  }
}

function clicked(event, onPoint) {
  const point = event.points?.[0];
  if (point && point.customdata !== undefined && point.customdata !== null) onPoint(point.customdata);
}

function fillNumbers(place, options) {
  replace(place, place.firstElementChild, plainTable(options.title, options.sheet(), 400));
}

function tools(plot, options) {
  const name = options.name;
  const asCsv = () => offer(`${name}.csv`, "text/csv", csv(options.sheet()));
  const picture = (format) => async () => {
    charts.get(plot).flush();
    await saveChart(plot, name, format);
  };
  return [
    button("PNG", `Download the chart ${options.title} as PNG`, picture("png")),
    button("SVG", `Download the chart ${options.title} as SVG`, picture("svg")),
    button("CSV", `Download the numbers of ${options.title} as CSV`, asCsv),
    saveButtons(name, options.sheet)[1],
  ];
}

/** The page's look around a chart's own layout. */
function dressed(layout = {}) {
  const c = colours();
  const axis = {
    gridcolor: c.line,
    zerolinecolor: c.line,
    linecolor: c.line,
    automargin: true,
    tickfont: { size: 11 },
  };
  const dress = (own = {}) => ({
    ...axis,
    ...own,
    title: { font: { size: 12, color: c.soft }, standoff: 8, ...titled(own.title) },
  });
  const extra = Object.keys(layout).filter((k) => /^[xy]axis\d*$/.test(k));
  const axes = Object.fromEntries([...new Set(["xaxis", "yaxis", ...extra])].map((k) => [k, dress(layout[k])]));
  return {
    font: { family: "system-ui, sans-serif", size: 12, color: c.ink },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 48, r: 16, t: 28, b: 40 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } },
    hoverlabel: { bgcolor: c.paper, bordercolor: c.soft, font: { color: c.ink, size: 12 }, align: "left" },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...layout,
    ...axes,
  };
}

const titled = (title) => (typeof title === "string" ? { text: plain(title) } : (title ?? {}));

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
  if (plot.data) Plotly.purge(plot);
}

/** Lets go of charts that left the page. */
export const sweepCharts = () => [...charts.keys()].filter((plot) => !plot.isConnected).forEach(forget);

onTheme(redraw);
addEventListener("beforeprint", () => charts.forEach((me) => me.wake()));
