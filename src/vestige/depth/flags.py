"""The verb `depth`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vestige.errors import UserError, nothing_computed
from vestige.flags import shared_flags

# Flags of `depth` that are Hydra keys of the same name.
DEPTH = (
    "unlearned", "full", "out", "s1_cache", "last_layer", "delta_threshold", "layers",
    "attn_implementation", "dtype", "device", "quantization", "compute_dtype", "tokenizer", "trust_remote_code",
    "batch_size", "limit", "cluster", "tokenization", "patch_scope", "em_scope", "baselines", "plots", "seed",
)  # fmt: skip


def add_verbs(verbs: Any) -> None:
    p = verbs.add_parser("depth", help="is it gone from the layers, or only from the answers?")
    p.set_defaults(do=run_depth, late="words")
    p.add_argument("words", nargs="*", metavar="KEY=VALUE", help="settings as Hydra keys: last_layer=peer, retain=PATH")
    p.add_argument("--unlearned", nargs="+", metavar="PATH", help="the checkpoints to measure")
    p.add_argument(
        "--s1-cache", metavar="DIR", help="where retain -> full is kept (OUT/s1_cache); or a published .json"
    )
    p.add_argument("--last-layer", metavar="residual|peer", help="before or after the source's final norm")
    p.add_argument("--delta-threshold", type=float, metavar="X", help="a layer counts above it (0.05)")
    p.add_argument("--layers", metavar="auto|0-15|0,2|0-24:2", help="which layers are patched")
    p.add_argument("--attn-implementation", metavar="sdpa|eager", help="how attention is computed")
    p.add_argument("--patch-scope", metavar="span|boundary|all", help="which positions are patched")
    p.add_argument("--em-scope", metavar="entity|full", help="which tokens are scored")
    p.add_argument("--baselines", metavar="NAME,...", help="also cka, logit_lens, fisher")
    p.add_argument("--plots", action="store_true", help="draw the layer profile, the heat map and the tokens")
    shared_flags(
        p,
        "depth",
        data="its forget rows are read",
        forget="and, where known, entity and prefix",
        out="default: saves/depth",
        quantization="of the unlearned models only",
        batch_size="default: 8",
        tokenization="separate | joint: prompt and answer apart, or as one text",
        config_dir="with a depth.yaml",
    )


def _rows(file: str | None, folder: str | None) -> str | None:
    """The file of forget rows: named, or the one in a folder."""
    from vestige.data.rows import file_in

    if folder is None:
        return file
    if file is not None:
        raise UserError("The forget rows are named twice, by --forget and by --data; give one of them.")
    found = file_in(folder, "forget")
    if found is None:
        raise UserError(f"--data {folder} has no forget.jsonl (or .json, .csv, .parquet); name the rows with --forget.")
    return found


def run_depth(args: argparse.Namespace) -> int:
    from vestige.adapters.plugins import load_plugins
    from vestige.depth.ask import ask_from
    from vestige.depth.run import depth_run, report
    from vestige.types import BAD_LOGITS

    load_plugins(args.plugin)
    flags = {name: getattr(args, name) for name in DEPTH}
    flags |= {"retain": args.retain_model, "data": _rows(args.forget, args.data)}
    if args.baselines is not None:
        flags["baselines"] = [name.strip() for name in args.baselines.split(",") if name.strip()]
    words = [*args.words, *(["progress=false"] if args.quiet else [])]
    ask = ask_from(flags, words, Path(args.config_dir) if args.config_dir else None)
    results = depth_run(ask)
    if results:  # in a team of processes the leader has them
        print(report(results))
    if results and all(BAD_LOGITS in r.reason for r in results):
        raise nothing_computed("depth scores", [result.reason for result in results])
    return 0
