// Training runs: which looks count, which are on the frontier, and what is told of the best one.

import assert from "node:assert/strict";
import { test } from "node:test";
import { allowed, bestWords, frontier, placed, sharedValues, starWords } from "../../src/vestige/report/page/frontier.js";

const run = {
  steps: [0, 10, 20, 30, 40],
  share: [1, 0.6, 0.2, -0.1, -0.9],
  kept: [1, 0.95, 0.8, 0.7, null],
  score: [0, 0.56, 0.8, 0.79, null],
  why: ["", "", "", "", "over-forgotten: p is 0, the retain model has 0.4"],
  best: 20,
};

test("looks without both numbers have no place; closeness falls on both sides of the retain model", () => {
  assert.deepEqual(
    placed(run).map((p) => p.step),
    [0, 10, 20, 30],
  );
  assert.deepEqual(
    placed(run).map((p) => Number(p.closeness.toFixed(3))),
    [0, 0.4, 0.8, 0.9],
  );
  assert.equal(placed({ steps: [1], share: [-3], kept: [1] })[0].closeness, 0);
});

test("the model before the first step, and looks without a score, are never on the frontier", () => {
  assert.deepEqual(
    frontier(run).map((p) => p.step),
    [30, 20, 10],
  );
  assert.equal(allowed(run, { step: 0, i: 0 }), false);
  assert.equal(allowed(run, { step: 40, i: 4 }), false);
  const ruined = { ...run, score: [0, 0.5, null, null, null] };
  assert.deepEqual(
    frontier(ruined).map((p) => p.step),
    [10],
  );
});

test("a look that another beats in both is not on the frontier", () => {
  const worse = { steps: [1, 2], share: [0.5, 0.4], kept: [0.5, 0.6], score: [0.5, 0.6], why: ["", ""], best: 2 };
  assert.deepEqual(
    frontier(worse).map((p) => p.step),
    [2],
  );
});

test("the sentence names the best look, or says why there is none", () => {
  assert.equal(bestWords(run), "The best look is that at step 20, score 0.800.");
  assert.match(bestWords({ ...run, best: null }), /No look may be the best one: over-forgotten/);
  assert.equal(bestWords({ steps: [], best: null }), "No look may be the best one.");
});

test("runs with the same yardstick share its line; stars are told apart by name", () => {
  const runs = [
    { name: "a", best: 20, retain: { p: 0.2 } },
    { name: "b", best: null, retain: { p: 0.2, q: 1 } },
    { name: "c", best: 5, retain: { p: 0.3 } },
  ];
  assert.deepEqual(sharedValues(runs, "retain", "p"), [
    { value: 0.2, names: ["a", "b"] },
    { value: 0.3, names: ["c"] },
  ]);
  assert.deepEqual(sharedValues(runs, "before", "p"), []);
  assert.equal(starWords(runs), "stars: the best looks (a step 20, c step 5)");
  assert.equal(starWords(runs.slice(0, 1)), "star: the best look (step 20)");
  assert.equal(starWords(runs.slice(1, 2)), "");
});
