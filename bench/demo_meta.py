"""Pools of tiny models made, evaluated and attacked, and every metric judged with them.

    python bench/demo_meta.py [--out DIR] [--seed N] [--pool-size N] [--slots N]

    pools --sweep--> runs --meta--> faithfulness, axes, robustness --> tables
    bench ---------> runs --meta--> the verdict's words next to the truth

All work goes through sweeps, so a second run does only what is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from known_models.pools import PoolLab, PoolSettings, build_pools
from known_models.verdict_runs import BenchSettings, run_bench
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.io import write_file
from vestige.meta import files
from vestige.meta.robustness import one_sided_r
from vestige.meta.run import MetaAsk, meta
from vestige.numeric import number
from vestige.show.progress import hushed
from vestige.show.tables import table
from vestige.stress.attacks import OURS
from vestige.sweep.plan import read_plan
from vestige.sweep.run import How, sweep

ORDER = {"pools.yaml": "faithfulness", "methods.yaml": "axes", "robustness.yaml": "robustness"}
# Everything the published tables have of outputs, by their short names; utility and fluency serve the axes.
OUTPUTS = (
    "em", "es", "prob", "paraprob", "truth_ratio", "rouge", "para_rouge", "jailbreak_rouge",
    "mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp",
)  # fmt: skip
METRICS = (*OUTPUTS, "model_utility", "forget_Q_A_gibberish")
# What is judged; parents of metrics (the probability of wrong answers) are in the runs, too.
JUDGED = (*OUTPUTS, *(f"s_{name}" for name in OUTPUTS if name.startswith("mia_")), "uds")
DIALECT = "depth-score"  # the short names' own definitions
# Relearning as the lab needs it: the published rate is for models a thousand times as large.
STEPS = 8  # two passes over the forget rows
ATTACKS = {"relearn": {"lr": 5e-4, "batch_size": 8, "accumulation": 1, "steps": STEPS}, "quantise": {"bits": 4}}


def demo_meta(out: Path, settings: PoolSettings, slots: int | None = None, bench: BenchSettings | None = None) -> int:
    """Returns the exit status: that of the first sweep that failed, or 0. `bench`: the verdict's, made at the end."""
    if settings.size < 2:
        raise UserError(f"--pool-size is {settings.size}; a pool needs at least 2 models.")
    if slots is None:
        slots = min(2, os.cpu_count() or 1)
    print(f"Making {settings.size} + {settings.size} models of the pools and the unlearned ones in {out / 'lab'} ...")
    lab = build_pools(out / "lab", settings, max(1, slots))
    for name, body in plans(lab, out).items():
        plan = read_plan(write_yaml(out / f"plan_{name}.yaml", body))
        with hushed():
            status = sweep(plan, How(slots=slots))
        if status:
            return status
    for file, body in pool_files(lab).items():
        print(meta(ORDER[file], MetaAsk(write_yaml(out / file, body), out=out, metrics=JUDGED, rows=0)), end="\n\n")
    print(statements(lab, out))
    if bench is not None:
        print("\nMaking models of which it is known whether they forgot, and testing the verdict ...", flush=True)
        run_bench(out / "bench" / f"s{bench.seed}", bench)
        print(meta("verdict", MetaAsk(out / "bench", out=out / "verdict")))
    return 0


# ---- files: sweep plans, and what `vestige meta` reads ---------------------------------------------------------------


def plans(lab: PoolLab, out: Path) -> dict[str, dict[str, Any]]:
    """Two sweeps: the pools as they are, and the unlearned models with both attacks."""
    key = "+eval.tofu.metrics.forget_Q_A_gibberish.classifier_model_args.pretrained_model_name_or_path"
    judge = str(lab.judge.absolute()).replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    # Intervals over rows are left out: meta-evaluation has its own, over models.
    overrides = ["stats.resamples=0", f"{key}='{judge}'"]
    models, data = lab.models(), {"data": str(lab.data)}
    suites = {
        "tofu": {**data, "metrics": list(METRICS), "dialect": DIALECT, "overrides": overrides},
        "depth": {"full": str(models["full"]), "data": str(lab.data / "forget.jsonl"), "resamples": 0},
    }

    def plan(name: str, names: Iterable[str], **more: Any) -> dict[str, Any]:
        places = {n: str(models[n]) for n in names}
        body = {"out": str(out / name), "retain": "retain", "models": places, "suites": suites}
        return {**body, "threads": 1, "free_space": "200 MB", **more}

    return {
        "pools": plan("pools", ["full", "retain", *lab.models("P", "N")]),
        "attacks": plan("attacks", ["retain", *lab.models("unlearned")], attacks=ATTACKS),
    }


