"""The verb `verify`, for reports."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_verbs(verbs: Any) -> None:
    verify = verbs.add_parser("verify", help="does a report still say what its runs say?")
    verify.set_defaults(do=run_verify, late="reports")
    verify.add_argument("reports", nargs="+", metavar="DIR", help="directories that vestige report wrote")


def run_verify(args: argparse.Namespace) -> int:
    from vestige.run.verify_report import verify_report

    findings = {place: verify_report(Path(place)) for place in args.reports}
    for place, found in findings.items():
        print("\n".join(f"{place}: {words}" for words in found) or f"{place}: nothing wrong was found.")
    return 1 if any(findings.values()) else 0
