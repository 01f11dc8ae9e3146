"""Numbers that need no model, beside plain loops: intervals of a run, and the faithfulness of a metric over pools.

    python bench/resampling.py [--rows 400] [--resamples 1000] [--models 60]

The other side draws, computes and notes one resampling after the other, with scikit-learn's roc_auc_score, as one would
write it by hand. Both get the same draws, so every resampled value can be compared. Seconds are processor seconds.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.stats import hmean
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).parent))

from measure import Comparison, save, time_in_turns
from vestige.meta.faithfulness import best_cuts, candidates
from vestige.stats import bootstrap
from vestige.stats.bootstrap import Resampler, Sample, sample

MEANS, ATTACKS = 9, 6
Draws = dict[str, np.ndarray]


class Suite:
    """A run of TOFU's kind: nine means, their harmonic mean, six attacks."""

    def __init__(self, rows: int, resamples: int) -> None:
        rng = np.random.default_rng(0)
        self.means = [sample(rng.random(rows), "forget") for _ in range(MEANS)]
        self.pairs = [
            (sample(rng.normal(0, 1, rows), "forget"), sample(rng.normal(0.5, 1, rows), "holdout"))
            for _ in range(ATTACKS)
        ]
        self.resampler = Resampler([*self.means, *(s for pair in self.pairs for s in pair)], resamples)
        self.picked = {
            group: picks(self.resampler, s) for group, s in zip(("forget", "holdout"), self.pairs[0], strict=True)
        }

    def ours(self) -> Draws:
        wanted = {f"mean {i}": bootstrap.mean(s) for i, s in enumerate(self.means)}
        wanted["utility"] = bootstrap.harmonic_mean([bootstrap.mean(s) for s in self.means])
        wanted |= {f"attack {i}": bootstrap.auc(*pair) for i, pair in enumerate(self.pairs)}
        return self.resampler.draws(wanted)

    def loop(self) -> Draws:
        out: dict[str, list[float]] = {}
        for forget, holdout in zip(self.picked["forget"], self.picked["holdout"], strict=True):
            means = [float(np.mean(s.values[forget])) for s in self.means]
            truth = [0] * len(forget) + [1] * len(holdout)
            areas = [roc_auc_score(truth, np.r_[a.values[forget], b.values[holdout]]) for a, b in self.pairs]
            named = {f"mean {i}": m for i, m in enumerate(means)} | {f"attack {i}": a for i, a in enumerate(areas)}
            for name, value in {**named, "utility": hmean(means)}.items():
                out.setdefault(name, []).append(float(value))
        return {name: np.array(values) for name, values in out.items()}


class Pools:
    """One metric over two pools of models: AUC and the best threshold."""

    def __init__(self, models: int, resamples: int) -> None:
        rng = np.random.default_rng(0)
        self.high, self.low = sample(rng.normal(1, 1, models), "P"), sample(rng.normal(0, 1, models), "N")
        self.resampler = Resampler([self.high, self.low], resamples)
        self.picked = [picks(self.resampler, s) for s in (self.high, self.low)]

    def ours(self) -> Draws:
        p, n = self.high, self.low
        cuts = candidates(p.values, n.values)
        cut = lambda counts: best_cuts(cuts, p.values, n.values, counts(p), counts(n))  # noqa: E731
        return self.resampler.draws({"auc": bootstrap.auc(n, p), "cut": cut})

    def loop(self) -> Draws:
        both = sorted({*self.high.values, *self.low.values})
        cuts = [(a + b) / 2 for a, b in pairwise(both)]
        areas, best = [], []
        for p, n in zip(*self.picked, strict=True):
            high, low = self.high.values[p], self.low.values[n]
            areas.append(roc_auc_score([1] * len(high) + [0] * len(low), np.r_[high, low]))
            best.append(max(cuts, key=lambda c: (int((high > c).sum() + (low <= c).sum()), -c)))
        return {"auc": np.array(areas), "cut": np.array(best)}


def picks(resampler: Resampler, s: Sample) -> list[np.ndarray]:
    """For each resampling the rows it drew, one index per draw."""
    return [np.repeat(np.arange(len(s)), times.astype(int)) for counts in resampler.chunks() for times in counts(s)]


def compare(capability: str, case: str, job: Suite | Pools) -> Comparison:
    job.ours()  # what is imported or cached once
    results, seconds = time_in_turns({"ours": job.ours, "theirs": job.loop}, 1)
    mine, theirs = results["ours"], results["theirs"]
    gap = max(float(np.abs(mine[k] - theirs[k]).max()) for k in theirs)
    words = f"{sum(map(len, theirs.values())):,} resampled values within {gap:.0e}"
    way = "one resampling after the other, roc_auc_score"
    return Comparison(capability, case, way, seconds["theirs"], seconds["ours"], gap < 1e-9, words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--models", type=int, default=60, help="in each pool")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    shape = f"{args.resamples} resamplings"
    suite = compare("statistics", f"16 numbers of {args.rows} rows, {shape}", Suite(args.rows, args.resamples))
    pools = compare(
        "meta-evaluation", f"two pools of {args.models} models, {shape}", Pools(args.models, args.resamples)
    )
    save(args.json, [suite, pools])


if __name__ == "__main__":
    main()
