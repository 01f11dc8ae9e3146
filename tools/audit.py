"""Known vulnerabilities among the pinned versions, by pip-audit. Never fails a build; always says what it could not do.

python tools/audit.py    reads constraints.txt; needs pip-audit and its advisory service
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
SECONDS = 120


def audit(constraints: Path = CONSTRAINTS) -> Any:
    """pip-audit's report, or a sentence that says why there is none."""
    words = [sys.executable, "-m", "pip_audit", "-r", str(constraints), "--no-deps", "--disable-pip", "--timeout", "5"]
    try:
        done = subprocess.run([*words, "--format", "json"], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"pip-audit gave no answer in {SECONDS} s (no network?)"
    try:
        return json.loads(done.stdout)
    except ValueError:
        said = (done.stderr or done.stdout).strip().splitlines()
        return f"pip-audit could not run: {said[-1] if said else 'it said nothing'}"


def report(found: Any) -> list[str]:
    """The lines to print. A package that could not be looked up is not a package without vulnerabilities.

    >>> report({"dependencies": [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "x"}]})
    ['audit: 1 of 2 packages looked up, 0 known vulnerabilities', 'audit: NOT LOOKED UP: b (x)']
    """
    if isinstance(found, str):
        return [f"audit: NOTHING WAS AUDITED: {found}"]
    packages = found["dependencies"]
    skipped = [p for p in packages if "skip_reason" in p]
    bad = [(p, v) for p in packages for v in p.get("vulns", [])]
    looked = len(packages) - len(skipped)
    lines = [f"audit: {looked} of {len(packages)} packages looked up, {len(bad)} known vulnerabilities"]
    for p, v in bad:
        fixed = ", ".join(v.get("fix_versions") or []) or "no fixed version yet"
        lines.append(f"audit: VULNERABLE: {p['name']} {p['version']}: {v['id']} (fixed in: {fixed})")
    if skipped and not looked:
        lines = [f"audit: NOTHING WAS AUDITED: none of {len(packages)} packages could be looked up (no network?)"]
    elif skipped:
        names = ", ".join(p["name"] for p in skipped[:5])
        more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        lines.append(f"audit: NOT LOOKED UP: {names}{more} ({skipped[0]['skip_reason'][:80]})")
    return lines


if __name__ == "__main__":
    print("\n".join(report(audit())))
