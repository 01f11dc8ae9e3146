"""The page, in a real browser: it opens from disk, answers to the reader, and runs nothing the data brings along."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import report_samples
from browser_tools import VIEWS, Opened, axe_path, show, table
from vestige.report.build import empty_report


@pytest.fixture(scope="module")
def lab(running: Any, folder: Path) -> Opened:
    return show(running, folder, "lab", report_samples.lab())


@pytest.fixture(scope="module")
def hostile(running: Any, folder: Path) -> Opened:
    return show(running, folder, "hostile", report_samples.hostile())


def scroll_through(page: Any) -> None:
    """Charts are drawn when they come into sight: look at all of them."""
    page.evaluate(
        """async () => {
        for (let y = 0; y < document.body.scrollHeight; y += 700) {
            scrollTo(0, y);
            await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)));
        }
        scrollTo(0, 0);
    }"""
    )


# ---- opening -----------------------------------------------------------------------------------------------------


def test_the_answer_is_in_the_first_screen_and_no_bad_news_is_behind_a_fold(running: Any, folder: Path) -> None:
    report = report_samples.lab()
    verdict = report["audits"][0]["verdict"]
    more = {
        **verdict["evidence"][0],
        "text": "Under an attack, its ROUGE goes from 0.22 to 0.61; the control's does not.",
    }
    verdict["evidence"] += [more] * 6
    page = show(running, folder, "verdict", report, height=820)
    assert page.text(".answer strong") == "Partly" and page.text(".headline") == verdict["headline"]
    for width, height in ((1280, 820), (360, 780)):
        page.page.set_viewport_size({"width": width, "height": height})
        for part in (".answer", ".headline", ".secrets-line", ".part .between"):
            box = page.page.locator(part).first.bounding_box()
            assert box["y"] + box["height"] <= height, (part, width)
        assert page.count(".evidence li:visible") == len(verdict["evidence"])
        assert page.count(".limits li:visible") >= len(verdict["limits"])
    assert page.count("main .verdict details, main .verdict [hidden]") == 0
    page.page.close()


def test_each_word_has_a_sign_and_bad_ones_are_not_green(lab: Opened) -> None:
    green = "rgb(0, 132, 95)"
    lab.go()
    assert lab.text(".answer .sign") == "◐"
    lab.page.select_option(".question select", label="grad_ascent: Damaged")
    assert lab.text(".answer").split() == ["⚠", "Damaged", "and", "still", "leaks"]
    assert lab.page.locator(".answer").evaluate("(e) => getComputedStyle(e).color") != green
    assert "vestige stress relearn" in lab.text(".untested .command")
    assert "120 rows" in lab.text(".limits-text")
    parts = lab.texts(".part-head .badge")
    assert [p.split(" ", 1)[1] for p in parts] == ["over-forgotten", "damaged", "not tested deeply"]
    lab.visit("models")
    heads = lab.texts(".sideways thead .word")
    assert heads == ["◐ Partly", "⚠ Damaged", "◐ Partly"]  # the same words as on the first screen


@pytest.mark.parametrize("width", [360, 1280])
def test_no_view_is_wider_than_the_screen(lab: Opened, hostile: Opened, width: int) -> None:
    for opened_page in (lab, hostile):
        opened_page.page.set_viewport_size({"width": width, "height": 800})
        for view in VIEWS:
            opened_page.visit(view)
            assert opened_page.page.evaluate("document.documentElement.scrollWidth") <= width, view
        opened_page.page.set_viewport_size({"width": 1280, "height": 800})


def test_an_empty_report_says_what_is_missing(running: Any, folder: Path) -> None:
    page = show(running, folder, "empty", empty_report("Nothing"))
    for view in VIEWS:
        page.go(f"view={view}")
        assert page.text("main") != ""
    assert "nothing to audit" in (page.go("view=audit") or page.text("main"))
    assert page.complaints == []


# ---- tables ------------------------------------------------------------------------------------------------------


def numbers(page: Opened, column: int) -> list[float]:
    cells = page.texts(f'.grid tbody [data-col="{column}"]')
    return [float(re.sub(r"[^\d.e-]", "", text.split("(")[0])) for text in cells if re.search(r"\d", text)]


def test_sorting_by_click_and_by_key_and_its_place_in_the_address(lab: Opened) -> None:
    lab.go("view=models&m.turn=rows")
    head = lab.page.locator('.grid [data-sort="uds"]')
    column = [c["short"] for c in report_samples.lab()["metrics"].values()].index("UDS") + 3
    head.click()
    down = numbers(lab, column)
    assert down == sorted(down, reverse=True) and len(down) == 5
    assert lab.page.locator('th:has([data-sort="uds"])').get_attribute("aria-sort") == "descending"
    lab.page.locator('.grid [data-sort="uds"]').focus()
    lab.page.keyboard.press("Enter")
    assert numbers(lab, column) == sorted(down)
    assert lab.page.evaluate("document.activeElement.dataset.sort") == "uds"
    assert "m.sort=uds" in lab.state()
    lab.load(lab.state()[1:])
    assert numbers(lab, column) == sorted(down)


def test_chosen_models_are_compared_with_paired_differences(lab: Opened) -> None:
    report = report_samples.lab()
    pair = report["comparisons"][0]
    lab.go("view=models&m.turn=rows")
    for name in ("retain", "npo"):
        lab.page.check(f'input[aria-label="choose {name}"]')
    tested = lab.texts("#compare td:has-text('*')")
    ends = pair["metrics"][0]
    assert tested == [f"+{ends['value']:.3f} * ({ends['lo']:.3f} to {ends['hi']:.3f})"]
    assert lab.state().count("m.pick=") == 2
    lab.page.select_option("#compare select", label="npo")
    assert lab.texts("#compare td:has-text('*')") == ["-0.100 * (-0.180 to -0.020)"]


def test_arrow_keys_walk_the_table_and_focus_explains_a_number(lab: Opened) -> None:
    lab.go("view=models&m.turn=rows")
    lab.page.locator(".grid tbody [tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        lab.page.keyboard.press(key)
    place = lab.page.evaluate("[document.activeElement.parentNode.dataset.row, document.activeElement.dataset.col]")
    assert place == ["1", "3"]
    tip = lab.text("#tip")
    cell = report_samples.lab()["models"][1]["values"]["forget_Q_A_ROUGE"]
    assert str(cell["n"]) in tip and cell["dialect"] in tip and cell["protocol"] in tip
    assert str(cell["v"]) in tip and "longest common subsequence" in tip
    lab.page.keyboard.press("Escape")
    assert not lab.page.locator("#tip").is_visible()


# ---- what it says ------------------------------------------------------------------------------------------------


def test_long_lists_and_tables_hold_only_what_is_in_sight(running: Any, folder: Path) -> None:
    page = show(running, folder, "big", report_samples.big(300, 3000))
    assert page.count(".vrow") < 40
    page.page.locator(".vlist").evaluate("(e) => { e.scrollTop = e.scrollHeight; }")
    page.page.wait_for_selector(".vrow[aria-posinset='3000']")
    page.visit("models")
    assert page.count(".grid tbody tr") < 80
    assert "300 of 300" in page.text(".count")
    page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.count(".grid tbody tr") == 300
    page.page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.page.close()


# ---- safety ------------------------------------------------------------------------------------------------------


def test_nothing_in_the_data_runs_or_becomes_an_element(hostile: Opened) -> None:
    for view in VIEWS:
        hostile.go(f"view={view}")
        scroll_through(hostile.page)
        hostile.page.mouse.move(500, 400)
        found = hostile.page.evaluate(
            """() => ({
            hacked: typeof window.hacked,
            images: document.querySelectorAll("main img, main script, main iframe").length,
            links: document.querySelectorAll("a[href^=javascript]").length,
            svgLinks: document.querySelectorAll("svg a").length })"""
        )
        assert found == {"hacked": "undefined", "images": 0, "links": 0, "svgLinks": 0}, view
    names = [m["name"] for m in report_samples.hostile()["models"]]
    hostile.go("view=models&m.turn=rows")
    assert any("<" in name for name in names)
    shown = hostile.page.locator(".grid tbody th").evaluate_all("(all) => all.map((n) => n.firstChild.textContent)")
    assert shown == names
    assert hostile.complaints == []


def test_the_policy_stops_scripts_that_are_not_the_pages_own(lab: Opened) -> None:
    lab.go()
    before = len(lab.complaints)
    lab.page.evaluate(
        """() => {
        const bad = document.createElement("script");
        bad.textContent = "window.injected = 1";
        document.body.append(bad);
        const inner = document.createElement("div");
        inner.innerHTML = "<img src=x onerror='window.injected = 1'>";
        document.body.append(inner);
    }"""
    )
    lab.page.wait_for_timeout(100)
    assert lab.page.evaluate("typeof window.injected") == "undefined"
    # Playwright may use eval where it looks; a later turn of the page may not.
    later = "new Promise((done) => setTimeout(() => { try { done((0, eval)('1')); } catch (e) { done(e.name); } }, 5))"
    assert lab.page.evaluate(f"() => {later}") == "EvalError"
    assert len(lab.complaints) > before  # the browser says so
    del lab.complaints[before:]
    policy = lab.page.locator("meta[http-equiv]").get_attribute("content")
    assert "'unsafe-eval'" not in policy and "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert "'unsafe-inline'" not in re.search(r"script-src [^;]*", policy)[0]


# ---- everybody can use it ----------------------------------------------------------------------------------------

AXE = "async () => (await axe.run()).violations.map((v) => [v.impact, v.id, v.nodes[0].html.slice(0, 200)])"


@pytest.mark.skipif(axe_path() is None, reason="axe-core is not installed (npm install axe-core, or VESTIGE_AXE)")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(running: Any, lab: Opened, theme: str) -> None:
    path = axe_path()
    assert path is not None
    for width in (1280, 420):
        page = running.new_page(viewport={"width": width, "height": 900}, bypass_csp=True, reduced_motion="reduce")
        for view in VIEWS:
            page.goto("about:blank")
            page.goto(f"{lab.file.as_uri()}#view={view}&theme={theme}")
            page.wait_for_selector("#views a")
            scroll_through(page)
            page.evaluate(path.read_text("utf-8"))
            assert [v for v in page.evaluate(AXE) if v[0] in ("serious", "critical")] == [], (view, width)
        page.close()


def test_every_control_has_a_name_and_the_tab_key_reaches_the_answer(lab: Opened) -> None:
    nameless = """() => [...document.querySelectorAll("button, input, select, textarea")].filter((n) =>
        !(n.labels?.length || n.getAttribute("aria-label") || n.textContent.trim())).map((n) => n.outerHTML)"""
    for view in VIEWS:
        lab.go(f"view={view}")
        assert lab.page.evaluate(nameless) == [], view
    lab.load()
    reached = []
    for _ in range(12):
        lab.page.keyboard.press("Tab")
        reached.append(lab.page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
    assert "SELECT." in reached and any("evidence-text" in r for r in reached)


# ---- theme, downloads --------------------------------------------------------------------------------------------


def test_tables_and_charts_can_be_taken_away(lab: Opened) -> None:
    lab.go("view=models&m.turn=rows&m.sort=-uds")
    models = report_samples.lab()["models"]
    best = max(models, key=lambda m: m["values"]["uds"]["v"])
    rows = table(lab.download('.table-box button:text-is("CSV")'))
    assert rows[0]["model"] == best["name"] and float(rows[0]["UDS"]) == best["values"]["uds"]["v"]
    records = json.loads(lab.download('.table-box button:text-is("JSON")'))
    assert len(records) == len(models) and records[0]["UDS"] == best["values"]["uds"]["v"]
    png = lab.download('.chart button:text-is("PNG")')
    assert png.startswith(b"\x89PNG") and len(png) > 5000
    image = lab.download('.chart button:text-is("SVG")').decode("utf-8")
    assert image.startswith("<svg") and "</svg>" in image
    points = table(lab.download('.chart button:text-is("CSV")'))
    assert {p["model"] for p in points} == {m["name"] for m in models}


def test_a_sheet_never_holds_a_formula(hostile: Opened) -> None:
    hostile.go()
    text = hostile.download('#panel-says button:text-is("CSV")').decode("utf-8")
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert any("HYPERLINK" in cell for cell in cells)
    assert not any(cell.startswith(("=", "+", "@")) for cell in cells)


# ---- rows of two models, notes, paper ----------------------------------------------------------------------------


def test_notes_are_kept_in_a_downloaded_copy_of_the_page(running: Any, folder: Path, lab: Opened) -> None:
    lab.load()
    assert not lab.page.locator("#save-copy").is_visible()
    lab.page.fill(".detail textarea", "Ask legal </script> about this one.")
    assert lab.text("#save-copy") == "Save a copy with 1 note"
    copy = folder / "copy.html"
    copy.write_bytes(lab.download("#save-copy"))
    lab.load()
    again = show(running, folder, "copy", {})
    assert again.page.locator(".detail textarea").input_value() == "Ask legal </script> about this one."
    assert again.complaints == [] and again.text(".answer strong") == "Partly"
    assert again.count(".verdict") == 1 and again.count("#views a") == len(VIEWS)
    again.page.close()


def test_paper_has_at_most_four_pages_with_charts_and_is_white(running: Any, folder: Path) -> None:
    page = show(running, folder, "paper", report_samples.lab())
    page.load("theme=dark")
    pdf = page.page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 4
    page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.page.emulate_media(media="print")
    assert page.count(".plot") == page.count(".plot:has(svg path)") > 5
    assert page.page.get_attribute("html", "data-theme") == "light"
    assert page.count(".paper-only:visible tbody tr") == 8 and page.count(".vrow:visible") == 0
    page.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.page.get_attribute("html", "data-theme") == "dark"
    page.page.close()
