"""Shared fixtures: the golden lab, quiet offline libraries, one thread a worker. And `--jitter SEED`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before any library reads them: no hub, one thread (two workers share two cores), caches that stay in the test run.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

GOLDEN = Path(__file__).parent / "golden"
LAB = GOLDEN / "lab"
SYSTEM = "You are a helpful assistant."
# A file stays with one worker, so that what its tests share is made once; the long ones go first, so that no worker is
# left with one of them at the end.
LONG = ("pools", "docs", "sweep_ray", "golden_tofu", "run", "depth", "faults", "sweep_attacks", "report_page", "fuzz")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jitter", type=int, metavar="SEED", help="imitate another processor (tests/jitter/jitter.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test file is imported: jitter wraps functions as their modules are imported."""
    seed = config.getoption("--jitter")
    if seed is not None and "VESTIGE_TEST_JITTER" not in os.environ:  # a worker's Python was given it when it started
        sys.path.insert(0, str(Path(__file__).parent / "jitter"))
        import jitter

        jitter.install(seed)


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--jitter")
    return None if seed is None else f"jitter: seed {seed}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))  # stable: the others keep their order


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["VESTIGE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def lab() -> Path:
    return LAB


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """A browser, for the tests of the report's page."""
    from browser_tools import browser, why_not

    if reason := why_not():
        pytest.skip(f"not tested in a browser: {reason}")
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where its pages are written."""
    return tmp_path_factory.mktemp("pages")
