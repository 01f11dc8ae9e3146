// What its layers hold: the profile over layers, one row per example, and the tokens of the chosen example.

import { el, fmt, interval, isNumber, missing, replace, segments, slide } from "./dom.js";
import { factList, modelName } from "./data.js";
import { band, chart, curve, faint, lines, plain } from "./chart.js";
import * as state from "./state.js";
import { colours, rising } from "./theme.js";
import { tip } from "./tip.js";

const SHOWN = {
  erasure: ["share erased", "s2 / s1 in 0..1: 1 means the layer holds no more than the retain model's"],
  s1: ["drop, retain's layer", "s1: how much the full model loses when the layer comes from the retain model"],
  s2: ["drop, this model's layer", "s2: the same with the audited model"],
};

export function layersPanel(audit) {
  const data = audit.layers;
  if (!data) return [];
  const reach = interval(data);
  const n = isNumber(data.n) ? `, n ${data.n}` : "";
  const words = `${reach && ` (${reach})`}${n}. 1: as deep as never learned. 0: nothing below the surface changed.`;
  const said = isNumber(data.uds) ? el("p", "Unlearning depth ", el("strong", fmt(data.uds)), words) : null;
  return [said, profile(data, audit).node, data.examples?.length ? examples(data, audit) : null];
}

function profile(data, audit) {
  const ends = ["s1", "s1_lo", "s1_hi", "s2", "s2_lo", "s2_hi"];
  const sheet = () => ({
    columns: ["model", "layer", ...ends.map((name) => name.replace("_", " "))],
    rows: data.profile.flatMap((p) =>
      data.layers.map((l, i) => [modelName(p.model), l, ...ends.map((name) => p[name]?.[i])]),
    ),
  });
  const threshold = () => ({
    type: "line", x0: 0, x1: 1, xref: "paper", y0: data.threshold, y1: data.threshold,
    line: { color: colours().soft, width: 1, dash: "dot" },
  });
  return chart({
    name: `layers_${audit.model}`,
    title: "Where the knowledge sits",
    note: "where the two lines meet, the layer has forgotten",
    height: 320,
    build: () => ({
      traces: data.profile.flatMap((p) => [
        ...stage(data, p, "s1", "layer of the retain model", colours().green),
        ...stage(data, p, "s2", `layer of ${modelName(p.model)}`, colours().blue),
      ]),
      says: `Layers ${data.layers[0]} to ${data.layers.at(-1)}.`,
      layout: {
        xaxis: { title: "layer patched into the full model", dtick: Math.ceil(data.layers.length / 16) },
        yaxis: { title: "drop of log-probability", rangemode: "tozero" },
        shapes: isNumber(data.threshold) ? [threshold()] : [],
      },
    }),
    sheet,
  });
}

function stage(data, p, key, words, colour) {
  const name = `${key}: ${words}`;
  return [
    band(data.layers, p[`${key}_lo`], p[`${key}_hi`], colour, name),
    curve(data.layers, p[key], name, colour, {
      line: { dash: key === "s1" ? "dot" : "solid" },
      marker: { symbol: key === "s1" ? "diamond" : "circle" },
      text: data.layers.map((l, i) => lines(name, `layer ${l}: ${fmt(p[key][i])}`)),
    }),
  ];
}

// ---- examples ----------------------------------------------------------------------------------------------------------

function examples(data, audit) {
  const last = data.layers.length - 1;
  const count = data.examples.length;
  let kind = Object.hasOwn(SHOWN, state.get("l.kind", "erasure")) ? state.get("l.kind", "erasure") : "erasure";
  const wanted = data.examples.findIndex((e) => String(e.i) === state.get("l.row"));
  let at = Math.max(0, wanted);
  let layer = Math.min(last, Math.max(0, state.getNumber("l.layer", last)));
  const place = el("div.token-view");
  const showTokens = () => replace(place, tokenView(data, data.examples[at], layer));
  const open = (i) => {
    at = (i + count) % count;
    state.set({ "l.row": data.examples[at].i });
    map.update();
    showTokens();
  };
  const map = chart({
    name: `examples_${audit.model}`, title: "Each example, each layer",
    height: Math.min(520, Math.max(200, 110 + 15 * count)), build: () => heat(data, kind, at),
    sheet: () => heatSheet(data), onPoint: open,
  });
  const setLayer = (v) => {
    layer = v;
    state.set({ "l.layer": v });
    showTokens();
  };
  const setKind = (v) => {
    kind = v;
    state.set({ "l.kind": v });
    map.update();
  };
  showTokens();
  const step = (by, words) => el("button", { type: "button", onclick: () => open(at + by) }, words);
  const steps = el("span", step(-1, "Previous example"), " ", step(1, "Next example"));
  const slider = slide("layer", { min: 0, max: last, step: 1, value: layer, digits: 0 }, setLayer);
  const left = `${data.left_off} more examples were left off to keep the page small.`;
  const kinds = Object.entries(SHOWN).map(([k, [text]]) => [k, text]);
  return el(
    "div",
    segments("show", kinds, kind, setKind),
    el(
      "div.side-by-side",
      el("div", map.node, data.left_off ? el("p.soft.fine", left) : null),
      el("div.screen-only", el("div.controls", steps, slider), place),
    ),
  );
}

