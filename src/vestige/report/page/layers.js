// What its layers hold: the profile over layers, one row per example, and the tokens of the chosen example.

import { el, fmt, isNumber, replace, segments, slide } from "./dom.js";
import { modelName } from "./data.js";
import { band, chart, lines, plain } from "./chart.js";
import * as state from "./state.js";
import { colours, rising } from "./theme.js";
import { tokenView } from "./tokens.js";

const SHOWN = {
  erasure: ["share erased", "s2 / s1 in 0..1: 1 means the layer holds no more than the retain model's"],
  s1: ["drop, retain's layer", "s1: how much the full model loses when the layer comes from the retain model"],
  s2: ["drop, this model's layer", "s2: the same with the audited model"],
};

export function layersPanel(audit) {
  const data = audit.layers;
  if (!data) return [];
  const said = isNumber(data.uds)
    ? el(
        "p",
        "Unlearning depth ",
        el("strong", fmt(data.uds)),
        isNumber(data.lo) ? ` (${fmt(data.lo)} to ${fmt(data.hi)})` : "",
        isNumber(data.n) ? `, n ${data.n}` : "",
        ". 1: as deep as never learned. 0: nothing below the surface changed.",
      )
    : null;
  return [said, profile(data, audit).node, data.examples?.length ? examples(data, audit) : null];
}

function profile(data, audit) {
  const build = () => {
    const c = colours();
    const traces = data.profile.flatMap((p) => profileLines(data, p, c));
    const line = {
      type: "line",
      x0: 0,
      x1: 1,
      xref: "paper",
      y0: data.threshold,
      y1: data.threshold,
      line: { color: c.soft, width: 1, dash: "dot" },
    };
    return {
      traces,
      says: `Layers ${data.layers[0]} to ${data.layers.at(-1)}.`,
      layout: {
        xaxis: { title: "layer patched into the full model", dtick: Math.ceil(data.layers.length / 16) },
        yaxis: { title: "drop of log-probability", rangemode: "tozero" },
        shapes: isNumber(data.threshold) ? [line] : [],
      },
    };
  };
  const columns = ["model", "layer", "s1", "s1 lo", "s1 hi", "s2", "s2 lo", "s2 hi"];
  const rows = () =>
    data.profile.flatMap((p) =>
      data.layers.map((l, i) => [
        modelName(p.model),
        l,
        p.s1?.[i],
        p.s1_lo?.[i],
        p.s1_hi?.[i],
        p.s2?.[i],
        p.s2_lo?.[i],
        p.s2_hi?.[i],
      ]),
    );
  return chart({
    name: `layers_${audit.model}`,
    title: "Where the knowledge sits",
    note: "where the two lines meet, the layer has forgotten",
    height: 320,
    build,
    sheet: () => ({ columns, rows: rows() }),
  });
}

function profileLines(data, p, c) {
  const one = (key, name, colour, dash) => [
    band(data.layers, p[`${key}_lo`], p[`${key}_hi`], colour, name),
    {
      type: "scatter",
      mode: "lines+markers",
      x: data.layers,
      y: p[key],
      name: plain(name, 40),
      line: { color: colour, width: 2.2, dash },
      marker: { size: 6, symbol: key === "s1" ? "diamond" : "circle" },
      text: data.layers.map((l, i) => lines(name, `layer ${l}: ${fmt(p[key][i])}`)),
      hoverinfo: "text",
    },
  ];
  return [
    ...one("s1", "s1: layer of the retain model", c.green, "dot"),
    ...one("s2", `s2: layer of ${modelName(p.model)}`, c.blue, "solid"),
  ].filter(Boolean);
}

