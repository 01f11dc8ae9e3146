// Diffusion models while they denoise: a metric at every step with its band, and where each token was decided.

import { choose, count, el, fmt, isNumber, missing, replace } from "./dom.js";
import { metric, model, modelName, report, roleColour, titledText } from "./data.js";
import { band, chart, lines, plain } from "./chart.js";
import * as state from "./state.js";
import { colours, rising, wheel } from "./theme.js";

export function trajectoriesView(root) {
  const all = report.trajectories ?? [];
  const head = el("h1", "Trajectories");
  if (!all.length)
    return replace(
      root,
      head,
      missing(
        "No trajectories in this report.",
        "They are made for diffusion language models, whose answers are watched at every denoising step.",
      ),
    );
  const lead = el(
    "p.lead",
    "What a diffusion model makes of the answer while it denoises. The band is the interval of the mean.",
  );
  return replace(root, head, lead, curves(all), heats(all));
}

const unique = (values) => [...new Set(values)];

/** One choice from the values; kept in the address under `key`. */
function choice(key, label, values, say, changed) {
  const chosen = () => (values.includes(state.get(key)) ? state.get(key) : values[0]);
  const put = (v) => {
    state.set({ [key]: v });
    changed();
  };
  const node =
    values.length > 1
      ? choose(
          label,
          values.map((v) => [v, say(v)]),
          chosen(),
          put,
        )
      : null;
  return { chosen, node };
}

function curves(all) {
  let drawn = null;
  const changed = () => drawn.update();
  const metrics = choice("t.metric", "metric", unique(all.map((t) => t.metric)), titledText, changed);
  const views = choice("t.view", "positions", unique(all.map((t) => t.view ?? "")), (v) => v || "all", changed);
  const kinds = choice(
    "t.kind",
    "read at",
    unique(all.map((t) => t.kind ?? "")),
    (v) => v.replaceAll("_", " "),
    changed,
  );
  const shown = () =>
    all.filter(
      (t) => t.metric === metrics.chosen() && (t.view ?? "") === views.chosen() && (t.kind ?? "") === kinds.chosen(),
    );
  drawn = chart({
    name: "trajectories",
    title: "Over the denoising steps",
    height: 400,
    build: () => build(shown(), metrics.chosen()),
    sheet: () => sheet(shown()),
  });
  return el("section.panel", el("div.controls", metrics.node, views.node, kinds.node), drawn.node);
}

/** Steps are whole numbers: so are the marks of a short axis. */
const whole = (steps) =>
  steps.length && steps.length <= 20 ? { dtick: Math.max(1, Math.round((steps.at(-1) - steps[0]) / 10)) } : {};

const DASH = { full: "dash", retain: "dot" };

function build(shown, key) {
  const palette = wheel();
  const isReference = (t) => ["full", "retain"].includes(model(t.model).role);
  const others = shown.filter((t) => !isReference(t));
  const colour = (t) =>
    isReference(t) ? roleColour(model(t.model).role) : palette[(others.indexOf(t) * 3) % palette.length];
  const traces = shown.flatMap((t) => [
    band(t.steps, t.lo, t.hi, colour(t), modelName(t.model)),
    {
      type: "scatter",
      mode: "lines+markers",
      x: t.steps,
      y: t.mean,
      connectgaps: false,
      name: plain(modelName(t.model), 30),
      line: { color: colour(t), width: 2.2, dash: DASH[model(t.model).role] ?? "solid" },
      marker: { size: 5 },
      text: t.steps.map((s, j) => said(t, s, j)),
      hoverinfo: "text",
    },
  ]);
  const info = metric(key);
  return {
    traces: traces.filter(Boolean),
    note: shown.length
      ? shown
          .map((t) => (isNumber(t.n) ? `n ${t.n}` : ""))
          .filter((v, i, list) => v && list.indexOf(v) === i)
          .join(", ")
      : "no curve for this choice",
    says: count(shown.length, "curve") + ".",
    layout: {
      xaxis: { title: "step", ...whole(shown[0]?.steps ?? []) },
      yaxis: { title: info.label, ...(info.range ? { range: [info.range[0] - 0.02, info.range[1] + 0.02] } : {}) },
    },
  };
}

