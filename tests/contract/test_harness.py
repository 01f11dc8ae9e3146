"""The contract suite keeps to the contract: commands, public Python names and documented files."""

from __future__ import annotations

import ast
from pathlib import Path

import harness

import vestige
import vestige.plugins

HERE = Path(__file__).parent
PUBLIC = {"vestige", "vestige.plugins"}


def test_only_public_names_are_imported() -> None:
    """In test files and in the user scripts that they hold as strings."""
    names = {*vestige.__all__, "__version__", "plugins"}
    wrong = []
    for path in sorted(HERE.glob("*.py")):
        tree = ast.parse(path.read_text())
        trees = [tree]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import vestige" in node.value:
                trees += _parsed(node.value)
        for node in (node for one in trees for node in ast.walk(one)):
            if isinstance(node, ast.Import):
                bad = [a.name for a in node.names if a.name.split(".")[0] == "vestige" and a.name not in PUBLIC]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vestige":
                known = names if node.module == "vestige" else set(vestige.plugins.__all__)
                bad = [] if node.module in PUBLIC else [str(node.module)]
                bad += [a.name for a in node.names if a.name not in known]
            else:
                continue
            wrong += [f"{path.name}:{node.lineno}: {name}" for name in bad]
    assert not wrong, wrong


def _parsed(source: str) -> list[ast.Module]:
    try:
        return [ast.parse(source)]
    except SyntaxError:  # a sentence or a template, not a script
        return []


def test_the_suite_stays_small() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in HERE.glob("*.py"))
    assert lines <= 8_600, lines


def test_a_fork_behaves_like_the_installed_program(tmp_path: Path) -> None:
    words = ("eval", "tofu", "--model", harness.FULL, "--data", harness.DATA, "--limit", 4, "--metrics", "mia_loss")
    harness.vestige(*words, "--out", tmp_path / "fork")
    harness.vestige(*words, "--out", tmp_path / "real", real=True)
    for name in ("TOFU_EVAL.json", "TOFU_SUMMARY.json", "TOFU_STATS.json"):
        assert (tmp_path / "fork" / name).read_bytes() == (tmp_path / "real" / name).read_bytes()
