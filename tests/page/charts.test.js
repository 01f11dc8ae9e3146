// Charts: ranges, ticks, bins, colours, and what a drawn chart holds.

import "./stand_in.js";
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  binned, draw, extent, isOpen, linear, outline, ramp, rangeOf, sharedBins, ticks,
} from "../../src/vestige/report/page/draw.js";

test("ranges leave room, hold zero where asked, and ignore what is missing", () => {
  assert.deepEqual(extent([3, null, NaN, 1]), [1, 3]);
  assert.equal(extent([null]), null);
  assert.deepEqual(rangeOf([0.2, 0.4], { range: [0, 1] }), [0, 1]);
  const [lo, hi] = rangeOf([2, 4], { rangemode: "tozero" });
  assert.equal(lo, 0);
  assert.ok(hi > 4 && hi < 4.5);
  assert.deepEqual(rangeOf([1, 3], { tight: true }), [1, 3]);
});

test("ticks are round numbers within the range, written with as many digits as they need", () => {
  assert.deepEqual(
    ticks(0, 1, 5).map(([, text]) => text),
    ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"],
  );
  assert.deepEqual(
    ticks(-0.4, 3.2, 10, 1).map(([, text]) => text),
    ["0", "1", "2", "3"],
  );
  assert.deepEqual(
    ticks(0, 30000, 3).map(([, text]) => text),
    ["0", "10,000", "20,000", "30,000"],
  );
});

test("bins count every value once, the largest too", () => {
  const found = binned([0, 0.1, 0.5, 1], { start: 0, end: 1, size: 0.25 });
  assert.deepEqual(
    found.map((b) => b.count),
    [2, 0, 1, 1],
  );
  const values = Array.from({ length: 97 }, (_, i) => Math.sin(i));
  const total = binned(values, sharedBins([values], 20)).reduce((n, b) => n + b.count, 0);
  assert.equal(total, 97);
  assert.equal(binned([5, 5], sharedBins([[5, 5]], 20))[0].count, 2);
});

test("a colour ramp passes through its stops", () => {
  const stops = [
    [0, "#000000"],
    [0.5, "#808080"],
    [1, "#ffffff"],
  ];
  assert.deepEqual(
    [-1, 0, 0.5, 1, 2].map((t) => ramp(stops, t)),
    ["#000000", "#000000", "#808080", "#ffffff", "#ffffff"],
  );
  assert.equal(ramp(stops, 0.25), "#404040");
  assert.equal(linear([0, 10], [100, 0])(2.5), 75);
});

test("every mark has an outline, unknown ones are circles", () => {
  for (const name of ["square", "diamond-open", "x", "star", "nobody"]) assert.match(outline(name, 5, 5, 8), /^M.*Z$/);
  assert.equal(outline("nobody", 1, 2, 8), outline("circle", 1, 2, 8));
  assert.ok(isOpen("circle-open") && !isOpen("circle"));
});

const points = {
  type: "scatter",
  mode: "lines+markers",
  x: [0, 1, 2, 3],
  y: [0, 1, null, 2],
  name: "<b>points</b>",
  line: { color: "#112233" },
  marker: { size: 6 },
  text: ["a", "b", "c", "d"],
  customdata: ["A", "B", "C", "D"],
};
const paths = (node) =>
  node.children.flatMap((c) => [...(c.tag === "path" ? [c.attributes.d] : []), ...(c.children ? paths(c) : [])]);

test("a line has a gap where a value is missing, and the nearest mark is found", () => {
  const { node, find } = draw(400, 300, { traces: [points], layout: { xaxis: { title: "x" }, yaxis: { title: "y" } } });
  const [line] = paths(node);
  assert.equal(line.match(/M/g).length, 2);
  const [joined] = paths(draw(400, 300, { traces: [{ ...points, connectgaps: true }] }).node);
  assert.equal(joined.match(/M/g).length, 1);
  const end = line.split("M").at(-1).split(" ").map(Number);
  assert.equal(find(end[0] + 3, end[1] - 3).custom, "D");
  assert.equal(find(end[0] + 3, end[1] + 100), null);
});

test("a bar is found under the pointer and says how many rows it holds", () => {
  const bars = { type: "histogram", x: [0, 0, 0, 1], name: "forget", nbinsx: 2, marker: { color: "#112233" } };
  const { find } = draw(400, 300, { traces: [bars], layout: {} });
  assert.match(find(120, 250).text, /forget\n3\.000 models at 0/);
});

test("cells of a heat map are found by what they hold", () => {
  const heat = {
    type: "heatmap",
    z: [
      [0, 1],
      [2, null],
    ],
    x: ["0", "1"],
    y: [0, 1],
    customdata: [
      ["a", "b"],
      ["c", "d"],
    ],
    colorscale: [
      [0, "#000000"],
      [1, "#ffffff"],
    ],
  };
  const { find } = draw(400, 300, {
    traces: [heat],
    layout: { xaxis: { type: "category" }, yaxis: { autorange: "reversed" } },
  });
  assert.equal(find(80, 30).custom, "a");
  assert.equal(find(330, 30).custom, "b");
  assert.equal(find(80, 250).custom, "c");
  assert.equal(find(330, 250), null);
});
