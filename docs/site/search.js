// Search over all pages: every word must occur; titles count most, then headings, then text.
const box = document.getElementById("query");
const found = document.getElementById("found");

function score(page, words) {
  const title = page.title.toLowerCase();
  const text = page.text.toLowerCase();
  let sum = 0;
  for (const word of words) {
    const inHeads = page.heads.filter(([, head]) => head.toLowerCase().includes(word)).length;
    const here = 50 * title.includes(word) + 10 * inHeads + Math.min(9, text.split(word).length - 1);
    if (!here) return 0;
    sum += here;
  }
  return sum;
}

function excerpt(page, word) {
  const at = page.text.toLowerCase().indexOf(word);
  return at < 0 ? "" : `... ${page.text.slice(Math.max(0, at - 40), at + 80)} ...`;
}

function link(page, words) {
  const head = page.heads.find(([, h]) => words.some((w) => h.toLowerCase().includes(w)));
  const a = document.createElement("a");
  a.href = page.file + (head ? `#${head[0]}` : "");
  a.textContent = page.title;
  const small = document.createElement("small");
  small.textContent = head && head[1] !== page.title ? head[1] : excerpt(page, words[0]);
  a.append(small);
  return a;
}

box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\s+/).filter((w) => w.length > 1);
  const hits = words.length
    ? PAGES.map((page) => [score(page, words), page]).filter(([s]) => s > 0).sort((a, b) => b[0] - a[0]).slice(0, 8)
    : [];
  found.replaceChildren(...hits.map(([, page]) => link(page, words)));
  if (words.length && !hits.length) found.textContent = "Nothing found.";
});
