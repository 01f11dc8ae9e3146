// The first screen of an audit: the word, why, three parts with their ranges, the evidence, what is missing, the limits.

import { el, fmt, interval, isNumber, own, panel, prose } from "./dom.js";
import { hasModel, metric, metricTip, modelName, report, titledText, valueTip } from "./data.js";
import { between } from "./ruler.js";
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
  equivalent: ["as if never learned", "✓", "good"], towards: ["still knows", "✕", "bad"],
  beyond: ["over-forgotten", "▼", "some"], mixed: ["mixed", "◐", "some"], undecided: ["not decided", "?", "open"],
  not_measured: ["not measured", "–", "open"], kept: ["kept", "✓", "good"], damaged: ["damaged", "✕", "bad"],
  deep: ["tested deeply", "✓", "good"], shallow: ["not tested deeply", "◔", "some"],
};
const TONES = ["bad", "some", "open", "good"]; // bad news first
const TESTS = {
  says: "what it says", secrets: "secrets said", likely: "what it finds likely", membership: "membership attacks",
  layers: "its layers", teach: "attacks that teach", disturb: "attacks that teach nothing",
};

// The ranges of knowledge and of damage, with their ends in words.
const knowledgeRange = (margin) => ({
  marks: [[0, "as if it never knew", "retain model"], [1, "knows all", "full model"]],
  band: [-margin, margin],
  bandWords: "close enough to the retain model",
  below: "forgot too much",
  range: [-0.6, 1.25],
});
const DAMAGE_RANGE = {
  marks: [[0, "can do nothing", ""], [1, "as good as before", "full model"]],
  range: [0, 1.2],
};
// What the small ranges beside the evidence leave out.
const RANGES =
  "In the small ranges the left mark is the retain model (as if it never knew), the right mark the full model (knows " +
  "all); of damage, the left mark is nothing left and the right mark as good as before.";

export const wordOf = (verdict) => (own(WORDS, verdict?.word) ? verdict.word : "cannot_tell");

/** The title of a verdict, as the terminal says it. */
export const titleOf = (verdict) => verdict?.title || WORDS[wordOf(verdict)][0];

export const signOf = (verdict) => WORDS[wordOf(verdict)][1];

const stateOf = (state) => STATES[own(STATES, state) ? state : "undecided"];
const testName = (test) => own(TESTS, test) ?? String(test).replaceAll("_", " ");
const smallHead = (text) => el("h2.small-head", text);
const sign = (text) => el("span.sign", { "aria-hidden": "true" }, text);

function badge(state) {
  const [meaning, shape, tone] = stateOf(state);
  return el(`span.badge.${tone}`, sign(shape), " ", meaning);
}

/** The answer and everything it rests on. `name`: the model's name, or a way to choose another. */
export function verdictSection(audit, name) {
  const { verdict } = audit;
  const question = el("div.question", el("h1", "Did it forget?"), name);
  return el(
    "section.verdict",
    el("div.verdict-head", question, answer(verdict), el("p.headline", prose(verdict.headline))),
    el("div.verdict-parts", secrets(verdict), ...parts(verdict)),
    el("div.verdict-why", untested(verdict), needed(verdict), limits(verdict)),
    evidence(audit),
  );
}

function answer(verdict) {
  const also = verdict.also ? el("span.also", `and ${verdict.also}`) : null;
  return el(`p.answer.${wordOf(verdict)}`, sign(signOf(verdict)), el("strong", titleOf(verdict)), also);
}

function secrets({ secrets: s }) {
  if (!s) return null;
  const percent = (share) => `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;
  const without = s.rows - s.with_secret;
  const facts = [
    isNumber(s.lo) && isNumber(s.hi) && `95 % interval ${percent(s.lo)} to ${percent(s.hi)}`,
    isNumber(s.retain) && `the retain model says ${s.retain}`,
    isNumber(s.full) && `the full model ${s.full}`,
    without > 0 && `${without} of ${s.rows} rows have no secret to look for`,
  ].filter(Boolean);
  const spec = s.said > 0 ? "div.secrets.some" : "div.secrets";
  return el(spec, el("p.secrets-line", s.text), el("p.soft.fine", `${facts.join("; ")}.`));
}

function parts(verdict) {
  const { knowledge, damage, testing } = verdict.parts ?? {};
  const range = knowledgeRange(isNumber(verdict.margin) ? verdict.margin : 0);
  const numbers = (v, words, part) => {
    const reach = interval(part, 2);
    return isNumber(v) ? `${words(fmt(v, 2))}${reach && ` (${reach})`}` : "";
  };
  const share = knowledge && numbers(knowledge.share, (v) => `${v} of the way to the full model`, knowledge);
  const utility = damage && numbers(damage.utility, (v) => `utility ${v} of the full model's`, damage);
  return [
    knowledge && part("Knowledge", knowledge, between(knowledge, range), share),
    damage && part("Damage", damage, between({ ...damage, share: damage.utility }, DAMAGE_RANGE), utility),
    testing && part("Depth of testing", testing, tests(testing), ""),
  ];
}

