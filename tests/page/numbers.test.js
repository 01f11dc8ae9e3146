import "./stand_in.js";
import assert from "node:assert/strict";
import test from "node:test";

const { count, fmt, interval, isNumber, own } = await import("../../src/vestige/report/page/dom.js");
const { csv, csvCell, records } = await import("../../src/vestige/report/page/save.js");

test("numbers are printed with the digits they deserve", () => {
  const cases = [[0.12345, "0.123"], [0, "0.000"], [1.9e-5, "1.9e-5"], [12.345, "12.35"], [123.45, "123.5"], [1234.5, "1,235"]];
  cases.forEach(([value, text]) => assert.equal(fmt(value), text));
  assert.equal(fmt(10000), "10,000");
  [null, undefined, Number.NaN, Infinity, "3"].forEach((value) => assert.equal(fmt(value), "–"));
});

test("an interval needs both ends", () => {
  assert.equal(interval({ lo: 0.1, hi: 0.2 }), "0.100 to 0.200");
  assert.equal(interval({ lo: 0.1, hi: null }), "");
  assert.equal(interval(null), "");
});

test("only finite numbers are numbers", () => {
  assert.deepEqual([1, 0, Number.NaN, Infinity, "1", null].map(isNumber), [true, true, false, false, false, false]);
});

test("inherited names are not data", () => {
  assert.equal(own({}, "constructor"), undefined);
  assert.equal(own({ constructor: 1 }, "constructor"), 1);
  assert.equal(own(null, "a"), undefined);
});

test("one row, two rows", () => {
  assert.deepEqual([count(1, "row"), count(2000, "row"), count(0, "entry", "entries")], ["1 row", "2,000 rows", "0 entries"]);
});

test("a table of numbers survives a spreadsheet", () => {
  assert.deepEqual(["=1+1", "-x", "@a", -1, 'say "a", b', null].map(csvCell), ["'=1+1", "'-x", "'@a", "-1", '"say ""a"", b"', ""]);
  assert.equal(csv({ columns: ["a", "b"], rows: [[1, "x\ny"]] }), 'a,b\r\n1,"x\ny"\r\n');
  assert.deepEqual(records({ columns: ["a", "b"], rows: [[1]] }), [{ a: 1, b: null }]);
});
