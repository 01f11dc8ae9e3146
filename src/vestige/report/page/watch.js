// Served by `vestige view`, the page asks now and then whether the report was made anew. From a file it never asks.

const EVERY = 3000; // ms

export function watch() {
  const live = document.documentElement.dataset.live === "true" && location.protocol.startsWith("http");
  if (live) setInterval(ask, EVERY);
}

let known = null;

async function ask() {
  if (document.hidden) return;
  try {
    const answer = await fetch("version", { cache: "no-store" });
    if (!answer.ok) return;
    const version = await answer.text();
    if (known !== null && version !== known) location.reload();
    known = version;
  } catch {
    // The viewer has stopped: the page stays as it is.
  }
}
