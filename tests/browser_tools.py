"""A real browser for the page: the system's chromium, driven by playwright, without a network.

Used by the tests, the bench and the screenshots. `why_not()` says what is missing; nothing is downloaded.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.report.page import render_page

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
VIEWS = ("audit", "models", "metrics", "training", "trajectories", "collapse", "sources")


def chromium_path() -> str | None:
    return os.environ.get("VESTIGE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def axe_path() -> Path | None:
    """axe-core's script, which finds what keeps people from using a page: VESTIGE_AXE, or where npm installs it."""
    places = [os.environ.get("VESTIGE_AXE") or "", "node_modules/axe-core/axe.min.js"]
    return next((p for place in places if place and (p := Path(place)).is_file()), None)


def why_not() -> str:
    """Why there can be no browser here; empty if there can."""
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed"
    if chromium_path() is None:
        return "no chromium on this machine (Debian: apt-get install chromium)"
    return ""


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium_path(), args=list(FLAGS))
        try:
            yield running
        finally:
            running.close()


@dataclass
class Opened:
    """A page from disk, and everything it said or asked for."""

    page: Any
    file: Path
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def load(self, state: str = "") -> None:
        """The page as a reader who opens a link sees it."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.file.as_uri()}#{state}")
        self.page.wait_for_selector("#views a")

    def go(self, state: str = "") -> None:
        """The same by changing the address of the page that is open: every view is drawn anew."""
        for address in ("view=nowhere", state):
            self.page.evaluate(
                "(to) => new Promise((done) => { addEventListener('hashchange', () => done(), "
                "{once: true}); location.hash = to; })",
                address,
            )

    def visit(self, view: str) -> None:
        self.page.click(f'#views a[href*="view={view}"]')

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def texts(self, selector: str) -> list[str]:
        return list(self.page.locator(selector).all_inner_texts())

    def state(self) -> str:
        return str(self.page.evaluate("location.hash"))

    def download(self, selector: str) -> bytes:
        with self.page.expect_download() as started:
            self.page.locator(selector).first.click()
        return Path(started.value.path()).read_bytes()

    def set_range(self, selector: str, value: float) -> None:
        """As if the slider were moved there."""
        move = "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})); }"
        self.page.locator(selector).first.evaluate(move, value)


def open_page(running: Any, file: Path, width: int = 1280, height: int = 800, **settings: Any) -> Opened:
    page = running.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce", **settings)
    opened = Opened(page, file)
    page.on("console", lambda m: opened.complaints.append(f"{m.type}: {m.text}") if m.type != "log" else None)
    page.on("pageerror", lambda e: opened.complaints.append(f"uncaught: {e}"))
    page.on("request", lambda r: opened.requests.append(r.url))
    opened.load()
    return opened


def show(running: Any, folder: Path, name: str, report: dict[str, Any], **settings: Any) -> Opened:
    file = folder / f"{name}.html"
    if not file.exists():
        file.write_text(render_page(report), encoding="utf-8")
    return open_page(running, file, **settings)


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """Waits. Playwright's own way to wait for an expression needs eval, which the page forbids."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)


def table(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode("utf-8"))))
