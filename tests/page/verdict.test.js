// The first screen, notes and marks: what they say, whatever the verdict's data leaves out.

import { withReport } from "./stand_in.js";
import assert from "node:assert/strict";
import { test } from "node:test";

const done = (tests) => ({ parts: { testing: { state: "shallow", done: tests, missing: [] } } });
withReport({
  models: [
    { id: "m-1", name: "npo", role: "unlearned", values: {} },
    { id: "m-2", name: "ascent", role: "unlearned", values: {} },
  ],
  metrics: { uds: { label: "UDS", title: "How deep in the layers it is gone", group: "layers" } },
  audits: [
    { model: "m-1", verdict: done(["says", "layers"]) },
    { model: "m-2", verdict: { ...done(["says"]), word: "damaged" } },
  ],
});
const { signOf, titleOf, unequalTests, verdictSection, wordOf } =
  await import("../../src/vestige/report/page/verdict.js");
const { between } = await import("../../src/vestige/report/page/ruler.js");
const { dataText } = await import("../../src/vestige/report/page/notes.js");
const { marked } = await import("../../src/vestige/report/page/overlap.js");

test("an unknown word is not taken for good news", () => {
  assert.equal(wordOf({ word: "constructor" }), "cannot_tell");
  assert.equal(titleOf({ word: "damaged" }), "Damaged");
  assert.equal(titleOf({ word: "partly", title: "Partly, for now" }), "Partly, for now");
  assert.equal(
    new Set(
      ["forgotten", "looks_forgotten", "partly", "not_forgotten", "damaged", "cannot_tell"].map((word) =>
        signOf({ word }),
      ),
    ).size,
    6,
  );
});

test("a verdict without parts, secrets or evidence is drawn all the same", () => {
  const text = verdictSection(
    { model: "m-1", verdict: { word: "cannot_tell", headline: "No rows.", limits: [] } },
    "npo",
  ).textContent;
  assert.match(text, /Cannot tell.*No rows\./);
});

test("all evidence, every limit and the command of each missing test are in the first screen", () => {
  const evidence = Array.from({ length: 9 }, (_, i) => ({
    panel: "says",
    metric: "uds",
    state: "towards",
    text: `e${i}`,
  }));
  const missing = [{ test: "teach", text: "not attacked", command: "vestige stress relearn" }];
  const verdict = {
    word: "damaged",
    also: "still leaks",
    headline: "h",
    evidence,
    limits: ["one training seed"],
    parts: { testing: { state: "shallow", done: ["says"], missing } },
    secrets: {
      text: "Still says 1 of 38 secrets",
      said: 1,
      with_secret: 38,
      rows: 40,
      retain: 0,
      full: 37,
      lo: 0.001,
      hi: 0.14,
    },
    rows_needed: 1200,
  };
  const section = verdictSection({ model: "m-1", verdict }, "npo");
  for (const words of [
    "and still leaks",
    "e8",
    "vestige stress relearn",
    "one training seed",
    "1,200 rows",
    "Still says 1 of 38",
    "2 of 40 rows have no secret",
  ])
    assert.ok(section.textContent.includes(words), words);
  assert.equal(section.all("bad").length, 18); // an item and its badge
});

test("bad news comes first, and prose has two decimals", () => {
  const evidence = ["equivalent", "undecided", "towards"].map((state) => ({
    panel: "says",
    state,
    text: `${state} 0.04031 of 1.0000, p 0.00042, v1.234.5`,
  }));
  const section = verdictSection({ model: "m-1", verdict: { word: "partly", headline: "h", evidence } }, "npo");
  const texts = section.all("evidence-text").map((n) => n.textContent);
  assert.equal(texts[0], "towards 0.04 of 1.00, p 0.0004, v1.234.5");
  assert.match(texts[2], /^equivalent/);
});

test("a test that only some models had is named for the others", () => {
  assert.match(unequalTests().textContent, /ascent: its layers/);
  assert.doesNotMatch(unequalTests().textContent, /npo/);
});

test("a number beyond the range is an arrow, and the drawing is told in words", () => {
  const look = {
    marks: [
      [0, "never knew", "retain model"],
      [1, "knows all", "full model"],
    ],
    band: [-0.2, 0.2],
    bandWords: "close",
    range: [-0.6, 1.25],
  };
  const drawn = between({ share: -3, lo: -4, hi: -2 }, look);
  assert.match(drawn.attributes["aria-label"], /^-3\.00 \(-4\.00 to -2\.00\)\. 0 is never knew, the retain model/);
  assert.equal(drawn.all("model")[0].tag, "path");
  assert.equal(between({ share: 0.5 }, look).all("model")[0].tag, "circle");
  assert.equal(between({ share: null }, look).all("model").length, 0);
});

test("a note cannot end the page's data", () => {
  const text = dataText({ notes: { a: "</script>\u2028&" } });
  assert.ok(!/[<>&\u2028]/.test(text));
  assert.deepEqual(JSON.parse(text), { notes: { a: "</script>\u2028&" } });
});

test("secrets are marked where Python found them, also behind characters of two units", () => {
  assert.deepEqual(marked("\u{1f9ea} Born in Tromso.", "Born in Oslo.", [[10, 16]]), [
    ["\u{1f9ea} ", false, false],
    ["Born", true, false],
    [" ", false, false],
    ["in", true, false],
    [" ", false, false],
    ["Tromso", false, true],
    [".", false, false],
  ]);
  assert.deepEqual(marked("a 12 March 1957 b", null, [[2, 15]]), [
    ["a ", false, false],
    ["12 March 1957", false, true],
    [" b", false, false],
  ]);
});
