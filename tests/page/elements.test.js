import "./stand_in.js";
import assert from "node:assert/strict";
import test from "node:test";

const { el, missing, segments } = await import("../../src/vestige/report/page/dom.js");
const { plainTable, VirtualList } = await import("../../src/vestige/report/page/table.js");

test("text stays text", () => {
  const node = el("p.note", {}, "<img src=x onerror=alert(1)>", null, false, el("b", {}, "bold"));
  assert.deepEqual([node.tag, [...node.classes], node.children.length], ["p", ["note"], 2]);
  assert.equal(node.textContent, "<img src=x onerror=alert(1)>bold");
});

test("properties: listeners, styles, attributes, and none for null", () => {
  let clicks = 0;
  const node = el("a", { href: "#x", hidden: true, title: null, style: { top: "1px" }, onclick: () => (clicks += 1) });
  node.fire("click");
  assert.equal(clicks, 1);
  assert.deepEqual(node.attributes, { href: "#x", hidden: "" });
  assert.deepEqual(node.styles, { top: "1px" });
});

test("what is missing has a reason", () => {
  assert.equal(missing("No layers.", "").textContent, "No layers. no reason was given");
});

test("one segment is on", () => {
  const on = segments("view", [["a", "A"], ["b", "B"]], "b", () => {}).all("segment").map((s) => s.children[0].checked);
  assert.deepEqual(on, [undefined, true]); // false is not assigned
});

test("a plain table aligns numbers and says how many rows it leaves out", () => {
  const rows = Array.from({ length: 5 }, (_, i) => [`row ${i}`, i / 2, null]);
  const table = plainTable("Values", { columns: ["name", "v", "none"], rows }, 3);
  assert.match(table.textContent, /the first 3 of 5 rows/);
  assert.equal(table.all("number").length, 4); // one head, three cells
});

test("a long list draws only the rows in sight, and keys move the choice", () => {
  const chosen = [];
  const list = new VirtualList({ height: 100, rowHeight: 20, label: "rows", render: (r) => [`row ${r}`], onChoose: (r) => chosen.push(r) });
  list.show(Array.from({ length: 1000 }, (_, i) => i));
  assert.equal(list.inner.styles.height, "20000px");
  assert.equal(list.inner.children.length, 15);
  for (const key of ["ArrowDown", "ArrowDown", "PageDown", "End", "ArrowDown", "Home", "x"]) list.node.fire("keydown", { key });
  assert.deepEqual(chosen, [0, 1, 6, 999, 999, 0]);
});
