// Served by `vestige view`, the page asks now and then whether the report was rebuilt. From a file it never asks.

const EVERY = 3000; // ms
const SHOWN = document.documentElement.dataset.live; // the version this page was made of; empty in a file

export function watch() {
  if (SHOWN && location.protocol.startsWith("http")) setInterval(ask, EVERY);
}

async function ask() {
  if (document.hidden) return;
  try {
    const answer = await fetch("version", { cache: "no-store" });
    if (!answer.ok) return;
    if ((await answer.text()) !== SHOWN) location.reload();
  } catch {
    // The viewer has stopped: the page stays as it is.
  }
}
