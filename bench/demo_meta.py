"""Pools of tiny models made, evaluated and attacked, and every metric put on the bench with them.

    python bench/demo_meta.py [--out DIR] [--seed N] [--pool-size N] [--slots N]

    pools --sweep--> runs --meta--> faithfulness, axes, robustness --> tables and three pictures
    bench ---------> runs --meta--> the verdict's words beside the truth

All work goes through sweeps, so a second run does only what is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from known_models.plans import CURVE_STEPS, JUDGED, STEPS, plans, pool_files, processes, write_yaml
from known_models.pools import PoolLab, PoolSettings, build_pools
from known_models.verdict_models import BenchSettings
from known_models.verdict_runs import run_bench
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.meta import files
from vestige.meta.pools import Attacks, Pools, read_attacks, read_pools
from vestige.meta.run import MetaAsk, meta
from vestige.metrics.cards import KNOWN, direction_of
from vestige.numeric import number
from vestige.show.progress import hushed
from vestige.show.tables import table
from vestige.sweep.plan import read_plan
from vestige.sweep.run import How, sweep

SHOWN = ("es", "prob", "mia_min_k", "uds")  # the columns of the picture before and after attacks
ORDER = {"pools.yaml": "faithfulness", "methods.yaml": "axes", "robustness.yaml": "robustness"}


def demo_meta(out: Path, settings: PoolSettings, asked: int | None = None, bench: BenchSettings | None = None) -> int:
    """Returns the exit status: that of the first sweep that failed, or 0. `bench`: the verdict's, made at the end."""
    if settings.size < 2:
        raise UserError(f"--pool-size is {settings.size}; a pool needs at least 2 models.")
    slots = processes(asked)
    print(f"Making {settings.size} + {settings.size} models of the pools and the unlearned ones in {out / 'lab'} ...")
    lab = build_pools(out / "lab", settings, max(1, slots))
    for name, body in plans(lab, out).items():
        plan = read_plan(write_yaml(out / f"plan_{name}.yaml", body))
        with hushed():
            status = sweep(plan, How(slots=slots))
        if status:
            return status
    print(judge(lab, out))
    if bench is not None:
        print(judge_verdict(out, bench))
    return 0


def judge_verdict(out: Path, bench: BenchSettings) -> str:
    """Models of known truth, made and tested, and the words that the verdict finds for them."""
    print(
        "\nMaking models of which it is known whether they forgot, and putting the verdict to the test ...", flush=True
    )
    run_bench(out / "bench" / f"s{bench.seed}", bench)
    return meta("verdict", MetaAsk(out / "bench", out=out / "verdict"))


def judge(lab: PoolLab, out: Path) -> str:
    """The three questions, what the lab should show, and the pictures; from finished runs, without a model."""
    pages = []
    for file, body in pool_files(lab).items():
        path = write_yaml(out / file, body)
        pages.append(meta(ORDER[file], MetaAsk(path, out=out, metrics=JUDGED, rows=0)))
    pools, attacks = read_pools(out / "pools.yaml"), read_attacks(out / "robustness.yaml")
    curve = recovery(out)
    pages.append(statements(lab, out, curve))
    drawn = draw(out, pools, attacks, curve)
    return "\n\n".join([*pages, f"pictures: {', '.join(map(str, drawn))}"])


def recovery(out: Path) -> dict[str, list[tuple[float, float]]]:
    """The forget probability of each model of the curve at each number of relearning steps, 0 first."""
    attacked = read_json(out / "attacks" / "sweep.json")["results"]["tofu"]
    more = read_json(out / "curve" / "sweep.json")["results"]["tofu"]
    names = [name for name in more if "+" not in name]
    budgets = sorted({*CURVE_STEPS, STEPS})

    def value(name: str, steps: int) -> float | None:
        found = attacked.get(f"{name}+relearn") if steps == STEPS else more.get(f"{name}+relearn-{steps}")
        return prob_of(found)

    lines = {name: [(0, prob_of(more[name])), *((n, value(name, n)) for n in budgets)] for name in names}
    return {name: [(float(n), v) for n, v in line if v is not None] for name, line in lines.items()}


def prob_of(summary: Mapping[str, Any] | None) -> float | None:
    """The forget probability in a summary, by either of its names."""
    return next((v for n in ("forget_Q_A_Prob", "prob") if (v := (summary or {}).get(n)) is not None), None)


def statements(lab: PoolLab, out: Path, curve: Mapping[str, list[tuple[float, float]]]) -> str:
    """What must hold on a lab of known answers, with the numbers: forgetting, faithfulness, return."""
    body, attacked = read_json(out / files.META_EVAL), read_json(out / "attacks" / "sweep.json")["results"]["tofu"]
    full = prob_of(read_json(out / "pools" / "sweep.json")["results"]["tofu"]["full"])
    assert full is not None
    now = {name: prob_of(attacked[name]) for name in ("retain", *lab.models("unlearned"))}
    after = {name: prob_of(attacked[f"{name}+relearn"]) for name in now}
    gain = {name: a - b for name in now if (a := after[name]) is not None and (b := now[name]) is not None}
    rows = [
        [n, number(now[n]), number(after[n]), number(gain[n]), number(one_sided(gain, n)), _curve_cell(curve.get(n))]
        for n in gain
    ]
    aucs = {n: b["auc_roc"] for n, b in body["faithfulness"].items() if b["auc_roc"] is not None}
    low = [f"{n} {a:.3f}" for n, a in aucs.items() if a <= 0.8]
    lowered = [n for n in gain if n != "retain" and (now[n] or 0.0) < full]
    regained = [n for n in gain if n != "retain" and gain[n] > gain["retain"]]
    heads = ["model", "prob", f"after {STEPS} steps", "gain", "R", "prob by steps"]
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


def one_sided(gain: Mapping[str, float], name: str) -> float | None:
    """R of one model on the forget probability, by the rule that counts recovery only."""
    from vestige.meta.robustness import one_sided_r

    return None if name == "retain" else one_sided_r(gain[name], gain["retain"])


def _curve_cell(line: list[tuple[float, float]] | None) -> str:
    return " ".join(f"{int(n)}:{v:.2f}" for n, v in line or [])


def draw(out: Path, pools: Pools, attacks: Attacks, curve: Mapping[str, list[tuple[float, float]]]) -> list[Path]:
    """The three pictures."""
    from known_models.pictures import before_and_after, pool_histograms, recovery_curves
    from vestige.show.trajectory_plots import save

    cuts = files.read_thresholds(out / files.THRESHOLDS)

    def m(metric: str, value: float | None) -> float | None:
        return None if value is None else direction_of(metric).m(value)

    def side(models: Any, metric: str) -> list[float]:
        return [x for model in models if (x := m(metric, model.value(metric))) is not None]

    panels = {n: (side(pools.positive, n), side(pools.negative, n), cuts[n].m) for n in KNOWN if n in cuts}
    points = {
        (state, metric): {
            model.name: (m(metric, model.value("before", metric)), m(metric, model.value(state, metric)))
            for model in (attacks.retain, *attacks.models)
        }
        for state in ("relearning", "quantization")
        for metric in SHOWN
    }
    return [
        save(pool_histograms(panels), out / "pools.png", dpi=110),
        save(before_and_after(points, control="retain"), out / "attacks.png", dpi=110),
        save(recovery_curves(curve, "forget probability", control="retain"), out / "recovery.png", dpi=110),
    ]


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
