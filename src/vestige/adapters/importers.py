"""Result files of other tools as our Scores, computed again from their per-row values by our own handlers.

Two kinds are known. open-unlearning's *_EVAL.json maps metric -> {agg_value, value_by_index}. locuslab/tofu's
eval_log_aggregated.json maps a log file (one for each data set) -> field -> row -> value.

    import_results    recognises a file by its content and returns an Imported
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vestige.errors import UserError
from vestige.io import decode_data
from vestige.metrics.dialects import get_dialect
from vestige.numeric import mean
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
# The metrics that are computed from others, parents first.
DERIVED = (
    "forget_truth_ratio", "retain_Truth_Ratio", "ra_Q_A_Prob_normalised", "ra_Truth_Ratio", "wf_Q_A_Prob_normalised",
    "wf_Truth_Ratio", "model_utility", "forget_quality",
)  # fmt: skip
MEANS = ("score", "rougeL_recall", "prob")  # the per-row field whose mean is the metric, by preference
CLOSE = 1e-6


@dataclass
class Imported:
    """A file of another tool in our terms."""

    kind: str
    stem: str  # TOFU or MUSE: the first part of the result files' names
    scores: dict[str, Score] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


Cell = float | list[float | None] | None  # of a row: one value, or one for each of its answers


@dataclass(frozen=True)
class TofuLog:
    """One data set of TOFU's logs: row -> value in each column. Columns that are not read here are left out."""

    avg_gt_loss: dict[str, Cell] | None = None
    avg_paraphrased_loss: dict[str, Cell] | None = None
    average_perturb_loss: dict[str, Cell] | None = None
    rougeL_recall: dict[str, Cell] | None = None  # noqa: N815 - their name
    rouge1_recall: dict[str, Cell] | None = None


@dataclass(frozen=True)
class ForeignRow:
    """The numbers of one row in open-unlearning's file."""

    score: Cell = None
    prob: Cell = None
    avg_loss: Cell = None
    rougeL_recall: Cell = None  # noqa: N815 - their name
    rouge1_recall: Cell = None


@dataclass(frozen=True)
class ForeignMetric:
    """One metric of open-unlearning's file."""

    agg_value: float | dict[str, Any] | None = None
    value_by_index: dict[str, ForeignRow] | None = None
    reason: str | None = None
    notes: list[str] | None = None


def import_results(
    data: Any, name: str, configs: Mapping[str, Configs], retain: ForeignResults | None = None
) -> Imported:
    """Recognises a file by its content and computes its metrics again. `retain`: the retain model's, in our shape."""
    if not isinstance(data, Mapping) or not all(isinstance(v, Mapping) for v in data.values()) or not data:
        raise UserError(
            f"{name} is neither an open-unlearning *_EVAL.json nor an eval_log_aggregated.json of TOFU; give one."
        )
    data = _without_nan(data)
    if set(data) & set(TOFU_LOGS):
        return _from_tofu_logs(decode_data(data, dict[str, TofuLog], name, "copy it again"), configs["tofu"], retain)
    decode_data(data, dict[str, ForeignMetric], name, "copy it again")  # a check: scores keep what has no field here
    if any("agg_value" in v for v in data.values()):
        return _from_eval(data, configs, retain)
    known = ", ".join(TOFU_LOGS)
    raise UserError(f"{name} holds neither metrics with an agg_value nor TOFU's logs ({known}); give a file that does.")


