// Curves over steps: training runs that were watched, reasoning that collapses or not, and answers while they are denoised.

import { choose, count, el, fmt, isNumber, missing, own, panel, replace, unique } from "./dom.js";
import {
  isReference, metric, metricOptions, model, modelName, report, roleColour, sourcePath, titledText,
} from "./data.js";
import { band, chart, chartOfChoice, curve, guide, lines, plain, upright } from "./chart.js";
import { allowed, bestWords, frontier, placed, sharedValues, starWords } from "./frontier.js";
import * as state from "./state.js";
import { savedTable } from "./table.js";
import { colours, rising, wheel } from "./theme.js";

const fillView = (root, title, lead, ...parts) => replace(root, el("h1", title), el("p.lead", lead), ...parts);
const nothing = (root, title, what, how) => replace(root, el("h1", title), missing(what, how));

/** Of all series of some runs the names, with those first that are shown first. */
const seriesNames = (runs, first) => {
  const keys = unique(runs.flatMap((r) => Object.keys(r.series)));
  return unique([...first(keys), ...keys]);
};

const reachWords = (reach, j) => (isNumber(reach?.lo?.[j]) ? `${fmt(reach.lo[j])} to ${fmt(reach.hi[j])}` : "");

/** A run's values along the steps with their band. `tell(j)`: further text about a step. */
function withBand(run, key, name, colour, tell) {
  const [y, reach] = [own(run.series, key), own(run.bands, key)];
  const text = run.steps.map((s, j) => lines(name, `step ${s}: ${fmt(y[j])}`, reachWords(reach, j), tell(j)));
  return [reach && band(run.steps, reach.lo, reach.hi, colour, name), curve(run.steps, y, name, colour, { text })];
}

/** Rows of a sheet: a run, a step, a value and its interval, and what else belongs to it. */
const stepRows = (runs, key, nameOf, more = () => []) =>
  runs.flatMap((r) =>
    r.steps.map((s, j) => {
      const reach = own(r.bands, key);
      return [
        nameOf(r), s, own(r.series, key)?.[j] ?? null, reach?.lo?.[j] ?? null, reach?.hi?.[j] ?? null, ...more(r, s),
      ];
    }),
  );

// ---- training ----------------------------------------------------------------------------------------------------------

// Where they are there, the first of each kind is shown first: what is to go, and what is to stay.
const FIRST = [
  ["forget_Q_A_Prob", "forget_Prob", "forget_Q_A_ROUGE"],
  ["model_utility", "utility", "retain_Q_A_ROUGE", "retain_Q_A_Prob"],
];
const runColour = (i) => wheel()[(i * 3) % wheel().length];

export function trainingView(root) {
  const runs = report.training ?? [];
  const how = "vestige.Callback and vestige unlearn write what they saw on the way.";
  if (!runs.length) return nothing(root, "Training", "No training run in this report.", how);
  const keys = seriesNames(runs, (all) => FIRST.map((kind) => kind.find((k) => all.includes(k))).filter(Boolean));
  const charts = keys
    .slice(0, 2)
    .map((start, i) =>
      chartOfChoice(`w.${i}`, "metric", metricOptions(keys), start, (chosen) =>
        chart({
          name: `training_${i + 1}`, title: "Over the training steps", build: () => trainingPicture(runs, chosen()),
          sheet: () => trainingSheet(runs, chosen()),
        }),
      ),
    );
  return fillView(
    root,
    "Training",
    "The model while it was trained. A band is a 95 % interval; dotted lines are the model that never knew (retain) " +
      "and the model before.",
    el("section.panel", el("div.chart-grid", charts)),
    tradeOff(runs),
    ...runs.map(aboutTraining),
  );
}

function trainingPicture(runs, key) {
  const shown = runs.filter((r) => own(r.series, key));
  const traces = shown.flatMap((r, i) => {
    const parts = withBand(r, key, r.name, runColour(i), (j) => r.why?.[j]);
    const at = r.steps.indexOf(r.best);
    const y = own(r.series, key)[at];
    return at >= 0 && isNumber(y) ? [...parts, star([r.best], [y], [parts[1].text[at]], runColour(i), 17)] : parts;
  });
  return {
    traces: [...yardsticks(shown, key), ...traces],
    note: starWords(shown),
    says: `${count(shown.length, "run")}.`,
    layout: { xaxis: { title: "training step" }, yaxis: { title: metric(key).label ?? key } },
  };
}

const star = (x, y, text, color, size, showlegend = false) => ({
  x,
  y,
  text,
  name: "best look",
  showlegend,
  marker: { symbol: "star", size, color, line: { color: colours().ink, width: 1 } },
});

