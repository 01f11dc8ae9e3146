// Outlines of the marks in charts, as path data around a point. One path can hold many marks.

const polygon = (x, y, r, angles) =>
  `M${angles.map((a) => `${(x + r * Math.sin(a)).toFixed(1)} ${(y - r * Math.cos(a)).toFixed(1)}`).join("L")}Z`;

const turn = (n, shift = 0) => Array.from({ length: n }, (_, i) => ((i + shift) * 2 * Math.PI) / n);

const circle = (x, y, r) =>
  `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;

/** Arms of a plus sign, turned by an angle. */
function arms(x, y, r, angle) {
  const w = r * 0.36;
  const corners = [
    [-w, -r], [w, -r], [w, -w], [r, -w], [r, w], [w, w], [w, r], [-w, r], [-w, w], [-r, w], [-r, -w], [-w, -w],
  ]; // prettier-ignore
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  return `M${corners.map(([a, b]) => `${(x + a * c - b * s).toFixed(1)} ${(y + a * s + b * c).toFixed(1)}`).join("L")}Z`;
}

function star(x, y, r) {
  const points = turn(10).map((a, i) => [a, i % 2 ? r * 0.45 : r * 1.1]);
  return `M${points.map(([a, q]) => `${(x + q * Math.sin(a)).toFixed(1)} ${(y - q * Math.cos(a)).toFixed(1)}`).join("L")}Z`;
}

const SHAPES = {
  circle,
  square: (x, y, r) => polygon(x, y, r * 1.25, turn(4, 0.5)),
  diamond: (x, y, r) => polygon(x, y, r * 1.2, turn(4)),
  "triangle-up": (x, y, r) => polygon(x, y, r * 1.2, turn(3)),
  cross: (x, y, r) => arms(x, y, r, 0),
  x: (x, y, r) => arms(x, y, r, Math.PI / 4),
  pentagon: (x, y, r) => polygon(x, y, r * 1.1, turn(5)),
  hexagon: (x, y, r) => polygon(x, y, r * 1.1, turn(6)),
  star,
};

/** "diamond" and "diamond-open" have one outline; open marks are not filled. */
export const outline = (symbol, x, y, size) =>
  (SHAPES[String(symbol ?? "circle").replace("-open", "")] ?? circle)(x, y, size / 2);

export const isOpen = (symbol) => String(symbol ?? "").endsWith("-open");
