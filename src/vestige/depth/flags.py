"""The verb `depth`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from vestige.engine.loading_flags import loading_flags, plugin_flag

# Flags of `depth` that are Hydra keys of the same name.
DEPTH = (
    "unlearned", "full", "retain", "data", "out", "s1_cache", "last_layer", "delta_threshold", "layers",
    "attn_implementation", "dtype", "device", "quantization", "compute_dtype", "tokenizer", "trust_remote_code",
    "batch_size", "limit", "tokenization", "patch_scope", "em_scope", "baselines", "plots", "seed",
)  # fmt: skip


def add_verbs(verbs: Any) -> None:
    p = verbs.add_parser("depth", help="is it gone from the layers, or only from what the model says?")
    p.set_defaults(do=run_depth, late="words")
    p.add_argument("words", nargs="*", metavar="KEY=VALUE", help="any of the flags as a Hydra key: last_layer=peer")
    p.add_argument("--unlearned", nargs="+", metavar="PATH", help="the checkpoints to measure")
    p.add_argument("--full", metavar="PATH", help="the model before unlearning")
    p.add_argument("--retain", metavar="PATH", help="the model trained without the forget rows")
    p.add_argument("--data", metavar="FILE", help="rows with question, answer and, if known, entity and prefix")
    p.add_argument("--out", metavar="DIR", help="default: saves/depth")
    p.add_argument(
        "--s1-cache", metavar="DIR", help="where retain -> full is kept (OUT/s1_cache); or a published .json"
    )
    p.add_argument("--last-layer", metavar="residual|peer", help="before or after the source's final norm")
    p.add_argument("--delta-threshold", type=float, metavar="X", help="a layer counts above it (0.05)")
    p.add_argument("--layers", metavar="auto|0-15|0,2|0-24:2")
    p.add_argument("--attn-implementation", metavar="sdpa|eager")
    loading_flags(p)
    p.add_argument("--quantization", metavar="4bit|8bit", help="of the unlearned models only")
    p.add_argument("--compute-dtype", metavar="NAME", help="what 4-bit layers multiply in (bfloat16)")
    p.add_argument("--batch-size", type=int, metavar="N", help="examples in one forward (8)")
    p.add_argument("--limit", type=int, metavar="N", help="first N rows")
    p.add_argument("--tokenization", metavar="separate|joint", help="prompt and answer apart, or as one text")
    p.add_argument("--patch-scope", metavar="span|boundary|all", help="which positions are patched")
    p.add_argument("--em-scope", metavar="entity|full", help="which tokens are scored")
    p.add_argument("--baselines", metavar="NAME,...", help="also cka, logit_lens, fisher")
    p.add_argument("--plots", action="store_true", help="draw the layer profile, the heat map and the tokens")
    p.add_argument("--seed", type=int)
    p.add_argument("--config-dir", metavar="DIR", help="with a depth.yaml of your own")
    plugin_flag(p, "readers of data files")
    p.add_argument("--quiet", action="store_true", help="no progress bars")


def run_depth(args: argparse.Namespace) -> int:
    from vestige.depth.ask import ask_from
    from vestige.depth.run import depth_run, report
    from vestige.integrations.plugins import load_plugins
    from vestige.types import BAD_LOGITS

    load_plugins(args.plugin)
    flags = {name: getattr(args, name) for name in DEPTH}
    if args.baselines is not None:
        flags["baselines"] = [name.strip() for name in args.baselines.split(",") if name.strip()]
    words = [*args.words, *(["progress=false"] if args.quiet else [])]
    ask = ask_from(flags, words, Path(args.config_dir) if args.config_dir else None)
    results = depth_run(ask)
    if results:  # in a team of processes the leader has them
        print(report(results))
    if results and all(BAD_LOGITS in r.summary["reason"] for r in results):
        print("vestige: error: no depth score could be computed; the reasons are above.", file=sys.stderr)
        return 2
    return 0