/** Both models that the runs lie between, as lines across the chart; runs with the same one share its line. */
function yardsticks(runs, key) {
  const steps = runs.flatMap((r) => r.steps);
  const ends = [Math.min(...steps), Math.max(...steps)];
  const lineOf =
    (words, role) =>
    ({ value, names }, i, all) => ({
      x: ends,
      y: [value, value],
      name: all.length > 1 ? plain(`${words} (${names.join(", ")})`, 40) : words,
      line: { color: roleColour(role), width: 1.8, dash: "dot" },
      marker: { size: 6 },
      mode: "lines",
      text: ends.map(() => lines(words, fmt(value))),
    });
  return [
    ...sharedValues(runs, "retain", key).map(lineOf("retain model", "retain")),
    ...sharedValues(runs, "before", key).map(lineOf("before training", "full")),
  ];
}

function trainingSheet(runs, key) {
  const more = (r, s) => [own(r.retain, key) ?? null, own(r.before, key) ?? null, s === r.best];
  const shown = runs.filter((r) => own(r.series, key));
  return {
    columns: ["run", "step", key, "lo", "hi", "retain model", "before training", "best"],
    rows: stepRows(shown, key, (r) => r.name, more),
  };
}

function tradeOff(runs) {
  const title = "Forgotten against kept";
  const shown = runs.filter((r) => placed(r).length);
  if (!shown.length)
    return panel(
      title,
      missing(
        "No place between both models is known.",
        "It takes the retain model's run (retain_logs), the model before training, and a metric of utility.",
      ),
    );
  const build = () => ({
    traces: shown.flatMap((r, i) => frontierTraces(r, runColour(i), i === 0)),
    note: "left line: as the retain model; right line: as before training; hollow: never the best",
    says: shown.map((r) => `${r.name}: ${bestWords(r)}`).join(" "),
    layout: {
      xaxis: { title: "knowledge left (0 as the retain model, below 0 over-forgotten)" },
      yaxis: { title: "utility kept (share of before)" },
      shapes: [upright(0, colours().green, "dot", 1.4), upright(1, colours().red, "dot", 1.4)],
    },
  });
  const sheet = () => ({
    columns: ["run", "step", "knowledge left", "kept", "closeness", "on the frontier", "best", "why"],
    rows: shown.flatMap((r) => {
      const front = new Set(frontier(r).map((p) => p.step));
      return placed(r).map((p) => [r.name, p.step, p.share, p.kept, p.closeness, front.has(p.step), p.best, p.why]);
    }),
  });
  return el("section.panel", chart({ name: "training_frontier", title, height: 400, build, sheet }).node);
}

function frontierTraces(r, colour, showlegend) {
  const points = placed(r);
  const front = frontier(r).sort((a, b) => a.share - b.share);
  const best = points.filter((p) => p.best);
  const share = (list) => list.map((p) => p.share);
  const kept = (list) => list.map((p) => p.kept);
  const words = (p) =>
    lines(r.name, `step ${p.step}`, `knowledge left ${fmt(p.share)}`, `utility kept ${fmt(p.kept)}`, p.why);
  const symbol = points.map((p) => (allowed(r, p) ? "circle" : "circle-open"));
  const edge = { name: "frontier", line: { width: 2.4, dash: "dash" } };
  return [
    curve(share(points), kept(points), r.name, colour, {
      line: { color: colours().grey, width: 1 }, marker: { symbol, size: 9, color: colour }, text: points.map(words),
    }),
    front.length > 1 && { ...guide(share(front), kept(front), colour, edge), showlegend },
    best.length && star(share(best), kept(best), best.map(words), colour, 19, showlegend),
  ];
}

function aboutTraining(r) {
  const keys = Object.keys(r.series);
  const columns = ["step", "score", "knowledge left", "kept", ...keys, "why never the best", "verdict", "seconds"];
  const rows = r.steps.map((s, j) => [
    s,
    ...["score", "share", "kept"].map((k) => r[k]?.[j] ?? null),
    ...keys.map((k) => r.series[k][j] ?? null),
    r.why?.[j] ?? "",
    (r.verdicts?.[j] ?? "").replaceAll("_", " "),
    r.seconds?.[j] ?? null,
  ]);
  const table = savedTable(`training_${r.name}`, `${r.name}: every look`, { columns, rows });
  return panel(r.name, el("p", bestWords(r)), table, el("p.soft", sourcePath(r.source)));
}

// ---- collapse ----------------------------------------------------------------------------------------------------------

const FIRST_SIGNS = ["mi_seq_estimate", "retrieval_accuracy", "mi_estimate"]; // where they are there, they come first
const runName = (r) => (r.label ? `${r.name} (${r.label})` : r.name);

