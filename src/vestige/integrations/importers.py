"""Other people's result files as our Scores, re-aggregated from their per-row values by our own handlers.

Two kinds are known. open-unlearning's *_EVAL.json maps metric -> {agg_value, value_by_index}. locuslab/tofu's
eval_log_aggregated.json maps a log file (one for each data set) -> field -> row -> value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from vestige.errors import UserError
from vestige.metrics.dialects import get_dialect
from vestige.numeric import mean
from vestige.schema import check_form
from vestige.suites.registry import HANDLERS, Evidence, Inputs, canonical
from vestige.suites.spec import MetricSpec
from vestige.types import Score

ForeignResults = Mapping[str, Mapping[str, Any]]
Configs = Mapping[str, Mapping[str, Any]]  # metric -> its config in the suite

# Log file of locuslab/tofu -> how the suite's metrics of that data set begin.
TOFU_LOGS = {
    "eval_log_forget.json": "forget",
    "eval_log.json": "retain",
    "eval_real_author_wo_options.json": "ra",
    "eval_real_world_wo_options.json": "wf",
}
# What is made of the rows, parents first.
DERIVED = (
    "forget_truth_ratio", "retain_Truth_Ratio", "ra_Q_A_Prob_normalised", "ra_Truth_Ratio", "wf_Q_A_Prob_normalised",
    "wf_Truth_Ratio", "model_utility", "forget_quality",
)  # fmt: skip
MEANS = ("score", "rougeL_recall", "prob")  # the per-row field whose mean is the metric, by preference
CLOSE = 1e-6


@dataclass
class Imported:
    """A foreign file in our terms."""

    kind: str
    stem: str  # TOFU or MUSE: the first part of the result files' names
    scores: dict[str, Score] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


Cell = float | list[float | None] | None  # of a row: one value, or one for each of its answers


class _Log(TypedDict, total=False):
    """One data set of TOFU's logs: column -> row -> value."""

    avg_gt_loss: dict[str, Cell]
    avg_paraphrased_loss: dict[str, Cell]
    average_perturb_loss: dict[str, Cell]
    rougeL_recall: dict[str, Cell]
    rouge1_recall: dict[str, Cell]


class _ForeignRow(TypedDict, total=False):
    score: Cell
    prob: Cell
    avg_loss: Cell
    rougeL_recall: Cell
    rouge1_recall: Cell


class _Body(TypedDict, total=False):
    """One metric of open-unlearning's file."""

    agg_value: float | dict[str, Any] | None
    value_by_index: dict[str, _ForeignRow] | None
    reason: str | None
    notes: list[str] | None


def import_results(
    data: Any, name: str, configs: Mapping[str, Configs], retain: ForeignResults | None = None
) -> Imported:
    """Recognises a file by its content and re-aggregates it. `retain` is the retain model's, already in our shape."""
    if not isinstance(data, Mapping) or not all(isinstance(v, Mapping) for v in data.values()) or not data:
        raise UserError(
            f"{name} is neither an open-unlearning *_EVAL.json nor an eval_log_aggregated.json of TOFU; give one."
        )
    data = _without_nan(data)
    logs = bool(set(data) & set(TOFU_LOGS))
    check_form(data, dict[str, _Log] if logs else dict[str, _Body], name, "copy it again")
    if logs:
        out = Imported("locuslab/tofu eval_log_aggregated.json", "TOFU")
        _from_tofu_logs(data, out)
        _derive(out, {**configs["tofu"], **_own_paraphrases(configs["tofu"])}, DERIVED, retain)
        return out
    if any("agg_value" in v for v in data.values()):
        return _from_eval(data, name, configs, retain)
    known = ", ".join(TOFU_LOGS)
    raise UserError(f"{name} holds neither metrics with an agg_value nor TOFU's logs ({known}); give a file that does.")


