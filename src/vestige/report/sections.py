"""The sections of the page beside audits: denoising, training runs, collapse, and the meta-evaluation of metrics.

In: records of runs (report/gather.py). Out: entries of report.json. Caller: report/build.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vestige.meta.axes import EXTRA, SOURCES
from vestige.meta.files import FORMULAS
from vestige.meta.robustness import PARTS, RULES, UTILITY_FILTER, overall
from vestige.metrics.cards import KNOWN, direction_of
from vestige.metrics.collapse import LABELS
from vestige.metrics.trajectory import VIEWS, spread_of
from vestige.report.gather import CollapseRun, Evaluation, Json, RowTrace, WatchedRun, finite
from vestige.report.models import ReportModel
from vestige.show.figures import COLLAPSE_NAMES
from vestige.types import IGNORE

# ---- denoising -------------------------------------------------------------------------------------------------------


def trajectories(run: Evaluation, model: str) -> list[Json]:
    """Every curve of every trajectory metric, with its band over rows."""
    out = []
    for body in run.judged.results.values():
        nested = body.get("agg_value")
        if not isinstance(nested, Mapping):
            continue
        views = nested if set(nested) <= set(VIEWS) else {"": nested}  # the flat shape: one view, unnamed
        decided = (body.get("trajectory_step_metadata") or {}).get("step_values") or []
        for view, kinds in views.items():
            for kind, metrics in kinds.items():
                for metric, points in metrics.items():
                    curve: Json = {"model": model, "metric": metric, "view": view, "kind": kind}
                    curve["steps"] = list(range(len(points)))
                    if len(decided) == len(points) and kind in ("steps", "fixation_start"):
                        curve["decided"] = decided
                    curve["mean"] = [finite(point) for point in points]
                    spread = spread_of(body, view, kind, metric)
                    for end, name in (("lo", "ci_low"), ("hi", "ci_high")):
                        if spread.get(name):
                            curve[end] = spread[name]
                    rows = spread.get("n") or spread.get("count")
                    if isinstance(rows, list):
                        curve["n"] = max((int(n) for n in rows if n is not None), default=0)
                    if any(point is not None for point in curve["mean"]):
                        out.append({**curve, "source": run.source.id, "heat": []})
    return out


def heat(row: RowTrace) -> Json:
    """One row's answer: how likely each of its tokens was in each pass, and when it was decided."""
    trace, n = row.trace, len(row.tokens)
    labels = trace.labels[row.stream, :n]
    plane = np.where(labels == IGNORE, np.nan, trace.logprob[row.stream][:, :n].astype(float))
    return {
        "i": str(row.index),
        "question": row.prompt,
        "answer": row.answer,
        "tokens": list(row.tokens),
        "steps": list(range(trace.steps)),
        "logprob": [[finite(float(x)) for x in step] for step in plane],
        "fixed": [int(x) for x in trace.fixed[:n]],
        "right": [bool(x) for x in trace.final[:n] == labels],
    }


# ---- training --------------------------------------------------------------------------------------------------------


def training(run: WatchedRun) -> Json:
    """A training run that was watched: what watch.json says, a list per column."""
    looks = sorted(run.looks, key=lambda look: look.step)
    names = list(dict.fromkeys(name for look in looks for name in look.values))
    place = run.source.path.resolve()
    bands: Json = {}
    for name in names:
        ends = [look.intervals.get(name) or (None, None) for look in looks]
        if any(name in look.intervals for look in looks):
            bands[name] = {"lo": [lo for lo, _ in ends], "hi": [hi for _, hi in ends]}
    return {
        "name": place.parent.name if place.name in ("vestige", "evals") else place.name,
        "suite": run.suite,
        "steps": [look.step for look in looks],
        "epochs": [look.epoch for look in looks],
        "series": {name: [look.values.get(name) for look in looks] for name in names},
        "bands": bands,
        "retain": {name: run.retain.get(name) for name in names},
        "before": {name: run.before.get(name) for name in names},
        "share": [look.share for look in looks],
        "kept": [look.kept for look in looks],
        "score": [look.score for look in looks],
        "why": [look.why for look in looks],
        "verdicts": [str(look.verdict.get("word", "")) for look in looks],
        "seconds": [look.seconds for look in looks],
        "best": run.best,
        "source": run.source.id,
    }


# ---- collapse --------------------------------------------------------------------------------------------------------

COLLAPSE_COLUMNS = {
    "mi_seq_distinct_columns": "information about the prompt, nats a reasoning (distinct prompts)",
    "mi_seq_estimate": "information about the prompt, nats a reasoning",
    "mi_bound_attainable": "the most it can be with so many prompts",
    "retrieval_accuracy": "share of reasonings whose own prompt makes them likeliest",
    "retrieval_chance_level": "the same by chance",
    "conditional_entropy_est": "entropy given the prompt, nats per token",
    "reasoning_entropy_est": "entropy over all prompts, nats per token",
}


