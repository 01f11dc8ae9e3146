"""`make test-pythons`: the packages that need no torch, on newer Pythons.

torch has a CPU build for one Python here, so the rest of the suite runs on that one. Types, metrics, stats, suites,
verdict, meta and report never import it: their doctests and tests run on every Python below that is installed. Each
gets a small environment of its own, `.venv-X.Y`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.12", "3.13")
PACKAGES = (
    *("numpy", "scipy", "pytest", "hypothesis", "filelock", "tqdm", "msgspec"),
    *("hydra-core", "matplotlib", "rouge-score", "scikit-learn"),
)
PACKAGES_WITHOUT_TORCH = (
    *("types.py", "errors.py", "wants.py", "numeric.py"),
    *("metrics", "stats", "suites", "verdict", "meta", "report"),
)
TESTS = (
    *("test_modules", "test_numeric", "test_types", "stats/test_bootstrap", "stats/test_vectors", "meta/test_meta"),
    *(f"metrics/test_{name}" for name in ("bleu", "collapse_formulas", "depth_formulas", "metrics")),
)


def places(version: str) -> Iterator[str]:
    """Where an interpreter of this version may be: on the path, or among pyenv's."""
    if found := shutil.which(f"python{version}"):
        yield found
    if pyenv := shutil.which("pyenv"):
        listed = subprocess.run([pyenv, "versions", "--bare"], capture_output=True, text=True).stdout.split()
        for name in reversed([v for v in listed if v.startswith(f"{version}.")]):
            prefix = subprocess.run([pyenv, "prefix", name], capture_output=True, text=True).stdout.strip()
            yield str(Path(prefix) / "bin" / "python")


def interpreter(version: str) -> str | None:
    """The first that runs and is what its name says: pyenv puts a name on the path for versions it will not start."""
    say = "import sys; print('%d.%d' % sys.version_info[:2])"
    for place in places(version):
        try:
            said = subprocess.run([place, "-c", say], capture_output=True, text=True).stdout.strip()
        except OSError:
            continue
        if said == version:
            return place
    return None


def environment(version: str, python: str) -> Path:
    """A Python with what the packages need, made once for these packages."""
    place = ROOT / f".venv-{version}"
    stamp, wanted = place / ".installed", " ".join(PACKAGES) + "\n" + (ROOT / "constraints.txt").read_text()
    if not stamp.is_file() or stamp.read_text() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *PACKAGES], check=True)
        stamp.write_text(wanted)
    return place / "bin" / "python"


def run(version: str) -> bool:
    python = interpreter(version)
    if python is None:
        print(f"Python {version}: SKIPPED, no such interpreter on the path or in pyenv", flush=True)
        return True
    since = time.monotonic()
    asked = [*(f"src/vestige/{name}" for name in PACKAGES_WITHOUT_TORCH), *(f"tests/{name}.py" for name in TESTS)]
    command = [str(environment(version, python)), "-m", "pytest", "-v", "-rf", *asked]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines() or ["nothing was printed"]
    good = done.returncode == 0
    print(f"Python {version} ({python}): {lines[-1].strip('= ')}; {time.monotonic() - since:.0f} s in all", flush=True)
    if not good:
        print("\n".join(lines[-60:]), flush=True)
    return good


if __name__ == "__main__":
    results = [run(version) for version in PYTHONS]  # every one, also after a red one
    sys.exit(0 if all(results) else 1)
