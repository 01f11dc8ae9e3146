"""The verbs `verify`, `pack` and `unpack`: their flags, and from flags to work. Imports wait."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.flags import shared_flags


def add_verbs(verbs: Any) -> None:
    verify = verbs.add_parser("verify", help="is a run whole; do numbers follow from its evidence?")
    verify.set_defaults(do=run_verify, late="runs")
    verify.add_argument("runs", nargs="+", metavar="RUN", help="run directories, archives or report directories")
    verify.add_argument("--hashes-only", action="store_true", help="check the files, score nothing again")
    shared_flags(verify, "verify")
    pack = verbs.add_parser("pack", help="runs in one archive that can be scored again anywhere")
    pack.set_defaults(do=run_pack, late="runs")
    pack.add_argument("runs", nargs="+", metavar="RUN", help="finished run directories")
    shared_flags(pack, "pack", out={"default": "proof.zip", "metavar": "FILE"})
    unpack = verbs.add_parser("unpack", help="the runs of an archive as directories again")
    unpack.set_defaults(do=run_unpack)
    unpack.add_argument("archive", metavar="FILE", help="an archive of vestige pack")
    shared_flags(unpack, "unpack", out={"required": True, "says": "a folder that is not there yet"})


def run_verify(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.results.verify import show, verify
    from vestige.show.progress import hushed

    load_plugins(args.plugin)
    with hushed():  # what a metric lacks was printed when it was computed
        verdicts = [verify(Path(run), again=not args.hashes_only) for run in args.runs]
    print("\n".join(show(verdict) for verdict in verdicts))
    return 1 if any(verdict.findings for verdict in verdicts) else 0


def run_pack(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.results.pack import pack

    load_plugins(args.plugin)
    out = Path(args.out)
    contents, digest = pack([Path(run) for run in args.runs], out, args.shorten_paths)
    for name, root in contents.runs.items():
        print(f"{name}  root {root}")
    size = out.stat().st_size / 2**20
    print(f"{out}  {len(contents.files)} files, {size:.2f} MB, sha256 {digest}")
    return 0


def run_unpack(args: argparse.Namespace) -> int:
    from vestige.results.pack import unpack

    for run in unpack(Path(args.archive), Path(args.out)):
        print(run)
    return 0
