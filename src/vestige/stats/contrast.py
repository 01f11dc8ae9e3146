"""How far a model is from one that never knew, as a share of the way to one that does, with an interval.

    gap = model - retain        scale = full - retain        share = gap / scale

Both come from the same rows, so the share's interval is Fieller's: all shares c for which gap - c * scale could be 0.
Its ends are one-sided tests: "low end above c" and "gap - c * scale is significantly above 0" are the same.

In: differences with their variances (stats/clusters.py), or plain numbers where rows are not known. Out: shares,
intervals, what could have been detected, how many rows would decide. Callers: verdict/points.py, the room judging.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vestige.stats.vectors import student_reach

NORMAL_95 = 1.959964  # standard errors on either side of a 95 % interval
NORMAL = 1e6  # degrees of freedom with which Student's distribution is the normal one


@dataclass(frozen=True)
class Contrast:
    """A gap on its scale. High means "knows". Without a variance there are only two numbers."""

    gap: float
    scale: float
    var_gap: float | None = None
    var_scale: float = 0.0
    covariance: float = 0.0
    df: float = NORMAL
    rows: int | None = None
    clusters: int | None = None

    @property
    def share(self) -> float | None:
        """
        >>> Contrast(gap=0.2, scale=0.8).share, Contrast(gap=0.2, scale=0.0).share
        (0.25, None)
        """
        return self.gap / self.scale if self.scale > 0 else None

    def ends(self, tail: float) -> tuple[float, float] | None:
        """The interval of the share with `tail` of error on either side; None where nothing is known of the error, or
        where full and retain model cannot be told apart.

        >>> Contrast(gap=0.0, scale=1.0, var_gap=0.01, df=10).ends(0.05)
        (-0.18124611, 0.18124611)
        """
        if self.var_gap is None or self.scale <= 0:
            return None
        t2 = student_reach(self.df, 1 - 2 * tail) ** 2
        a = self.scale**2 - t2 * self.var_scale
        if a <= 0:
            return None
        b = self.gap * self.scale - t2 * self.covariance
        c = self.gap**2 - t2 * self.var_gap
        root = math.sqrt(max(0.0, b * b - a * c))
        return _plain((b - root) / a), _plain((b + root) / a)

    def error_at(self, share: float) -> float | None:
        """The standard error of gap - share * scale, in units of the scale."""
        if self.var_gap is None or self.scale <= 0:
            return None
        variance = self.var_gap - 2 * share * self.covariance + share**2 * self.var_scale
        return math.sqrt(max(0.0, variance)) / self.scale

    def reach(self, tail: float, power: float) -> float:
        """How many standard errors a test at `tail` needs to be right with that power."""
        return student_reach(self.df, 1 - 2 * tail) + student_reach(self.df, 2 * power - 1)

    def detectable(self, margin: float, tail: float, power: float) -> float | None:
        """The smallest share that would have been found to be above the margin with that power.

        >>> round(Contrast(gap=0.0, scale=1.0, var_gap=0.01).detectable(0.2, 0.05, 0.8), 3)
        0.449
        """
        error = self.error_at(margin)
        return None if error is None else margin + self.reach(tail, power) * error

    def rows_to_decide(self, margin: float, tail: float, power: float) -> int | None:
        """With how many rows like these the share would be on one side of the margin, if it is what it seems to be.

        >>> Contrast(gap=0.0, scale=1.0, var_gap=0.04, rows=40).rows_to_decide(0.2, 0.05, 0.8)
        250
        """
        if self.share is None or not self.rows:
            return None
        error, room = self.error_at(math.copysign(margin, self.share)), abs(abs(self.share) - margin)
        if error is None:
            return None
        needed = self.rows * (self.reach(tail, power) * error / max(room, margin / 10)) ** 2
        digits = 10 ** max(0, int(math.log10(max(needed, 1))) - 1)
        return int(math.ceil(max(needed, self.rows + 1) / digits) * digits)

    def at_least(self, variance: float) -> Contrast:
        """With no smaller a variance: rows that all agree (0 of 38) do not prove that others would."""
        return self if self.var_gap is None else replace(self, var_gap=max(self.var_gap, variance))


def _plain(x: float) -> float:
    """Eight digits: more would depend on the machine that added them up."""
    return float(f"{x:.8g}")
