// What the reader chose, kept in the address: view, sorting, filters, chosen models, sliders, theme.

let current = read();
const listeners = [];

function read() {
  return new URLSearchParams(location.hash.slice(1));
}

export const get = (key, otherwise = "") => current.get(key) ?? otherwise;

export const getAll = (key) => current.getAll(key);

export function getNumber(key, otherwise) {
  const text = current.get(key);
  const value = text === null || text === "" ? Number.NaN : Number(text);
  return Number.isFinite(value) ? value : otherwise;
}

/** Writes values into the address; null removes one, a list repeats its key. `push` makes a step for the back button. */
export function set(values, push = false) {
  for (const [key, value] of Object.entries(values)) write(current, key, value);
  const hash = `#${current}`;
  if (push) history.pushState(null, "", hash);
  else history.replaceState(null, "", hash);
}

function write(params, key, value) {
  params.delete(key);
  if (Array.isArray(value)) value.forEach((v) => params.append(key, v));
  else if (value !== null && value !== undefined && value !== "") params.set(key, value);
}

/** The address that would result: for links that can be copied. */
export function address(values) {
  const params = new URLSearchParams(current);
  for (const [key, value] of Object.entries(values)) write(params, key, value);
  return `#${params}`;
}

/** Called when the address changes from outside: back, forward, a pasted link. */
export const onChange = (run) => listeners.push(run);

function fromOutside() {
  if (`#${current}` === location.hash) return;
  current = read();
  listeners.forEach((run) => run());
}

addEventListener("popstate", fromOutside);
addEventListener("hashchange", fromOutside);
