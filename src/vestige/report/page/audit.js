// "Did it forget?": one audited model. The answer, its evidence and its limits come first; the panels follow.

import { choose, el, isNumber, missing, own, replace } from "./dom.js";
import { cell, metric, metricTip, model, modelName, report, settingsText, factList } from "./data.js";
import { attackPanel } from "./attack.js";
import { layersPanel } from "./layers.js";
import { likelyPanel } from "./likely.js";
import { numbersTable, ruler } from "./ruler.js";
import { saysPanel } from "./says.js";
import { saveButtons } from "./save.js";
import * as state from "./state.js";
import { tip } from "./tip.js";

const ANSWERS = { yes: ["Yes", "✓"], partly: ["Partly", "◐"], no: ["No", "✕"], unclear: ["Unclear", "?"] };
const POINTS = {
  forgot: ["✓", "points to forgotten"],
  knows: ["✕", "points to still known"],
  unclear: ["?", "points to neither"],
};
const FEW = 3; // items of evidence on a small screen; the style sheet hides the others
const FIRST = 7; // so many lines of the ruler fit the first screen

export function auditView(root) {
  if (!report.audits.length) return replace(root, nothing());
  const wanted = state.get("audit");
  const audit = report.audits.find((a) => a.model === wanted) ?? report.audits[0];
  replace(root, first(audit, root), jump(), ...PANELS.map((p) => panel(audit, p)));
  return root;
}

const nothing = () =>
  el(
    "section.empty-view",
    {},
    el("h1", {}, "Did it forget?"),
    el(
      "p",
      {},
      "No model in this report has a run with rows, so there is nothing to audit. ",
      el("a", { href: state.address({ view: "models" }) }, "The models' numbers are here."),
    ),
  );

function first(audit, root) {
  const answered = own(ANSWERS, audit.verdict.answer) ? audit.verdict.answer : "unclear";
  const [word, sign] = ANSWERS[answered];
  const name = report.audits.length > 1 ? picker(audit, root) : el("strong.subject", {}, modelName(audit.model));
  const head = el("div.question", {}, el("h1", {}, "Did it forget?"), name);
  const answer = el(
    `p.answer.${answered}`,
    {},
    el("span.sign", { "aria-hidden": "true" }, sign),
    el("strong", {}, word),
  );
  const left = el("div.verdict-left", {}, head, answer, el("p.headline", {}, audit.verdict.headline), evidence(audit));
  return el(
    "section.verdict",
    {},
    left,
    limits(audit),
    el(
      "div.verdict-right",
      {},
      ruler(audit, rulerKeys(audit), `Main numbers of ${modelName(audit.model)}`),
      about(audit),
    ),
  );
}

function picker(audit, root) {
  const pick = (id) => {
    state.set({ audit: id, "s.row": null, "l.row": null }, true);
    auditView(root);
    root.querySelector("select")?.focus();
  };
  return choose(
    "model",
    report.audits.map((a) => [a.model, modelName(a.model)]),
    audit.model,
    pick,
  );
}

function evidence(audit) {
  const item = (e) => {
    const points = own(POINTS, e.points) ? e.points : "unclear";
    const [sign, words] = POINTS[points];
    const text = el("span", {}, e.text);
    if (e.metric) tip(text, () => metricTip(e.metric));
    return el(
      `li.${points}`,
      {},
      el("span.sign", { "aria-hidden": "true" }, sign),
      el("span.hidden", {}, `${words}: `),
      text,
    );
  };
  const list = el("ul.evidence", {}, audit.verdict.evidence.map(item));
  return el("div", {}, el("h2.small-head", {}, "Evidence"), list, more(list, audit.verdict.evidence.length - FEW));
}

/** On a small screen only the first items are shown, so that the limits are in sight too. */
function more(list, hidden) {
  if (hidden <= 0) return null;
  const show = (e) => {
    list.classList.add("all");
    e.target.remove();
  };
  return el("button.quiet.more", { type: "button", onclick: show }, `${hidden} more`);
}

function limits(audit) {
  if (!audit.verdict.limits.length) return null;
  return el(
    "div.verdict-limits",
    {},
    el("h2.small-head", {}, "Limits"),
    el(
      "ul.limits",
      {},
      audit.verdict.limits.map((t) => el("li", {}, t)),
    ),
  );
}

