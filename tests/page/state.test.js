import { comeTo } from "./stand_in.js";
import assert from "node:assert/strict";
import test from "node:test";

const state = await import("../../src/vestige/report/page/state.js");

test("choices are kept in the address, lists repeat their key, nothing removes one", () => {
  state.set({ view: "models", "m.f": ["a>=1", "b<=2"], "m.q": "x y" });
  assert.equal(globalThis.location.hash, "#view=models&m.f=a%3E%3D1&m.f=b%3C%3D2&m.q=x+y");
  assert.deepEqual(state.getAll("m.f"), ["a>=1", "b<=2"]);
  state.set({ "m.f": [], "m.q": "" });
  assert.equal(globalThis.location.hash, "#view=models");
});

test("a link does not change the state", () => {
  assert.equal(state.address({ view: "metrics" }), "#view=metrics");
  assert.equal(state.get("view"), "models");
});

test("numbers from the address are numbers or the default", () => {
  state.set({ a: "0.5", b: "x" });
  assert.deepEqual([state.getNumber("a", 1), state.getNumber("b", 1), state.getNumber("c", 2)], [0.5, 1, 2]);
});

test("going back is told, once", () => {
  let told = 0;
  state.onChange(() => (told += 1));
  comeTo("#view=audit");
  comeTo("#view=audit");
  assert.deepEqual([told, state.get("view")], [1, "audit"]);
});
