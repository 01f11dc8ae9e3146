// Which models are shown: words, methods, epochs, bounds on numbers, the best of each method. All of it in the address.

import { choose, el, isNumber, replace, searchBox } from "./dom.js";
import { goodness, metric, metricOptions, number, report, settingsText } from "./data.js";
import { compare } from "./order.js";
import * as state from "./state.js";

const OPS = { ">=": (a, b) => a >= b, "<=": (a, b) => a <= b };

/** "uds>=0.5" as {key, op, bound}; nothing if it is not that. */
export function parseBound(text) {
  const found = /^(.+)(>=|<=)(-?[\d.]+(?:e[+-]?\d+)?)$/i.exec(text);
  return found ? { key: found[1], op: found[2], bound: Number(found[3]) } : null;
}

const bounds = () => state.getAll("m.f").map(parseBound).filter(Boolean);

export function passing(models) {
  const words = state.get("m.q").toLowerCase().split(/\s+/).filter(Boolean);
  const methods = new Set(state.getAll("m.method"));
  const epochs = new Set(state.getAll("m.epoch"));
  const limits = bounds();
  const text = (m) => [m.name, m.method, m.epoch, m.role, settingsText(m)].join(" ").toLowerCase();
  const within = (m) =>
    limits.every(({ key, op, bound }) => isNumber(number(m.id, key)) && OPS[op](number(m.id, key), bound));
  const kept = models.filter(
    (m) =>
      (!methods.size || methods.has(m.method ?? "")) &&
      (!epochs.size || epochs.has(m.epoch ?? "")) &&
      within(m) &&
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
  const good = report.columns.filter((k) => report.models.some((m) => goodness(m.id, k) !== null));
  const chips = el("span.chips");
  const drawChips = () =>
    replace(
      chips,
      state.getAll("m.f").map((text) =>
        chip(text, () => {
          put({ "m.f": state.getAll("m.f").filter((t) => t !== text) });
          drawChips();
        }),
      ),
    );
  drawChips();
  return el(
    "div.filters",
    el(
      "div.controls",
      searchBox("Search models", state.get("m.q"), (v) => put({ "m.q": v })),
      numberFilter((text) => {
        put({ "m.f": [...new Set([...state.getAll("m.f"), text])] });
        drawChips();
      }),
      chips,
      choose(
        "best of each method",
        [["", "all models"], ...metricOptions(good).map(([k, l]) => [k, `by ${l}`])],
        state.get("m.best"),
        (v) => put({ "m.best": v }),
      ),
    ),
    toggles("method", "m.method", (m) => m.method, put),
    toggles("epoch", "m.epoch", (m) => m.epoch, put),
  );
}

function chip(text, remove) {
  const { key, op, bound } = parseBound(text) ?? { key: text, op: "", bound: "" };
  const words = `${metric(key).label} ${op === ">=" ? "≥" : "≤"} ${bound}`;
  return el(
    "button.chip",
    { type: "button", "aria-label": `remove the filter ${words}`, onclick: remove },
    words,
    el("span", { "aria-hidden": "true" }, " ×"),
  );
}

function numberFilter(add) {
  const column = el(
    "select",
    { "aria-label": "column to filter" },
    metricOptions(report.columns).map(([v, text]) => el("option", { value: v }, text)),
  );
  const op = el(
    "select",
    { "aria-label": "at least or at most" },
    el("option", { value: ">=" }, "≥"),
    el("option", { value: "<=" }, "≤"),
  );
  const bound = el("input.short", { type: "number", step: "any", "aria-label": "bound", placeholder: "0.5" });
  const submit = (e) => {
    e.preventDefault();
    if (bound.value !== "" && Number.isFinite(Number(bound.value)))
      add(`${column.value}${op.value}${Number(bound.value)}`);
    bound.value = "";
  };
  return el("form.inline", { onsubmit: submit }, column, op, bound, el("button", { type: "submit" }, "Filter"));
}

/** A button for each value of a text column; none pressed means all. */
function toggles(label, key, get, put) {
  const values = [...new Set(report.models.map((m) => get(m) ?? ""))].filter(Boolean).sort(compare);
  if (values.length < 2 || values.length > 40) return null;
  const one = (value) => {
    const node = el(
      "button.toggle",
      { type: "button", "aria-pressed": String(state.getAll(key).includes(value)) },
      value,
    );
    node.addEventListener("click", () => {
      const on = state.getAll(key).includes(value);
      put({ [key]: on ? state.getAll(key).filter((v) => v !== value) : [...state.getAll(key), value] });
      node.setAttribute("aria-pressed", String(!on));
    });
    return node;
  };
  return el("div.toggles", { role: "group", "aria-label": label }, el("span.soft", label), ...values.map(one));
}
