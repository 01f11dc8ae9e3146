// Making elements and printing numbers. Text always becomes a text node: no string is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** el("p.note", {title: "x"}, "text", child): a tag with classes, properties (where there are some) and children. */
export const el = (spec, ...rest) => fill(spec, rest, (tag) => document.createElement(tag));

export const svg = (spec, ...rest) => fill(spec, rest, (tag) => document.createElementNS(SVG, tag));

const isProps = (value) => Boolean(value) && Object.getPrototypeOf(value) === Object.prototype;

function fill(spec, rest, create) {
  const [tag, ...classes] = spec.split(".");
  const node = create(tag);
  for (const name of classes) node.classList.add(name);
  const [props, children] = isProps(rest[0]) ? [rest[0], rest.slice(1)] : [{}, rest];
  for (const [name, value] of Object.entries(props)) assign(node, name, value);
  node.append(...there(children));
  return node;
}

/** Children one level deep, without those that are not there. */
const there = (children) => children.flat().filter((c) => c !== null && c !== undefined && c !== false);

function assign(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (name === "style") Object.entries(value).forEach(([k, v]) => node.style.setProperty(k, v));
  else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
  else node.setAttribute(name, value === true ? "" : String(value));
}

export function replace(node, ...children) {
  node.replaceChildren(...there(children));
  return node;
}

/** A name that may break after its underscores, where it would otherwise break inside a word. */
export const named = (name) =>
  String(name)
    .split(/(?<=_)/)
    .flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));

export const isNumber = (v) => typeof v === "number" && Number.isFinite(v);

/** Own properties only: a metric may be called "constructor". */
export const own = (object, key) => (object && Object.hasOwn(object, key) ? object[key] : undefined);

export function fmt(v, digits = 3) {
  if (!isNumber(v)) return "–";
  const size = Math.abs(v);
  if (Number.isInteger(v) && size >= 10) return v.toLocaleString("en");
  if (size >= 1000) return Math.round(v).toLocaleString("en");
  if (size >= 100) return v.toFixed(1);
  if (size >= 10) return v.toFixed(2);
  if (size > 0 && size < 0.5 * 10 ** -digits) return v.toExponential(1);
  return v.toFixed(digits);
}

/** Text with its numbers to two decimals; tiny ones keep a digit. */
export const prose = (text) =>
  String(text ?? "").replace(/(?<![\w.])(\d+\.\d{3,})(?![\w.]*\w)/g, (found) => {
    const v = Number(found);
    return v > 0 && v < 0.005 ? String(Number(v.toPrecision(1))) : v.toFixed(2);
  });

export function interval(cell, digits = 3) {
  if (!cell || !isNumber(cell.lo) || !isNumber(cell.hi)) return "";
  return `${fmt(cell.lo, digits)} to ${fmt(cell.hi, digits)}`;
}

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** A labelled choice. options: [value, label] pairs. */
export function choose(label, options, value, onchange) {
  const select = el("select", { onchange: (e) => onchange(e.target.value) });
  select.append(...options.map(([v, text]) => el("option", { value: v, selected: String(v) === String(value) }, text)));
  return el("label.field", el("span", label), select);
}

/** A slider that says its value. */
export function slide(label, { min, max, step, value, digits = 2 }, oninput) {
  const said = el("output", fmt(value, digits));
  const input = el("input", { type: "range", min, max, step, value, "aria-label": label });
  input.value = value;
  input.addEventListener("input", () => {
    said.textContent = fmt(Number(input.value), digits);
    oninput(Number(input.value));
  });
  return el("label.field.slide", el("span", label, " ", said), input);
}

export function tick(label, checked, onchange) {
  const box = el("input", { type: "checkbox", checked, onchange: (e) => onchange(e.target.checked) });
  return el("label.tick", box, " ", label);
}

/** Buttons of which one is on: a radio group in words. */
export function segments(label, options, value, onchange) {
  const name = `seg-${Math.random().toString(36).slice(2)}`;
  const radio = (v) =>
    el("input", { type: "radio", name, value: v, checked: v === value, onchange: () => onchange(v) });
  const parts = options.map(([v, text]) => el("label.segment", radio(v), el("span", text)));
  return el("fieldset.segments", el("legend", label), ...parts);
}

export function searchBox(label, value, oninput) {
  const input = el("input", { type: "search", value, placeholder: label, "aria-label": label, spellcheck: "false" });
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer); // only when the reader pauses
    timer = setTimeout(() => oninput(input.value), 60);
  });
  return input;
}

/** Says something to a screen reader without showing it. */
export function announce(text) {
  const place = document.getElementById("live");
  if (place) place.textContent = text;
}

/** A panel of a view. */
export const panel = (title, ...parts) => el("section.panel", el("h2", title), ...parts.flat());

export const unique = (values) => [...new Set(values)];

/** Something that is not there, and why. */
export const missing = (what, reason) => el("p.missing", el("strong", what), " ", reason || "no reason was given");
