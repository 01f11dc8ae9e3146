"""Result files of meta-evaluation, in the published schema: written by us, read from any author."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypedDict

from vestige.errors import UserError
from vestige.meta.axes import FLOOR, erased
from vestige.meta.bench import AttackVerdict, Judged, PoolVerdict, usable
from vestige.meta.methods import Methods, from_results, row_json
from vestige.meta.numbers import read_file
from vestige.meta.robustness import RULES, Filters, Robustness, overall
from vestige.metrics.cards import KNOWN, Direction, direction_of, short
from vestige.runs.manifest import versions
from vestige.schema import check_form, number
from vestige.store.files import write_json

METHOD_RESULTS, META_EVAL = "method_results.json", "meta_eval.json"
THRESHOLDS, USABLE = "optimal_thresholds.json", "usable_models.json"

# How notes about verdicts of differing protocols begin; each command writes them again.
NO_OVERALL, MIXED_OVERALL, MIXED_THRESHOLD = "no overall: ", "mixed overall: ", "mixed threshold: "
MIXED = (NO_OVERALL, MIXED_OVERALL, MIXED_THRESHOLD)

FORMULAS = {
    "faithfulness": "AUC-ROC of m, pool P (knows) against pool N (does not)",
    "robustness": "HM(R, Q)",
    "relearning": "symmetric: R = 1 - |D - D_retain| / (|D| + |D_retain|); one-sided: R = min(D_retain / D, 1)",
    "quantization": "symmetric: Q = 1 - |after - before| / (|after| + |before|); one-sided: Q = min(before / after, 1)",
    "overall": "HM(faithfulness, robustness); null if either is",
}


# ---- method_results.json ------------------------------------------------------------------------------------------


def method_results_json(methods: Methods, floor: float = FLOOR, sources: Mapping[str, Any] | None = None) -> Any:
    counts = Counter(str(r.facts["method"]) for r in methods.rows if is_counted(r.facts))
    return {
        "models": [row_json(r) for r in methods.rows],
        "method_counts": dict(counts),
        "full_utility": dict(methods.full_utility),
        "full_model_utility": dict(methods.full_model_utility),
        "protocols": dict(methods.protocols),
        "floor": floor,
        "erased": {"published": erased([r.published for r in methods.rows]), "of": len(methods.rows)},
        "notes": [*methods.notes, *([methods.fallback] if methods.fallback else [])],
        "data_sources": dict(sources or {}),
    }


def is_counted(facts: Mapping[str, Any]) -> bool:
    return bool(facts.get("method")) and not facts.get("is_reference")


def read_method_results(path: Path, floor: float = FLOOR) -> Methods:
    return replace(from_results(read_file(path), str(path), floor), read=(path,))


def read_utility(path: Path) -> tuple[dict[str, float | None], str]:
    """utility_rel of every model that is not a reference, as a method_results.json states it, and of what it is made.

    The stated value is taken where there is one: published filters use it, and it need not be computable here.
    """
    data = read_file(path)
    methods = from_results(data, str(path))
    out: dict[str, float | None] = {}
    for stated, row in zip(data["models"], methods.rows, strict=True):
        if not stated.get("is_reference"):
            own = stated.get("utility_rel")
            out[row.name] = row.published.utility_rel if own is None else own
    return out, methods.fallback


# ---- optimal_thresholds.json --------------------------------------------------------------------------------------


def thresholds_json(judged: Judged) -> dict[str, Any]:
    """Thresholds in the metric's own values, and which side is kept."""
    out = {}
    for name, v in judged.pools.items():
        t = v.result.threshold
        if t is None:
            continue
        out[name] = {
            "threshold": v.direction.raw(t.m),
            "threshold_m": t.m,
            "m": v.direction.space,
            "interval_m": t.interval,
            "accuracy": t.accuracy,
            "p_higher": v.direction.knows == "high",
            "direction": "keep_below" if v.direction.knows == "high" else "keep_above",
            "protocol": v.protocol,
            **({"note": t.note} if t.note else {}),
        }
        if v.direction.knows not in ("high", "low"):
            del out[name]["p_higher"], out[name]["direction"]  # kept is what has a low m, on neither side of x
    return out


def read_thresholds(path: Path) -> dict[str, float]:
    """Thresholds on m, from our file, from {metric: number}, or from the criteria of a usable_models.json."""
    bodies = _threshold_bodies(path)
    return {short(str(name)): _on_m(str(name), body, path) for name, body in bodies.items()}


def read_threshold_protocols(path: Path) -> dict[str, str]:
    """How each threshold was measured, where the file says so."""
    bodies = _threshold_bodies(path).items()
    return {short(str(n)): str(b["protocol"]) for n, b in bodies if isinstance(b, Mapping) and b.get("protocol")}


class _Filter(TypedDict, total=False):
    thresholds: dict[str, Any] | None


class _Criteria(TypedDict, total=False):
    metric_threshold_filter: _Filter | None


