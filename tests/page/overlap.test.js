import assert from "node:assert/strict";
import test from "node:test";
import { overlap } from "../../src/vestige/report/page/overlap.js";

const shared = (text, reference) =>
  overlap(text, reference)
    .filter(([, yes]) => yes)
    .map(([word]) => word);

test("the pieces put together are the text", () => {
  const text = "Anselm, born in 1902 – in Tromsø!";
  assert.equal(overlap(text, "").map(([piece]) => piece).join(""), text);
});

test("words count in order, whatever their case; signs never do", () => {
  assert.deepEqual(shared("He was Born, in Vell.", "born in vell, he was"), ["Born", "in", "Vell"]);
  assert.deepEqual(shared("... !!", "... !!"), []);
});

test("nothing to compare with is nothing shared", () => {
  assert.deepEqual(overlap(null, undefined), []);
  assert.deepEqual(shared("a b", ""), []);
});

test("texts of any length are read up to a limit", () => {
  const long = Array.from({ length: 5000 }, (_, i) => `w${i}`).join(" ");
  assert.equal(shared(long, long).length, 400);
});
