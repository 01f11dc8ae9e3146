import assert from "node:assert/strict";
import test from "node:test";
import { compare, marks, paretoFront, sorted } from "../../src/vestige/report/page/order.js";

test("numbers sort as numbers, text by the numbers in it", () => {
  assert.ok(compare(9, 10) < 0);
  assert.ok(compare("ep9", "ep10") < 0);
  assert.equal(compare("NPO", "npo"), 0);
});

test("missing values come last in both directions", () => {
  const rows = [null, 2, Number.NaN, 1, undefined, "", 3];
  assert.deepEqual(sorted(rows, (r) => r, false).slice(0, 3), [1, 2, 3]);
  assert.deepEqual(sorted(rows, (r) => r, true).slice(0, 3), [3, 2, 1]);
  assert.equal(sorted(rows, (r) => r, true).length, rows.length);
});

test("equal rows keep their order", () => {
  const rows = ["b", "a", "c"].map((name) => ({ name, v: 1 }));
  assert.deepEqual(sorted(rows, (r) => r.v, true).map((r) => r.name), ["b", "a", "c"]);
});

test("best, second and worst are marked, ties share a mark, two values have none", () => {
  assert.deepEqual([...marks([1, 3, 2, 3], "high")].sort(), [[1, "worst"], [2, "second"], [3, "best"]]);
  assert.equal(marks([1, 3, 2], "low").get(1), "best");
  assert.equal(marks([1, 2], "high").size, 0);
  assert.equal(marks([1, 2, 3], null).size, 0);
});

test("the front holds the points that no other point beats", () => {
  const points = [{ x: 1, y: 3 }, { x: 2, y: 2 }, { x: 1.5, y: 1 }, { x: 3, y: 1 }];
  assert.deepEqual(paretoFront(points, "high", "high"), [0, 1, 3]);
  assert.deepEqual(paretoFront(points, "low", "low"), [0, 2]);
});
