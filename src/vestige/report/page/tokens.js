// One example's tokens: what each loses when the chosen layer is swapped.

import { el, fmt, isNumber, missing } from "./dom.js";
import { faint } from "./chart.js";
import { factList } from "./data.js";
import { colours } from "./theme.js";
import { tip } from "./tip.js";

export function tokenView(data, example, layer) {
  const head = [
    el("h3", example.question),
    el("p", example.answer),
    factList([
      ["entity", example.entity],
      ["depth (UDS)", isNumber(example.uds) ? fmt(example.uds) : "none: no layer of this example holds the knowledge"],
    ]),
  ];
  const probs = example.token_logprobs;
  if (!probs)
    return [...head, missing("Tokens are not in the report", "only the examples with the lowest depth hold them")];
  const swapped = [
    ["with the retain model's layer", probs.s1?.[layer]],
    ["with this model's layer", probs.s2?.[layer]],
  ].filter(([, values]) => values);
  return [
    ...head,
    row("full model", example.tokens, probs.full, null),
    ...swapped.map(([name, values]) => row(`${name} ${data.layers[layer]}`, example.tokens, probs.full, values)),
    el("p.soft.fine", "The darker a token, the more probability it loses by the swap. Hover or focus for numbers."),
  ];
}

function row(name, tokens, full, swapped) {
  return el(
    "div.token-row",
    el("p.who", name),
    el(
      "p.tokens",
      tokens.map((t, i) => token(t, full?.[i], swapped?.[i])),
    ),
  );
}

function token(text, before, after) {
  const drop = isNumber(before) && isNumber(after) ? before - after : 0;
  const depth = Math.min(0.85, Math.max(0, 1 - Math.exp(-Math.max(0, drop) / 2)));
  const node = el(
    "span.token",
    { style: { background: depth > 0.02 ? faint(colours().red, depth * 0.5) : "transparent" } },
    text,
  );
  const facts = [
    ["token", text],
    ["log-probability, full model", fmt(before)],
    ["after the swap", isNumber(after) ? fmt(after) : ""],
    ["drop", isNumber(after) ? fmt(drop) : ""],
  ];
  return tip(node, () => factList(facts));
}
