// A training run that was watched: metrics along the steps with their bands, both models as yardsticks, and what was
// forgotten against what was kept.

import { choose, count, el, fmt, isNumber, missing, own, replace } from "./dom.js";
import { metric, metricOptions, report, roleColour, sourcePath } from "./data.js";
import { band, chart, lines, plain } from "./chart.js";
import { allowed, bestWords, frontier, placed, sharedValues, starWords } from "./frontier.js";
import { saveButtons } from "./save.js";
import { plainTable } from "./sheet.js";
import * as state from "./state.js";
import { colours, wheel } from "./theme.js";

// Where they are there, the first of each kind is shown first: what is to go, and what is to stay.
const FIRST = [
  ["forget_Q_A_Prob", "forget_Prob", "forget_Q_A_ROUGE"],
  ["model_utility", "utility", "retain_Q_A_ROUGE", "retain_Q_A_Prob"],
];

export function trainingView(root) {
  const runs = report.training ?? [];
  const head = el("h1", "Training");
  if (!runs.length)
    return replace(
      root,
      head,
      missing(
        "No training run in this report.",
        "vestige.Callback and vestige unlearn write what they saw on the way.",
      ),
    );
  const lead = el(
    "p.lead",
    "The model while it was trained. A band is a 95 % interval; dotted lines are the model that never knew (retain) " +
      "and the model before.",
  );
  const keys = [...new Set(runs.flatMap((r) => Object.keys(r.series)))];
  const first = FIRST.map((kind) => kind.find((k) => keys.includes(k))).filter(Boolean);
  const start = [...new Set([...first, ...keys])];
  const charts = start.slice(0, 2).map((k, i) => series(runs, keys, k, `w.${i}`));
  return replace(
    root,
    head,
    lead,
    el("section.panel", el("div.chart-grid", charts)),
    tradeOff(runs),
    ...runs.map(about),
  );
}

function series(runs, keys, start, where) {
  let chosen = keys.includes(state.get(where)) ? state.get(where) : start;
  const drawn = chart({
    name: where === "w.0" ? "training_1" : "training_2",
    title: "Over the training steps",
    height: 340,
    build: () => curves(runs, chosen),
    sheet: () => sheet(runs, chosen),
  });
  const change = (key) => {
    chosen = key;
    state.set({ [where]: key });
    drawn.update();
  };
  return el("div", el("div.controls", choose("metric", metricOptions(keys), chosen, change)), drawn.node);
}

const runColour = (i) => wheel()[(i * 3) % wheel().length];

function curves(runs, key) {
  const shown = runs.filter((r) => own(r.series, key));
  const traces = [...yardsticks(shown, key), ...shown.flatMap((r, i) => curve(r, key, runColour(i)))];
  return {
    traces: traces.filter(Boolean),
    note: starWords(shown),
    says: `${count(shown.length, "run")}.`,
    layout: { xaxis: { title: "training step" }, yaxis: { title: metric(key).label ?? key } },
  };
}

function curve(r, key, colour) {
  const y = own(r.series, key);
  const reach = own(r.bands, key);
  const at = r.steps.indexOf(r.best);
  const text = r.steps.map((s, j) => said(r, key, j));
  const line = {
    type: "scatter",
    mode: "lines+markers",
    x: r.steps,
    y,
    connectgaps: false,
    name: plain(r.name, 30),
    line: { color: colour, width: 2.2 },
    marker: { size: 6 },
    text,
    hoverinfo: "text",
  };
  const best = {
    type: "scatter",
    mode: "markers",
    x: [r.best],
    y: [y[at]],
    name: "best look",
    showlegend: false,
    marker: { symbol: "star", size: 17, color: colour, line: { color: colours().ink, width: 1 } },
    text: [text[at]],
    hoverinfo: "text",
  };
  return [reach && band(r.steps, reach.lo, reach.hi, colour, r.name), line, at >= 0 && isNumber(y[at]) ? best : null];
}

function said(r, key, j) {
  const reach = own(r.bands, key);
  return lines(
    r.name,
    `step ${r.steps[j]}: ${fmt(own(r.series, key)[j])}`,
    isNumber(reach?.lo?.[j]) ? `${fmt(reach.lo[j])} to ${fmt(reach.hi[j])}` : "",
    r.why?.[j],
  );
}

/** Both models that the runs lie between, as lines across the chart; runs with the same one share its line. */
function yardsticks(runs, key) {
  const steps = runs.flatMap((r) => r.steps);
  const ends = [Math.min(...steps), Math.max(...steps)];
  return [
    ["retain", "retain model"],
    ["before", "before training"],
  ].flatMap(([which, words]) =>
    sharedValues(runs, which, key).map(({ value, names }, i, all) => ({
      type: "scatter",
      mode: "lines",
      x: ends,
      y: [value, value],
      name: all.length > 1 ? plain(`${words} (${names.join(", ")})`, 40) : words,
      line: { color: roleColour(which === "retain" ? "retain" : "full"), width: 1.8, dash: "dot" },
      text: ends.map(() => lines(words, fmt(value))),
      hoverinfo: "text",
    })),
  );
}

