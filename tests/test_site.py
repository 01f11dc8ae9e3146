"""The documentation site: it builds, every link in it leads somewhere, and it opens without a network."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from browser_tools import browser, why_not

ROOT = Path(__file__).parent.parent


def builder() -> Any:
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "docs" / "site" / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["site_build"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "out"
    builder().build(out)
    return out


def test_every_link_leads_to_a_file_and_a_heading(site: Path) -> None:
    texts = {p.name: p.read_text(encoding="utf-8") for p in site.glob("*.html")}
    assert len(texts) > 25
    for name, text in texts.items():
        for target in re.findall(r"""<a [^>]*href=["']([^"'#?]*)[^"']*["']""", text):
            assert target == "" or target.startswith("https://") or (site / target).is_file(), f"{name}: {target}"
        for file, anchor in re.findall(r"""href=["'](\w+\.html)#([^"']+)["']""", text):
            assert re.search(rf"""id=["']{re.escape(anchor)}["']""", texts[file]), f"{name}: {file}#{anchor}"


def test_the_search_works_from_disk(site: Path) -> None:
    """The index is a script, not something to be fetched: browsers refuse that to pages opened as files."""
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(") and "extract" in index


@pytest.mark.parametrize(
    ("text", "says"),
    [("See [there](data.md#no-such-heading).", "no-such-heading"), ("See [there](nowhere.md).", "leads nowhere")],
)
def test_a_link_that_leads_nowhere_stops_the_build(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = builder()
    pages = module.find_pages()
    (tmp_path / "lab.md").write_text(f"# The lab\n\n{text}\n")
    (tmp_path / "data.md").write_text("# Data\n")
    few = {"README": tmp_path / "index.md", "lab": tmp_path / "lab.md", "data": tmp_path / "data.md"}
    few["README"].write_text("# Start\n")
    assert set(few) <= set(pages)
    monkeypatch.setattr(module, "find_pages", lambda: few)
    monkeypatch.setattr(module, "reference", lambda: "# Reference\n")
    monkeypatch.setattr(module, "metric_pages", lambda: {module.INDEX: "# Every metric\n"})
    with pytest.raises(module.BuildError, match=says):
        module.build(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_fetched(site: Path) -> None:
    for page in [*site.glob("*.html"), *site.rglob("*.css")]:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"""(?:src|href)=["'](?:https?:)?//[^"']*\.(?:js|css|woff2?)""", text) == [], page
        assert re.findall(r"url\([\"']?(?:https?:)?//", text) == [], page


def test_the_reference_names_the_interface_and_the_formulas(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    assert text.index("vestige.api") < text.index("vestige.collect.answers")
    for name in ("evaluate", "extraction_strength", "TokenStats"):
        assert name in text


def test_a_page_outside_all_groups_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = builder()
    monkeypatch.setitem(module.GROUPS, "Start", [n for n in module.GROUPS["Start"] if n != "lab"])
    with pytest.raises(module.BuildError, match="lab: in no group"):
        module.build(tmp_path / "out")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    module = builder()
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(module.BuildError, match="holds something else"):
        module.build(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_only_what_the_last_build_wrote_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second build takes its own pages away, and nothing that somebody put beside them or over them."""
    module, out = builder(), tmp_path / "out"
    pages = {"README": tmp_path / "index.md", "lab": tmp_path / "lab.md", "data": tmp_path / "data.md"}
    for name, page in pages.items():
        page.write_text(f"# {name}\n")
    monkeypatch.setattr(module, "find_pages", lambda: pages)
    monkeypatch.setattr(module, "reference", lambda: "# Reference\n")
    monkeypatch.setattr(module, "metric_pages", lambda: {module.INDEX: "# Every metric\n"})
    module.build(out)
    (out / "notes.txt").write_text("years of work")
    (out / "_static" / "mine.css").write_text("years of work")
    del pages["data"]
    module.build(out)
    assert (out / "lab.html").is_file() and not (out / "data.html").exists()
    assert (out / "notes.txt").read_text() == (out / "_static" / "mine.css").read_text() == "years of work"
    (out / "data.html").write_text("years of work")
    pages["data"] = tmp_path / "data.md"
    before = (out / "lab.html").read_bytes()
    pages["lab"].write_text("# Another lab\n")
    with pytest.raises(Exception, match="was not written by vestige"):
        module.build(out)
    assert (out / "data.html").read_text() == "years of work" and (out / "lab.html").read_bytes() == before


def test_each_metric_has_a_page_from_its_card(site: Path) -> None:
    pages = sorted(p.stem for p in site.glob("metric_*.html"))
    listed = (site / "all_metrics.html").read_text(encoding="utf-8")
    assert len(pages) > 25 and all(f'href="{name}.html"' in listed for name in pages)
    text = (site / "metric_extraction_strength.html").read_text(encoding="utf-8")
    for needed in ("Carlini", "Worked example", "open-unlearning", "tofu", "a high value"):
        assert needed in text, needed


def test_code_can_be_copied(site: Path) -> None:
    assert "copybutton.js" in (site / "questions.html").read_text(encoding="utf-8")
    assert (site / "_static" / "copybutton.js").is_file()


def test_versions_are_kept_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, top = builder(), tmp_path / "site"
    (tmp_path / "index.md").write_text("# Start\n")
    monkeypatch.setattr(module, "find_pages", lambda: {"README": tmp_path / "index.md"})
    monkeypatch.setattr(module, "reference", lambda: "# Reference\n")
    monkeypatch.setattr(module, "metric_pages", lambda: {module.INDEX: "# Every metric\n"})
    for version in ("0.9.0", "0.10.0"):
        monkeypatch.setattr(module, "__version__", version)
        module.publish(top)
    assert (top / "versions.js").read_text() == 'window.VESTIGE_VERSIONS = ["0.10.0", "0.9.0"];\n'
    assert "0.10.0/index.html" in (top / "index.html").read_text()
    assert "vestige 0.9.0" in (top / "0.9.0" / "index.html").read_text(encoding="utf-8")
    (top / "0.11.0").mkdir()  # somebody else's folder is not listed
    module.publish(top)
    assert "0.11.0" not in (top / "versions.js").read_text()


FOUND = {
    "wandb": "questions.html",
    "over-forgetting": "questions.html",
    "evaluate during training": "questions.html",
    "LLaDA": "diffusion.html",
}


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_search_finds_what_people_type(site: Path) -> None:
    """The site's own search in a real browser, from disk."""
    with browser() as chromium:
        tab = chromium.new_page()
        for words, page in FOUND.items():
            tab.goto(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
            tab.wait_for_selector(f'#search-results a[href*="{page}"]', timeout=30_000)
