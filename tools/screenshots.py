"""Pictures of every view, light and dark, on a desktop, a phone and paper; and the README's picture of a report.

    python tools/screenshots.py REPORT.json OUT [--readme docs/report.png]

The pictures are for looking at: does anything overlap, is anything cut off, is the answer in the first screen?
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser_tools import VIEWS, Opened, browser, open_page, why_not
from vestige.report.page import render_page

SCREENS = {"desktop": (1400, 900), "phone": (420, 900)}
THEMES = ("light", "dark")
MOST = 300_000  # bytes of the README's picture

SCROLL = """async () => {
    for (let y = 0; y < document.body.scrollHeight; y += 600) {
        scrollTo(0, y);
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60)));
    }
    scrollTo(0, 0);
    await new Promise((done) => setTimeout(done, 200));
}"""


def views_of(report: dict[str, Any]) -> list[str]:
    there = {"audit": report["audits"], "metrics": report["meta"], "trajectories": report["trajectories"]}
    there |= {"collapse": report["collapse"], "training": report.get("training")}
    return [view for view in VIEWS if there.get(view, True)]


def shoot(page: Opened, name: str, out: Path, whole: bool = True) -> None:
    page.page.evaluate(SCROLL)
    wide = page.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.page.screenshot(path=out / f"{name}.png", full_page=whole)
    print(f"{name}.png" + (f"  {wide} px wider than the screen" if wide > 0 else ""))


def all_views(running: Any, file: Path, report: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for screen, (width, height) in SCREENS.items():
        page = open_page(running, file, width, height)
        for theme in THEMES:
            for view in views_of(report):
                page.go(f"view={view}&theme={theme}")
                shoot(page, f"{view}_{screen}_{theme}", out)
        page.page.close()
    page = open_page(running, file)
    for view in views_of(report):
        page.go(f"view={view}")
        page.page.pdf(path=out / f"{view}_paper.pdf", format="A4")
    page.page.close()


def readme_picture(running: Any, file: Path, target: Path) -> None:
    """The first screen, in few enough colours to be small."""
    from PIL import Image

    page = open_page(running, file, 1280, 900)
    shoot(page, target.stem, target.parent, whole=False)
    picture = Image.open(target).convert("RGB").quantize(128)
    picture.save(target, optimize=True)
    size = target.stat().st_size
    print(f"{target}: {size / 1000:.0f} KB" + ("" if size < MOST else ", which is too much"))


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("report", type=Path)
    ask.add_argument("out", type=Path)
    ask.add_argument("--readme", type=Path)
    args = ask.parse_args()
    if why_not():
        sys.exit(f"tools/screenshots.py needs a browser: {why_not()}.")
    report = json.loads(args.report.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as place, browser() as running:
        file = Path(place) / "index.html"
        file.write_text(render_page(report), encoding="utf-8")
        all_views(running, file, report, args.out)
        if args.readme:
            readme_picture(running, file, args.readme)


if __name__ == "__main__":
    main()
