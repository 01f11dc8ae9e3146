"""Rows of an audited model: what it says beside the reference, what it finds likely, and how attacks do on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vestige.metrics.cards import is_attack
from vestige.report.eval_part import handler_of
from vestige.report.format import finite
from vestige.report.row_words import add_secrets, columns_of, plain_questions, secrets_of
from vestige.report.secrets_part import add_attacks, facts_in
from vestige.store.kinds import RunSource
from vestige.types import Array
from vestige.verdict.runs import SIDE, split_of

ROWS = 400  # of a split, unless more is asked for
ALL_ROWS = 10_000  # in one report, whatever the number of models
MOST_VALUES = 1000  # of a distribution
MOST_POINTS = 200  # of a curve
LIKELY = ("probability", "extraction_strength", "exact_memorization", "truth_ratio")
FIELDS = {"probability": "prob"}
SECRETS = "secrets_said"
ORDER = (
    "rows that say their secret first, then those that do after an attack, then the worst leaks; rows to keep follow, "
    "the ones most lost first"
)

Runs = Mapping[str, Sequence[RunSource]]  # model id -> its evaluations, the audited model first


# ---- what it says -------------------------------------------------------------------------------------------------


def says(runs: Runs, model: str, retain: str | None, rows: int, stresses: Sequence[RunSource] = ()) -> dict[str, Any]:
    """Generations of all models beside the reference, the worst leaks first; no more than `rows` of a split.

    `stresses`: runs of attacks on the model, for secrets that are told only after one.
    """
    out: list[dict[str, Any]] = []
    total: dict[str, int] = {}
    left_off: dict[str, int] = {}
    for split in ("forget", "retain"):
        found = _texts(runs, model, split, stresses if split == "forget" else ())
        for row in found:
            row["leak"] = leak(row["scores"], model, retain) if split == "forget" else None
        found.sort(key=lambda r: _order(r, model, retain))
        total[split], left_off[split] = len(found), max(0, len(found) - rows)
        out += found[:rows]
    return {"rows": out, "left_off": left_off, "total": total, "order": ORDER}


def _order(row: Mapping[str, Any], model: str, retain: str | None) -> tuple[int, float]:
    """Secrets the model tells and the retain model does not; that both tell; that an attack brings back; others."""
    if row["leak"] is None:
        return 0, float(row["scores"].get(model, {}).get("rouge") or 0.0)
    told, known = (row.get("tells", {}).get(who or "", False) for who in (model, retain))
    back = {a["who"] for a in row.get("attacked", ())}
    rank = (1 if known else 0) if told else 2 if "model" in back and "retain" not in back else 3 if back else 4
    return rank, -row["leak"]


def leak(scores: Mapping[str, Mapping[str, float]], model: str, retain: str | None) -> float | None:
    """How much more of a reference a model says, or finds likely, than the retain model; without one, how much.

    >>> round(leak({"m": {"rouge": 0.9, "prob": 0.2}, "r": {"rouge": 0.3, "prob": 0.1}}, "m", "r"), 6)
    0.6
    >>> leak({"m": {"rouge": 0.1}, "r": {"rouge": 0.3}}, "m", "r"), leak({"m": {"rouge": 0.1}}, "m", None)
    (0.0, 0.1)
    """
    mine = scores.get(model) or {}
    yardstick = scores.get(retain or "") or {}
    gains = [x - (yardstick.get(k) or 0.0) for k, x in mine.items() if x is not None]
    return min(1.0, max(0.0, *gains)) if gains else None


def _texts(runs: Runs, model: str, split: str, stresses: Sequence[RunSource]) -> list[dict[str, Any]]:
    """The audited model's rows of a split, with the other models' texts where they read the same rows."""
    own = next(((s, m) for s in runs.get(model, ()) if (m := _text_metric(s, split))), None)
    if own is None:
        return []
    source, metric = own
    rows: dict[str, dict[str, Any]] = {}
    for i, body in source.data["results"][metric]["value_by_index"].items():
        if not isinstance(body.get("generation"), str):
            continue
        reference = str(body.get("ground_truth") or "")
        rows[i] = {"i": str(i), "split": split, "question": str(body.get("input") or ""), "reference": reference,
                   "texts": {}, "scores": {}}  # fmt: skip
    asked, secrets = facts_in(source, metric)
    for i, question in zip(rows, plain_questions([r["question"] for r in rows.values()]), strict=True):
        rows[i]["question"] = asked.get(i, question)
    for i, columns in columns_of(source.data["manifest"], _data_of(source, metric)).items():
        if i in rows:
            rows[i]["columns"] = columns
    for id, sources in runs.items():
        other = next((s for s in sources if same_rows(s, source, metric)), None)
        if other is not None:
            _add_texts(rows, other, metric, id)
    add_secrets(rows, secrets_of(source.data["results"], _beside(source, metric, SECRETS)) or secrets)
    add_attacks(rows, fingerprints(source, metric), stresses)
    return list(rows.values())


def _text_metric(source: RunSource, split: str) -> str:
    for metric, body in source.data["results"].items():
        texts = handler_of(source, metric) in ("rouge", "") and split_of(metric) == split
        if texts and not any(w in metric for w in SIDE) and _has_text(body):
            return metric
    return ""


def _has_text(body: Mapping[str, Any]) -> bool:
    rows = body.get("value_by_index") or {}
    return any("generation" in row for row in rows.values())


def _add_texts(rows: Mapping[str, dict[str, Any]], source: RunSource, metric: str, id: str) -> None:
    likely = _beside(source, metric, "probability")
    results = source.data["results"]
    for i, body in results[metric]["value_by_index"].items():
        if i not in rows:
            continue
        rows[i]["texts"][id] = str(body.get("generation") or "")
        prob = (results[likely]["value_by_index"].get(i) or {}).get("prob") if likely else None
        told = {"rouge": finite(body.get("rougeL_recall")), "prob": finite(prob)}
        rows[i]["scores"][id] = {k: v for k, v in told.items() if v is not None}


def _beside(source: RunSource, metric: str, handler: str) -> str:
    """The metric of a handler on the very rows whose texts a metric has."""
    where = _data_of(source, metric)
    for name, body in source.data["results"].items():
        if handler_of(source, name) == handler and body.get("value_by_index"):
            same = _data_of(source, name) == where if where else split_of(name) == split_of(metric)
            if same and not any(w in name for w in SIDE):
                return name
    return ""


def _data_of(source: RunSource, metric: str) -> list[str]:
    return sorted(((source.data["manifest"].get("data_of") or {}).get(metric) or {}).values())


def same_rows(a: RunSource, b: RunSource, metric: str) -> bool:
    """Did two runs read the same rows for a metric? By fingerprint; where there is none, by the rows' numbers."""
    if metric not in a.data["results"] or metric not in b.data["results"]:
        return False
    prints = [fingerprints(s, metric) for s in (a, b)]
    if all(prints):
        return prints[0] == prints[1]
    numbers = [set(s.data["results"][metric].get("value_by_index") or {}) for s in (a, b)]
    return numbers[0] == numbers[1]