function sheet(runs, key) {
  const rows = runs
    .filter((r) => own(r.series, key))
    .flatMap((r) =>
      r.steps.map((s, j) => [
        r.name,
        s,
        own(r.series, key)[j] ?? null,
        own(r.bands, key)?.lo?.[j] ?? null,
        own(r.bands, key)?.hi?.[j] ?? null,
        own(r.retain, key) ?? null,
        own(r.before, key) ?? null,
        s === r.best,
      ]),
    );
  return { columns: ["run", "step", key, "lo", "hi", "retain model", "before training", "best"], rows };
}

function tradeOff(runs) {
  const shown = runs.filter((r) => placed(r).length);
  if (!shown.length)
    return el(
      "section.panel",
      el("h2", "Forgotten against kept"),
      missing(
        "No place between both models is known.",
        "It takes the retain model's run (retain_logs), the model before training, and a metric of utility.",
      ),
    );
  const drawn = chart({
    name: "training_frontier",
    title: "Forgotten against kept",
    height: 400,
    build: () => frontierPicture(shown),
    sheet: () => frontierSheet(shown),
  });
  return el("section.panel", drawn.node);
}

function frontierPicture(runs) {
  const traces = runs.flatMap((r, i) => frontierTraces(r, runColour(i), i === 0));
  const c = colours();
  const upright = (x, color) => ({
    type: "line",
    x0: x,
    x1: x,
    y0: 0,
    y1: 1,
    yref: "paper",
    line: { color, width: 1.4, dash: "dot" },
  });
  return {
    traces: traces.filter(Boolean),
    note: "left line: as the retain model; right line: as before training; hollow: never the best",
    says: runs.map((r) => `${r.name}: ${bestWords(r)}`).join(" "),
    layout: {
      xaxis: { title: "knowledge left (0 as the retain model, below 0 over-forgotten)" },
      yaxis: { title: "utility kept (share of before)" },
      shapes: [upright(0, c.green), upright(1, c.red)],
    },
  };
}

function frontierTraces(r, colour, showlegend) {
  const points = placed(r);
  const front = frontier(r).sort((a, b) => a.share - b.share);
  const best = points.filter((p) => p.best);
  const words = (p) =>
    lines(r.name, `step ${p.step}`, `knowledge left ${fmt(p.share)}`, `utility kept ${fmt(p.kept)}`, p.why);
  const dots = {
    type: "scatter",
    mode: "lines+markers",
    x: points.map((p) => p.share),
    y: points.map((p) => p.kept),
    name: plain(r.name, 30),
    line: { color: colours().grey, width: 1 },
    marker: { symbol: points.map((p) => (allowed(r, p) ? "circle" : "circle-open")), size: 9, color: colour },
    text: points.map(words),
    hoverinfo: "text",
  };
  const edge = {
    type: "scatter",
    mode: "lines",
    x: front.map((p) => p.share),
    y: front.map((p) => p.kept),
    name: "frontier",
    showlegend,
    line: { color: colour, width: 2.4, dash: "dash" },
    hoverinfo: "skip",
  };
  const star = {
    type: "scatter",
    mode: "markers",
    x: best.map((p) => p.share),
    y: best.map((p) => p.kept),
    name: "best look",
    showlegend,
    marker: { symbol: "star", size: 19, color: colour, line: { color: colours().ink, width: 1 } },
    text: best.map(words),
    hoverinfo: "text",
  };
  return [dots, front.length > 1 ? edge : null, best.length ? star : null];
}

function frontierSheet(runs) {
  const rows = runs.flatMap((r) => {
    const front = new Set(frontier(r).map((p) => p.step));
    return placed(r).map((p) => [r.name, p.step, p.share, p.kept, p.closeness, front.has(p.step), p.best, p.why]);
  });
  return { columns: ["run", "step", "knowledge left", "kept", "closeness", "on the frontier", "best", "why"], rows };
}

function about(r) {
  const keys = Object.keys(r.series);
  const columns = ["step", "score", "knowledge left", "kept", ...keys, "why never the best", "verdict", "seconds"];
  const rows = r.steps.map((s, j) => [
    s,
    r.score?.[j] ?? null,
    r.share?.[j] ?? null,
    r.kept?.[j] ?? null,
    ...keys.map((k) => r.series[k][j] ?? null),
    r.why?.[j] ?? "",
    (r.verdicts?.[j] ?? "").replaceAll("_", " "),
    r.seconds?.[j] ?? null,
  ]);
  return el(
    "section.panel",
    el("h2", r.name),
    el("p", bestWords(r)),
    plainTable(`${r.name}: every look`, { columns, rows }),
    el("div.table-tools", ...saveButtons(`training_${r.name}`, () => ({ columns, rows }))),
    el("p.soft", sourcePath(r.source)),
  );
}
