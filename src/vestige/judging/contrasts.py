"""Contrasts from rows: clusters are left out one after the other, for gap, scale and both together.

In: estimates (functions of how often each row is drawn). Out: compare.contrast.Contrast. Caller: judging/facts.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vestige.compare import bootstrap
from vestige.compare.bootstrap import Sample, Statistic
from vestige.compare.clusters import jackknife
from vestige.compare.contrast import Contrast
from vestige.engine.scores import Estimate


def mean_of(estimates: Sequence[Estimate]) -> Statistic:
    """The mean of several runs' statistics: retain models trained with other seeds, attacks with other seeds."""
    return lambda counts: np.mean([e.statistic(counts) for e in estimates], axis=0)


def contrast(gap: Statistic, scale: Statistic | float, samples: Sequence[Sample]) -> Contrast:
    """Both statistics with variances and covariance. A scale that is a number is taken as exact."""
    fixed = bootstrap.constant(scale) if isinstance(scale, float) else scale
    first = jackknife(gap, samples)
    at = float(fixed(bootstrap.once)[0])
    rows = len({(s.group, row) for s in samples for row in s.rows})
    if first.se is None or first.df is None:
        return Contrast(first.value, at, rows=rows, clusters=first.clusters)
    if isinstance(scale, float):
        return Contrast(first.value, at, first.se**2, df=first.df, rows=rows, clusters=first.clusters)
    second, both = jackknife(fixed, samples), jackknife(difference(gap, fixed), samples)
    var_scale, var_both = (second.se or 0.0) ** 2, (both.se or 0.0) ** 2
    covariance = (first.se**2 + var_scale - var_both) / 2
    return Contrast(first.value, at, first.se**2, var_scale, covariance, first.df, rows, first.clusters)


def difference(a: Statistic, b: Statistic) -> Statistic:
    return bootstrap.combined(np.subtract, a, b)
