"""How long the page takes to answer with 1,000 models and 10,000 example rows, in a real browser.

answer: from the reader's action until the browser has drawn the table, list or text that answers. charts: until the
charts were drawn too. thread: what all of it cost the page's main thread, whatever else the machine does. Each
is the median of several. ratio: thread time against the lightest action, changing the view of an empty report.

    python bench/report.py [--models 1000] [--rows 10000] [--repeat 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import report_samples
from browser_tools import Opened, browser, open_page, why_not
from vestige.report.build import empty_report
from vestige.report.page import render_page

LIMIT = 200  # ms

# From the action until the second frame after it (the first draws, the second comes when drawing is done), and until
# no chart waits to be drawn any more.
TIMED = """async ([selector, kind, value]) => {
    const node = document.querySelector(selector);
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    await frame();
    const start = performance.now();
    if (kind === "click") node.click();
    else { node.value = value; node.dispatchEvent(new Event("input", {bubbles: true})); }
    if (kind === "type") await new Promise((done) => setTimeout(done, 61));
    await frame();
    await frame();
    const answered = performance.now() - start;
    while (document.querySelector("[aria-busy=true]")) await frame();
    await frame();
    return [answered, performance.now() - start];
}"""

# name, view it happens in, what is touched, how, and the values in turn
ACTIONS: list[tuple[str, str, str, str, list[Any]]] = [
    ("sort the table", "models", '.grid [data-sort="forget_Q_A_ROUGE"]', "click", [None]),
    ("filter by method", "models", ".toggle", "click", [None]),
    ("search the models", "models", ".filters input[type=search]", "type", ["npo", "e-5", ""]),
    ("choose a model", "models", ".grid tbody input[type=checkbox]", "click", [None]),
    ("move the utility filter", "metrics", ".controls input[type=range]", "move", [0.6, 0.7, 0.8, 0.9]),
    ("move a threshold", "metrics", "#one-metric input[type=range]", "move", [0.2, 0.4, 0.6]),
    ("search 10,000 rows", "audit", "#panel-says input[type=search]", "type", ["river", "glass snow", "1957", ""]),
    ("filter rows by leak", "audit", "#panel-says input[type=range]", "move", [0.2, 0.5, 0.0]),
    ("open the models", "audit", '#views a[href*="view=models"]', "click", [None]),
    ("open the metrics", "audit", '#views a[href*="view=metrics"]', "click", [None]),
    ("open the audit", "models", '#views a[href*="view=audit"]', "click", [None]),
]


class Clock:
    """Time on the page's main thread, which other work on the machine does not lengthen."""

    def __init__(self, page: Any) -> None:
        self.session = page.context.new_cdp_session(page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def read(self) -> float:
        found = self.session.send("Performance.getMetrics")["metrics"]
        return 1000 * float(next(m["value"] for m in found if m["name"] == "TaskDuration"))


def timed(page: Opened, clock: Clock, action: tuple[str, str, str, str, list[Any]], repeat: int) -> list[float]:
    """Medians: until the page answered, until its charts were drawn too, and what that cost its thread."""
    _, view, selector, kind, values = action
    taken = []
    for turn in range(repeat):
        if turn == 0 or selector.startswith("#views"):
            page.go(f"view={view}")
            page.page.wait_for_timeout(150)
            page.page.evaluate("document.querySelector('.plot')?.scrollIntoView()")
            page.page.wait_for_timeout(150)
        before = clock.read()
        walls = page.page.evaluate(TIMED, [selector, kind, values[turn % len(values)]])
        taken.append([*walls, clock.read() - before])
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def loading(page: Opened) -> float:
    start = time.perf_counter()
    page.load()
    return 1000 * (time.perf_counter() - start)


def written(folder: Path, name: str, report: dict[str, Any]) -> Path:
    file = folder / f"{name}.html"
    file.write_text(render_page(report), encoding="utf-8")
    return file


def many(models: int, rows: int) -> dict[str, Any]:
    """The big sample, its models spread over as many methods as a large benchmark has."""
    report = report_samples.big(models, rows)
    for i, m in enumerate(report["models"]):
        m["method"] = m["name"] if m["role"] in ("full", "retain") else f"method {i % 8}"
    return report


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--models", type=int, default=1000)
    ask.add_argument("--rows", type=int, default=10_000)
    ask.add_argument("--repeat", type=int, default=5)
    args = ask.parse_args()
    if why_not():
        sys.exit(f"bench/report.py needs a browser: {why_not()}.")
    with tempfile.TemporaryDirectory() as place, browser() as running:
        folder = Path(place)
        empty = open_page(running, written(folder, "empty", empty_report("Empty")))
        switch = ("", "sources", '#views a[href*="view=models"]', "click", [None])
        yardstick = timed(empty, Clock(empty.page), switch, args.repeat)
        page = open_page(running, written(folder, "big", many(args.models, args.rows)))
        clock = Clock(page.page)
        rows = [(action[0], timed(page, clock, action, args.repeat)) for action in ACTIONS]
        show(rows, yardstick)
        print(f"\nload: empty {loading(empty):.0f} ms, big {loading(page):.0f} ms")
        for opened in (empty, page):
            print(f"weight: {opened.file.stem} {opened.file.stat().st_size / 1e6:.2f} MB")
    print(f"load average of the machine meanwhile: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def show(rows: list[tuple[str, list[float]]], yardstick: list[float]) -> None:
    print(f"{'action':26} {'answer':>8} {'charts':>8} {'thread':>8} {'ratio':>6}   (ms; limit {LIMIT})")
    for name, (answer, charts, thread) in [("change of view, empty page", yardstick), *rows]:
        late = "  over the limit" if answer > LIMIT else ""
        print(f"{name:26} {answer:8.0f} {charts:8.0f} {thread:8.0f} {thread / yardstick[2]:6.1f}{late}")


if __name__ == "__main__":
    main()
