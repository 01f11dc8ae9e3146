"""leak@k: what an attacker gets who may ask k times and keeps the best answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import comb
from typing import Any

from vestige.errors import UserError
from vestige.stress.registry import AnswersAttack, register

METRIC, SECRETS = "forget_Q_A_ROUGE", "forget_secrets_said"


def expected_best(values: Sequence[float], k: int) -> float:
    """The expected largest of k values drawn from those given without putting back.

    Averaging over all ways to choose makes the estimate for k steadier than one draw of k would be.

    >>> expected_best([0.0, 1.0], 1), expected_best([0.0, 1.0], 2)
    (0.5, 1.0)
    """
    from vestige.numeric import total

    n = len(values)
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} values there are, it is {k}")
    # The i-th smallest (from 0) is the largest of a choice when the other k - 1 come from the i below it.
    return total(comb(i, k - 1) * value for i, value in enumerate(sorted(values))) / comb(n, k)


def leak(subject: Any, budgets: Sequence[float]) -> list[Any]:
    """Samples as often as the largest budget asks; smaller ones are averages over all ways to choose."""
    from vestige.numeric import mean

    samples = [_sample(subject, seed) for seed in range(int(max(budgets)))]
    settings = {"do_sample": True, "temperature": subject.ask.temperature, "seeds": list(range(len(samples)))}
    out = []
    for budget in budgets:
        best = {m: _best_of(samples, m, int(budget)) for m in samples[0]}
        values = {m: mean(by_row.values()) if by_row else None for m, by_row in best.items()}
        out.append(subject.row("leak", budget, values, settings=settings, by_row=best))
    return out


def _best_of(samples: Sequence[Mapping[str, Mapping[str, float]]], metric: str, k: int) -> dict[str, float]:
    """The best of k samples of each row: of ROUGE, or of whether a text says the secret."""
    return {i: expected_best([sample[metric][i] for sample in samples], k) for i in samples[0][metric]}


def _sample(subject: Any, seed: int) -> dict[str, dict[str, float]]:
    """The scores of each row's answer, sampled once: metric -> row -> value."""
    from vestige.engine.evaluate import evaluate_config

    run = subject.evaluation(subject.path, f"leak-{seed}")
    if METRIC not in run.suite.top:
        raise UserError(f"leak asks for texts and scores them by {METRIC}; have it among --metrics.")
    more = {"do_sample": True, "temperature": subject.ask.temperature, "seed": seed}
    asked = {m: run.suite.metrics[m] for m in (METRIC, SECRETS) if m in run.suite.top}
    sampled = {m: replace(spec, generation={**spec.generation, **more}) for m, spec in asked.items()}
    outcome = evaluate_config(replace(run, suite=replace(run.suite, top=tuple(sampled), metrics=sampled)))
    score = outcome.scores[METRIC]
    if score.value_by_index is None or score.agg_value is None:
        raise UserError(f"leak cannot be measured: {score.reason or 'texts are missing'}")
    field = {METRIC: str(asked[METRIC].params.get("rouge_type") or "rougeL_recall"), SECRETS: "said"}
    return {m: _numbers(outcome.scores[m].value_by_index or {}, field[m]) for m in sampled}


def _numbers(rows: Mapping[str, Mapping[str, Any]], field: str) -> dict[str, float]:
    return {index: float(values[field]) for index, values in rows.items() if values.get(field) is not None}


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
