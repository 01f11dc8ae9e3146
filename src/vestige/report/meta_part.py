"""The part of a report about metrics: what a meta_eval.json says, in one record per metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vestige.meta.axes import EXTRA, SOURCES
from vestige.meta.files import FORMULAS
from vestige.meta.robustness import PARTS, RULES, UTILITY_FILTER, overall
from vestige.metrics.cards import KNOWN, direction_of
from vestige.report.format import plain

NO_POOLS = "the values of single pool models are not in the file"


def meta_part(data: Mapping[str, Any], models: Sequence[Mapping[str, Any]], source: str) -> dict[str, Any]:
    """meta_eval.json, ours or published; `models` are the report's, for utility_rel and values before attacks."""
    labels = {str(m["key"]): m for m in data.get("metrics") or []}
    keys = list(dict.fromkeys([*labels, *data["faithfulness"], *data["robustness"]]))
    unlearned = [m for m in models if m["role"] == "unlearned"]
    return {
        "rule": next((r["rule"] for r in data["robustness"].values() if r.get("rule")), "symmetric"),
        "least_utility": UTILITY_FILTER,
        "metrics": [_metric(k, labels.get(k) or {}, data) for k in keys],
        "states": _states(data, keys, models),
        "utility": {m["name"]: m["values"]["utility_rel"]["v"] for m in unlearned if "utility_rel" in m["values"]},
        "rules": {name: rule.words for name, rule in RULES.items()},
        "formulas": dict(FORMULAS),
        "notes": [f"{k}: {v}" for k, v in (data.get("notes") or {}).items()],
        "source": source,
    }


def _metric(key: str, label: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    faithful = data["faithfulness"].get(key) or {}
    robust = data["robustness"].get(key) or {}
    known = KNOWN.get(key)
    direction = direction_of(key) if known else None
    pools = faithful.get("pools") or {}
    threshold = faithful.get("threshold_m")
    out = {
        "key": key,
        "label": label.get("label") or (known.label if known else key),
        "category": label.get("category") or (known.category if known else "own"),
        "tags": list(label.get("tags") or (known.tags if known else ())),
        "auc": faithful.get("auc_roc"),
        **_ends("auc", faithful.get("auc_interval")),
        **{k: faithful[k] for k in ("p_mean", "n_mean", "n_p", "n_n", "accuracy") if faithful.get(k) is not None},
        "knows": faithful.get("knows") or (known.knows if known else None),
        "space": faithful.get("m") or (direction.space if direction else "raw"),
        "threshold_m": threshold,
        "threshold": direction.raw(threshold) if direction and threshold is not None else None,
        "filtered_by": robust.get("filtered_by") or (known.filtered_by or None if known else None),
        "p": pools.get("p"),
        "n": pools.get("n"),
        "r": robust.get("relearning"),
        "q": robust.get("quantization"),
        "agg": robust.get("agg"),
        "overall": (data.get("overall") or {}).get(key, _overall(faithful, robust)),
        **_ranges(robust.get("intervals") or {}),
        **{k: robust[k] for k in ("n_models", "rule") if robust.get(k) is not None},
        "protocol": faithful.get("protocol") or robust.get("protocol"),
        "other_rules": {r: _numbers(body) for r, body in (robust.get("other_rules") or {}).items()},
    }
    reason = faithful.get("reason") or ("" if pools else NO_POOLS)
    return dict(plain({**out, **({"reason": reason} if reason else {})}))


def _overall(faithful: Mapping[str, Any], robust: Mapping[str, Any]) -> float | None:
    return overall(faithful.get("auc_roc"), robust.get("agg"))


def _ends(name: str, interval: Sequence[float] | None) -> dict[str, float]:
    return {f"{name}_lo": interval[0], f"{name}_hi": interval[1]} if interval else {}


SHORT = {"relearning": "r", "quantization": "q", "agg": "agg"}


def _ranges(intervals: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {k: v for part, ends in intervals.items() for k, v in _ends(SHORT[part], ends).items()}


def _numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    return {short: body.get(name) for name, short in SHORT.items()}


def _states(data: Mapping[str, Any], keys: Sequence[str], models: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """m before and after each attack: as the file says, else (before only) from the models' own values."""
    out = {}
    ids = {m["name"]: m["id"] for m in models}
    for key in keys:
        said = (data["robustness"].get(key) or {}).get("states")
        found = _said(said, ids) if said else _before(key, models)
        if found:
            out[key] = found
    return out or None


def _said(said: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    rows = [{"model": name, "id": ids.get(name), **_state(state)} for name, state in said["models"].items()]
    return {"retain": _state(said["retain"]) if said.get("retain") else None, "models": rows}


def _state(state: Mapping[str, Any]) -> dict[str, Any]:
    return {k: state.get(k) for k in ("before", *PARTS)}


def _before(key: str, models: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """From the parts of axes, where 1 is good: m = 1 - part is high when the model knows."""
    part = next((p for p, metric in SOURCES.items() if metric == key), key if key in EXTRA else "")
    rows = []
    retain = None
    for m in models:
        found = m["values"].get(part, {}).get("v")
        if found is None:
            continue
        state = {"before": 1 - found, "relearning": None, "quantization": None}
        if m["role"] == "unlearned":
            rows.append({"model": m["name"], "id": m["id"], **state})
        elif m["role"] == "retain":
            retain = state
    return {"retain": retain, "models": rows} if rows else None
