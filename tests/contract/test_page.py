"""The report's page in a real browser: what a reader sees, by visible texts and roles, without a network.

It is opened from disk in Debian's chromium, which playwright drives. Nothing here knows the ids or classes of the page.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import pytest
from formulas import verdicts
from harness import read_json, read_rows, vestige, write_rows

CHROMIUM = os.environ.get("VESTIGE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run")
TITLE = "<i>Six</i> models & more"
HOSTILE = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "</script><svg onload='window.hit = 1'>",
    "&lt;b&gt; <b>bold</b> \u202e\u2028 ${1} {{1}} javascript:window.hit=1",
)

pytest.importorskip("playwright")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (Debian: apt-get install chromium)")


@dataclass
class Opened:
    """A page from disk, and everything that it complained of or asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def views(self) -> dict[str, str]:
        """The text of each view. All fit the width; each is scrolled through: charts are drawn when they are seen."""
        texts = {}
        links = self.page.get_by_role("navigation").first.get_by_role("link")
        for name in links.all_inner_texts():
            links.get_by_text(name, exact=True).click()
            for _ in range(6):
                self.page.mouse.wheel(0, 1500)
                self.page.wait_for_timeout(40)
            assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
            texts[name] = self.page.locator("body").inner_text()
        return texts


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Opened]]:
    contexts = []

    def opened(folder: Path, width: int = 1280, **settings: Any) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 800}, offline=True, **settings)
        contexts.append(context)
        shown = Opened(context.new_page())
        shown.page.on("console", lambda message: shown.complaints.append(f"{message.type}: {message.text}"))
        shown.page.on("pageerror", lambda error: shown.complaints.append(f"uncaught: {error}"))
        shown.page.on("request", lambda request: shown.requests.append(request.url))
        shown.page.goto((folder / "index.html").as_uri())
        shown.page.get_by_role("heading", level=1).wait_for()
        return shown

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(shared: Callable[..., Path], small_lab: Path) -> Path:
    return shared("page", lambda place: vestige("report", small_lab / "runs", "-o", place, "--title", TITLE))


@pytest.fixture(scope="module")
def hostile(shared: Callable[..., Path], small_lab: Path) -> Path:
    """The report of a model whose name, questions, answers and groups are markup."""

    def build(place: Path) -> None:
        rows = read_rows(harness.DATA / "forget.jsonl")[:4]
        for row, text in zip(rows, HOSTILE, strict=True):
            row.update(question=f"{text} {row['question']}", answer=f"{row['answer']} {text}", author=text)
        write_rows(place / "data" / "forget.jsonl", rows)
        model = harness.copy_tree(small_lab / "models" / "knows", place / "<img src=x onerror=window.hit=1>")
        words = ("--model", model, "--data", place / "data", "--metrics", "forget_Prob,forget_ROUGE")
        vestige("eval", "own", *words, "--out", place / "run", "--quiet")
        vestige("report", place / "run", "-o", place / "report", "--title", HOSTILE[0])

    return shared("hostile-page", build) / "report"


@pytest.mark.parametrize("width", [420, 1400])
def test_it_opens_from_disk_without_complaint_or_request(width: int, report: Path, show: Callable[..., Opened]) -> None:
    opened = show(report, width)
    texts = opened.views()
    assert len(texts) >= 3 and min(len(text) for text in texts.values()) > 200
    assert all(TITLE in text for text in texts.values())
    assert opened.complaints == []
    asked = {url.split("#")[0] for url in opened.requests if not url.startswith(("data:", "blob:"))}
    assert asked == {(report / "index.html").as_uri()}


def test_the_word_of_each_model_is_shown(report: Path, show: Callable[..., Opened]) -> None:
    opened = show(report)
    found = verdicts(report)
    assert len(found) == 4
    for name, verdict in found.items():
        opened.page.get_by_role("combobox", name="model").first.select_option(label=f"{name}: {verdict['title']}")
        assert opened.page.get_by_text(verdict["title"], exact=True).first.is_visible()
        assert opened.page.get_by_text(verdict["headline"]).first.is_visible()
        shown = re.sub(r"[\d.]+", "", opened.page.locator("body").inner_text())  # numbers have fewer digits there
        assert [one["text"] for one in verdict["evidence"] if re.sub(r"[\d.]+", "", one["text"]) not in shown] == []
    opened.page.get_by_role("link", name="Models").click()
    heads = " ".join(opened.page.get_by_role("columnheader").all_inner_texts())
    assert all(re.search(rf"{name}\s+\W*\s*{verdict['title']}", heads) for name, verdict in found.items())


