// Which models are shown: words, methods, epochs, bounds on numbers, the best of each method. All of it in the address.

import { choose, el, isNumber, replace, searchBox, unique } from "./dom.js";
import { goodness, metric, metricOptions, number, report, settingsText } from "./data.js";
import { compare } from "./order.js";
import * as state from "./state.js";

/** "uds>=0.5" as {key, op, bound}; nothing if it is not that. */
export function parseBound(text) {
  const found = /^(.+)(>=|<=)(-?[\d.]+(?:e[+-]?\d+)?)$/i.exec(text);
  return found ? { key: found[1], op: found[2], bound: Number(found[3]) } : null;
}

export function passing(models) {
  const words = state.get("m.q").toLowerCase().split(/\s+/).filter(Boolean);
  const methods = new Set(state.getAll("m.method"));
  const epochs = new Set(state.getAll("m.epoch"));
  const bounds = state.getAll("m.f").map(parseBound).filter(Boolean);
  const text = (m) => [m.name, m.method, m.epoch, m.role, settingsText(m)].join(" ").toLowerCase();
  const within = (v, { op, bound }) => isNumber(v) && (op === ">=" ? v >= bound : v <= bound);
  const kept = models.filter(
    (m) =>
      (!methods.size || methods.has(m.method ?? "")) &&
      (!epochs.size || epochs.has(m.epoch ?? "")) &&
      bounds.every((b) => within(number(m.id, b.key), b)) &&
      (!words.length || words.every((w) => text(m).includes(w))),
  );
  return bestOfEach(kept, state.get("m.best"));
}

function bestOfEach(models, key) {
  if (!key) return models;
  const best = new Map();
  for (const m of models) {
    const value = goodness(m.id, key);
    const held = best.get(m.method);
    if (value !== null && (!held || value > goodness(held.id, key))) best.set(m.method, m);
  }
  return models.filter((m) => best.get(m.method) === m);
}

/** The row of controls; `changed` is called after every change. */
export function filterBar(changed) {
  const put = (values) => {
    state.set(values);
    changed();
  };
  const chips = el("span.chips");
  const setBounds = (texts) => {
    put({ "m.f": unique(texts) });
    drawChips();
  };
  const drawChips = () => {
    const texts = state.getAll("m.f");
    replace(
      chips,
      texts.map((text) => chip(text, () => setBounds(texts.filter((t) => t !== text)))),
    );
  };
  drawChips();
  const good = report.columns.filter((k) => report.models.some((m) => goodness(m.id, k) !== null));
  const best = [["", "all models"], ...metricOptions(good).map(([k, label]) => [k, `by ${label}`])];
  return el(
    "div.filters",
    el(
      "div.controls",
      searchBox("Search models", state.get("m.q"), (v) => put({ "m.q": v })),
      numberFilter((text) => setBounds([...state.getAll("m.f"), text])),
      chips,
      choose("best of each method", best, state.get("m.best"), (v) => put({ "m.best": v })),
    ),
    toggles("method", put),
    toggles("epoch", put),
  );
}

function chip(text, onclick) {
  const { key, op, bound } = parseBound(text) ?? { key: text, op: "", bound: "" };
  const words = `${metric(key).label} ${op === ">=" ? "≥" : "≤"} ${bound}`;
  const cross = el("span", { "aria-hidden": "true" }, " ×");
  return el("button.chip", { type: "button", "aria-label": `remove the filter ${words}`, onclick }, words, cross);
}

function numberFilter(add) {
  const menu = (label, options) =>
    el(
      "select",
      { "aria-label": label },
      options.map(([value, text]) => el("option", { value }, text)),
    );
  const column = menu("column to filter", metricOptions(report.columns));
  const op = menu("at least or at most", [[">=", "≥"], ["<=", "≤"]]);
  const bound = el("input.short", { type: "number", step: "any", "aria-label": "bound", placeholder: "0.5" });
  const onsubmit = (e) => {
    e.preventDefault();
    const value = Number(bound.value);
    if (bound.value !== "" && Number.isFinite(value)) add(`${column.value}${op.value}${value}`);
    bound.value = "";
  };
  return el("form.inline", { onsubmit }, column, op, bound, el("button", { type: "submit" }, "Filter"));
}

/** A button for each value of a text column; none pressed means all. */
function toggles(name, put) {
  const key = `m.${name}`;
  const values = unique(report.models.map((m) => m[name] ?? ""))
    .filter(Boolean)
    .sort(compare);
  if (values.length < 2 || values.length > 40) return null;
  const one = (value) => {
    const pressed = state.getAll(key).includes(value);
    const onclick = () => {
      const on = state.getAll(key).includes(value);
      put({ [key]: on ? state.getAll(key).filter((v) => v !== value) : [...state.getAll(key), value] });
      node.setAttribute("aria-pressed", String(!on));
    };
    const node = el("button.toggle", { type: "button", "aria-pressed": String(pressed), onclick }, value);
    return node;
  };
  return el("div.toggles", { role: "group", "aria-label": name }, el("span.soft", name), ...values.map(one));
}
