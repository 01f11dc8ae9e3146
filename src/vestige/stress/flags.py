"""The flags of `vestige stress`. Imports nothing heavy: --help is instant."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vestige.flags import shared_flags
from vestige.stress.attacks import OURS


def add_verbs(verbs: Any) -> None:
    p = verbs.add_parser("stress", help="attack a checkpoint: does what was forgotten come back?")
    p.set_defaults(do=run_stress, late="attacks")
    p.names = lambda: tuple(OURS)
    p.add_argument(
        "attacks",
        nargs="*",
        metavar="ATTACK[=BUDGET,...]",
        help=f"{', '.join(OURS)}, or a plug-in's; relearn=5,20 is two budgets (all; with --server those on prompts)",
    )
    p.add_argument("--held-out", action="store_true", help="relearn on half of the forget rows, measure the other")
    p.add_argument("--examples", type=int, metavar="N", help="relearn: teach only the first N rows")
    p.add_argument("--keep", action="store_true", help="keep attacked checkpoints in OUT/checkpoints")
    p.add_argument("--plot", metavar="FILE", help="draw recovery against budget (FILE_ATTACK.png)")
    p.add_argument("--suite", default="tofu", metavar="NAME", help="default: tofu")
    shared_flags(
        p,
        "stress",
        model={"required": True, "says": "the unlearned one"},
        data={"required": True},
        retain_model="the control",
        out={"default": "saves/stress"},
        metrics="default: probability, ROUGE and extraction strength",
        temperature={"default": 1.0, "says": "of leak's samples; default: 1"},
        compute_dtype="quantise=4",
        epochs="relearn; default: 1",
        lr="relearn; default: 2e-5",
        batch_size="relearn; default: 8",
        accumulation="relearn; default: 4",
    )
    p.epilog = "Attacks: " + "; ".join(f"{record.name} {record.does}" for record in OURS.values()) + "."


def run_stress(args: argparse.Namespace) -> int:
    from vestige.integrations.plugins import load_plugins
    from vestige.stress.run import (
        NO_WEIGHTS,
        SETTINGS,
        draw,
        explained,
        judged,
        make_stress,
        plan_words,
        possible_served,
        relearning_r,
        show,
        show_r,
        stress,
    )

    load_plugins(args.plugin)
    given = {name: getattr(args, name) for name in SETTINGS if name != "progress"}
    where = {"out": args.out, "retain_model": args.retain_model, "plugins": args.plugin}
    chosen = args.attacks or [name for name in OURS if not args.server or possible_served(name)]
    ask = make_stress(args.model, args.data, chosen, progress=not args.quiet, **where, **given)
    print(plan_words(ask), flush=True)
    found = stress(ask)
    rows = [row for row in found if not row.reason]
    print(f"\n{args.model}\n\n{show(rows)}\n\n{explained(rows)}\n")
    if entries := relearning_r([asdict(row) for row in rows]):
        print(f"{show_r(entries)}\n")
    if words := judged(ask.out):
        print("\n".join([*words, ""]))
    if left_out := [name for name in OURS if not args.attacks and name not in ask.attacks]:
        print(f"not possible through a server: {', '.join(left_out)} ({NO_WEIGHTS})")
    for row in found:
        if row.reason:
            print(f"not tested: {row.name}, because {row.reason}")
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        print(f"note: {note}")
    pictures = draw(rows, Path(args.plot), ask.out) if args.plot else []
    if args.plot and not pictures:
        print("note: no attack had more than one budget, so no curve can be drawn (relearn=5,20 gives one).")
    print(f"files: {', '.join(str(file) for file in (ask.out / 'stress.json', *pictures))}")
    return 0 if len(rows) == len(found) else 1
