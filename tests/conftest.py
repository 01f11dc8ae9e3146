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

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
LAB = GOLDEN / "lab"
SYSTEM = "You are a helpful assistant."
# `make test` runs the contract suite, the doctests of src/ and the fast tests. Everything else is in one of these
# parts, and `make test-PART` runs it: `pytest --part PART tests`. A name is a folder or a file of tests/.
PARTS = {
    "commands": (
        *(
            "adapters",
            "api",
            "audit",
            "collapse",
            "depth",
            "engine",
            "lab",
            "meta",
            "results",
            "stress",
        ),
        *("stress", "sweep", "show", "unlearn", "test_names.py", "test_one_definition.py", "test_plugins.py"),
        *("test_cli.py", "test_flags.py", "test_vocabulary.py"),
    ),
    "models": (
        *(
            "models/test_families.py",
            "models/test_diffusion_gemma.py",
        ),
        *("samplers/test_families_samplers.py", "suites/test_trajectory_axis.py"),
    ),
    "files": (
        *("test_faults.py", "test_file_forms.py", "test_foreign_files.py", "test_internal_errors.py"),
        *("test_bad_checkpoints.py", "test_bad_input.py", "test_secrets.py", "test_security.py", "test_staleness.py"),
        *("test_plumbing.py", "test_writing.py", "store"),
    ),
    "docs": (
        *("test_docs.py", "test_howto.py", "test_contributing.py", "test_notebook.py"),
        *("test_site.py", "test_bench.py"),
    ),
    "report": ("report",),
    "fuzz": ("test_fuzz.py",),
    "packaging": ("test_packaging.py",),
    "typing": ("api/test_typing.py",),
    "trl": ("collapse/test_trl.py", "unlearn/test_watch_trl.py", "unlearn/test_watch_processes.py"),
}
# A file stays with one worker, so that what its tests share is made once. The long ones go first, so that no worker is
# left with one of them at the end.
LONG = (
    *("staleness", "verbs", "resume", "membership_and_lm_eval", "files", "crash", "training", "tofu_muse", "collapse"),
    *("trajectories", "guides", "depth", "meta", "messages", "directories", "diffusion_models", "bad_input"),
    *("pools", "docs", "sweep_ray", "run", "faults", "fuzz"),
)


def part_of(path: Path) -> str | None:
    """The part that a file of tests/ belongs to; a file's own name outweighs its folder. None: `make test`."""
    if not path.is_relative_to(HERE):
        return None
    name = path.relative_to(HERE).as_posix()
    for names in (name, f"{name.split('/')[0]}"):
        for part, members in PARTS.items():
            if names in members:
                return part
    return None


# Start-up files for other processes, not modules with doctests: importing them here would change this process.
collect_ignore = ["crashing_cpu", "jitter"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=sorted(PARTS), help="run one part of what `make test` leaves out")
    parser.addoption("--jitter", type=int, metavar="SEED", help="imitate another processor (tests/jitter/jitter.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test file is imported: jitter wraps functions as their modules are imported."""
    seed = config.getoption("--jitter")
    if seed is not None and "VESTIGE_TEST_JITTER" not in os.environ:  # a worker's Python was given it when it started
        sys.path.insert(0, str(Path(__file__).parent / "jitter"))
        import jitter

        jitter.install(seed)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that are named on the command line are always collected: pytest does not ask about those."""
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if is_test and part_of(collection_path) != config.getoption("--part"):
        return True
    return None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The last lines of a failing run say how to look at its first failure."""
    failed = [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]
    if failed:
        terminalreporter.write_line(f"Run the first one alone: .venv/bin/python -m pytest -n 0 '{failed[0].nodeid}'")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--jitter")
    return None if seed is None else f"jitter: seed {seed}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))  # stable: the others keep their order


@pytest.fixture(autouse=True, scope="session")
def _low_precision() -> None:
    """On a CPU where bfloat16 ends the process, the setting without which tests would lose their worker."""
    from vestige.models.quantised import check_low_precision

    check_low_precision("cpu")


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
