// Does reasoning still depend on its prompt? Mutual information and retrieval over training steps.

import { choose, el, fmt, isNumber, missing, own, replace } from "./dom.js";
import { report, sourcePath } from "./data.js";
import { band, chart, lines, plain } from "./chart.js";
import { saveButtons } from "./save.js";
import { plainTable } from "./sheet.js";
import * as state from "./state.js";
import { wheel } from "./theme.js";

const FIRST = ["mi_seq_estimate", "retrieval_accuracy", "mi_estimate"]; // where they are there, they are shown first

export function collapseView(root) {
  const runs = report.collapse ?? [];
  const head = el("h1", "Collapse");
  if (!runs.length)
    return replace(
      root,
      head,
      missing("No collapse runs in this report.", "They are made from rollouts with vestige collapse."),
    );
  const keys = [...new Set(runs.flatMap((r) => Object.keys(r.series)))];
  const first = FIRST.filter((k) => keys.includes(k));
  const start = [...first, ...keys].filter((k, i, list) => list.indexOf(k) === i);
  const lead = el(
    "p.lead",
    "Whether a text says which prompt it answers. When it no longer does, reasoning has collapsed into a template.",
  );
  return replace(
    root,
    head,
    lead,
    el(
      "section.panel",
      el(
        "div.chart-grid",
        start.slice(0, 2).map((k, i) => series(runs, keys, k, `c.${i}`)),
      ),
    ),
    ...runs.map(about),
  );
}

const label = (runs, key) => {
  const words = runs.map((r) => own(r.columns, key)).find(Boolean);
  return words ? `${key}: ${words}` : key;
};

function series(runs, keys, start, where) {
  let chosen = keys.includes(state.get(where)) ? state.get(where) : start;
  const drawn = chart({
    name: where === "c.0" ? "collapse_1" : "collapse_2",
    title: "Over the training steps",
    height: 340,
    build: () => build(runs, chosen),
    sheet: () => sheet(runs, chosen),
  });
  const change = (key) => {
    chosen = key;
    state.set({ [where]: key });
    drawn.update();
  };
  return el(
    "div",
    el(
      "div.controls",
      choose(
        "column",
        keys.map((k) => [k, label(runs, k)]),
        chosen,
        change,
      ),
    ),
    drawn.node,
  );
}

const runName = (r) => (r.label ? `${r.name} (${r.label})` : r.name);

function build(runs, key) {
  const palette = wheel();
  const traces = runs.flatMap((r, i) => {
    const y = own(r.series, key);
    if (!y) return [];
    const reach = own(r.bands, key);
    const colour = palette[i % palette.length];
    const text = r.steps.map((s, j) =>
      lines(
        runName(r),
        `step ${s}: ${fmt(y[j])}`,
        isNumber(reach?.lo?.[j]) ? `${fmt(reach.lo[j])} to ${fmt(reach.hi[j])}` : "",
        r.verdicts?.[j],
      ),
    );
    return [
      reach && band(r.steps, reach.lo, reach.hi, colour, runName(r)),
      {
        type: "scatter",
        mode: "lines+markers",
        x: r.steps,
        y,
        name: plain(runName(r), 40),
        line: { color: colour, width: 2.2 },
        marker: { size: 7 },
        text,
        hoverinfo: "text",
      },
    ];
  });
  return {
    traces: traces.filter(Boolean),
    note: label(runs, key),
    says: "",
    layout: { xaxis: { title: "training step" }, yaxis: { title: key }, showlegend: runs.length > 1 },
  };
}

function sheet(runs, key) {
  const rows = runs.flatMap((r) =>
    r.steps.map((s, j) => [
      runName(r),
      s,
      own(r.series, key)?.[j] ?? null,
      own(r.bands, key)?.lo?.[j] ?? null,
      own(r.bands, key)?.hi?.[j] ?? null,
    ]),
  );
  return { columns: ["run", "step", key, "lo", "hi"], rows };
}

function about(run) {
  const keys = Object.keys(run.series);
  const columns = ["step", "verdict", ...keys];
  const rows = run.steps.map((s, j) => [s, run.verdicts?.[j] ?? "", ...keys.map((k) => run.series[k][j] ?? null)]);
  return el(
    "section.panel",
    el("h2", runName(run)),
    el(
      "ul.limits",
      (run.notes ?? []).map((t) => el("li", t)),
    ),
    plainTable(`${runName(run)}: every step`, { columns, rows }),
    el("div.table-tools", ...saveButtons(`collapse_${run.name}`, () => ({ columns, rows }))),
    el("p.soft", sourcePath(run.source)),
  );
}