def _without_nan(data: Any) -> Any:
    """NaN and infinity, which Python's JSON writes and others cannot read, are missing values here."""
    if isinstance(data, Mapping):
        return {str(k): _without_nan(v) for k, v in data.items()}
    if isinstance(data, list):
        return [_without_nan(v) for v in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


# ---- locuslab/tofu -----------------------------------------------------------------------------------------------


def _from_tofu_logs(logs: Mapping[str, TofuLog], configs: Configs, retain: ForeignResults | None) -> Imported:
    out = Imported("locuslab/tofu eval_log_aggregated.json", "TOFU")
    for file, short in TOFU_LOGS.items():
        log = logs.get(file)
        if log is None:
            out.notes.append(f"{file} is not in the file: no {short}_ metrics")
            continue
        losses = {"Prob": log.avg_gt_loss, "PARA_Prob": log.avg_paraphrased_loss, "PERT_Prob": log.average_perturb_loss}
        for metric, column in losses.items():
            if column is not None:
                rows = {index: _probabilities(loss) for index, loss in column.items()}
                out.scores[f"{short}_Q_A_{metric}"] = Score(_mean(rows, "prob"), rows)
        if log.rougeL_recall is not None:
            rows = {}
            for index, recall in log.rougeL_recall.items():
                first = {} if log.rouge1_recall is None else {"rouge1_recall": log.rouge1_recall.get(index)}
                rows[index] = {**first, "rougeL_recall": recall}
            out.scores[f"{short}_Q_A_ROUGE"] = Score(_mean(rows, "rougeL_recall"), rows)

    # Truth ratios of real authors and world facts as the log has them: these rows have no paraphrase, and the log
    # holds a second loss of the answer itself instead. On some rows of the published logs the two differ, by up to
    # 0.12 (rounding, it seems). TOFU's own ratios use the second.
    configs = dict(configs)
    for short in ("ra", "wf"):
        parents = {
            f"{short}_Q_A_PARA_Prob": {"access_key": "correct"},
            f"{short}_Q_A_PERT_Prob": {"access_key": "wrong"},
        }
        configs[f"{short}_Truth_Ratio"] = {**configs[f"{short}_Truth_Ratio"], "pre_compute": parents}
    for name in DERIVED:
        out.scores[name] = _derived(name, configs[name], out.scores, retain)
    return out


def _probabilities(loss: Any) -> dict[str, Any]:
    """A row's length-normalised probability from its mean loss; a list where it has several answers."""
    try:
        if isinstance(loss, list):
            return {"avg_loss": loss, "prob": [None if x is None else math.exp(-x) for x in loss]}
        return {"avg_loss": loss, "prob": None if loss is None else math.exp(-loss)}
    except OverflowError:
        raise UserError(f"The file holds a loss of {loss}, which cannot be one; copy it again.") from None


def _mean(rows: Mapping[str, Mapping[str, Any]], name: str) -> float | None:
    """The mean over rows of the mean over a row's answers, as our handlers compute it."""
    means = []
    for row in rows.values():
        cell = row.get(name)
        values = [v for v in (cell if isinstance(cell, list) else [cell]) if v is not None]
        if values:
            means.append(mean(values))
    return mean(means) if means else None


# ---- open-unlearning ---------------------------------------------------------------------------------------------


def _from_eval(data: ForeignResults, configs: Mapping[str, Configs], retain: ForeignResults | None) -> Imported:
    """open-unlearning's file (or ours): means are computed again from the rows, comparisons from the retain logs."""
    suite = max(configs, key=lambda s: (len(set(configs[s]) & set(data)), s == "tofu"))
    out = Imported("open-unlearning *_EVAL.json", suite.upper())
    # Metrics with all their parents in the file.
    known = {m: c for m, c in configs[suite].items() if all(p in data for p in c.get("pre_compute") or {})}
    for metric, body in data.items():
        out.scores[metric] = _averaged_again(Score.from_json(body), configs[suite].get(metric, {}))
    # Ratios first, then what averages them. Comparisons with a retain model stay as the file has them.
    for handlers in (("truth_ratio", "probability_w_options"), ("hm_aggregate",)):
        for metric in sorted(set(data) & set(known)):
            config = known[metric]
            is_derived = config.get("pre_compute") and not config.get("reference_logs")
            if is_derived and config["handler"] in handlers:
                out.scores[metric] = _derived(metric, config, out.scores, None)
    compared = {m for m, c in known.items() if c.get("reference_logs")} if retain is not None else set()
    for metric in (m for m in known if m in compared):
        out.scores[metric] = _derived(metric, known[metric], out.scores, retain)
    for metric, body in data.items():
        stated, value = Score.from_json(body).agg_value, out.scores[metric].agg_value
        if stated is None or value is None or metric in compared:
            continue
        if abs(stated - value) > CLOSE * max(1, abs(stated)):
            out.notes.append(f"{metric}: the file says {stated:.6g}, its rows give {value:.6g}")
    return out


def _averaged_again(score: Score, config: Mapping[str, Any]) -> Score:
    """The same score with its mean computed again, where the metric is the mean of a field of its rows."""
    rows = score.value_by_index
    if not rows or config.get("pre_compute"):
        return score
    fields: Iterable[str] = (str(config["rouge_type"]), *MEANS) if "rouge_type" in config else MEANS
    first_row = next(iter(rows.values()))
    name = next((f for f in fields if f in first_row), None)
    if name is None:
        return score
    value = _mean(rows, name)
    return Score(value, rows, score.extra, score.reason if value is None else "", score.notes)


# ---- metrics made of others --------------------------------------------------------------------------------------


def _derived(name: str, config: Mapping[str, Any], have: Mapping[str, Score], retain: ForeignResults | None) -> Score:
    """A metric computed from others by our handler; missing, with the reason, when the file lacks a parent."""
    keys = {str(p): str((e or {}).get("access_key", p)) for p, e in (config.get("pre_compute") or {}).items()}
    absent = [parent for parent in keys if parent not in have]
    if absent:
        return Score(None, reason=f"the file holds no {', '.join(absent)}")
    references = {}
    if retain is not None:
        reference: dict[str, Score | None] = {}
        for logs in (config.get("reference_logs") or {}).values():
            for metric, entry in (logs.get("include") or {}).items():
                key = str((entry or {}).get("access_key", metric))
                reference[key] = Score.from_json(retain[metric]) if metric in retain else None
        references["retain logs"] = reference
    handler = canonical(str(config["handler"]))
    params = {k: v for k, v in config.items() if k in ("aggregator", "ref_value")}
    inputs = Inputs(
        spec=MetricSpec(name, handler, parents={key: parent for parent, key in keys.items()}, params=params),
        dialect=get_dialect("open-unlearning"),
        data={},
        evidence=Evidence(),
        parents={key: have[parent] for parent, key in keys.items()},
        references=references,
    )
    return HANDLERS[handler].score(inputs)