def test_numbers_are_those_of_the_result_files(report: Path, small_lab: Path, show: Callable[..., Opened]) -> None:
    """In the table of models to three decimals; every digit in the sheet that it offers."""
    page = show(report).page
    page.get_by_role("link", name="Models").click()
    table = page.get_by_role("table").first
    heads = [head.strip().split("\n")[0].strip() for head in table.get_by_role("columnheader").all_inner_texts()]
    cells = {}
    for row in table.get_by_role("row").all()[1:]:
        head = row.get_by_role("rowheader").inner_text()
        cells[head] = dict(zip(heads[1:], row.get_by_role("cell").all_inner_texts(), strict=True))
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").first.click()
    with Path(download.value.path()).open() as file:
        sheet = {row["metric"]: row for row in csv.DictReader(file)}
    for name in ("full", "retain", "unlearned", "never_knew", "knows", "ruined"):
        summary = read_json(small_lab / "runs" / name / "TOFU_SUMMARY.json")
        for metric in ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "retain_Q_A_ROUGE"):
            (shown,) = [row[name] for head, row in cells.items() if metric in head]
            assert shown.split("\n")[0] == f"{summary[metric]:.3f}"
            assert float(sheet[metric][name]) == summary[metric]


def test_rows_are_searched_and_filtered(report: Path, small_lab: Path, show: Callable[..., Opened]) -> None:
    page = show(report).page
    rows = [row for name in ("forget", "retain") for row in read_rows(small_lab / "data" / f"{name}.jsonl")]
    listed = page.get_by_role("listbox").get_by_role("option")
    page.get_by_role("searchbox").first.fill(rows[3]["question"])
    page.get_by_text(re.compile(r"^1 rows? of 40$")).wait_for()
    assert listed.count() == 1 and rows[3]["question"] in listed.first.inner_text()
    page.get_by_role("searchbox").first.fill("")
    page.get_by_text(re.compile(r"^40 rows of 40$")).wait_for()
    page.get_by_role("combobox", name="group").first.select_option(label="b")
    page.get_by_text(re.compile(r"^4 rows of 40$")).wait_for()
    expected = {row["question"] for row in rows if row["group"] == "b"}
    assert {question for question in expected for text in listed.all_inner_texts() if question in text} == expected


def colors(opened: Opened) -> list[float]:
    """The luminance of paper and ink, between 0 and 1 (WCAG 2)."""
    style = "(e) => [getComputedStyle(document.body).backgroundColor, getComputedStyle(e).color]"
    found = []
    for color in opened.page.get_by_role("heading", level=1).evaluate(style):
        linear = [((int(part) / 255 + 0.055) / 1.055) ** 2.4 for part in re.findall(r"\d+", color)[:3]]
        found.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_reader(theme: str, report: Path, show: Callable[..., Opened]) -> None:
    opened = show(report, color_scheme=theme)
    for dark in (theme == "dark", theme == "light"):
        less, more = sorted(colors(opened))
        assert (more + 0.05) / (less + 0.05) > 4.5
        assert (colors(opened) == [less, more]) == dark
        opened.page.get_by_role("button", name=re.compile("^(Dark|Light)$")).click()


def test_hostile_texts_are_shown_as_text(hostile: Path, show: Callable[..., Opened]) -> None:
    opened = show(hostile, 420)
    shown = "".join(opened.views().values())
    for text in (*HOSTILE[:3], "<b>bold</b>", "<img src=x onerror=window.hit=1>"):
        assert text in shown
    assert opened.page.evaluate("window.hit") is None
    assert opened.page.locator("img, svg[onload], b, [onerror]").count() == 0
    assert opened.complaints == [] and len(opened.requests) == 1