const part = (title, { state, text }, drawing, numbers) =>
  el(
    "div.part",
    el("h2.part-head", title, " ", badge(state)),
    drawing,
    numbers && el("p.part-numbers", numbers),
    text && el("p.part-text", prose(text)),
  );

/** Every kind of test, done or not: the shape says which. */
function tests({ done = [], missing = [] }) {
  const item = (spec, shape, words) => (test) => el(spec, sign(shape), el("span.hidden", words), testName(test));
  const lacking = missing.map((m) => m.test).map(item("li.missing-test", "○", "missing: "));
  return el("ul.tests", done.map(item("li.done", "●", "done: ")), lacking);
}

function evidence({ model, verdict }) {
  if (!verdict.evidence?.length) return null;
  const item = (e) => {
    const text = el("span.evidence-text", prose(e.text));
    if (e.metric && own(report.metrics, e.metric))
      tip(text, () => (hasModel(model) ? valueTip(model, e.metric) : metricTip(e.metric)));
    const name = e.metric && metric(e.metric).title ? el("span.soft.fine", titledText(e.metric)) : null;
    const look = ["utility", "fluency"].includes(e.panel) ? DAMAGE_RANGE : knowledgeRange(verdict.margin ?? 0);
    // Of fluency the share is what was lost.
    const left = (x) => (isNumber(x) ? 1 - x : x);
    const drawn = e.panel === "fluency" ? { share: left(e.share), lo: left(e.hi), hi: left(e.lo) } : e;
    const range = isNumber(e.share) ? between(drawn, { ...look, small: true }) : null;
    return el(`li.${stateOf(e.state)[2]}`, badge(e.state), el("div", text, name), range);
  };
  const rank = (e) => TONES.indexOf(stateOf(e.state)[2]);
  const badFirst = verdict.evidence.toSorted((a, b) => rank(a) - rank(b));
  const note = badFirst.some((e) => isNumber(e.share)) ? el("p.soft.fine", RANGES) : null;
  return el("div.verdict-evidence", smallHead("Evidence"), note, el("ul.evidence", badFirst.map(item)));
}

/** What was not tested of this model, why it matters, and the command that tests it. */
function untested({ parts: { testing } = {} }) {
  if (!testing?.missing?.length) return null;
  const item = (m) => el("li", m.text || testName(m.test), m.command ? el("code.command", m.command) : null);
  return el("div", smallHead("Not tested"), el("ul.limits.untested", testing.missing.map(item)));
}

function needed({ power, rows_needed: rows }) {
  const more = isNumber(rows) ? `To decide, about ${rows.toLocaleString("en")} rows would be needed.` : "";
  const words = [power?.text, more].filter(Boolean).join(" ");
  return words ? el("div", smallHead("What this could have seen"), el("p.limits-text", words)) : null;
}

function limits({ limits: list = [] }) {
  if (!list.length) return null;
  return el(
    "div.verdict-limits",
    smallHead("Limits"),
    el(
      "ul.limits",
      list.map((text) => el("li", text)),
    ),
  );
}

/** For whom a test is missing that others of this report have: the verdicts do not rest on the same tests. */
export function unequalTests() {
  const testing = (audit) => audit.verdict?.parts?.testing ?? {};
  const all = new Set(report.audits.flatMap((a) => testing(a).done ?? []));
  const item = (a) => {
    const gone = [...all].filter((t) => !(testing(a).done ?? []).includes(t));
    if (!gone.length) return null;
    const commands = (testing(a).missing ?? []).filter((m) => gone.includes(m.test) && m.command);
    const names = `: ${gone.map(testName).join(", ")}`;
    return el("li", el("strong", modelName(a.model)), names, ...commands.map((m) => el("code.command", m.command)));
  };
  const items = report.audits.map(item).filter(Boolean);
  if (!items.length) return null;
  const words = "A verdict rests on the tests that were made. Missing, and the commands that make them:";
  const section = panel("Not every model was tested alike", el("p.soft", words), el("ul.limits", items));
  section.classList.add("unequal");
  return section;
}