def _without_nan(data: Any) -> Any:
    """NaN and infinity, which Python's JSON writes and others cannot read, are missing values here."""
    if isinstance(data, Mapping):
        return {str(k): _without_nan(v) for k, v in data.items()}
    if isinstance(data, list):
        return [_without_nan(v) for v in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _from_tofu_logs(data: ForeignResults, out: Imported) -> None:
    for file, short in TOFU_LOGS.items():
        log = data.get(file)
        if log is None:
            out.notes.append(f"{file} is not in the file: no {short}_ metrics")
            continue
        base = f"{short}_Q_A"
        losses = {
            f"{base}_Prob": "avg_gt_loss",
            f"{base}_PARA_Prob": "avg_paraphrased_loss",
            f"{base}_PERT_Prob": "average_perturb_loss",
        }
        for metric, column in losses.items():
            if column in log:
                out.scores[metric] = _probabilities(log[column])
        if "rougeL_recall" in log:
            out.scores[f"{base}_ROUGE"] = _rouge(log)


def _own_paraphrases(configs: Configs) -> dict[str, Mapping[str, Any]]:
    """Truth ratios of real authors and world facts as the log has them.

    These rows have no paraphrase, and the log holds a second loss of the answer itself instead. On some rows of the
    published logs the two differ, by up to 0.12 (rounding, it seems). TOFU's own ratios use the second.
    """
    out: dict[str, Mapping[str, Any]] = {}
    for name, short in (("ra_Truth_Ratio", "ra"), ("wf_Truth_Ratio", "wf")):
        parents = {
            f"{short}_Q_A_PARA_Prob": {"access_key": "correct"},
            f"{short}_Q_A_PERT_Prob": {"access_key": "wrong"},
        }
        out[name] = {**configs[name], "pre_compute": parents}
    return out


def _probabilities(losses: Mapping[str, Any]) -> Score:
    """Length-normalised probabilities from mean losses; lists where a row has several answers."""
    rows: dict[str, dict[str, Any]] = {}
    for index, loss in losses.items():
        many = isinstance(loss, list)
        probs = [None if x is None else _probability(x) for x in (loss if many else [loss])]
        rows[str(index)] = {"avg_loss": loss, "prob": probs if many else probs[0]}
    return Score(_mean(rows, "prob"), rows)


def _probability(loss: float) -> float:
    try:
        return math.exp(-loss)
    except OverflowError:
        raise UserError(f"The file holds a loss of {loss:g}, which is none; copy it again.") from None


def _rouge(log: Mapping[str, Any]) -> Score:
    """Numbers only: the texts of the log are not carried over."""
    kinds = [k for k in ("rouge1_recall", "rougeL_recall") if k in log]
    rows = {str(i): {k: log[k].get(i) for k in kinds} for i in log["rougeL_recall"]}
    return Score(_mean(rows, "rougeL_recall"), rows)


def _mean(rows: Mapping[str, Mapping[str, Any]], name: str) -> float | None:
    """The mean over rows of the mean over a row's answers, as our handlers take it."""
    cells = [entry.get(name) for entry in rows.values()]
    values = [cell if isinstance(cell, list) else [cell] for cell in cells]
    good = [[v for v in row if v is not None] for row in values]
    return mean(mean(row) for row in good if row) if any(good) else None


def _derive(out: Imported, configs: Configs, names: tuple[str, ...], retain: ForeignResults | None) -> None:
    """Metrics made of others, by our handlers; one whose parents are not there is missing with that reason."""
    for name in names:
        if (config := configs.get(name)) is not None:
            out.scores[name] = _derived(name, config, out.scores, retain)


def _derived(name: str, config: Mapping[str, Any], have: Mapping[str, Score], retain: ForeignResults | None) -> Score:
    entries = {str(p): str((e or {}).get("access_key", p)) for p, e in (config.get("pre_compute") or {}).items()}
    absent = [p for p in entries if p not in have]
    if absent:
        return Score(None, reason=f"the file holds no {', '.join(absent)}")
    handler = canonical(str(config["handler"]))
    params = {k: v for k, v in config.items() if k in ("aggregator", "ref_value")}
    spec = MetricSpec(name, handler, parents={key: p for p, key in entries.items()}, params=params)
    inputs = Inputs(
        spec=spec,
        dialect=get_dialect("open-unlearning"),
        data={},
        evidence=Evidence(),
        parents={key: have[p] for p, key in entries.items()},
        references={"retain logs": _reference(config, retain)} if retain is not None else {},
    )
    return HANDLERS[handler].score(inputs)


def _reference(config: Mapping[str, Any], retain: ForeignResults) -> dict[str, Score | None]:
    out: dict[str, Score | None] = {}
    for logs in (config.get("reference_logs") or {}).values():
        for metric, entry in (logs.get("include") or {}).items():
            key = str((entry or {}).get("access_key", metric))
            out[key] = Score.from_json(retain[metric]) if metric in retain else None
    return out


def _from_eval(
    data: ForeignResults, name: str, configs: Mapping[str, Configs], retain: ForeignResults | None
) -> Imported:
    """open-unlearning's file (or ours): means are taken again from the rows, comparisons from the retain logs."""
    suite = max(configs, key=lambda s: (len(set(configs[s]) & set(data)), s == "tofu"))
    out = Imported("open-unlearning *_EVAL.json", suite.upper())
    known = configs[suite]
    for metric, body in data.items():
        out.scores[metric] = _again(metric, Score.from_json(body), known.get(metric, {}))
    _derive(out, known, _made_of_parents(data, known), None)
    if retain is not None:
        compared = [m for m, c in known.items() if c.get("reference_logs") and _parents_there(c, data)]
        _derive(out, known, tuple(compared), retain)
    for metric, body in data.items():
        said, now = Score.from_json(body).agg_value, out.scores[metric].agg_value
        compared_anew = retain is not None and known.get(metric, {}).get("reference_logs")
        if said is not None and now is not None and not compared_anew and abs(said - now) > CLOSE * max(1, abs(said)):
            out.notes.append(f"{metric}: the file says {said:.6g}, its rows give {now:.6g}")
    return out


def _made_of_parents(data: ForeignResults, known: Configs) -> tuple[str, ...]:
    """Ratios first, then what averages them. Comparisons with a retain model stay as the file has them."""
    names = [m for m in data if m in known and known[m].get("pre_compute") and not known[m].get("reference_logs")]
    order = {"truth_ratio": 0, "probability_w_options": 0, "hm_aggregate": 1}
    names = [m for m in names if known[m]["handler"] in order and _parents_there(known[m], data)]
    return tuple(sorted(names, key=lambda m: (order[known[m]["handler"]], m)))


def _parents_there(config: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    return all(p in data for p in config.get("pre_compute") or {})


def _again(metric: str, score: Score, config: Mapping[str, Any]) -> Score:
    """The same score with its mean taken again, where the metric is a mean of a field."""
    rows = score.value_by_index
    if not rows or config.get("pre_compute"):
        return score
    wanted = [str(config["rouge_type"])] if "rouge_type" in config else []
    first = next(iter(rows.values()))
    name = next((f for f in (*wanted, *MEANS) if f in first), None)
    if name is None:
        return score
    value = _mean(rows, name)
    return Score(value, rows, score.extra, score.reason if value is None else "", score.notes)
