// The first screen of an audit: the word, why, three parts with their ranges, the evidence, what is missing, the limits.

import { el, fmt, isNumber, own, prose } from "./dom.js";
import { hasModel, metric, metricTip, modelName, report, titledText, valueTip } from "./data.js";
import { between } from "./range.js";
import { tip } from "./tip.js";

// word -> [title, sign]. A sign has a shape of its own, so that nothing rests on colour.
const WORDS = {
  forgotten: ["Forgotten", "✓"],
  looks_forgotten: ["Looks forgotten, not tested deeply", "◌"],
  partly: ["Partly", "◐"],
  not_forgotten: ["Not forgotten", "✕"],
  damaged: ["Damaged", "⚠"],
  cannot_tell: ["Cannot tell", "?"],
};
// state -> [what it means, sign, good | bad | some | open]
const STATES = {
  equivalent: ["as if never learned", "✓", "good"],
  towards: ["still knows", "✕", "bad"],
  beyond: ["over-forgotten", "▼", "some"],
  mixed: ["mixed", "◐", "some"],
  undecided: ["not decided", "?", "open"],
  not_measured: ["not measured", "–", "open"],
  kept: ["kept", "✓", "good"],
  damaged: ["damaged", "✕", "bad"],
  deep: ["tested deeply", "✓", "good"],
  shallow: ["not tested deeply", "◔", "some"],
};
const TESTS = {
  says: "what it says",
  secrets: "secrets said",
  likely: "what it finds likely",
  membership: "membership attacks",
  layers: "its layers",
  teach: "attacks that teach",
  disturb: "attacks that teach nothing",
};

const TONES = ["bad", "some", "open", "good"]; // bad news first

export const wordOf = (verdict) => (own(WORDS, verdict?.word) ? verdict.word : "cannot_tell");

/** The title of a verdict, as the terminal says it. */
export const titleOf = (verdict) => verdict?.title || WORDS[wordOf(verdict)][0];

export const signOf = (verdict) => WORDS[wordOf(verdict)][1];

const stateOf = (state) => STATES[own(STATES, state) ? state : "undecided"];

const badge = (state, words) => {
  const [meaning, sign, tone] = stateOf(state);
  return el(`span.badge.${tone}`, el("span.sign", { "aria-hidden": "true" }, sign), " ", words ?? meaning);
};

/** The answer and everything it rests on. `name`: the model's name, or a way to choose another. */
export function verdictSection(audit, name) {
  const { verdict } = audit;
  return el(
    "section.verdict",
    el("div.verdict-head", el("div.question", el("h1", "Did it forget?"), name), answer(verdict)),
    el("div.verdict-parts", secrets(verdict), ...parts(verdict)),
    el("div.verdict-why", untested(verdict), needed(verdict), limits(verdict)),
    evidence(audit),
  );
}

function answer(verdict) {
  const word = wordOf(verdict);
  return [
    el(
      `p.answer.${word}`,
      el("span.sign", { "aria-hidden": "true" }, signOf(verdict)),
      el("strong", titleOf(verdict)),
      verdict.also ? el("span.also", `and ${verdict.also}`) : null,
    ),
    el("p.headline", prose(verdict.headline)),
  ];
}