class _Thresholds(TypedDict, total=False):
    criteria: _Criteria | None


def _threshold_bodies(path: Path) -> Mapping[str, Any]:
    """The file itself, or the criteria inside a usable_models.json."""
    data = read_file(path)
    check_form(data, _Thresholds, str(path))
    found = ((data.get("criteria") or {}).get("metric_threshold_filter") or {}).get("thresholds")
    return found or data


def _on_m(name: str, body: Any, path: Path) -> float:
    entry = body if isinstance(body, Mapping) else {"threshold": body}
    if (m := number(entry.get("threshold_m"))) is not None:
        return m
    value = number(entry.get("threshold"))
    if value is None:
        raise UserError(f"{path}: {name} has no threshold that is a number; write {name}: NUMBER.")
    space = str(entry.get("threshold_space", "raw"))
    if space != "raw":  # already turned: "1-uds"
        return float(value)
    side = entry.get("direction")
    if side in ("keep_below", "keep_above", "pass_if_ge", "pass_if_le"):
        return Direction("high" if side in ("keep_below", "pass_if_le") else "low").m(float(value))
    return direction_of(name).m(float(value))


# ---- meta_eval.json -----------------------------------------------------------------------------------------------


def meta_eval_json(
    judged: Judged,
    before: Mapping[str, Any] | None = None,
    sources: Mapping[str, Any] | None = None,
    accept_mixture: bool = False,
) -> Any:
    """The file with the judged half replaced; the other half, if `before` has it, stays. Overall needs both, measured
    in the same way unless a mixture is accepted; then the notes say so."""
    old = before or {}
    faithful = {n: _faithful_json(v) for n, v in judged.pools.items()} or dict(old.get("faithfulness") or {})
    robust = {n: _robust_json(v) for n, v in judged.attacks.items()} or dict(old.get("robustness") or {})
    names = _all_names(faithful, robust)
    mixed = {n: why for n in names if n in faithful and n in robust and (why := _mixed(faithful[n], robust[n]))}
    return {
        "metrics": [_label(n) for n in names if n in faithful or n in robust],
        "faithfulness": faithful,
        "robustness": robust,
        "overall": {
            n: overall(faithful[n].get("auc_roc"), robust[n].get("agg")) if accept_mixture or n not in mixed else None
            for n in names
            if n in faithful and n in robust
        },
        "formulas": FORMULAS,
        "notes": {
            **{k: v for k, v in (old.get("notes") or {}).items() if not k.startswith(MIXED)},
            **{f"skipped: {n}": why for n, why in judged.skipped.items()},
            **{f"{MIXED_THRESHOLD}{n}": why for n, body in robust.items() if (why := _other_threshold(body))},
            **{f"{MIXED_OVERALL if accept_mixture else NO_OVERALL}{n}": why for n, why in mixed.items()},
        },
        "data_sources": {**(old.get("data_sources") or {}), **(sources or {})},
        "asked": _asked_before(old),
        "versions": {"vestige": versions().get("vestige", "")},
    }


def _asked_before(old: Mapping[str, Any]) -> dict[str, Any]:
    """How each half was made, as far as the file says; the command that makes a half adds its own."""
    said = old.get("asked")
    return dict(said) if isinstance(said, Mapping) else {}


def _all_names(faithful: Mapping[str, Any], robust: Mapping[str, Any]) -> list[str]:
    return [*KNOWN, *sorted({*faithful, *robust} - set(KNOWN))]


def labels_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The list `metrics` that belongs to the metrics a meta_eval.json judges."""
    faithful, robust = body["faithfulness"], body["robustness"]
    return [_label(n) for n in _all_names(faithful, robust) if n in faithful or n in robust]


def _mixed(faithful: Mapping[str, Any], robust: Mapping[str, Any]) -> str:
    """Why the two halves of a metric's verdict do not belong together, or nothing."""
    a, b = faithful.get("protocol"), robust.get("protocol")
    return f"faithfulness was measured as '{a}', robustness as '{b}'" if a and b and a != b else ""


def _other_threshold(robust: Mapping[str, Any]) -> str:
    """That a metric's models were chosen by a threshold measured in another way, or nothing."""
    theirs, ours = robust.get("threshold_protocol"), robust.get("protocol")
    return (
        f"the threshold of {robust['filtered_by']} was measured as '{theirs}', the models as '{ours}'" if theirs else ""
    )


def read_meta_eval(path: Path) -> dict[str, Any]:
    """A meta_eval.json, checked for the parts that a reader relies on."""
    return checked_meta_eval(read_file(path), path)