const ORDER = ["says", "likely", "membership", "layers", "attack", "utility", "axis"];

/** A few metrics of every kind that the model and a reference have, the likes of each other side by side. */
function rulerKeys(audit) {
  const has = (key) =>
    isNumber(cell(audit.model, key)?.v) && [audit.full, audit.retain].some((id) => id && isNumber(cell(id, key)?.v));
  const byGroup = ORDER.map((group) => report.columns.filter((k) => metric(k).group === group && has(k)));
  const taken = [];
  for (let round = 0; taken.length < FIRST && byGroup.some((keys) => keys.length > round); round += 1)
    for (const keys of byGroup) if (keys[round] && taken.length < FIRST) taken.push(keys[round]);
  return ORDER.flatMap((group) => taken.filter((k) => metric(k).group === group));
}

function about(audit) {
  const m = model(audit.model);
  const facts = [
    ["method", m.method],
    ["epoch", m.epoch],
    ["settings", settingsText(m)],
    ["full", audit.full && modelName(audit.full)],
    ["retain", audit.retain && modelName(audit.retain)],
  ];
  const where = Object.entries(m.provenance ?? {});
  return el("details.about", {}, el("summary", {}, "About this model"), factList([...facts, ...where]));
}

// One entry per panel: its body, the groups of metrics in its table, and the parts whose absence it reports.
const PANELS = [
  { id: "says", title: "What it says", body: saysPanel, groups: ["says"], covers: ["says", "retain"] },
  {
    id: "likely",
    title: "What it finds likely",
    body: likelyPanel,
    groups: ["likely", "membership"],
    covers: ["likely", "roc"],
  },
  { id: "layers", title: "What its layers hold", body: layersPanel, groups: ["layers"], covers: ["layers"] },
  { id: "attacks", title: "What comes back under attack", body: attackPanel, groups: ["attack"], covers: ["attacks"] },
  { id: "utility", title: "What it can still do", body: utilityPanel, groups: ["utility"], covers: ["utility"] },
];

function jump() {
  const go = (id) => () => {
    const place = document.getElementById(`panel-${id}`);
    place.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    place.querySelector("h2").focus({ preventScroll: true });
  };
  return el(
    "nav.jump",
    { "aria-label": "panels" },
    PANELS.map(({ id, title }) => el("button.quiet", { type: "button", onclick: go(id) }, title)),
  );
}

function utilityPanel(audit) {
  const keys = (audit.utility ?? []).filter((k) => isNumber(cell(audit.model, k)?.v));
  return keys.length ? [ruler(audit, keys, "Utility between the full and the retain model")] : [];
}

function panel(audit, { id, title, body, groups, covers }) {
  const inGroups = Object.keys(report.metrics).filter((k) => groups.includes(metric(k).group));
  const keys = id === "utility" ? [...new Set([...(audit.utility ?? []), ...inGroups])] : inGroups;
  const gone = (audit.missing ?? []).filter((m) => covers.includes(m.panel)).map((m) => missing("Missing:", m.reason));
  const table = numbersTable(audit, keys, `${title}: numbers of ${modelName(audit.model)}`);
  const content = [...gone, ...body(audit).filter(Boolean)];
  if (!content.length && !table) content.push(missing("Nothing here.", "no run in this report measured it"));
  return el(
    "section.panel",
    { id: `panel-${id}` },
    el("h2", { tabindex: "-1" }, title),
    ...content,
    table,
    table && el("div.table-tools", {}, ...saveButtons(`${id}_${audit.model}`, () => sheet(audit, keys))),
  );
}

function sheet(audit, keys) {
  const rows = keys.map((k) => [k, cell(audit.model, k)]).filter(([, c]) => c);
  const columns = ["metric", "value", "lo", "hi", "n", "full", "retain", "dialect", "protocol", "reason"];
  const ref = (id, k) => (id ? (cell(id, k)?.v ?? null) : null);
  return {
    columns,
    rows: rows.map(([k, c]) =>
      [k, c.v, c.lo, c.hi, c.n, ref(audit.full, k), ref(audit.retain, k), c.dialect, c.protocol, c.reason].map(
        (v) => v ?? null,
      ),
    ),
  };
}