function heat(data, kind, at) {
  const rows = data.examples;
  const numbers = (e, j) => `s1 ${fmt(e.s1?.[j])}  s2 ${fmt(e.s2?.[j])}  erased ${fmt(e.erasure?.[j])}`;
  // Names of examples where there is room for them.
  const names = rows.map((e) => plain(e.entity || e.question || e.i, 18));
  const ticks = rows.length > 32 || innerWidth < 700 ? {} : { tickvals: rows.map((_, i) => i), ticktext: names };
  const cells = {
    type: "heatmap",
    z: rows.map((e) => e[kind] ?? data.layers.map(() => null)),
    x: data.layers.map(String),
    y: rows.map((_, i) => i),
    text: rows.map((e) => data.layers.map((l, j) => lines(e.entity || e.question, `layer ${l}`, numbers(e, j)))),
    customdata: rows.map((_, i) => data.layers.map(() => i)),
    colorscale: rising(),
    zmin: 0,
    zmax: kind === "erasure" ? 1 : undefined,
    colorbar: true,
  };
  const chosen = { type: "rect", xref: "paper", x0: 0, x1: 1, y0: at - 0.5, y1: at + 0.5 };
  return {
    traces: [cells],
    layout: {
      xaxis: { title: "layer", type: "category" },
      yaxis: { title: "example (lowest depth on top)", autorange: "reversed", ...ticks },
      shapes: [{ ...chosen, line: { color: colours().red, width: 2 } }],
    },
    note: SHOWN[kind][1],
    says: `${rows.length} examples by ${data.layers.length} layers.`,
  };
}

const heatSheet = (data) => ({
  columns: ["example", "entity", "uds", "layer", "s1", "s2", "erasure"],
  rows: data.examples.flatMap((e) =>
    data.layers.map((l, j) => {
      const numbers = [e.s1?.[j] ?? null, e.s2?.[j] ?? null, e.erasure?.[j] ?? null];
      return [e.i, e.entity ?? null, e.uds ?? null, l, ...numbers];
    }),
  ),
});

// ---- one example's tokens: what each loses when the chosen layer is swapped --------------------------------------------

function tokenView(data, example, layer) {
  const facts = [
    ["entity", example.entity],
    ["depth (UDS)", isNumber(example.uds) ? fmt(example.uds) : "none: no layer of this example holds the knowledge"],
  ];
  const head = [el("h3", example.question), el("p", example.answer), factList(facts)];
  const probs = example.token_logprobs;
  if (!probs)
    return [...head, missing("Tokens are not in the report", "only the examples with the lowest depth hold them")];
  const swapped = [
    ["with the retain model's layer", probs.s1?.[layer]], ["with this model's layer", probs.s2?.[layer]],
  ].filter(([, values]) => values);
  return [
    ...head,
    tokenRow("full model", example.tokens, probs.full, null),
    ...swapped.map(([name, after]) => tokenRow(`${name} ${data.layers[layer]}`, example.tokens, probs.full, after)),
    el("p.soft.fine", "The darker a token, the more probability it loses by the swap. Hover or focus for numbers."),
  ];
}

const tokenRow = (name, tokens, full, swapped) =>
  el(
    "div.token-row",
    el("p.who", name),
    el(
      "p.tokens",
      tokens.map((t, i) => token(t, full?.[i], swapped?.[i])),
    ),
  );

function token(text, before, after) {
  const drop = isNumber(before) && isNumber(after) ? before - after : 0;
  const depth = Math.min(0.85, 1 - Math.exp(-Math.max(0, drop) / 2));
  const background = depth > 0.02 ? faint(colours().red, depth * 0.5) : "transparent";
  return tip(el("span.token", { style: { background } }, text), () =>
    factList([
      ["token", text], ["log-probability, full model", fmt(before)],
      ["after the swap", isNumber(after) ? fmt(after) : ""], ["drop", isNumber(after) ? fmt(drop) : ""],
    ]),
  );
}
