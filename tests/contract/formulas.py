"""What docs/statistics.md and docs/verdict.md define, written out without vestige, and what vestige says to it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import python, read_json, read_rows
from scipy import optimize, stats


def rows_of(run: Path, metric: str, part: str = "") -> np.ndarray:
    """The values of a metric in the order of the rows of its file."""
    body = read_json(run / "TOFU_EVAL.json")[metric]
    field = "prob" if metric.endswith("_Prob") else "rougeL_recall" if metric.endswith("_ROUGE") else "score"
    found = (body[part] if part else body)["value_by_index"]
    return np.array([found[str(i)][field] for i in range(len(found))])


class Clusters:
    """The formulas of docs/statistics.md for the groups of the small lab, written out."""

    def __init__(self, place: Path) -> None:
        groups = np.array([row["group"] for row in read_rows(place / "data" / "forget.jsonl")])
        self.members = [groups == name for name in sorted(set(groups))]
        sizes = np.array([member.sum() for member in self.members])
        self.df = len(groups) ** 2 / (sizes**2).sum() - 1
        self.t = stats.t.ppf(0.975, self.df)

    def jackknife(self, statistic: Callable[[np.ndarray], float]) -> tuple[float, float]:
        """A statistic of the rows that a mask selects, and its standard error: each group is left out once."""
        whole = statistic(np.ones_like(self.members[0]))
        squares = [(statistic(~member) - whole) ** 2 for member in self.members]
        return whole, math.sqrt((len(squares) - 1) / len(squares) * sum(squares))

    def ends(self, statistic: Callable[[np.ndarray], float]) -> list[float]:
        value, error = self.jackknife(statistic)
        return [value - self.t * error, value + self.t * error]

    def share(self, above: np.ndarray, below: np.ndarray) -> list[float]:
        """mean(above) / mean(below) and the ends of Fieller's 90 % interval."""
        t = stats.t.ppf(0.95, self.df)

        def beyond(c: float) -> float:
            value, error = self.jackknife(lambda rows: (above - c * below)[rows].mean())
            return value**2 - (t * error) ** 2

        middle = above.mean() / below.mean()
        if np.allclose(above, middle * below, atol=1e-12):
            return [middle] * 3
        return [middle, optimize.brentq(beyond, middle - 5, middle), optimize.brentq(beyond, middle, middle + 5)]

    def way(self, model: np.ndarray, full: np.ndarray, retain: np.ndarray) -> tuple[str, list[float]]:
        """The state of a measure of knowledge, and its share of the way from the retain model to the full model."""
        share, low, high = self.share(model - retain, full - retain)
        if low > -0.2 and high < 0.2:
            return "equivalent", [share, low, high]
        return "towards" if low > 0.2 else "beyond" if high < -0.2 else "undecided", [share, low, high]

    def damage(self, model: np.ndarray, full: np.ndarray) -> tuple[str, list[float]]:
        share, low, high = self.share(model, full)
        return "kept" if low > 0.8 else "damaged" if high < 0.8 else "undecided", [share, low, high]

    def auc_ends(self, forget: np.ndarray, holdout: np.ndarray) -> list[float]:
        """In log-odds, so that the ends stay between 0 and 1."""
        area, error = self.jackknife(lambda rows: auc(forget[rows], holdout[rows]))
        middle, reach = math.log(area / (1 - area)), self.t * error / (area * (1 - area))
        return [1 / (1 + math.exp(-(middle + side * reach))) for side in (-1, 1)]


def sign_flips(values: np.ndarray) -> float:
    """The p-value of a mean whose signs are flipped at random: all ways for few values, else 100,000."""
    return float(
        stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=100_000, rng=1).pvalue
    )


def auc(forget: Sequence[float], holdout: Sequence[float]) -> float:
    """The share of pairs in which the forget row scores lower; equal scores count half."""
    ours, others = np.array(forget)[:, None], np.array(holdout)
    return float(((ours < others) + 0.5 * (ours == others)).mean())


def bootstrap(values: np.ndarray) -> Any:
    """The percentile interval of a mean of independent rows, read further out as rows are few (Hesterberg)."""
    n = len(values)
    means = values[np.random.default_rng(5).integers(0, n, (200_000, n))].mean(axis=1)
    tail = stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))
    return pytest.approx(list(np.quantile(means, [tail, 1 - tail])), abs=0.08 * values.std() / math.sqrt(n))


def word_by_rule(verdict: dict[str, Any]) -> str:
    """The word that docs/verdict.md gives to this evidence, where there are a retain and a full model."""
    measures = [one for one in verdict["evidence"] if one["panel"] not in ("utility", "fluency")]
    states = {one["state"] for one in measures}
    damage, testing = verdict["parts"]["damage"]["state"], verdict["parts"]["testing"]
    if damage == "damaged" or "beyond" in states:
        return "damaged"
    if any(one["test"] != "membership" and one["state"] == "towards" and one["lo"] > 0.5 for one in measures):
        return "not_forgotten"
    if "towards" in states:
        return "partly"
    if damage == "kept" and states == {"equivalent"} and len(testing["done"]) == 6 and not testing["missing"]:
        return "forgotten"
    spoken = {one["state"] for one in measures if one["test"] in ("says", "likely")}
    return "looks_forgotten" if "equivalent" in spoken else "cannot_tell"


COMPARE = """
import json, sys, vestige
*runs, settings = sys.argv[1:]
found = vestige.compare_runs(*runs, **json.loads(settings))
print(json.dumps([found.rows(), found.reasons, str(found)]))
"""


def compared(runs: list[Path], margin: float, **settings: object) -> tuple[dict[str, dict], dict[str, Any], str]:
    """The rows of a comparison by metric; Holm's p and the readings follow from the p and intervals beside them."""
    rows, reasons, text = json.loads(python(COMPARE, *runs, json.dumps({"margin": margin, **settings})).out)
    least = 0.0
    for place, row in enumerate(sorted(rows, key=lambda row: row["p"])):
        least = max(least, min(1.0, row["p"] * (len(rows) - place)))
        assert row["holm"] == pytest.approx(least)
        low, high = row["interval"]
        apart = "differs" if (low > 0 or high < 0) and least < 0.05 else "cannot tell"
        assert row["reading"] == ("indistinguishable within margin" if -margin <= low and high <= margin else apart)
    return {row["metric"]: row for row in rows}, reasons, text


def verdicts(page: Path, printed: str | None = None) -> dict[str, dict[str, Any]]:
    """The verdicts of a report by model. What was printed has the same word and sentence."""
    report = read_json(page / "report.json")
    names = {model["id"]: model["name"] for model in report["models"]}
    found = {names[audit["model"]]: audit["verdict"] for audit in report["audits"]}
    for verdict in found.values():
        assert printed is None or f"{verdict['title']}. {verdict['headline']}" in printed
    return found
