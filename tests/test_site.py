"""The documentation site: it builds, every link in it leads somewhere, and it opens without a network."""

from __future__ import annotations

import argparse
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from vestige.cli import parser

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
    assert len(texts) > 15
    for name, text in texts.items():
        for target in re.findall(r"""<a [^>]*href=["']([^"'#?]*)[^"']*["']""", text):
            assert target == "" or target.startswith("https://") or (site / target).is_file(), f"{name}: {target}"
        for file, anchor in re.findall(r"""href=["'](\w+\.html)#([^"']+)["']""", text):
            assert re.search(rf"""id=["']{re.escape(anchor)}["']""", texts[file]), f"{name}: {file}#{anchor}"


def test_every_flag_of_every_verb_is_shown(site: Path) -> None:
    page = (site / "flags.html").read_text(encoding="utf-8")
    verbs = parser().verbs
    assert [verb for verb in verbs if f">vestige {verb}<" not in page] == []
    arguments = [a for verb in verbs.values() for a in verb.arguments if a.help != argparse.SUPPRESS]
    assert [flag for argument in arguments for flag in argument.option_strings if flag not in page] == []


def test_the_search_works_from_disk(site: Path) -> None:
    """The index is a script, not something to be fetched: browsers refuse that to pages opened as files."""
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(") and "extract" in index


def test_nothing_is_fetched(site: Path) -> None:
    for page in [*site.glob("*.html"), *site.rglob("*.css")]:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"""(?:src|href)=["'](?:https?:)?//[^"']*\.(?:js|css|woff2?)""", text) == [], page
        assert re.findall(r"url\([\"']?(?:https?:)?//", text) == [], page


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    module = builder()
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(module.BuildError, match="holds something else"):
        module.build(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_only_what_the_last_build_wrote_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second build takes its own pages and folders away, and nothing that somebody put next to them or over them."""
    module, out = builder(), tmp_path / "out"
    pages = {"README": tmp_path / "index.md", "lab": tmp_path / "lab.md", "data": tmp_path / "data.md"}
    for name, page in pages.items():
        page.write_text(f"# {name}\n")
    monkeypatch.setattr(module, "find_pages", lambda: pages)
    monkeypatch.setattr(module, "reference", lambda: "# Reference\n")
    monkeypatch.setattr(module, "flags", lambda: "# Flags\n")
    monkeypatch.setattr(module, "metric_pages", lambda: {module.INDEX: "# Every metric\n"})
    module.build(out)
    (out / "notes.txt").write_text("years of work")
    del pages["data"]
    module.build(out)
    assert (out / "lab.html").is_file() and not (out / "data.html").exists()
    assert (out / "notes.txt").read_text() == "years of work"
    (out / "data.html").write_text("years of work")
    pages["data"] = tmp_path / "data.md"
    before = (out / "lab.html").read_bytes()
    pages["lab"].write_text("# Another lab\n")
    with pytest.raises(Exception, match="was not written by vestige"):
        module.build(out)
    assert (out / "data.html").read_text() == "years of work" and (out / "lab.html").read_bytes() == before
