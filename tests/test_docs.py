"""The documentation, run: every example works, every link leads somewhere.

Conventions, given in an HTML comment on the line above a fenced block:

    <!-- not run: REASON -->    the block is skipped
    <!-- composed: REASON -->   `vestige eval` lines only print their configuration (they would need the hub)
    <!-- file: PATH -->         the block is written to PATH instead of being run
    <!-- add to: PATH -->       the block changes a file of the source: a test of its own follows it on a copy

Otherwise bash and python blocks are run, those of one page in order, in one temporary directory and one namespace.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from vestige.cli import main, parser
from vestige.plugins import ATTACKS, CARDS, DATASETS, FAMILIES, HANDLERS, METHODS, METRICS, READERS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / f"{name}.md" for name in ("AGENTS", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").glob("*.md")),
]
DIFFUSION = LAB.parent / "lab_diffusion"
STANDS_FOR = {
    "PATH_TO_MODEL": LAB / "models" / "unlearned",
    "LLADA": LAB.parent / "families" / "llada",
    "RETAIN_MODEL": LAB / "models" / "retain",
    "FULL_MODEL": LAB / "models" / "full",
    "BASE_MODEL": LAB / "models" / "retain",  # the golden lab keeps no base model; any will do to train on
    "DIR": LAB / "data",
    "DIFFUSION_MODEL": DIFFUSION / "models" / "full",
    "DIFFUSION_RETAIN": DIFFUSION / "models" / "retain",
    "DIFFUSION_DATA": DIFFUSION / "data",
    "LLADA_MODEL": LAB.parent / "families" / "llada",
}
COMMENT = r"(?:^<!-- (?P<mark>[a-z ]+): (?P<word>[^\n]*) -->\n)?"
FENCE = re.compile(COMMENT + r"^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    kind: str
    body: str
    mark: str  # "", "not run", "composed", "file" or "add to"
    word: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["kind"], filled(m["body"]), m["mark"] or "", m["word"] or "", text[: m.start("body")].count("\n"))
        for m in FENCE.finditer(text)
    ]


def filled(text: str) -> str:
    """The text with its placeholders replaced by the golden lab."""
    return re.sub(rf"\b({'|'.join(STANDS_FOR)})\b", lambda m: str(STANDS_FOR[m[0]]), text)


def run_bash(block: Block) -> None:
    """Commands one by one: ours in this process (imports are paid once), others in a shell."""
    for command in block.body.replace("\\\n", " ").splitlines():
        words = shlex.split(command, comments=True)
        if not words:
            continue
        if words[0] != "vestige":
            subprocess.run(["bash", "-c", command], check=True, capture_output=True)
            continue
        more = ["--cfg"] if block.mark == "composed" and "--cfg" not in words else []
        assert main([*words[1:], *more]) == 0, command


@contextmanager
def registries_kept() -> Iterator[None]:
    """What plug-ins of the examples register does not outlive the page."""
    dicts: tuple[dict[str, Any], ...] = (HANDLERS, CARDS, DATASETS, METRICS, READERS, ATTACKS, METHODS)
    kept, families = [(d, dict(d)) for d in dicts], list(FAMILIES)
    try:
        yield
    finally:
        FAMILIES[:] = families
        for registry, before in kept:
            registry.clear()
            registry.update(before)


# howto.md is followed by test_howto.py, which looks at what came out.
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p) and p.name != "howto.md"], ids=lambda p: p.name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with registries_kept():
        follow(page, tmp_path)


def demo_lab(place: Path) -> None:
    """What `make demo` would have left: the golden lab stands in for the one it trains."""
    models = place / "saves" / "demo" / "lab" / "models"
    models.mkdir(parents=True)
    (models.parent / "data").symlink_to(LAB / "data")
    for name, golden in {"full": "full", "retain": "retain", "npo": "unlearned"}.items():
        (models / name).symlink_to(LAB / "models" / golden)


def follow(page: Path, place: Path) -> None:
    """Runs every example of a page, in order, in a directory."""
    if "saves/demo/lab" in page.read_text(encoding="utf-8"):
        demo_lab(place)
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks(page):
        if block.mark == "file":
            file = place / block.word
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body, encoding="utf-8")
        elif block.mark == "add to":
            assert (ROOT / block.word).is_file(), f"{page.name} line {block.line}: {block.word} does not exist"
        elif block.mark == "not run":
            assert len(block.word) > 5, f"{page.name} line {block.line}: say why it is not run"
        elif block.kind == "bash":
            run_bash(block)
        elif block.kind == "python":
            exec(compile("\n" * block.line + block.body, str(page), "exec"), names)


def test_each_page_of_docs_has_an_example_that_runs() -> None:
    for page in PAGES:
        if page.parent == ROOT / "docs":
            assert any(b.kind in ("bash", "python") and not b.mark for b in blocks(page)), page.name


def anchors(page: Path) -> set[str]:
    """Heading anchors as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}


def test_links_lead_somewhere() -> None:
    lost = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith("https://"):
                continue
            path, _, anchor = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            if not place.exists() or (anchor and anchor not in anchors(place)):
                lost.append(f"{page.name}: {target}")
    assert lost == []


def test_pages_name_no_machine() -> None:
    for page in [*PAGES, *sorted((ROOT / "docs").glob("*.svg"))]:
        found = re.search(r"/tmp/|/work/|/home/\w|/root/", page.read_text(encoding="utf-8"))
        assert found is None, f"{page.name}: {found}"


def test_every_verb_is_documented() -> None:
    """Its flags are in `vestige VERB --help`, which the site shows on one page (tests/test_site.py)."""
    page = (ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8")
    assert [v for v in parser().verbs if f"\n## {v}\n" not in page] == []


def test_every_handler_is_documented() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    ours = [(name, h) for name, h in HANDLERS.items() if h.live is None]  # other tests may have loaded plug-ins
    built_in = [name for name, handler in ours if handler.score.__module__.startswith("vestige.suites.")]
    assert [name for name in built_in if f"`{name}`" not in page] == []
