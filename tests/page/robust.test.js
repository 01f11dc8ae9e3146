// The same numbers as in the examples of vestige/meta/robustness.py.
import assert from "node:assert/strict";
import test from "node:test";
import { harmonic, likeness, live, oneSidedQ, oneSidedR, robustness, whyNot } from "../../src/vestige/report/page/robust.js";

const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-9, `${a} is not ${b}`);

test("likeness is 1 for equal numbers and 0 for opposite ones", () => {
  [[0.2, 0.2, 1], [0.1, 0.3, 0.5], [-1, 1, 0], [0, 0, 1]].forEach(([a, b, want]) => near(likeness(a, b), want));
});

test("the one-sided rules punish recovery only", () => {
  assert.deepEqual([oneSidedQ(0.2, 0.4), oneSidedQ(0.4, 0.2), oneSidedQ(0, 0.3), oneSidedQ(-2, -1)], [0.5, 1, 0, null]);
  assert.deepEqual([oneSidedR(0.4, 0.2), oneSidedR(0.1, 0.2), oneSidedR(-0.1, 0.2), oneSidedR(0.1, -0.2)], [0.5, 1, 1, 0]);
});

test("a harmonic mean is 0 with a zero in it, and none with a missing part", () => {
  near(harmonic(0.5, 1), 2 / 3);
  assert.equal(harmonic(0, 1), 0);
  assert.equal(harmonic(null, 1), null);
});

test("models are left out for a reason, and a model may be called constructor", () => {
  const filters = { utility: { a: 0.5, b: 0.9 }, least: 0.8, threshold: 0.4 };
  assert.equal(whyNot("a", 0.1, filters), "utility_rel below 0.8");
  assert.equal(whyNot("constructor", 0.1, filters), "no utility_rel");
  assert.match(whyNot("b", 0.5, filters), /^above the threshold/);
  assert.equal(whyNot("b", null, filters), "no value before the attack");
  assert.equal(whyNot("b", 0.3, filters), "");
});

const states = {
  retain: { before: 0.1, relearning: 0.3 },
  models: [
    { model: "a", before: 0.2, relearning: 0.6, quantization: 0.4 },
    { model: "b", before: 0.9, relearning: 0.9, quantization: 0.9 },
  ],
};

test("R and Q are means over the models that pass", () => {
  const found = robustness(states, "one-sided", { utility: null, threshold: 0.5 });
  assert.deepEqual([found.n, found.total, found.reason], [1, 2, ""]);
  near(found.r, 0.5);
  near(found.q, 0.5);
  near(found.agg, 0.5);
});

test("what has no value says why", () => {
  const none = robustness(states, "symmetric", { utility: null, threshold: -1 });
  assert.deepEqual([none.agg, none.reason], [null, "no model passes the filters"]);
  const alone = robustness({ ...states, retain: null }, "symmetric", { utility: null });
  assert.match(alone.reason, /retain model was not measured/);
});

test("another metric may choose the models", () => {
  const meta = {
    utility: {},
    metrics: [{ key: "m", filtered_by: "judge" }, { key: "judge", threshold_m: 0.5 }],
    states: { m: states, judge: { retain: null, models: [{ model: "b", before: 0.1 }] } },
  };
  const found = live(meta, { rule: "symmetric", least: 0.8, useThreshold: true, thresholds: new Map() });
  assert.deepEqual(found.get("m").each.filter((s) => !s.why).map((s) => s.model), ["b"]);
});