function examples(data, audit) {
  let kind = Object.hasOwn(SHOWN, state.get("l.kind", "erasure")) ? state.get("l.kind", "erasure") : "erasure";
  let at = Math.max(
    0,
    data.examples.findIndex((e) => String(e.i) === state.get("l.row")),
  );
  let layer = Math.min(data.layers.length - 1, Math.max(0, state.getNumber("l.layer", data.layers.length - 1)));
  const place = el("div.token-view");
  const height = Math.min(520, Math.max(200, 110 + 15 * data.examples.length));
  const map = chart({
    name: `examples_${audit.model}`,
    title: "Each example, each layer",
    height,
    build: () => heat(data, kind, at),
    sheet: () => heatSheet(data),
    onPoint: (i) => open(i),
  });
  const open = (i) => {
    at = i;
    state.set({ "l.row": data.examples[i].i });
    map.update();
    tokens();
  };
  const tokens = () => replace(place, tokenView(data, data.examples[at], layer));
  const setLayer = (v) => {
    layer = v;
    state.set({ "l.layer": v });
    tokens();
  };
  const setKind = (v) => {
    kind = v;
    state.set({ "l.kind": v });
    map.update();
  };
  tokens();
  const stepper = el(
    "div.controls",
    nextButtons(data, () => at, open),
    slide("layer", { min: 0, max: data.layers.length - 1, step: 1, value: layer, digits: 0 }, setLayer),
  );
  const left = data.left_off
    ? el("p.soft.fine", `${data.left_off} more examples were left off to keep the page small.`)
    : null;
  return el(
    "div",
    segments(
      "show",
      Object.entries(SHOWN).map(([k, [text]]) => [k, text]),
      kind,
      setKind,
    ),
    el("div.side-by-side", el("div", map.node, left), el("div.screen-only", stepper, place)),
  );
}

function nextButtons(data, at, open) {
  const go = (step) => () => open((at() + step + data.examples.length) % data.examples.length);
  return el(
    "span",
    el("button", { type: "button", onclick: go(-1) }, "Previous example"),
    " ",
    el("button", { type: "button", onclick: go(1) }, "Next example"),
  );
}

function heat(data, kind, at) {
  const rows = data.examples;
  const z = rows.map((e) => e[kind] ?? data.layers.map(() => null));
  const text = rows.map((e) =>
    data.layers.map((l, j) =>
      lines(
        e.entity || e.question,
        `layer ${l}`,
        `s1 ${fmt(e.s1?.[j])}  s2 ${fmt(e.s2?.[j])}  erased ${fmt(e.erasure?.[j])}`,
      ),
    ),
  );
  const c = colours();
  const range = kind === "erasure" ? { zmin: 0, zmax: 1 } : { zmin: 0 };
  return {
    traces: [
      {
        type: "heatmap",
        z,
        x: data.layers.map(String),
        y: rows.map((_, i) => i),
        text,
        hoverinfo: "text",
        customdata: rows.map((_, i) => data.layers.map(() => i)),
        colorscale: rising(),
        ...range,
        colorbar: { thickness: 10, len: 0.9 },
      },
    ],
    layout: {
      xaxis: { title: "layer", type: "category" },
      yaxis: { title: "example (lowest depth on top)", autorange: "reversed", ...ticks(rows) },
      shapes: [
        {
          type: "rect",
          xref: "paper",
          x0: 0,
          x1: 1,
          y0: at - 0.5,
          y1: at + 0.5,
          line: { color: c.red, width: 2 },
          fillcolor: "rgba(0,0,0,0)",
        },
      ],
    },
    note: SHOWN[kind][1],
    says: `${rows.length} examples by ${data.layers.length} layers.`,
  };
}

/** Names of examples where there is room for them. */
function ticks(rows) {
  if (rows.length > 32 || innerWidth < 700) return {};
  return { tickvals: rows.map((_, i) => i), ticktext: rows.map((e) => plain(e.entity || e.question || e.i, 18)) };
}

function heatSheet(data) {
  const rows = data.examples.flatMap((e) =>
    data.layers.map((l, j) => [
      e.i,
      e.entity ?? null,
      e.uds ?? null,
      l,
      e.s1?.[j] ?? null,
      e.s2?.[j] ?? null,
      e.erasure?.[j] ?? null,
    ]),
  );
  return { columns: ["example", "entity", "uds", "layer", "s1", "s2", "erasure"], rows };
}