/** Does reasoning still depend on its prompt? Mutual information and retrieval over training steps. */
export function collapseView(root) {
  const runs = report.collapse ?? [];
  const how = "They are made from rollouts with vestige collapse.";
  if (!runs.length) return nothing(root, "Collapse", "No collapse runs in this report.", how);
  const keys = seriesNames(runs, (all) => FIRST_SIGNS.filter((k) => all.includes(k)));
  const label = (key) => {
    const words = runs.map((r) => own(r.columns, key)).find(Boolean);
    return words ? `${key}: ${words}` : key;
  };
  const picture = (key) => ({
    traces: runs.flatMap((r, i) =>
      own(r.series, key) ? withBand(r, key, runName(r), wheel()[i % wheel().length], (j) => r.verdicts?.[j]) : [],
    ),
    note: label(key),
    layout: { xaxis: { title: "training step" }, yaxis: { title: key }, showlegend: runs.length > 1 },
  });
  const options = keys.map((k) => [k, label(k)]);
  const charts = keys
    .slice(0, 2)
    .map((start, i) =>
      chartOfChoice(`c.${i}`, "column", options, start, (chosen) =>
        chart({
          name: `collapse_${i + 1}`,
          title: "Over the training steps",
          build: () => picture(chosen()),
          sheet: () => ({ columns: ["run", "step", chosen(), "lo", "hi"], rows: stepRows(runs, chosen(), runName) }),
        }),
      ),
    );
  return fillView(
    root,
    "Collapse",
    "Whether a text says which prompt it answers. When it no longer does, reasoning has collapsed into a template.",
    el("section.panel", el("div.chart-grid", charts)),
    ...runs.map(aboutCollapse),
  );
}

function aboutCollapse(run) {
  const keys = Object.keys(run.series);
  const columns = ["step", "verdict", ...keys];
  const rows = run.steps.map((s, j) => [s, run.verdicts?.[j] ?? "", ...keys.map((k) => run.series[k][j] ?? null)]);
  const notes = (run.notes ?? []).map((t) => el("li", t));
  const table = savedTable(`collapse_${run.name}`, `${runName(run)}: every step`, { columns, rows });
  return panel(runName(run), el("ul.limits", notes), table, el("p.soft", sourcePath(run.source)));
}

// ---- denoising ---------------------------------------------------------------------------------------------------------

export function trajectoriesView(root) {
  const all = report.trajectories ?? [];
  const how = "They are made for diffusion language models, whose answers are watched at every denoising step.";
  if (!all.length) return nothing(root, "Trajectories", "No trajectories in this report.", how);
  return fillView(
    root,
    "Trajectories",
    "What a diffusion model makes of the answer while it denoises. The band is the interval of the mean.",
    trajectoryCurves(all),
    heats(all),
  );
}

/** One choice from the values; kept in the address under `key`. */
function choice(key, label, values, say, changed) {
  const chosen = () => (values.includes(state.get(key)) ? state.get(key) : values[0]);
  const put = (v) => {
    state.set({ [key]: v });
    changed();
  };
  const options = values.map((v) => [v, say(v)]);
  return { chosen, node: values.length > 1 ? choose(label, options, chosen(), put) : null };
}

function trajectoryCurves(all) {
  const view = (t) => t.view ?? "";
  const kind = (t) => t.kind ?? "";
  const changed = () => drawn.update();
  const metrics = choice("t.metric", "metric", unique(all.map((t) => t.metric)), titledText, changed);
  const views = choice("t.view", "positions", unique(all.map(view)), (v) => v || "all", changed);
  const kinds = choice("t.kind", "read at", unique(all.map(kind)), (v) => v.replaceAll("_", " "), changed);
  const isShown = (t) => t.metric === metrics.chosen() && view(t) === views.chosen() && kind(t) === kinds.chosen();
  const drawn = chart({
    name: "trajectories",
    title: "Over the denoising steps",
    height: 400,
    build: () => trajectoryPicture(all.filter(isShown), metrics.chosen()),
    sheet: () => ({
      columns: ["model", "metric", "view", "kind", "step", "mean", "lo", "hi"],
      rows: all.filter(isShown).flatMap((t) =>
        t.steps.map((s, j) => {
          const facts = [modelName(t.model), t.metric, t.view, t.kind, s];
          return [...facts, t.mean[j], t.lo?.[j] ?? null, t.hi?.[j] ?? null];
        }),
      ),
    }),
  });
  return el("section.panel", el("div.controls", metrics.node, views.node, kinds.node), drawn.node);
}

const DASH = { full: "dash", retain: "dot" };

