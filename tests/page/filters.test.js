import { withReport } from "./stand_in.js";
import assert from "node:assert/strict";
import test from "node:test";

const values = (uds) => ({ uds: { v: uds } });
const models = [
  { id: "a", name: "npo lr 1e-5", method: "NPO", epoch: "ep5", role: "unlearned", values: values(0.4), settings: { lr: 0.00001 } },
  { id: "b", name: "npo again", method: "NPO", epoch: "ep10", role: "unlearned", values: values(0.8), settings: {} },
  { id: "c", name: "ga", method: "GA", epoch: "ep5", role: "unlearned", values: values(null), settings: {} },
];
withReport({ models, metrics: { uds: { label: "Depth", better: "high" } }, columns: ["uds"] });

const { parseBound, passing } = await import("../../src/vestige/report/page/filters.js");
const data = await import("../../src/vestige/report/page/data.js");
const state = await import("../../src/vestige/report/page/state.js");

const shown = (choices) => {
  state.set({ "m.q": "", "m.f": [], "m.method": [], "m.epoch": [], "m.best": "", ...choices });
  return passing(models).map((m) => m.id);
};

test("a bound is a name, a sign and a number", () => {
  assert.deepEqual(parseBound("uds>=0.5"), { key: "uds", op: ">=", bound: 0.5 });
  assert.deepEqual(parseBound("a>b<=-1e-3"), { key: "a>b", op: "<=", bound: -0.001 });
  assert.equal(parseBound("uds=0.5"), null);
});

test("filters narrow, and all of them hold at once", () => {
  assert.deepEqual(shown({}), ["a", "b", "c"]);
  assert.deepEqual(shown({ "m.q": "NPO again" }), ["b"]);
  assert.deepEqual(shown({ "m.method": ["NPO"], "m.epoch": ["ep5"] }), ["a"]);
  assert.deepEqual(shown({ "m.f": ["uds>=0.5"] }), ["b"]);
  assert.deepEqual(shown({ "m.f": ["uds<=1"] }), ["a", "b"]); // a missing number passes no bound
});

test("the best of each method; a method without the number has none", () => {
  assert.deepEqual(shown({ "m.best": "uds" }), ["b"]);
});

test("data answers for what the report does not hold", () => {
  assert.equal(data.modelName("gone"), "gone");
  assert.equal(data.number("c", "uds"), null);
  assert.equal(data.cell("a", "toString"), null);
  assert.equal(data.metric("new_metric").label, "new_metric");
  assert.equal(data.settingsText(models[0]), "lr 1e-5");
});
