// "Did it forget?": one audited model. The answer, its evidence and its limits come first; the panels follow.

import { choose, el, isNumber, missing, replace, unique } from "./dom.js";
import { cell, factList, metric, model, modelName, report, settingsText } from "./data.js";
import { layersPanel } from "./layers.js";
import { attackPanel, likelyPanel } from "./panels.js";
import { numbersTable, ruler } from "./ruler.js";
import { saving } from "./save.js";
import { saysPanel } from "./says.js";
import * as state from "./state.js";
import { titleOf, unequalTests, verdictSection } from "./verdict.js";

// One entry per panel: its body, the groups of metrics in its table, and the parts whose absence it reports.
const PANELS = [
  { id: "says", title: "What it says", body: saysPanel, groups: ["says"], covers: ["says", "retain"] },
  {
    id: "likely", title: "What it finds likely", body: likelyPanel, groups: ["likely", "membership"],
    covers: ["likely", "roc"],
  },
  { id: "layers", title: "What its layers hold", body: layersPanel, groups: ["layers"], covers: ["layers"] },
  { id: "attacks", title: "What comes back under attack", body: attackPanel, groups: ["attack"], covers: ["attacks"] },
  { id: "utility", title: "What it can still do", body: utilityPanel, groups: ["utility"], covers: ["utility"] },
];

export function auditView(root) {
  if (!report.audits.length) return replace(root, nothing());
  const wanted = state.get("audit");
  const audit = report.audits.find((a) => a.model === wanted) ?? report.audits[0];
  const name = report.audits.length > 1 ? picker(audit, root) : el("strong.subject", modelName(audit.model));
  const panels = PANELS.map((p) => panelOf(audit, p));
  return replace(root, verdictSection(audit, name), jump(), ...panels, unequalTests(), about(audit));
}

const nothing = () =>
  el(
    "section.empty-view",
    el("h1", "Did it forget?"),
    el(
      "p",
      "No model in this report has a run with rows, so there is nothing to audit. ",
      el("a", { href: state.address({ view: "models" }) }, "The models' numbers are here."),
    ),
  );

function picker(audit, root) {
  const pick = (id) => {
    state.set({ audit: id, "s.row": null, "l.row": null }, true);
    auditView(root);
    root.querySelector("select")?.focus();
  };
  const options = report.audits.map((a) => [a.model, `${modelName(a.model)}: ${titleOf(a.verdict)}`]);
  return choose("model", options, audit.model, pick);
}

function about(audit) {
  const m = model(audit.model);
  const facts = [
    ["method", m.method],
    ["epoch", m.epoch],
    ["settings", settingsText(m)],
    ...["full", "retain"].map((role) => [role, audit[role] && modelName(audit[role])]),
    ...Object.entries(m.provenance ?? {}),
  ];
  return el("details.panel.about", el("summary", "About this model"), factList(facts));
}

function jump() {
  const go = (id) => () => {
    const place = document.getElementById(`panel-${id}`);
    place.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    place.querySelector("h2").focus({ preventScroll: true });
  };
  const buttons = PANELS.map(({ id, title }) => el("button.quiet", { type: "button", onclick: go(id) }, title));
  return el("nav.jump", { "aria-label": "panels" }, buttons);
}

function utilityPanel(audit) {
  const keys = (audit.utility ?? []).filter((k) => isNumber(cell(audit.model, k)?.v));
  return keys.length ? [ruler(audit, keys, "Utility between the full and the retain model")] : [];
}

function panelOf(audit, { id, title, body, groups, covers }) {
  const inGroups = Object.keys(report.metrics).filter((k) => groups.includes(metric(k).group));
  const keys = unique([...(id === "utility" ? (audit.utility ?? []) : []), ...inGroups]);
  const gone = (audit.missing ?? []).filter((m) => covers.includes(m.panel)).map((m) => missing("Missing:", m.reason));
  const table = numbersTable(audit, keys, `${title}: numbers of ${modelName(audit.model)}`);
  const content = [...gone, ...body(audit).filter(Boolean)];
  if (!content.length && !table) content.push(missing("Nothing here.", "no run in this report measured it"));
  const tools = table && saving(`${id}_${audit.model}`, () => sheet(audit, keys));
  return el("section.panel", { id: `panel-${id}` }, el("h2", { tabindex: "-1" }, title), ...content, table, tools);
}

function sheet(audit, keys) {
  const columns = ["metric", "value", "lo", "hi", "n", "full", "retain", "dialect", "protocol", "reason"];
  const reference = (id, key) => (id ? cell(id, key)?.v : null);
  const rows = keys
    .filter((key) => cell(audit.model, key))
    .map((key) => {
      const c = cell(audit.model, key);
      const references = [reference(audit.full, key), reference(audit.retain, key)];
      return [key, c.v, c.lo, c.hi, c.n, ...references, c.dialect, c.protocol, c.reason].map((v) => v ?? null);
    });
  return { columns, rows };
}
