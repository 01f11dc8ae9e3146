"""The verb `collapse`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.errors import UserError, nothing_computed
from vestige.flags import shared_flags

# Flags of `vestige collapse` that stand for settings of the collapse_detection group.
COLLAPSE_SETTINGS = (
    "compute_freq", "micro_batch_size", "first_turn_enabled", "multi_turn_enabled", "turn_enabled", "num_samples",
    "std_eps", "ema_decay", "seed", "resamples", "parity",
)  # fmt: skip


def _truth(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true or false, not {word!r}")
    return word.lower() == "true"


def _samples(word: str) -> int | str:
    return int(word) if word.isdecimal() else word


def add_verbs(verbs: Any) -> None:
    p = verbs.add_parser("collapse", help="does reasoning still depend on its prompt?")
    p.set_defaults(do=run_collapse, late="files")
    p.add_argument("files", nargs="*", metavar="ROLLOUTS | KEY=VALUE", help="rollout files, and Hydra overrides")
    shared_flags(
        p,
        "collapse",
        model={"action": "append", "says": "one for all files, or one for each"},
        out={"default": "saves/collapse"},
        temperature={"default": 1.0, "says": "of the rollouts; default: 1"},
        tokenization="exact | separate",
        resamples="and behind the permutation null",
    )
    p.add_argument("--step", action="append", type=int, default=[], metavar="N", help="the step of each file")
    p.add_argument("--rollout-format", default="auto", metavar="NAME", help="auto, native, verl, trl, ragen-jsonl, ...")
    p.add_argument("--prompt-template", default="raw", metavar="NAME", help="raw | chatml-restore")
    p.add_argument("--parity", metavar="ragen", help="RAGEN's draws, tokens and 29 numbers only")
    p.add_argument("--compute-freq", type=int, metavar="N", help="only step 1 and multiples of N (default: all steps)")
    p.add_argument("--micro-batch-size", type=int, metavar="N", help="reasonings scored together")
    p.add_argument("--first-turn-enabled", type=_truth, metavar="true|false", help="measure first turns")
    p.add_argument("--multi-turn-enabled", type=_truth, metavar="true|false", help="measure whole trajectories")
    p.add_argument("--turn-enabled", type=_truth, metavar="true|false", help="also turns drawn evenly")
    p.add_argument("--num-samples", type=_samples, metavar="N|all", help="turns looked at of each kind")
    p.add_argument("--std-eps", type=float, metavar="X", help="added to the spread that scores are divided by")
    p.add_argument("--ema-decay", type=float, metavar="X", help="how slowly running means move")
    p.add_argument("--cross-columns", metavar="NAME", help="prompts to cross with: auto | group | distinct | sample")
    p.add_argument("--ema", metavar="FILE", help="running means: read if there, written at the end")
    p.add_argument("--skip-long", action="store_true", help="leave out rows that are longer than the model reads")
    p.add_argument("--reasoning", default="tags", metavar="NAME", help="tags | whole (the whole response)")
    p.add_argument("--open-tag", default="<think>", metavar="TEXT", help="reasoning begins after it (default: <think>)")
    p.add_argument("--close-tag", default="</think>", metavar="TEXT", help="and ends before it (default: </think>)")
    p.add_argument("--reasoning-pattern", metavar="REGEX", help="instead of tags; its first group is the reasoning")
    p.add_argument("--unclosed", default="drop", metavar="NAME", help="drop | keep reasoning without its close tag")


def run_collapse(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.collapse.run import CollapseAsk, collapse, reasoning_for, scheduled_settings

    load_plugins(args.plugin)
    overrides = [w for w in args.files if "=" in w and not Path(w).exists()]
    files = [w for w in args.files if w not in overrides]
    if not files:
        raise UserError("No rollouts given; name one or more files (JSONL, parquet, .pkl, .pt).")
    flags = {name: getattr(args, name) for name in COLLAPSE_SETTINGS} | {"columns": args.cross_columns}
    directory = Path(args.config_dir) if args.config_dir else None
    settings, scheduled = scheduled_settings(overrides, flags, directory)
    reasoning = reasoning_for(
        settings, open=args.open_tag, close=args.close_tag, pattern=args.reasoning_pattern, mode=args.reasoning,
        unclosed=args.unclosed, tokenization=args.tokenization,
    )  # fmt: skip
    held = {"dtype": args.dtype, "device": args.device, "tokenizer": args.tokenizer}
    report = collapse(
        CollapseAsk(
            files=files, models=args.model, settings=settings, reasoning=reasoning, format=args.rollout_format,
            prompt_template=args.prompt_template, steps=args.step, scheduled=scheduled, temperature=args.temperature,
            ema=Path(args.ema) if args.ema else None, skip_long=args.skip_long, out=Path(args.out),
            batch_tokens=args.batch_tokens,
            model_args={k: v for k, v in held.items() if v} | {"trust_remote_code": args.trust_remote_code},
            progress=not args.quiet,
        )
    )  # fmt: skip
    print(report)
    if not any(o.samples for o in report.outcomes):
        reasons = [reason for outcome in report.outcomes for reason in outcome.reasons.values()]
        raise nothing_computed("collapse metrics", reasons)
    return 0
