// Explanations on hover and focus. An element registers a function; the tip asks it only when it is shown.

import { el, replace } from "./dom.js";

const explain = new WeakMap();
const box = el("div", { id: "tip", role: "tooltip", hidden: true });
let shownFor = null;

/** Gives an element an explanation. `focusable` puts it into the tab order. */
export function tip(node, make, focusable = true) {
  explain.set(node, make);
  node.classList.add("has-tip");
  if (focusable && !node.hasAttribute("tabindex")) node.setAttribute("tabindex", "0");
  return node;
}

function target(event) {
  let node = event.target;
  while (node && node !== document) {
    if (explain.has(node)) return node;
    node = node.parentNode;
  }
  return null;
}

function show(node) {
  if (node === shownFor) return;
  hide();
  shownFor = node;
  replace(box, explain.get(node)());
  box.hidden = false;
  node.setAttribute("aria-describedby", "tip");
  place(node.getBoundingClientRect());
}

/** Lines of text beside the pointer. */
export function showAt(text, x, y) {
  hide();
  const [head, ...rest] = text.split("\n");
  replace(
    box,
    el("strong", head),
    rest.map((line) => el("p", line)),
  );
  box.hidden = false;
  place({ left: x + 14, top: y, bottom: y + 4 });
}

export function hide() {
  box.hidden = true;
  if (!shownFor) return;
  shownFor.removeAttribute("aria-describedby");
  shownFor = null;
}

function place(at) {
  const margin = 8;
  const { offsetWidth: w, offsetHeight: h } = box;
  const below = at.bottom + margin + h < innerHeight;
  const top = below ? at.bottom + margin : Math.max(margin, at.top - h - margin);
  const left = Math.min(Math.max(margin, at.left), Math.max(margin, innerWidth - w - margin));
  box.style.setProperty("top", `${top}px`);
  box.style.setProperty("left", `${left}px`);
}

function enter(event) {
  const node = target(event);
  if (node) show(node);
  else if (event.type === "mouseover" && !box.contains(event.target)) hide();
}

export function startTips() {
  document.body.append(box);
  document.addEventListener("mouseover", enter);
  document.addEventListener("focusin", enter);
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (e) => e.key === "Escape" && hide());
  addEventListener("scroll", hide, { capture: true, passive: true });
}
