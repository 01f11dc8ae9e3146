"""What is installed: the wheel has everything that runs need, and runs away from the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import vestige

ROOT = Path(__file__).parent.parent
# Files of the package that are not Python: a wheel without them installs, and fails later.
DATA = sorted(
    p.relative_to(ROOT / "src")
    for p in (ROOT / "src" / "vestige").rglob("*")
    if p.is_file() and p.suffix not in (".py", ".pyc")
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools")
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source") / "vestige"
    # A copy: building leaves files behind, and the tests leave none in the repository.
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "bench/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(out), "."]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-1500:]
    return next(out.glob("*.whl"))


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


def test_versions_agree() -> None:
    said = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    cited = re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), re.M)
    assert said and cited and said[1] == cited[1] == vestige.__version__
