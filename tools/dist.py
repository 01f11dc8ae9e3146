"""Builds the wheel and the source archive, and tries the wheel in an empty environment, away from the repository.

    make dist                      both files in dist/, then the trial (it downloads the pinned torch)
    python tools/dist.py --build   only the two files
    python tools/dist.py --shared  the trial in an environment that has only the wheel, and borrows its dependencies
                                   from the one that runs this script: no download (CI does this)

The trial installs the wheel with the versions of constraints.txt, and then, in another directory, evaluates the golden
lab's model, makes a page of the run, asks pip what a message's `pip install 'vestige[plots]'` would add, and runs
`vestige demo --no-diffusion`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAB = ROOT / "tests" / "golden" / "lab"
LEFT_OUT = ("tests/", "bench/", "docs/")  # what an installed vestige does not read; the archive has no use for it


def copy_source(place: Path) -> Path:
    """What git knows of the repository, elsewhere: building leaves files behind."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\n")):
        if (ROOT / name).is_file() and not name.startswith(LEFT_OUT):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, place / name)
    return place


def build(out: Path) -> tuple[Path, Path]:
    """The wheel and the source archive, by the backend that pyproject.toml names."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = copy_source(Path(scratch) / "vestige")
        code = "import sys; out = sys.argv[1]; from setuptools import build_meta as b; "  # it changes sys.argv
        code += "print(b.build_sdist(out)); print(b.build_wheel(out))"
        words = [sys.executable, "-c", code, str(out.resolve())]
        done = subprocess.run(words, cwd=source, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"dist: building failed:\n{done.stderr[-3000:]}")
    named = [line for line in done.stdout.splitlines() if line.endswith((".whl", ".tar.gz"))]
    archive = next(out / n for n in named if n.endswith(".tar.gz"))
    return next(out / n for n in named if n.endswith(".whl")), archive


def same_files(wheel: Path, archive: Path) -> list[str]:
    """Files of the package that one of the two lacks."""
    with zipfile.ZipFile(wheel) as one, tarfile.open(archive) as other:
        installed = {n for n in one.namelist() if n.startswith("vestige/")}
        sources = {n.partition("/src/")[2] for n in other.getnames() if "/src/vestige/" in n}
        sources -= {n for n in sources if other_is_directory(n, sources)}
    return sorted(installed ^ sources)


def other_is_directory(name: str, names: set[str]) -> bool:
    return any(other.startswith(f"{name}/") for other in names)


def borrow(env: Path) -> None:
    """Lets an environment see the packages of this one. Its own come first, and this one's editable vestige is not
    among them: a directory that is added by a .pth file does not have its own .pth files read.
    """
    theirs = next(env.glob("lib/python*/site-packages"))
    places = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (theirs / "borrowed.pth").write_text("\n".join(places))


def install(wheel: Path, place: Path, shared: bool) -> Path:
    """A new environment with the wheel in it; its Python."""
    venv.create(place / "env", with_pip=True)
    python = place / "env" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
    if shared:
        run([*pip, "--no-deps", "--no-index", str(wheel)], place)
        borrow(place / "env")
    else:
        limits = ["-c", str(ROOT / "constraints.txt")]
        run([*pip, *limits, "torch"], place)  # alone, and by its pin: nothing that follows asks for another build
        run([*pip, *limits, str(wheel)], place)
    return python


def trial(wheel: Path, place: Path, shared: bool = False, demo: bool = True) -> None:
    """An empty environment, the wheel, and commands in a directory of their own."""
    started = time.monotonic()
    python, work = install(wheel, place, shared), place / "work"
    work.mkdir()
    installed = time.monotonic() - started
    command = str(place / "env" / "bin" / "vestige")
    where = run([str(python), "-c", "import vestige; print(vestige.__file__)"], work)
    assert where.startswith(str(place / "env")), where
    assert "--no-diffusion" in run([command, "demo", "--help"], work)
    lab = ["--model", str(LAB / "models" / "full"), "--data", str(LAB / "data")]
    small = ["--limit", "4", "--metrics", "forget_Q_A_Prob", "--quiet", "--out", "run"]
    said = run([command, "eval", "tofu", *lab, *small], work)
    assert "forget_Q_A_Prob" in said, said
    run([command, "report", "run", "-o", "page"], work)
    assert list((work / "page").glob("*.html"))
    if not shared:
        pip = [str(python), "-m", "pip", "install", "-c", str(ROOT / "constraints.txt")]
        added = run([*pip, "--dry-run", "vestige[plots]"], work)
        assert "matplotlib" in added and "torch-" not in added.rpartition("Would install")[2], added
    if demo:
        begun = time.monotonic()
        told = run([command, "demo", "--no-diffusion"], work)
        assert "Did it forget?" in told and "Three commands to try:" in told, told
        assert (work / "saves" / "demo" / "report" / "index.html").is_file()
        print(f"dist: vestige demo --no-diffusion took {time.monotonic() - begun:.0f} s from the wheel")
    packages = len(list((place / "env").glob("lib/python*/site-packages/*.dist-info")))
    size = sum(p.stat().st_size for p in (place / "env").rglob("*") if p.is_file() and not p.is_symlink()) / 2**20
    cost = f"{packages} packages, {size:,.0f} MB, {installed:.0f} s to install"
    kind = "an environment of its own with borrowed dependencies" if shared else "an empty environment"
    print(f"dist: {wheel.name} runs in {kind}: {cost}")


def run(words: list[str], place: Path) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"dist: {' '.join(words[:6])} ... failed:\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--build", action="store_true", help="build, and try nothing")
    parser.add_argument("--shared", action="store_true", help="borrow the dependencies of this environment")
    args = parser.parse_args()
    wheel, archive = build(args.out)
    lacking = same_files(wheel, archive)
    assert not lacking, f"in one of the two only: {lacking}"
    print(f"dist: {wheel} ({wheel.stat().st_size / 1e6:.1f} MB), {archive} ({archive.stat().st_size / 1e6:.1f} MB)")
    if not args.build:
        with tempfile.TemporaryDirectory() as scratch:
            trial(wheel.resolve(), Path(scratch), args.shared)
    return 0


if __name__ == "__main__":
    sys.exit(main())
