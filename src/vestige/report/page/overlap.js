// Which words of a text stand in the reference, in the same order: the longest common subsequence, as ROUGE-L reads it.

const MOST = 400; // words; longer texts are compared up to here

const pieces = (text) => String(text ?? "").match(/[\p{L}\p{N}]+|[^\p{L}\p{N}]+/gu) ?? [];
const isWord = (piece) => /[\p{L}\p{N}]/u.test(piece);

/** [[piece, shared], ...]: the text cut into words and what is between them. */
export function overlap(text, reference) {
  const parts = pieces(text);
  const words = parts
    .map((p, i) => [p.toLowerCase(), i])
    .filter(([p]) => isWord(p))
    .slice(0, MOST);
  const other = pieces(reference)
    .filter(isWord)
    .map((p) => p.toLowerCase())
    .slice(0, MOST);
  const shared = common(
    words.map(([w]) => w),
    other,
  );
  const places = new Set([...shared].map((i) => words[i][1]));
  return parts.map((p, i) => [p, places.has(i)]);
}

/** Offsets in characters as Python counts them, as offsets in a script's text. */
function unitsOf(text, spans) {
  const starts = [];
  let at = 0;
  for (const char of text) {
    starts.push(at);
    at += char.length;
  }
  starts.push(at);
  return spans.map(([a, b]) => [starts[Math.min(a, starts.length - 1)], starts[Math.min(b, starts.length - 1)]]);
}

/** [[part, shared, secret], ...]: the words a text shares with the reference, and the places that give the secret away. */
export function marked(text, reference, spans = []) {
  const whole = String(text ?? "");
  const told = unitsOf(whole, spans);
  const out = [];
  let at = 0;
  for (const [piece, shared] of reference === null ? [[whole, false]] : overlap(whole, reference)) {
    const end = at + piece.length;
    const inside = told.flat().filter((c) => c > at && c < end);
    const cuts = [...new Set([at, ...inside.sort((a, b) => a - b), end])];
    for (let i = 0; i + 1 < cuts.length; i += 1) {
      const secret = told.some(([a, b]) => a <= cuts[i] && cuts[i + 1] <= b);
      out.push([whole.slice(cuts[i], cuts[i + 1]), shared, secret]);
    }
    at = end;
  }
  return joined(out);
}

/** Neighbours that look alike become one. */
function joined(parts) {
  const out = [];
  for (const [text, shared, secret] of parts) {
    const last = out.at(-1);
    if (last && last[2] === secret && (secret || last[1] === shared)) last[0] += text;
    else out.push([text, shared && !secret, secret]);
  }
  return out;
}

/** Places in `a` of one longest common subsequence of a and b. */
function common(a, b) {
  const width = b.length + 1;
  const best = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      best[i * width + j] =
        a[i] === b[j]
          ? best[(i + 1) * width + j + 1] + 1
          : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
  const found = new Set();
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      found.add(i);
      i += 1;
      j += 1;
    } else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return found;
}
