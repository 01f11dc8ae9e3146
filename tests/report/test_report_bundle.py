"""How the page is put together: data that stays data, scripts in order, a policy that knows them. No browser needed."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re

import report_samples
from vestige.report import page
from vestige.report.build import empty_report
from vestige.report.page import bundle, data_text, policy, render_page


def inside(text: str, start: str, end: str) -> str:
    return text.split(start, 1)[1].split(end, 1)[0]


def test_the_page_holds_the_data_and_nothing_breaks_out() -> None:
    report = report_samples.hostile()
    text = render_page(report)
    data = inside(text, 'id="report-data">', "</script>")
    assert json.loads(data) == report
    assert "<" not in data and "\u2028" not in data
    assert text.count("<script") == 2 and html.escape(report["title"]) in text
    assert "http://" not in inside(text, "<head>", "</head>")


def test_strings_that_are_not_unicode_survive() -> None:
    assert json.loads(data_text({"a": "half \ud83e, nul \0, </script>"})) == {"a": "half \ud83e, nul \0, </script>"}


def test_the_policy_names_the_hashes_of_the_scripts_in_the_page() -> None:
    text = render_page(report_samples.lab())
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    found = html.unescape(inside(text, 'Content-Security-Policy" content="', '"'))
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in found
    assert len(scripts) == 1


def test_only_a_live_page_may_ask_its_server() -> None:
    assert "connect-src 'none'" in policy("", "")
    assert "connect-src 'self'" in policy("", "", live=True)
    assert 'data-live="ab12"' in render_page(report_samples.lab(), live="ab12")
    assert 'data-live=""' in render_page(report_samples.lab())


def test_every_module_is_used_and_none_reads_text_as_html() -> None:
    whole = bundle()
    for file in page.ASSETS.glob("*.js"):
        assert f"module_{file.stem} =" in whole, f"{file.name} is not imported by any module"
        assert not re.search(
            r"innerHTML|outerHTML *=|insertAdjacentHTML|document\.write|eval\(|new Function", file.read_text()
        )


def test_the_page_weighs_little_and_allows_no_style_in_markup() -> None:
    assert len(render_page(empty_report("Nothing")).encode()) < 400_000
    assert "unsafe" not in policy("", "")
