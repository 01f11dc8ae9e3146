// Light and dark. The system decides unless the reader did; the choice is kept in the address.

import { el } from "./dom.js";
import * as state from "./state.js";

const system = matchMedia("(prefers-color-scheme: dark)");
const watchers = [];

// Okabe and Ito's colours, which colour-blind readers can tell apart; lightened for the dark page.
const LIGHT = {
  ink: "#1d1c1a", soft: "#5d5a54", line: "#d9d5cc", paper: "#ffffff", blue: "#0072b2", red: "#c65200",
  green: "#00845f", amber: "#a96f00", sky: "#2f8fc4", pink: "#a8507f", grey: "#77736b",
};
const DARK = {
  ink: "#ecebe7", soft: "#aeaba3", line: "#3a3d43", paper: "#1b1e23", blue: "#5fb4ea", red: "#ff9248",
  green: "#3fcf9f", amber: "#f0b73f", sky: "#8fd0f5", pink: "#e39bc4", grey: "#9b978f",
};

let printing = false;

export const isDark = () => (printing ? false : state.get("theme") ? state.get("theme") === "dark" : system.matches);

export const colours = () => (isDark() ? DARK : LIGHT);

export function wheel() {
  const c = colours();
  return [c.blue, c.red, c.green, c.amber, c.pink, c.sky, c.grey];
}

/** From nothing (paper) to much (blue): lightness alone carries the order. */
export const rising = () => {
  const c = colours();
  return isDark()
    ? [
        [0, "#20242b"],
        [0.5, "#2c6d99"],
        [1, "#c9ecff"],
      ]
    : [
        [0, "#fbfaf6"],
        [0.5, "#6fb1d8"],
        [1, c.ink],
      ];
};

export function apply() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  const button = document.getElementById("theme");
  if (button) button.setAttribute("aria-pressed", String(isDark()));
}

export const onTheme = (run) => watchers.push(run);

function changed() {
  apply();
  watchers.forEach((run) => run());
}

export function themeButton() {
  const flip = () => {
    state.set({ theme: isDark() ? "light" : "dark" });
    changed();
  };
  return el("button.quiet", { id: "theme", type: "button", onclick: flip, "aria-pressed": String(isDark()) }, "Dark");
}

/** Paper is white, whatever the screen is. */
const toPaper = (on) => () => {
  printing = on;
  changed();
};

system.addEventListener("change", changed);
addEventListener("beforeprint", toPaper(true));
addEventListener("afterprint", toPaper(false));