function trajectoryPicture(shown, key) {
  const others = shown.filter((t) => !isReference(model(t.model)));
  const traces = shown.flatMap((t) => {
    const { role, name } = model(t.model);
    const colour = others.includes(t) ? runColour(others.indexOf(t)) : roleColour(role);
    const decided = (j) => (isNumber(t.decided?.[j]) ? `${fmt(t.decided[j], 1)} tokens decided before` : "");
    const text = t.steps.map((s, j) => lines(name, `step ${s}: ${fmt(t.mean[j])}`, reachWords(t, j), decided(j)));
    const look = { line: { dash: DASH[role] }, marker: { size: 5 }, text };
    return [band(t.steps, t.lo, t.hi, colour, name), curve(t.steps, t.mean, plain(name, 30), colour, look)];
  });
  const steps = shown[0]?.steps ?? [];
  // Steps are whole numbers: so are the marks of a short axis.
  const short = steps.length && steps.length <= 20;
  const whole = short ? { dtick: Math.max(1, Math.round((steps.at(-1) - steps[0]) / 10)) } : {};
  const { label, range } = metric(key);
  return {
    traces,
    note: shown.length
      ? unique(shown.map((t) => (isNumber(t.n) ? `n ${t.n}` : "")).filter(Boolean)).join(", ")
      : "no curve for this choice",
    says: `${count(shown.length, "curve")}.`,
    layout: {
      xaxis: { title: "step", ...whole },
      yaxis: { title: label, ...(range ? { range: [range[0] - 0.02, range[1] + 0.02] } : {}) },
    },
  };
}

function heats(all) {
  const withHeat = all.filter((t) => t.heat?.length);
  if (!withHeat.length) return missing("No heat maps:", "no run kept single answers");
  const place = el("div");
  const draw = () => {
    const { heat, model: id } = withHeat.find((t) => t.model === models.chosen());
    const byName = (i) => heat.find((h) => String(h.i) === i);
    const say = (i) => `${i}: ${byName(i).question}`.slice(0, 60);
    const answers = choice(
      "t.row",
      "answer",
      heat.map((h) => String(h.i)),
      say,
      draw,
    );
    const h = byName(answers.chosen());
    const words = el("p", el("strong", h.question), " ", h.answer);
    replace(place, el("div.controls", models.node, answers.node), words, heatChart(h, id).node);
  };
  const models = choice("t.model", "model", unique(withHeat.map((t) => t.model)), modelName, draw);
  draw();
  return panel("When each token was decided", place);
}

function heatChart(h, id) {
  const sheet = () => ({
    columns: ["position", "token", "step", "log-probability", "fixed at"],
    rows: h.tokens.flatMap((t, j) => h.steps.map((s, i) => [j, t, s, h.logprob[i]?.[j] ?? null, h.fixed?.[j] ?? null])),
  });
  return chart({
    name: `denoising_${id}_${h.i}`,
    title: "Log-probability of each right token at each step",
    height: Math.min(900, 130 + 26 * h.tokens.length),
    build: () => ({
      ...heatPicture(h),
      note: "diamonds: the step at which a token was fixed; hollow: fixed to a wrong token",
      says: `${h.tokens.length} tokens by ${h.steps.length} steps.`,
    }),
    sheet,
  });
}

function heatPicture(h) {
  const c = colours();
  const places = h.tokens.map((_, j) => j);
  const z = places.map((j) => h.steps.map((_, i) => h.logprob[i]?.[j] ?? null));
  const text = places.map((j) =>
    h.steps.map((s, i) => lines(h.tokens[j], `step ${s}`, `log-probability ${fmt(z[j][i])}`)),
  );
  const fixed = places.filter((j) => isNumber(h.fixed?.[j]) && h.fixed[j] >= 0);
  const wrong = fixed.map((j) => h.right?.[j] === false);
  const marks = {
    x: fixed.map((j) => h.fixed[j]),
    y: fixed,
    showlegend: false,
    text: fixed.map((j, i) =>
      lines(h.tokens[j], `fixed at step ${h.fixed[j]}`, wrong[i] ? "to another token" : "to the right token"),
    ),
    marker: {
      symbol: wrong.map((w) => (w ? "diamond-open" : "diamond")),
      size: 11,
      color: c.red,
      line: { color: wrong.map((w) => (w ? c.red : c.paper)), width: wrong.map((w) => (w ? 2 : 1)) },
    },
  };
  const cells = { type: "heatmap", z, x: h.steps, y: places, text, colorscale: rising(), colorbar: true };
  const names = h.tokens.map((t) => plain(t, 16));
  return {
    traces: [cells, marks],
    layout: { xaxis: { title: "step" }, yaxis: { autorange: "reversed", tickvals: places, ticktext: names } },
  };
}
