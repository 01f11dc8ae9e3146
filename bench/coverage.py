"""Do 95 % intervals hold the truth 95 times in 100? Made-up worlds whose truth is known, many samples from each.

    python bench/coverage.py [--repetitions 400] [--resamples 1000] [--seed 0]

Prints, for each statistic and number of rows, the share of intervals that hold the truth, those that miss on either
side, and their mean width; how often the KS test rejects two equal models on the same rows; and the seconds that
10,000 resamplings of a suite of TOFU's size take. A share between 92 and 98 % passes; the exit status says whether
all do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr

from vestige.compare import bootstrap, vectors
from vestige.compare.bootstrap import Sample, Statistic, sample

World = Callable[[np.random.Generator, int], tuple[Statistic, list[Sample]]]
PARTS = ((2.0, 1.0), (1.0, 2.0), (3.0, 3.0))  # three abilities, beta distributed


def bounded_mean(rng: np.random.Generator, n: int) -> tuple[Statistic, list[Sample]]:
    """Probabilities piled up near zero, as a model that has forgotten gives them."""
    x = sample(rng.beta(0.5, 2.0, n))
    return bootstrap.mean(x), [x]


def area(rng: np.random.Generator, n: int) -> tuple[Statistic, list[Sample]]:
    low, high = sample(rng.normal(0, 1, n), "forget"), sample(rng.normal(1, 1, n), "holdout")
    return bootstrap.auc(low, high), [low, high]


def utility(rng: np.random.Generator, n: int) -> tuple[Statistic, list[Sample]]:
    """Three means: two of them on the same rows, and correlated; the third on others."""
    shared = rng.normal(0, 0.1, n)
    first, second = (np.clip(rng.beta(a, b, n) + shared, 0, 1) for a, b in PARTS[:2])
    parts = [sample(first, "a"), sample(second, "a"), sample(rng.beta(*PARTS[2], n), "b")]
    return bootstrap.harmonic_mean([bootstrap.mean(p) for p in parts]), parts


def utility_truth() -> float:
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 0.1, 2_000_000)
    means = [float(np.clip(rng.beta(a, b, len(shared)) + shared, 0, 1).mean()) for a, b in PARTS[:2]]
    return vectors.harmonic_mean([*means, 0.5])


def leak(rng: np.random.Generator, n: int) -> tuple[Statistic, list[Sample]]:
    """privleak of two models on the same rows."""
    easy = rng.normal(0, 0.7, n), rng.normal(0, 0.7, n)
    noise = np.sqrt(1 - 0.7**2)
    sides = [(rng.normal(0, noise, n) + easy[0], rng.normal(gap, noise, n) + easy[1]) for gap in (1.0, 0.2)]
    samples = [(sample(low, "forget"), sample(high, "holdout")) for low, high in sides]
    areas = [bootstrap.auc(low, high) for low, high in samples]
    return bootstrap.combined(vectors.privleak, areas[0], areas[1]), [s for pair in samples for s in pair]


def worlds() -> dict[str, tuple[World, float]]:
    root = np.sqrt(2.0)
    return {
        "mean": (bounded_mean, 0.2),
        "AUC": (area, float(ndtr(1 / root))),
        "harmonic mean": (utility, utility_truth()),
        "privleak": (leak, vectors.privleak(float(ndtr(1 / root)), float(ndtr(0.2 / root)))),
    }


def cover(world: World, truth: float, n: int, repetitions: int, resamples: int, seed: int) -> list[float]:
    """Shares of intervals that hold the truth, lie below it, lie above it; and the mean width."""
    rng = np.random.default_rng([seed, n])
    ends = []
    for repetition in range(repetitions):
        statistic, samples = world(rng, n)
        draws = bootstrap.Resampler(samples, resamples, repetition).draws({"x": statistic})["x"]
        ends.append(bootstrap.interval(draws, n) or (-np.inf, np.inf))
    low, high = np.array(ends).T
    return [float(x) for x in (((low <= truth) & (truth <= high)).mean(), (high < truth).mean(), (low > truth).mean(),
                               (high - low).mean())]  # fmt: skip


def ks_cover(n: int, repetitions: int, resamples: int, seed: int) -> tuple[float, float]:
    """Two equal models on the same rows (correlation 0.5): how often the band holds 0, and how often KS rejects."""
    rng = np.random.default_rng([seed, n])
    held = rejected = 0
    for repetition in range(repetitions):
        easy = rng.normal(0, 0.5**0.5, n)
        a, b = (sample(easy + rng.normal(0, 0.5**0.5, n)) for _ in range(2))
        reach = bootstrap.Resampler([a, b], resamples, repetition).draws({"x": bootstrap.ks_deviation(a, b)})["x"]
        test = vectors.ks(a.values, b.values)
        held += test.distance <= np.quantile(reach, bootstrap.LEVEL) + 1e-12
        rejected += test.p < 1 - bootstrap.LEVEL
    return held / repetitions, rejected / repetitions


def tofu_seconds(resamples: int = 10_000) -> float:
    """A suite of TOFU's size: 36 means, 6 AUCs, a harmonic mean and a KS distance on sets of 400 and 100 rows."""
    rng = np.random.default_rng(0)
    sizes = {"forget": 400, "retain": 400, "authors": 100, "facts": 117}
    means = {f"{g} {i}": sample(rng.random(n), g) for i in range(9) for g, n in sizes.items()}
    attacks = [(sample(rng.random(400), "forget"), sample(rng.random(400), "holdout")) for _ in range(6)]
    statistics: dict[str, Statistic] = {name: bootstrap.mean(s) for name, s in means.items()}
    statistics |= {f"attack {i}": bootstrap.auc(*pair) for i, pair in enumerate(attacks)}
    statistics["utility"] = bootstrap.harmonic_mean([bootstrap.mean(s) for s in list(means.values())[:9]])
    statistics["distance"] = bootstrap.ks_deviation(attacks[0][0], attacks[1][0])
    start = time.perf_counter()
    pooled = [*means.values(), *(s for pair in attacks for s in pair)]
    for draws in bootstrap.Resampler(pooled, resamples).draws(statistics).values():
        bootstrap.interval(draws, 100)
    return time.perf_counter() - start


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--repetitions", type=int, default=400)
    p.add_argument("--resamples", type=int, default=1000)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    print("statistic       rows   covers   too low  too high    width")
    passed = True
    for name, (world, truth) in worlds().items():
        for n in (40, 100):
            inside, low, high, width = cover(world, truth, n, args.repetitions, args.resamples, args.seed)
            passed &= 0.92 <= inside <= 0.98
            print(f"{name:14} {n:5}  {inside:7.1%}  {low:8.1%}  {high:8.1%}  {width:7.3f}", flush=True)
    for n in (40, 100):
        inside, rejects = ks_cover(n, args.repetitions, args.resamples, args.seed)
        passed &= 0.92 <= inside <= 0.98
        print(f"{'KS distance 0':14} {n:5}  {inside:7.1%}   the KS test rejects {rejects:.1%}", flush=True)
    print(f"10,000 resamplings of a suite of TOFU's size: {tofu_seconds():.1f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
