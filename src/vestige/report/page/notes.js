// The reader's notes. They live in the page; a download makes a copy of the page that holds them.

import { announce, el } from "./dom.js";
import { report } from "./data.js";
import { offer } from "./save.js";

const notes = new Map(Object.entries(report.notes ?? {}));
let saved = true;

/** A box for a note on something, by its key. */
export function noteBox(key, label) {
  const area = el("textarea.note", {
    rows: 2, "aria-label": label, placeholder: `${label} (kept when you save a copy)`,
  });
  area.value = notes.get(key) ?? "";
  area.addEventListener("input", () => {
    if (area.value.trim()) notes.set(key, area.value);
    else notes.delete(key);
    saved = false;
    tell();
  });
  return area;
}

export const notesOf = () => Object.fromEntries(notes);

/** JSON that cannot end its script element, as the page's maker writes it. */
export const dataText = (data) =>
  JSON.stringify(data).replace(/[<>&\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** The page as it was delivered, with the notes in its data: the scripts and the policy that names them stay as they are. */
function copyOfPage() {
  const root = document.documentElement.cloneNode(true);
  root.querySelector("#report-data").textContent = dataText({ ...report, notes: notesOf() });
  for (const id of ["view", "foot", "views", "tools", "live"]) root.querySelector(`#${id}`)?.replaceChildren();
  root.querySelector("#tip")?.remove();
  root.removeAttribute("data-theme");
  root.setAttribute("data-live", "");
  return `<!doctype html>\n${root.outerHTML}\n`;
}

let button = null;

function tell() {
  if (!button) return;
  button.hidden = !notes.size && saved;
  button.textContent = saved
    ? "Save a copy"
    : `Save a copy with ${notes.size === 1 ? "1 note" : `${notes.size} notes`}`;
}

export function saveCopyButton() {
  const save = () => {
    offer("index.html", "text/html", copyOfPage());
    saved = true;
    tell();
    announce("A copy of the page with your notes was downloaded.");
  };
  button = el("button.quiet", { type: "button", id: "save-copy", onclick: save }, "");
  tell();
  addEventListener("beforeunload", (e) => !saved && e.preventDefault());
  return button;
}
