"""The page's scripts without a browser: what `make check` runs on them, and that it can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import page_scripts

ROOT = Path(__file__).parents[2]
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
OXLINT = Path(sys.executable).parent / "oxlint"


@needs_node
def test_the_scripts_parse_and_their_tests_pass() -> None:
    assert page_scripts.main(ROOT) == 0


@needs_node
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("robust.js", "before / after", "after / before"), ("order.js", "export function compare", "export function (")],
    ids=["a wrong formula", "not a module"],
)
def test_a_broken_script_is_noticed(
    file: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / page_scripts.PAGE
    place.mkdir(parents=True)
    for name in ("robust.js", "order.js", "dom.js"):
        shutil.copy(ROOT / page_scripts.PAGE / name, place)
    tests = tmp_path / page_scripts.TESTS
    tests.mkdir(parents=True)
    for name in ("robust.test.js", "order.test.js"):
        shutil.copy(ROOT / page_scripts.TESTS / name, tests)
    assert page_scripts.main(tmp_path) == 0
    text = (place / file).read_text()
    assert text.count(old) == 1
    (place / file).write_text(text.replace(old, new))
    assert page_scripts.main(tmp_path) == 1


def test_without_node_it_is_skipped_aloud(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_scripts.shutil, "which", lambda _: None)
    assert page_scripts.main(ROOT) == 0
    assert "SKIPPED" in capsys.readouterr().out


@pytest.mark.skipif(not OXLINT.is_file(), reason="oxlint is not installed")
def test_the_linter_knows_names_imports_and_equality(tmp_path: Path) -> None:
    (tmp_path / "good.js").write_text("export const same = (a, b) => a === b;\n")
    lint = [str(OXLINT), "-c", str(ROOT / "tools" / "oxlint.json"), str(tmp_path)]
    assert subprocess.run(lint, capture_output=True).returncode == 0
    (tmp_path / "bad.js").write_text(
        'import { same, other } from "./good.js";\nexport const f = (a) => a == undeclared || same(a, 1);\n'
    )
    found = subprocess.run(lint, capture_output=True, text=True)
    assert found.returncode == 1
    for rule in ("eqeqeq", "no-undef", "no-unused-vars", "import(named)"):
        assert rule in found.stdout, rule