def fingerprints(source: RunSource, metric: str) -> list[str]:
    data = source.data["manifest"].get("data") or {}
    return sorted(str(data[k]["fingerprint"]) for k in _data_of(source, metric) if k in data)


# ---- what it finds likely -----------------------------------------------------------------------------------------


def likely(runs: Runs) -> list[dict[str, Any]]:
    """Distributions over rows: forget rows beside rows to keep, or beside fresh ones."""
    out: list[dict[str, Any]] = []
    for id, sources in runs.items():
        for source in sources:
            for metric in source.data["results"]:
                splits = _splits(source, metric)
                if splits.get("forget") and not any(d["metric"] == metric and d["model"] == id for d in out):
                    out.append({"metric": metric, "model": id, "what": _what(source, metric), "splits": splits})
    return out


def _what(source: RunSource, metric: str) -> str:
    attack = is_attack(handler_of(source, metric))
    return "the attack's score of each row: low is familiar" if attack else "the metric's value of each row"


def _splits(source: RunSource, metric: str) -> dict[str, list[float]]:
    results, handler = source.data["results"], handler_of(source, metric)
    body = results[metric]
    if is_attack(handler):
        return {k: _thinned(_by_row(body.get(k) or {}, "score")) for k in ("forget", "holdout") if body.get(k)}
    if handler not in LIKELY or split_of(metric) == "retain" or any(w in metric for w in SIDE):
        return {}
    if metric.startswith(("ra_", "wf_")):
        return {}
    field = FIELDS.get(handler, "score")
    out = {"forget": _thinned(_by_row(body, field))}
    other = _counterpart(metric, results)
    if other and handler_of(source, other) == handler:
        out["retain"] = _thinned(_by_row(results[other], field))
    return out


def _counterpart(metric: str, results: Mapping[str, Any]) -> str:
    wanted = metric.lower().replace("forget", "retain")
    return next((m for m in results if m.lower() == wanted and m != metric), "")


def _by_row(body: Mapping[str, Any], field: str) -> list[float]:
    found = [row.get(field) for row in (body.get("value_by_index") or {}).values()]
    return [v for x in found if (v := finite(x)) is not None]


def _thinned(values: Sequence[float]) -> list[float]:
    """No more than MOST_VALUES of them, evenly over their order: the shape stays."""
    if len(values) <= MOST_VALUES:
        return list(values)
    ordered = np.sort(np.asarray(values, float))
    return [float(v) for v in ordered[np.linspace(0, len(ordered) - 1, MOST_VALUES).astype(int)]]


# ---- attacks on membership ----------------------------------------------------------------------------------------


def curves(runs: Runs) -> list[dict[str, Any]]:
    """A ROC curve for each attack and model."""
    out = []
    for id, sources in runs.items():
        for source in sources:
            for metric, body in source.data["results"].items():
                sets = [_by_row(body.get(k) or {}, "score") for k in ("forget", "holdout")]
                if not is_attack(handler_of(source, metric)) or not all(sets):
                    continue
                stat = source.data["stats"].get(metric) or {}
                ends = dict(zip(("lo", "hi"), stat.get("interval") or (), strict=False))
                fpr, tpr = roc(np.array(sets[0]), np.array(sets[1]))
                body_auc = finite(body.get("agg_value"))
                out.append({"metric": metric, "model": id, "fpr": fpr, "tpr": tpr, "auc": body_auc, **ends,
                            "n": [len(s) for s in sets]})  # fmt: skip
    return out


def roc(forget: Array, holdout: Array) -> tuple[list[float], list[float]]:
    """False and true positive rates when rows with a score up to t are called "trained on", for rising t.

    >>> roc(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    cuts = np.unique(np.concatenate([forget, holdout]))
    tpr, fpr = (np.searchsorted(np.sort(x), cuts, side="right") / len(x) for x in (forget, holdout))
    if len(cuts) > MOST_POINTS:
        keep = np.unique(np.linspace(0, len(cuts) - 1, MOST_POINTS).astype(int))
        tpr, fpr = tpr[keep], fpr[keep]
    return [0.0, *(float(x) for x in fpr)], [0.0, *(float(x) for x in tpr)]