def runs_of(folder: str, model: str, attack: str | None = None) -> list[str]:
    """A model's two runs, relative to the pool files."""
    name = model if attack is None else f"{model}+{attack}"
    return [f"{folder}/runs/{suite}/{name}" for suite in ("tofu", "depth")]


def pool_files(lab: PoolLab) -> dict[str, dict[str, Any]]:
    """What `vestige meta` reads: faithfulness, axes, robustness."""

    def listed(folder: str, *pools: str) -> list[dict[str, Any]]:
        return [{"model": name, "run": runs_of(folder, name)} for name in lab.models(*pools)]

    def states(name: str) -> dict[str, Any]:
        found = {"before": runs_of("attacks", name)}
        for attack, record in OURS.items():
            if record.state:
                found[record.state] = runs_of("attacks", name, attack)
        return found

    methods = {r.name: r.unlearning.method for r in lab.recipes if r.unlearning is not None}
    retain = {"retain": runs_of("pools", "retain")}
    return {
        "pools.yaml": {**retain, "positive": listed("pools", "P"), "negative": listed("pools", "N")},
        "methods.yaml": {
            **retain,
            "full": runs_of("pools", "full"),
            "models": [{**entry, "method": methods[entry["model"]]} for entry in listed("attacks", "unlearned")],
        },
        "robustness.yaml": {
            "retain": states("retain"),
            "models": [{"model": name, **states(name)} for name in lab.models("unlearned")],
        },
    }


def write_yaml(path: Path, body: Mapping[str, Any]) -> Path:
    """The same body, the same bytes; a file that is already so is left alone."""
    text = yaml.safe_dump(dict(body), sort_keys=False, width=120).encode()
    if not path.is_file() or path.read_bytes() != text:
        write_file(path, text)
    return path


# ---- what the lab should show ----------------------------------------------------------------------------------------


def prob_of(summary: Mapping[str, Any] | None) -> float | None:
    """The forget probability in a summary, by either of its names."""
    return next((v for n in ("forget_Q_A_Prob", "prob") if (v := (summary or {}).get(n)) is not None), None)


def statements(lab: PoolLab, out: Path) -> str:
    """What must hold on a lab of known answers, with the numbers: forgetting, faithfulness, return."""
    body, attacked = read_json(out / files.META_EVAL), read_json(out / "attacks" / "sweep.json")["results"]["tofu"]
    full = prob_of(read_json(out / "pools" / "sweep.json")["results"]["tofu"]["full"])
    assert full is not None
    now = {name: prob_of(attacked[name]) for name in ("retain", *lab.models("unlearned"))}
    after = {name: prob_of(attacked[f"{name}+relearn"]) for name in now}
    gain = {name: a - b for name in now if (a := after[name]) is not None and (b := now[name]) is not None}
    rows = []
    for name in gain:
        r = None if name == "retain" else one_sided_r(gain[name], gain["retain"])
        rows.append([name, *map(number, (now[name], after[name], gain[name], r))])
    aucs = {n: b["auc_roc"] for n, b in body["faithfulness"].items() if b["auc_roc"] is not None}
    low = [f"{n} {a:.3f}" for n, a in aucs.items() if a <= 0.8]
    lowered = [n for n in gain if n != "retain" and (now[n] or 0.0) < full]
    regained = [n for n in gain if n != "retain" and gain[n] > gain["retain"]]
    heads = ["model", "prob", f"after {STEPS} steps", "gain", "R"]
    return "\n".join(
        [
            f"forget probability (full model: {full:.4f}), before and after relearning",
            "",
            table(rows, heads, right=(1, 2, 3, 4)),
            "",
            f"{len(lowered)} of {len(gain) - 1} unlearned models have a lower forget probability than the full model.",
            f"{len(aucs) - len(low)} of {len(aucs)} metrics have an AUC above 0.8"
            + (f"; not: {', '.join(low)}." if low else "."),
            f"{len(regained)} of {len(gain) - 1} unlearned models regain more forget probability than the retain "
            f"control ({gain['retain']:+.4f}) in {STEPS} steps (R < 1).",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("saves/demo_meta"), help="default: saves/demo_meta")
    parser.add_argument("--seed", type=int, default=0, help="another world, other models")
    parser.add_argument("--pool-size", type=int, default=8, help="models in P and in N; N * 3 / 2 are unlearned (8)")
    parser.add_argument("--slots", type=int, help="processes at a time (2, or 1 on one core)")
    args = parser.parse_args()
    if args.slots is not None and args.slots < 1:
        parser.error(f"--slots must be at least 1, it is {args.slots}")
    pools = PoolSettings(seed=args.seed, size=args.pool_size)
    try:
        return demo_meta(args.out, pools, args.slots, BenchSettings(seed=args.seed, copies=1))
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