def checked_meta_eval(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    for part, keys in (("faithfulness", ("auc_roc",)), ("robustness", ("relearning", "quantization", "agg"))):
        section = data.get(part)
        if not isinstance(section, Mapping):
            raise UserError(f"{path} is not a meta_eval.json: it has no {part}; give the file that vestige meta wrote.")
        for name, body in section.items():
            if not isinstance(body, Mapping) or any(k not in body for k in keys):
                raise UserError(f"{path}: {part} of {name} lacks {', '.join(keys)}.")
    return dict(data)


def _label(name: str) -> dict[str, Any]:
    known = KNOWN.get(name)
    if known is None:
        return {"key": name, "label": name, "category": "own", "tags": []}
    return {"key": name, "label": known.label, "category": known.category, "tags": list(known.tags)}


def _faithful_json(v: PoolVerdict) -> dict[str, Any]:
    r = v.result
    out: dict[str, Any] = {
        "auc_roc": r.auc,
        "auc_interval": r.interval,
        "p_mean": v.p_mean,
        "n_mean": v.n_mean,
        "n_p": r.n_p,
        "n_n": r.n_n,
        "knows": v.direction.knows,
        "m": v.direction.space,
        "direction_from": v.direction.said_by,
        "protocol": v.protocol,
        "threshold_m": r.threshold.m if r.threshold else None,
        "accuracy": r.threshold.accuracy if r.threshold else None,
        "pools": {side: dict(values) for side, values in v.pools.items()},
    }
    more = {"missing": list(r.missing), "reason": r.reason, "notes": list(r.notes)}
    return {**out, **{k: x for k, x in more.items() if x}}


def _robust_json(v: AttackVerdict) -> dict[str, Any]:
    def numbers(r: Robustness) -> dict[str, Any]:
        out: dict[str, Any] = {"relearning": r.relearning, "quantization": r.quantization, "agg": r.agg}
        return {**out, "intervals": dict(r.intervals), **({"reasons": dict(r.reasons)} if r.reasons else {})}

    return {
        **numbers(v.result),
        "rule": v.result.rule,
        "rule_in_words": RULES[v.result.rule].words,
        "n_models": len(v.result.kept),
        "knows": v.direction.knows,
        "m": v.direction.space,
        "protocol": v.protocol,
        "filtered_by": v.filtered_by or None,
        "threshold_m": v.threshold,
        **({"threshold_protocol": v.measured} if v.measured else {}),
        "per_model": {name: dict(values) for name, values in v.result.per_model.items()},
        "states": {"retain": asdict(v.retain), "models": {name: asdict(s) for name, s in v.states.items()}},
        "other_rules": {rule: numbers(r) for rule, r in v.others.items()},
    }


# ---- usable_models.json -------------------------------------------------------------------------------------------


def usable_json(
    judged: Judged,
    utility: Mapping[str, float | None] | None,
    least_utility: float,
    models: Sequence[str],
    sources: Mapping[str, Any],
) -> dict[str, Any]:
    """Which models each metric's robustness was read from, by which criteria, from which files."""
    kept = usable(judged)
    sets = [set(k) for k in kept.values()]
    useful = Filters(utility, least_utility=least_utility)
    passed = [m for m in models if not useful.why_not(m, 0.0)]
    no_utility = [m for m in models if utility is not None and utility.get(m) is None]
    return {
        "source": "vestige meta robustness",
        "data_sources": dict(sources),
        "provenance": {
            "utility_rel": sources.get("utility", "the pool file" if utility is not None else "not given"),
            "thresholds": sources.get("thresholds", "not given"),
            "values": sources.get("attacks", ""),
            "versions": {"vestige": versions().get("vestige", "")},
        },
        "criteria": {
            "definition": "usable model = passes the utility filter and the metric's threshold",
            "utility_filter": {
                "metric": "utility_rel",
                "rule": f"utility_rel >= {least_utility:g}" if utility is not None else "not applied: none was given",
                "excluded_count": len(models) - len(passed),
                "without_utility_rel": no_utility,
            },
            "metric_threshold_filter": {
                "rule": "m <= threshold",
                "thresholds": {
                    n: {
                        "threshold_space": "m",
                        "threshold": v.threshold,
                        "filtered_by": v.filtered_by,
                        "protocol": v.measured or v.protocol,
                        **({"models_protocol": v.protocol} if v.measured else {}),
                    }
                    for n, v in judged.attacks.items()
                    if v.threshold is not None
                },
                "not_applied": [n for n, v in judged.attacks.items() if v.threshold is None],
            },
        },
        "counts": {
            "models": len(models),
            "metrics": len(kept),
            "utility_pass_only": len(passed),
            "usable_per_metric": {n: len(k) for n, k in kept.items()},
            "intersection_all_metrics": len(set.intersection(*sets)) if sets else 0,
            "union_any_metric": len(set.union(*sets)) if sets else 0,
        },
        "usable_models_per_metric": {n: list(k) for n, k in kept.items()},
        "usable_by_all_metrics": sorted(set.intersection(*sets)) if sets else [],
        "left_out": {n: dict(v.result.left_out) for n, v in judged.attacks.items()},
    }


def write(directory: Path, name: str, data: Any) -> Path:
    path = directory / name
    write_json(path, data)
    return path