def collapse(run: CollapseRun) -> list[Json]:
    """One record for each way of sampling turns."""
    out = []
    for label in LABELS:
        steps = [step for step in run.steps if label in step.verdicts]
        if not steps:
            continue
        steps.sort(key=lambda step: step.step)
        series, bands, notes = {}, {}, list(run.notes)
        for column in COLLAPSE_COLUMNS:
            by_end: Json = {}
            for end, suffix in (("", ""), ("lo", "_ci_low"), ("hi", "_ci_high")):
                by_end[end] = [finite(step.metrics.get(f"{label}/{column}{suffix}")) for step in steps]
            values = by_end.pop("")
            if any(value is not None for value in values):
                series[column] = values
                if any(value is not None for value in by_end["lo"]):
                    bands[column] = by_end
        for step in steps:
            notes += step.notes.get(label) or ()
        out.append(
            {
                "name": run.source.path.resolve().name,
                "label": COLLAPSE_NAMES.get(label, label),
                "steps": [step.step for step in steps],
                "series": series,
                "bands": bands,
                "verdicts": [str(step.verdicts[label]) for step in steps],
                "columns": {column: COLLAPSE_COLUMNS[column] for column in series},
                "notes": list(dict.fromkeys(map(str, notes))),
                "source": run.source.id,
            }
        )
    return out


# ---- meta-evaluation -------------------------------------------------------------------------------------------------

NO_POOLS = "the values of single pool models are not in the file"
SHORT = {"relearning": "r", "quantization": "q", "agg": "agg"}


def meta_evaluation(data: Json, models: Sequence[ReportModel], source: str) -> Json:
    """meta_eval.json, ours or published; `models` are the report's, for utility_rel and values before attacks."""
    labels = {str(metric["key"]): metric for metric in data.get("metrics") or []}
    keys = list(dict.fromkeys([*labels, *data["faithfulness"], *data["robustness"]]))
    unlearned = [model for model in models if model.role == "unlearned"]
    states = {}
    for key in keys:
        before_and_after = _states(data, key, models)
        if before_and_after:
            states[key] = before_and_after
    return {
        "rule": next((r["rule"] for r in data["robustness"].values() if r.get("rule")), "symmetric"),
        "least_utility": UTILITY_FILTER,
        "metrics": [_metric(key, labels.get(key) or {}, data) for key in keys],
        "states": states or None,
        "utility": {m.name: m.value("utility_rel") for m in unlearned if "utility_rel" in m.values},
        "rules": {name: rule.words for name, rule in RULES.items()},
        "formulas": dict(FORMULAS),
        "notes": [f"{name}: {note}" for name, note in (data.get("notes") or {}).items()],
        "source": source,
    }


def _metric(key: str, label: Json, data: Json) -> Json:
    faithful = data["faithfulness"].get(key) or {}
    robust = data["robustness"].get(key) or {}
    known = KNOWN.get(key)
    direction = direction_of(key) if known else None
    pools = faithful.get("pools") or {}
    threshold = faithful.get("threshold_m")
    out: Json = {
        "key": key,
        "label": label.get("label") or (known.label if known else key),
        "category": label.get("category") or (known.category if known else "own"),
        "tags": list(label.get("tags") or (known.tags if known else ())),
        "auc": faithful.get("auc_roc"),
        "knows": faithful.get("knows") or (known.knows if known else None),
        "space": faithful.get("m") or (direction.space if direction else "raw"),
        "threshold_m": threshold,
        "threshold": direction.raw(threshold) if direction and threshold is not None else None,
        "filtered_by": robust.get("filtered_by") or (known.filtered_by or None if known else None),
        "p": pools.get("p"),
        "n": pools.get("n"),
        "overall": (data.get("overall") or {}).get(key, overall(faithful.get("auc_roc"), robust.get("agg"))),
        "protocol": faithful.get("protocol") or robust.get("protocol"),
        "other_rules": {},
    }
    if faithful.get("auc_interval"):
        out["auc_lo"], out["auc_hi"] = faithful["auc_interval"]
    for name, short in SHORT.items():
        out[short] = robust.get(name)
        interval = (robust.get("intervals") or {}).get(name)
        if interval:
            out[f"{short}_lo"], out[f"{short}_hi"] = interval
    for part, names in ((faithful, ("p_mean", "n_mean", "n_p", "n_n", "accuracy")), (robust, ("n_models", "rule"))):
        out |= {name: part[name] for name in names if part.get(name) is not None}
    for rule, numbers in (robust.get("other_rules") or {}).items():
        out["other_rules"][rule] = {short: numbers.get(name) for name, short in SHORT.items()}
    reason = faithful.get("reason") or ("" if pools else NO_POOLS)
    if reason:
        out["reason"] = reason
    return out


def _states(data: Json, key: str, models: Sequence[ReportModel]) -> Json | None:
    """m before and after each attack: as the file says, else (before only) from the models' own values.

    Those are parts of axes, where 1 is good: m = 1 - part is high when the model knows.
    """
    said = (data["robustness"].get(key) or {}).get("states")
    names = ("before", *PARTS)
    rows = []
    retain = None
    if said:
        ids = {model.name: model.id for model in models}
        if said.get("retain"):
            retain = {name: said["retain"].get(name) for name in names}
        for model, state in said["models"].items():
            rows.append({"model": model, "id": ids.get(model), **{name: state.get(name) for name in names}})
        return {"retain": retain, "models": rows}
    part = next((part for part, metric in SOURCES.items() if metric == key), key if key in EXTRA else "")
    for model in models:
        value = model.value(part)
        if value is None:
            continue
        state = {"before": 1 - value, "relearning": None, "quantization": None}
        if model.role == "unlearned":
            rows.append({"model": model.name, "id": model.id, **state})
        elif model.role == "retain":
            retain = state
    return {"retain": retain, "models": rows} if rows else None
