"""The page's scripts without a browser: what `make check` runs on them, and that it can fail."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import page_scripts

ROOT = Path(__file__).parents[2]
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@needs_node
def test_the_scripts_parse_and_their_tests_pass() -> None:
    assert page_scripts.main(ROOT) == 0
