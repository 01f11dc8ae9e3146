"""The harness's results as plain data that our files can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vestige.types import content_key

Plain = dict[str, Any]


def read_results(raw: Mapping[str, Any], top: Sequence[str]) -> tuple[Plain, dict[str, float], Plain]:
    """Details of every task and group, the summary of those asked for and what is in them, and which data they read."""
    subtasks = raw.get("group_subtasks") or {}
    details: Plain = {}
    for name, values in raw["results"].items():
        entry: Plain = {"metrics": metrics_of(values), "version": plain(raw["versions"].get(name))}
        if name in raw["samples"]:
            entry["n_shot"] = raw["n-shot"].get(name)
            entry["n_samples"] = plain(raw["n-samples"].get(name))
            entry["higher_is_better"] = plain(raw["higher_is_better"].get(name))
            entry["value_by_index"] = by_document(raw["samples"][name])
        else:
            entry["subtasks"] = sorted(subtasks.get(name, ()))
        details[name] = entry
    summary = {f"{n}/{m}": v for n in _reported(top, details) for m, v in details[n]["metrics"].items()}
    data = {name: _source(raw, name) for name in raw["samples"]}
    return details, {k: v for k, v in summary.items() if v is not None}, data


def blank(details: Plain, why: str) -> None:
    """Takes every number out of the details: metrics, and what each document was given for them."""
    for entry in details.values():
        names = list(entry["metrics"])
        entry["metrics"] = dict.fromkeys(names)
        entry["reason"] = why
        for row in (entry.get("value_by_index") or {}).values():
            row.update(dict.fromkeys((k for k in row if k != "target"), None))


def _reported(top: Sequence[str], details: Mapping[str, Any]) -> list[str]:
    """What was asked for; below a group everything in it, whether or not the group has an average of its own."""
    out: list[str] = []
    for name in top:
        entry = details.get(name, {})
        out += [*([name] if entry.get("metrics") else []), *_reported(entry.get("subtasks", ()), details)]
    return list(dict.fromkeys(out))


def metrics_of(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Metric -> value. The harness writes METRIC,FILTER; no filter is called none and goes without saying.

    >>> metrics_of({"alias": "x", "acc,none": 0.5, "acc_stderr,none": "N/A", "exact_match,strict": 1})
    {'acc': 0.5, 'acc_stderr': None, 'exact_match,strict': 1.0}
    """
    return {key.removesuffix(",none"): _number(value) for key, value in values.items() if "," in key}


def _number(value: Any) -> float | None:
    value = plain(value)
    return float(value) if isinstance(value, (bool, int, float)) else None


def by_document(samples: Sequence[Mapping[str, Any]]) -> dict[str, Plain]:
    """Document number -> its metrics' values, the right answer, and what the model said.

    `responses` is what the metrics saw: generated texts, or (log-likelihood, is greedy) for each choice.
    """
    out: dict[str, Plain] = {}
    for sample in samples:
        suffix = "" if sample["filter"] == "none" else f",{sample['filter']}"
        row = out.setdefault(str(sample["doc_id"]), {"target": plain(sample["target"])})
        row |= {f"{metric}{suffix}": plain(sample[metric]) for metric in sample["metrics"]}
        row[f"responses{suffix}"] = plain(sample["filtered_resps"])
    return out


def _source(raw: Mapping[str, Any], name: str) -> Plain:
    config = raw["configs"].get(name) or {}
    hashes = {str(s["doc_id"]): str(s["doc_hash"]) for s in raw["samples"][name]}
    parts = [config.get("dataset_path"), config.get("dataset_name"), config.get("test_split")]
    return {
        "name": name,
        "rows": len(hashes),
        "source": " ".join(str(p) for p in parts if p),
        "fingerprint": content_key(*(f"{k}:{v}".encode() for k, v in hashes.items())),
        "task_config": plain((config.get("metadata") or {}).get("config_source")),
    }


def plain(value: Any) -> Any:
    """JSON's own types only. What is not a number (NaN, infinity) is null.

    >>> plain({"a": (1, float("nan")), "b": True})
    {'a': [1, None], 'b': True}
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)) or hasattr(value, "tolist"):
        return [plain(v) for v in (value.tolist() if hasattr(value, "tolist") else value)]
    return str(value)
