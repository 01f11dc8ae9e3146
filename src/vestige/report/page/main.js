// The frame: which view is shown, the links between views, and reloading when a local viewer has news.

import { announce, count, el, missing, replace } from "./dom.js";
import { report } from "./data.js";
import { auditView } from "./audit.js";
import { sweepCharts } from "./chart.js";
import { metricsView } from "./metrics.js";
import { modelsView } from "./models.js";
import { sourcesView } from "./sources.js";
import { saveCopyButton } from "./notes.js";
import * as state from "./state.js";
import { apply, themeButton } from "./theme.js";
import { hide, startTips } from "./tip.js";
import { collapseView, trainingView, trajectoriesView } from "./steps.js";
import { watch } from "./watch.js";

const VIEWS = [
  ["audit", "Did it forget?", auditView, () => report.audits.length],
  ["models", "Models", modelsView, () => true],
  ["metrics", "Metrics", metricsView, () => report.meta],
  ["training", "Training", trainingView, () => report.training?.length],
  ["trajectories", "Trajectories", trajectoriesView, () => report.trajectories?.length],
  ["collapse", "Collapse", collapseView, () => report.collapse?.length],
  ["sources", "Sources", sourcesView, () => true],
];

const start = report.audits.length ? "audit" : "models";

function currentView() {
  const name = state.get("view", start);
  return VIEWS.find(([id]) => id === name) ?? VIEWS.find(([id]) => id === start);
}

function route() {
  apply();
  hide();
  const [id, title, show] = currentView();
  const root = document.getElementById("view");
  drawLinks(id); // before the view: bringing the link into sight needs the page's layout, which is known now
  try {
    show(root);
  } catch (error) {
    console.error(error);
    const why = String(error?.message ?? error);
    replace(root, el("h1", title), missing("This view could not be drawn: the data is not as expected.", why));
  }
  sweepCharts();
  document.title = `${title} - ${report.title}`;
}

function drawLinks(current) {
  const shown = VIEWS.filter(([id, , , there]) => there() || id === current);
  const link = ([id, title]) => {
    const here = id === current ? "page" : null;
    return el("a", { href: state.address({ view: id }), "aria-current": here, onclick: (e) => go(e, id) }, title);
  };
  const links = document.getElementById("views");
  replace(links, shown.map(link));
  links.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function go(event, id) {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  state.set({ view: id }, true);
  route();
  scrollTo(0, 0);
  announce(currentView()[1]);
}

/** The address holds the state, so that the skip link must not become part of it. */
function skip(event) {
  event.preventDefault();
  document.getElementById("view").focus();
}

function begin() {
  const problems = (report.problems ?? []).length;
  const link = { href: state.address({ view: "sources" }), onclick: (e) => go(e, "sources") };
  const note = problems ? el("a.problem-note", link, count(problems, "problem")) : null;
  document.getElementById("title").textContent = report.title;
  document.getElementById("tools").append(...[note, saveCopyButton(), themeButton()].filter(Boolean));
  document.getElementById("foot").textContent =
    `Made ${report.made} by vestige ${report.vestige}. ${report.models.length} models, ${report.sources.length} sources.`;
  document.getElementById("skip").addEventListener("click", skip);
  startTips();
  state.onChange(route);
  route();
  watch();
}

begin();