function said(t, step, j) {
  const reach = isNumber(t.lo?.[j]) ? `${fmt(t.lo[j])} to ${fmt(t.hi[j])}` : "";
  return lines(
    modelName(t.model),
    `step ${step}: ${fmt(t.mean[j])}`,
    reach,
    isNumber(t.decided?.[j]) ? `${fmt(t.decided[j], 1)} tokens decided before` : "",
  );
}

function sheet(shown) {
  const rows = shown.flatMap((t) =>
    t.steps.map((s, j) => [
      modelName(t.model),
      t.metric,
      t.view,
      t.kind,
      s,
      t.mean[j],
      t.lo?.[j] ?? null,
      t.hi?.[j] ?? null,
    ]),
  );
  return { columns: ["model", "metric", "view", "kind", "step", "mean", "lo", "hi"], rows };
}

function heats(all) {
  const withHeat = all.filter((t) => t.heat?.length);
  if (!withHeat.length) return missing("No heat maps:", "no run kept single answers");
  const place = el("div");
  const draw = () => {
    const t = withHeat.find((x) => x.model === models.chosen());
    const examples = choice(
      "t.row",
      "answer",
      t.heat.map((h) => String(h.i)),
      (i) => plainLabel(t.heat.find((h) => String(h.i) === i)),
      draw,
    );
    const h = t.heat.find((x) => String(x.i) === examples.chosen());
    replace(
      place,
      el("div.controls", models.node, examples.node),
      el("p", el("strong", h.question), " ", h.answer),
      heat(h, t.model).node,
    );
  };
  const models = choice("t.model", "model", unique(withHeat.map((t) => t.model)), modelName, draw);
  draw();
  return el("section.panel", el("h2", "When each token was decided"), place);
}

const plainLabel = (h) => `${h.i}: ${h.question}`.slice(0, 60);

function heat(h, id) {
  const picture = () => ({
    ...heatTraces(h),
    note: "diamonds: the step at which a token was fixed; hollow: fixed to a wrong token",
    says: `${h.tokens.length} tokens by ${h.steps.length} steps.`,
  });
  const rows = () =>
    h.tokens.flatMap((t, j) => h.steps.map((s, i) => [j, t, s, h.logprob[i]?.[j] ?? null, h.fixed?.[j] ?? null]));
  return chart({
    name: `denoising_${id}_${h.i}`,
    title: "Log-probability of each right token at each step",
    height: Math.min(900, 130 + 26 * h.tokens.length),
    build: picture,
    sheet: () => ({ columns: ["position", "token", "step", "log-probability", "fixed at"], rows: rows() }),
  });
}

function heatTraces(h) {
  const c = colours();
  const places = h.tokens.map((_, j) => j);
  const z = places.map((j) => h.steps.map((_, i) => h.logprob[i]?.[j] ?? null));
  const text = places.map((j) =>
    h.steps.map((s, i) => lines(h.tokens[j], `step ${s}`, `log-probability ${fmt(z[j][i])}`)),
  );
  const fixed = places.filter((j) => isNumber(h.fixed?.[j]) && h.fixed[j] >= 0);
  const marks = {
    type: "scatter",
    mode: "markers",
    x: fixed.map((j) => h.fixed[j]),
    y: fixed,
    hoverinfo: "text",
    showlegend: false,
    text: fixed.map((j) =>
      lines(
        h.tokens[j],
        `fixed at step ${h.fixed[j]}`,
        h.right?.[j] === false ? "to another token" : "to the right token",
      ),
    ),
    marker: {
      symbol: fixed.map((j) => (h.right?.[j] === false ? "diamond-open" : "diamond")),
      size: 11,
      color: c.red,
      line: {
        color: fixed.map((j) => (h.right?.[j] === false ? c.red : c.paper)),
        width: fixed.map((j) => (h.right?.[j] === false ? 2 : 1)),
      },
    },
  };
  return {
    traces: [
      {
        type: "heatmap",
        z,
        x: h.steps,
        y: places,
        text,
        hoverinfo: "text",
        colorscale: rising(),
        colorbar: { thickness: 10 },
      },
      marks,
    ],
    layout: {
      xaxis: { title: "step" },
      yaxis: { autorange: "reversed", tickvals: places, ticktext: h.tokens.map((t) => plain(t, 16)) },
    },
  };
}
