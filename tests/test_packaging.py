"""What is installed: the wheel has everything that runs need, and runs away from the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import vestige
from vestige.errors import how_to_install

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import dist  # noqa: E402 - beside the tests, not on their path

# Files of the package that are not Python: a wheel without them installs, and fails later.
DATA = sorted(
    p.relative_to(ROOT / "src")
    for p in (ROOT / "src" / "vestige").rglob("*")
    if p.is_file() and p.suffix not in (".py", ".pyc")
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive, as `make dist` builds them."""
    pytest.importorskip("setuptools")
    return dist.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> Path:
    return built[0]


def test_the_source_archive_has_what_the_wheel_has(built: tuple[Path, Path]) -> None:
    assert dist.same_files(*built) == []


def test_the_wheel_has_the_configurations_and_the_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert len(DATA) > 50
    assert [str(p) for p in DATA if str(p) not in names] == []
    assert [n for n in names if n.startswith(("tests/", "bench/", "docs/"))] == []


def test_it_runs_away_from_the_repository(wheel: Path, tmp_path: Path) -> None:
    """As pipx does: an installed package, a working directory of its own."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1"}
    where = "import vestige; print(vestige.__file__)"
    found = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert found.stdout.strip().startswith(str(tmp_path)), found.stdout
    listed = subprocess.run(
        [sys.executable, "-m", "vestige", "ls", "suites"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert listed.returncode == 0 and "tofu" in listed.stdout, listed.stderr


def test_it_is_installed_and_runs_from_an_environment_of_its_own(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An evaluation and a page. CI runs the demo there as well: tools/dist.py --shared."""
    dist.trial(wheel, tmp_path, shared=True, demo=False)
    said = re.search(r"with borrowed dependencies: (\d+) packages", capsys.readouterr().out)
    assert said and int(said[1]) <= 3  # vestige, and what a new environment has: pip, setuptools


def test_versions_agree() -> None:
    said = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    cited = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.M)
    assert said and cited and said[1] == cited[1] == vestige.__version__


def extras() -> dict[str, list[str]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_extra_that_a_page_or_message_names_exists() -> None:
    named: dict[str, str] = {}
    for file in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "src" / "vestige").rglob("*.py")]:
        text = file.read_text(encoding="utf-8")
        for found in re.findall(r"(?:vestige|\.)\[([a-z][a-z,-]*)\]'|how_to_install\(['\"]([a-z-]+)", text):
            named |= {extra: file.name for words in found for extra in words.split(",") if extra}
    assert len(named) >= 5
    assert {extra: file for extra, file in named.items() if extra not in extras()} == {}


def test_messages_name_a_command_that_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip adds the extras of a distribution that is installed; in a bare source tree there is none."""
    from importlib import metadata

    monkeypatch.setattr(metadata, "distribution", lambda name: name)
    beside = Path(sys.executable).parent / "pip"
    monkeypatch.setattr("shutil.which", lambda name: str(beside))
    assert how_to_install("plots") == "pip install 'vestige[plots]'"
    # `make demo` activates no environment: then `pip` is somebody else's, and would install somebody else's package.
    # Python is put outside this directory, where the command has its whole path: `make test` runs the one inside.
    monkeypatch.setattr("sys.executable", "/elsewhere/bin/python")
    for other in (None, "/usr/bin/pip"):
        monkeypatch.setattr("shutil.which", lambda name, other=other: other)
        assert how_to_install("plots") == "/elsewhere/bin/python -m pip install 'vestige[plots]'"
    monkeypatch.setattr("sys.executable", str(Path.cwd() / ".venv" / "bin" / "python"))
    assert how_to_install("plots") == ".venv/bin/python -m pip install 'vestige[plots]'"

    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert how_to_install("plots").startswith("pip install -e '.[plots]'")