function secrets(verdict) {
  const s = verdict.secrets;
  if (!s) return null;
  const told = (who, n) => (isNumber(n) ? `${who} ${n}` : "");
  const facts = [
    isNumber(s.lo) && isNumber(s.hi) ? `95 % interval ${percent(s.lo)} to ${percent(s.hi)}` : "",
    told("the retain model says", s.retain),
    told("the full model", s.full),
    isNumber(s.rows) && s.rows > s.with_secret
      ? `${s.rows - s.with_secret} of ${s.rows} rows have no secret to look for`
      : "",
  ].filter(Boolean);
  return el(
    s.said > 0 ? "div.secrets.some" : "div.secrets",
    el("p.secrets-line", s.text),
    el("p.soft.fine", `${facts.join("; ")}.`),
  );
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;

function parts(verdict) {
  const { knowledge, damage, testing } = verdict.parts ?? {};
  const d = isNumber(verdict.margin) ? verdict.margin : 0;
  return [
    knowledge && part("Knowledge", knowledge, between(knowledge, KNOWLEDGE(d)), shareText(knowledge.share, knowledge)),
    damage && part("Damage", damage, between({ ...damage, share: damage.utility }, DAMAGE), damageText(damage)),
    testing && part("Depth of testing", testing, tests(testing), ""),
  ];
}

const KNOWLEDGE = (margin) => ({
  marks: [
    [0, "as if it never knew", "retain model"],
    [1, "knows all", "full model"],
  ],
  band: [-margin, margin],
  bandWords: "close enough to the retain model",
  below: "forgot too much",
  range: [-0.6, 1.25],
});
const DAMAGE = {
  marks: [
    [0, "can do nothing", ""],
    [1, "as good as before", "full model"],
  ],
  range: [0, 1.2],
};

// What the small ranges beside the evidence leave out.
const RANGES =
  "In the small ranges the left mark is the retain model (as if it never knew), the right mark the full model (knows " +
  "all); of damage, the left mark is nothing left and the right mark as good as before.";

const shareText = (share, { lo, hi }) =>
  isNumber(share) ? `${fmt(share, 2)} of the way to the full model${reach(lo, hi)}` : "";

const reach = (lo, hi) => (isNumber(lo) && isNumber(hi) ? ` (${fmt(lo, 2)} to ${fmt(hi, 2)})` : "");

const damageText = ({ utility, lo, hi }) =>
  isNumber(utility) ? `utility ${fmt(utility, 2)} of the full model's${reach(lo, hi)}` : "";

function part(title, { state, text }, drawing, numbers) {
  return el(
    "div.part",
    el("h2.part-head", title, " ", badge(state)),
    drawing,
    numbers && el("p.part-numbers", numbers),
    text && el("p.part-text", prose(text)),
  );
}

/** Every kind of test, done or not: the shape says which. */
function tests({ done = [], missing = [] }) {
  const item = (kind, on) =>
    el(
      on ? "li.done" : "li.missing-test",
      el("span.sign", { "aria-hidden": "true" }, on ? "●" : "○"),
      el("span.hidden", on ? "done: " : "missing: "),
      own(TESTS, kind) ?? String(kind).replaceAll("_", " "),
    );
  return el(
    "ul.tests",
    done.map((t) => item(t, true)),
    missing.map((m) => item(m.test, false)),
  );
}

function evidence(audit) {
  const { verdict } = audit;
  const item = (e) => {
    const [, , tone] = stateOf(e.state);
    const text = el("span.evidence-text", prose(e.text));
    if (e.metric && own(report.metrics, e.metric))
      tip(text, () => (hasModel(audit.model) ? valueTip(audit.model, e.metric) : metricTip(e.metric)));
    const name = e.metric && metric(e.metric).title ? el("span.soft.fine", titledText(e.metric)) : null;
    const look = ["utility", "fluency"].includes(e.panel) ? DAMAGE : KNOWLEDGE(verdict.margin ?? 0);
    // Of fluency the share is what was lost.
    const left = (x) => (isNumber(x) ? 1 - x : x);
    const drawn = e.panel === "fluency" ? { ...e, share: left(e.share), lo: left(e.hi), hi: left(e.lo) } : e;
    const range = isNumber(e.share) ? between(drawn, { ...look, small: true }) : null;
    return el(`li.${tone}`, badge(e.state), el("div", text, name), range);
  };
  if (!verdict.evidence?.length) return null;
  const rank = (e) => TONES.indexOf(stateOf(e.state)[2]);
  const badFirst = verdict.evidence.toSorted((a, b) => rank(a) - rank(b));
  const drawn = badFirst.some((e) => isNumber(e.share));
  return el(
    "div.verdict-evidence",
    el("h2.small-head", "Evidence"),
    drawn ? el("p.soft.fine", RANGES) : null,
    el("ul.evidence", badFirst.map(item)),
  );
}

/** What was not tested of this model, why it matters, and the command that tests it. */
function untested(verdict) {
  const missing = verdict.parts?.testing?.missing ?? [];
  if (!missing.length) return null;
  const item = (m) =>
    el("li", m.text || own(TESTS, m.test) || m.test, m.command ? el("code.command", m.command) : null);
  return el("div", el("h2.small-head", "Not tested"), el("ul.limits.untested", missing.map(item)));
}

function needed(verdict) {
  const rows = isNumber(verdict.rows_needed)
    ? `To decide, about ${verdict.rows_needed.toLocaleString("en")} rows would be needed.`
    : "";
  const words = [verdict.power?.text, rows].filter(Boolean);
  if (!words.length) return null;
  return el("div", el("h2.small-head", "What this could have seen"), el("p.limits-text", words.join(" ")));
}

function limits(verdict) {
  if (!verdict.limits?.length) return null;
  const list = el(
    "ul.limits",
    verdict.limits.map((t) => el("li", t)),
  );
  return el("div.verdict-limits", el("h2.small-head", "Limits"), list);
}

/** For whom a test is missing that others of this report have: the verdicts do not rest on the same tests. */
export function unequalTests() {
  const all = new Set(report.audits.flatMap((a) => a.verdict?.parts?.testing?.done ?? []));
  const lacking = report.audits
    .map((a) => [a, [...all].filter((t) => !(a.verdict?.parts?.testing?.done ?? []).includes(t))])
    .filter(([, gone]) => gone.length);
  if (!lacking.length) return null;
  const item = ([a, gone]) => {
    const commands = (a.verdict.parts?.testing?.missing ?? []).filter((m) => gone.includes(m.test) && m.command);
    return el(
      "li",
      el("strong", modelName(a.model)),
      `: ${gone.map((t) => own(TESTS, t) ?? t).join(", ")}`,
      commands.map((m) => el("code.command", m.command)),
    );
  };
  return el(
    "section.panel.unequal",
    el("h2", "Not every model was tested alike"),
    el("p.soft", "A verdict rests on the tests that were made. Missing, and the commands that make them:"),
    el("ul.limits", lacking.map(item)),
  );
}
