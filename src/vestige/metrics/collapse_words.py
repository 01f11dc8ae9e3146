"""Collapse numbers in words: a verdict, and the caveats that apply to the numbers at hand."""

from __future__ import annotations

from collections.abc import Mapping

SIGNIFICANT = 0.05
STRONG = 0.5  # of the way from chance to certainty
NOISE = {"mi_estimate": 0.05, "mi_seq_estimate": 1.0}  # nats; below zero by less than this may be noise
EPS_SHARE = 10.0  # a spread below so many std_eps leaves the z-score to std_eps
FLAT = 0.1  # nats per token: hardly any choice left

CollapseNumbers = Mapping[str, float | None]
Spans = Mapping[str, tuple[float, float]]


def dependence(metrics: CollapseNumbers) -> str:
    """Across inputs: does the reasoning say which prompt it was written for?"""
    accuracy = metrics.get("retrieval_accuracy")
    chance = metrics.get("retrieval_chance_exact@1", metrics.get("retrieval_chance_level"))
    if accuracy is None or chance is None:
        return "cannot tell"
    if chance >= 1:
        return "cannot tell: there is only one prompt to choose from"
    p = _least(metrics.get("retrieval_null_p"), metrics.get("mi_seq_null_p"))
    share = (accuracy - chance) / (1 - chance)
    words = f"own prompt found for {accuracy:.0%} of rows, chance {chance:.0%}"
    if p is not None:
        words += f", p = {p:.2g}"
    if p is not None and p > SIGNIFICANT and 2 * (metrics.get("null_p_smallest") or 0) > SIGNIFICANT:
        return f"too few rows to tell ({words})"
    if p is not None and p > SIGNIFICANT:
        return f"no dependence on the prompt can be seen ({words})"
    if share >= STRONG:
        return f"reasoning depends on its prompt ({words})"
    if p is None and share <= 0:
        return f"no dependence on the prompt can be seen ({words})"
    return f"reasoning depends weakly on its prompt ({words})"


def _least(*values: float | None) -> float | None:
    """The smaller of two p-values, doubled for having looked twice."""
    known = [v for v in values if v is not None]
    return min(1.0, len(known) * min(known)) if known else None


def variability(metrics: CollapseNumbers) -> str:
    """Within one input: is there still a choice?"""
    entropy = metrics.get("conditional_entropy_est")
    if entropy is None:
        return "cannot tell"
    if entropy < FLAT:
        return f"nearly fixed text for each prompt ({entropy:.3f} nats per token)"
    return f"varies under one prompt ({entropy:.2f} nats per token)"


def verdict(metrics: CollapseNumbers) -> str:
    """Both quantities in one sentence."""
    return f"{dependence(metrics)}; {variability(metrics)}"


def caveats(metrics: CollapseNumbers, std_eps: float, spans: Spans | None = None) -> list[str]:
    """What must be known to read these numbers, only where it applies."""
    spans = spans or {}
    out = []
    out += _negative(metrics, spans)
    for variant in ("", "_seq"):
        spread = metrics.get(f"marginal_std{variant}")
        if spread is not None and spread < EPS_SHARE * std_eps:
            out.append(
                f"mi_zscore{variant} is dominated by std_eps (marginal_std{variant} is {spread:.2g}, "
                f"std_eps {std_eps:.2g}); read marginal_std{variant} and mi_estimate instead"
            )
    token, seq = metrics.get("mi_estimate"), metrics.get("mi_seq_estimate")
    if token is not None and seq is not None and token * seq < 0:
        out.append(
            f"mi_estimate ({token:.3g}) and mi_seq_estimate ({seq:.3g}) have different signs: only the latter "
            "estimates mutual information; the per-token one is a length-normalised score"
        )
    columns, prompts = metrics.get("n_columns"), metrics.get("n_prompts_distinct")
    if columns and prompts and prompts < columns:
        out.append(
            f"{columns:.0f} columns hold only {prompts:.0f} distinct prompts: at most "
            f"{metrics.get('mi_bound_attainable') or 0:.3g} nats can be reached, not mi_upper_bound"
        )
    return out


def _negative(metrics: CollapseNumbers, spans: Spans) -> list[str]:
    """Below zero: noise if a little, a sign of foreign text if surely and by much."""
    out = []
    for name in ("mi_estimate", "mi_seq_estimate"):
        value = metrics.get(name)
        if value is None or value >= 0:
            continue
        if value > -NOISE[name]:
            out.append(
                f"{name} is {value:.3g}: a small negative value is noise around no dependence, "
                "not a violation of information theory"
            )
        elif name == "mi_seq_estimate" and name in spans and spans[name][1] < 0:
            out.append(
                f"{name} is {value:.3g}, surely below zero: the reasoning is unlikely under its own prompts, so this "
                "model probably did not write it"
            )
    return out
