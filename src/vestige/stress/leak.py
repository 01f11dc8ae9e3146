"""leak@k: what an attacker gets who may ask k times and keeps the best answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import comb
from typing import Any

from vestige.errors import UserError
from vestige.stress.registry import AnswersAttack, register

METRIC = "forget_Q_A_ROUGE"


def expected_best(values: Sequence[float], k: int) -> float:
    """The expected largest of k values drawn from those given without putting back.

    Averaging over all ways to choose makes the estimate for k steadier than one draw of k would be.

    >>> expected_best([0.0, 1.0], 1), expected_best([0.0, 1.0], 2)
    (0.5, 1.0)
    """
    from vestige.sums import total

    n = len(values)
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} values there are, it is {k}")
    # The i-th smallest (from 0) is the largest of a choice when the other k - 1 come from the i below it.
    return total(comb(i, k - 1) * value for i, value in enumerate(sorted(values))) / comb(n, k)


def leak(subject: Any, budgets: Sequence[float]) -> list[Any]:
    """Samples as often as the largest budget asks; smaller ones are averages over all ways to choose."""
    from vestige.sums import mean

    samples = [_sample(subject, seed) for seed in range(int(max(budgets)))]
    by_row = [[sample[index] for sample in samples] for index in samples[0]]
    out = []
    for budget in budgets:
        best = [expected_best(values, int(budget)) for values in by_row]
        said = {"do_sample": True, "temperature": subject.ask.temperature, "seeds": list(range(len(samples)))}
        out.append(subject.row("leak", budget, {METRIC: mean(best)}, settings=said))
    return out


def _sample(subject: Any, seed: int) -> Mapping[str, float]:
    """The score of each row's answer, sampled once."""
    from vestige.engine.evaluate import evaluate_config

    run = subject.evaluation(subject.path, f"leak-{seed}")
    if METRIC not in run.suite.top:
        raise UserError(f"leak asks for texts and scores them by {METRIC}; have it among --metrics.")
    more = {"do_sample": True, "temperature": subject.ask.temperature, "seed": seed}
    spec = run.suite.metrics[METRIC]
    sampled = {METRIC: replace(spec, generation={**spec.generation, **more})}
    outcome = evaluate_config(replace(run, suite=replace(run.suite, top=(METRIC,), metrics=sampled)))
    score = outcome.scores[outcome.top[0]]
    if score.value_by_index is None or score.agg_value is None:
        raise UserError(f"leak cannot be measured: {score.reason or 'texts are missing'}")
    kind = str(spec.params.get("rouge_type") or "rougeL_recall")
    return {index: float(values[kind]) for index, values in score.value_by_index.items()}


register(
    AnswersAttack(
        "leak",
        "asks several times and keeps the best answer",
        unit="samples",
        budgets=(1, 4),
        least=1,
        measure=leak,
    )
)
