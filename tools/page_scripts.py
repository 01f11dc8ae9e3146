"""Syntax and unit tests of the report page's scripts, in node. `make check` runs it; no browser, no npm.

    tools/page_scripts.py [ROOT]    exit status 1 if a script is not a module that parses, or a test fails

Without node it prints that it skipped and ends with status 0. The scripts and their tests are copied beside a
package.json that says they are modules: older versions of node do not find that out by themselves.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE, TESTS = Path("src/vestige/report/page"), Path("tests/page")
SKIPPED = "page scripts: SKIPPED: node is not installed (Debian: apt-get install nodejs)"


def main(root: Path) -> int:
    node = shutil.which("node")
    if node is None:
        print(SKIPPED)
        return 0
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        for part in (PAGE, TESTS):
            shutil.copytree(root / part, copy / part)
        (copy / "package.json").write_text('{"type": "module"}\n')
        scripts = sorted((copy / PAGE).glob("*.js"))
        bad = [s.name for s in scripts if run([node, "--check", str(s)])]
        tests = [str(t.relative_to(copy)) for t in sorted((copy / TESTS).glob("*.test.js"))]
        failed = run([node, "--test", *tests], copy)
    words = f"{len(scripts) - len(bad)} of {len(scripts)} parse, tests {'FAILED' if failed else 'passed'}"
    print(f"page scripts: {words} ({len(tests)} files)")
    return int(bool(bad or failed))


def run(command: list[str], place: Path | None = None) -> int:
    """The exit status of a command; its output is shown only if it failed."""
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent))
