// What comes back under attack: a curve for each attack, with the control that shows what the attack teaches by itself.

import { el, fmt, isNumber } from "./dom.js";
import { metric, model, modelName, titledText } from "./data.js";
import { chart, lines, plain } from "./chart.js";
import { colours } from "./theme.js";

export function attackPanel(audit) {
  const groups = new Map();
  for (const curve of audit.attacks ?? []) {
    const key = `${curve.attack}|${curve.metric}|${curve.unit}`;
    groups.set(key, [...(groups.get(key) ?? []), curve]);
  }
  if (!groups.size) return [];
  return [
    el(
      "div.chart-grid",
      [...groups.values()].map((curves) => recovery(audit, curves).node),
    ),
  ];
}

const name = (curve) =>
  curve.is_control ? `control: ${curve.name || modelName(curve.model)}` : curve.name || modelName(curve.model);

function recovery(audit, curves) {
  const first = curves[0];
  const notes = [...new Set(curves.flatMap((c) => c.notes ?? []))].join(" ");
  const build = () => ({
    traces: curves.flatMap((c) => traces(audit, c)),
    layout: layout(first),
    says: curves
      .map((c) => `${name(c)}: ${fmt(c.before)} before, ${fmt(c.values.at(-1))} at the last budget.`)
      .join(" "),
  });
  const rows = () =>
    curves.flatMap((c) => [[name(c), "before", c.before], ...c.budgets.map((b, i) => [name(c), b, c.values[i]])]);
  return chart({
    name: `${first.attack}_${first.metric}_${audit.model}`,
    title: `${first.attack}: ${titledText(first.metric)}`,
    note: notes,
    height: 300,
    build,
    sheet: () => ({ columns: ["curve", first.unit || "budget", first.metric], rows: rows() }),
  });
}

function traces(audit, curve) {
  const c = colours();
  const colour = curve.is_control ? c.green : model(curve.model).role === "full" ? c.red : c.blue;
  const steps = inOrder(curve);
  const x = ["before", ...steps.map((i) => String(curve.budgets[i]))];
  const y = [curve.before, ...steps.map((i) => curve.values[i])];
  const main = {
    type: "scatter",
    mode: "lines+markers",
    x,
    y,
    name: plain(name(curve), 34),
    connectgaps: true,
    line: { color: colour, width: 2.2, dash: curve.is_control ? "dash" : "solid" },
    marker: { size: 7, symbol: curve.is_control ? "diamond" : "circle" },
    text: x.map((b, i) =>
      lines(
        name(curve),
        i ? `${curve.unit || "budget"} ${b}` : "before the attack",
        isNumber(y[i]) ? fmt(y[i]) : "no value",
      ),
    ),
    hoverinfo: "text",
  };
  if (curve.is_control || !isNumber(curve.before)) return [main];
  const level = {
    type: "scatter",
    mode: "lines",
    x: [x[0], x.at(-1)],
    y: [curve.before, curve.before],
    line: { color: colour, width: 1, dash: "dot" },
    hoverinfo: "skip",
    showlegend: false,
  };
  return [level, main];
}

/** Places of the budgets from the weakest attack to the strongest. */
function inOrder(curve) {
  const sign = curve.reverse ? -1 : 1;
  return curve.budgets.map((_, i) => i).sort((a, b) => sign * (curve.budgets[a] - curve.budgets[b]));
}

function layout(first) {
  const budgets = inOrder(first).map((i) => first.budgets[i]);
  return {
    xaxis: {
      title: first.unit || "budget",
      type: "category",
      categoryorder: "array",
      categoryarray: ["before", ...budgets.map(String)],
    },
    yaxis: { title: metric(first.metric).label, rangemode: "tozero" },
  };
}
