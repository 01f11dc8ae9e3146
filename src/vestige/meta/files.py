"""Result files of meta-evaluation, in the published schema: written by us, read from any author.

The depth score was called udr for uds in older published files: `with_new_keys` reads them, `key_ages` finds mixtures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.io import number
from vestige.meta.axes import METHOD_RESULTS as METHOD_RESULTS
from vestige.meta.faithfulness import JudgedPools
from vestige.meta.pools import read_file
from vestige.meta.robustness import Cut, Filters, JudgedAttacks, overall
from vestige.metrics.cards import KNOWN, Direction, direction_of, short
from vestige.runs.manifest import versions

META_EVAL, THRESHOLDS, USABLE = "meta_eval.json", "optimal_thresholds.json", "usable_models.json"

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


# ---- former keys -------------------------------------------------------------------------------------------------

RENAMED = {"avg_udr": "avg_uds", "udr": "uds", "udr_unclipped": "uds_unclipped"}


def with_new_keys(data: Any) -> Any:
    """The same data under today's keys. Where both are there, today's key wins.

    >>> with_new_keys({"avg_udr": 0.5, "rows": [{"udr": 1}, {"udr": 2, "uds": 3}]})
    {'avg_uds': 0.5, 'rows': [{'uds': 1}, {'uds': 3}]}
    """
    if isinstance(data, list):
        return [with_new_keys(value) for value in data]
    if not isinstance(data, Mapping):
        return data
    out = {}
    for key, value in data.items():
        # A file that has both names has one value under both: the former one is an alias.
        if RENAMED.get(key) not in data:
            out[RENAMED.get(key, key)] = with_new_keys(value)
    return out


def key_ages(data: Any) -> set[str]:
    """Which names some data uses: old, new, both or neither.

    Published summaries write one value under both names: that is today's name with an alias, not a mixture.

    >>> sorted(key_ages({"udr": 1, "more": [{"avg_uds": 2}]})), key_ages({"avg_udr": 0.5, "avg_uds": 0.5})
    (['new', 'old'], {'new'})
    """
    ages: set[str] = set()
    if isinstance(data, list):
        for value in data:
            ages |= key_ages(value)
    if isinstance(data, Mapping):
        for key, value in data.items():
            # One value under both names.
            if key in RENAMED and RENAMED[key] in data and data[RENAMED[key]] == value:
                continue
            if key in RENAMED:
                ages.add("old")
            elif key in RENAMED.values():
                ages.add("new")
            ages |= key_ages(value)
    return ages


# ---- optimal_thresholds.json -------------------------------------------------------------------------------------


def read_thresholds(path: Path) -> dict[str, Cut]:
    """Thresholds on m, from our file, from {metric: number}, or from the criteria of a usable_models.json."""
    bodies: Any = read_file(path)
    # In a usable_models.json the thresholds are among the criteria.
    criteria = bodies
    for key in ("criteria", "metric_threshold_filter", "thresholds"):
        criteria = criteria.get(key) if isinstance(criteria, Mapping) else None
    if isinstance(criteria, Mapping) and criteria:
        bodies = criteria
    out = {}
    for name, body in bodies.items():
        entry = body if isinstance(body, Mapping) else {"threshold": body}
        out[short(str(name))] = Cut(_threshold_on_m(str(name), entry, path), str(entry.get("protocol") or ""))
    return out


def _threshold_on_m(name: str, entry: Mapping[str, Any], path: Path) -> float:
    """A threshold in one of the forms in circulation, turned so that high means "knows".

    Ours has `threshold_m`. Published ones have a value of the metric with the side that is kept, a value that is
    already turned (`threshold_space: 1-uds`), or a plain number, whose direction is that of the metric's name.
    """
    m, value = number(entry.get("threshold_m")), number(entry.get("threshold"))
    if m is not None:
        return m
    if value is None:
        raise UserError(f"{path}: {name} has no threshold that is a number; write {name}: NUMBER.")
    if entry.get("threshold_space", "raw") != "raw":  # already turned: "1-uds"
        return value
    side = entry.get("direction")
    if side in ("keep_below", "pass_if_le"):
        return Direction("high").m(value)
    if side in ("keep_above", "pass_if_ge"):
        return Direction("low").m(value)
    return direction_of(name).m(value)


# ---- meta_eval.json ----------------------------------------------------------------------------------------------


def meta_eval_json(
    judged: JudgedPools | JudgedAttacks,
    old: Mapping[str, Any] | None = None,
    sources: Mapping[str, Any] | None = None,
    accept_mixture: bool = False,
) -> dict[str, Any]:
    """The file with the judged half replaced; the other half, if `old` has it, stays. Overall needs both, measured
    in the same way unless a mixture is accepted; then the notes say so."""
    old = old or {}
    halves = {half: dict(old.get(half) or {}) for half in ("faithfulness", "robustness")}
    half = "faithfulness" if isinstance(judged, JudgedPools) else "robustness"
    halves[half] = dict(judged.entries) or halves[half]
    faithful, robust = halves["faithfulness"], halves["robustness"]
    notes = {key: words for key, words in (old.get("notes") or {}).items() if not key.startswith(MIXED)}
    notes |= {f"skipped: {name}": why for name, why in judged.skipped.items()}
    for name, entry in robust.items():
        if theirs := entry.get("threshold_protocol"):
            notes[MIXED_THRESHOLD + name] = (
                f"the threshold of {entry['filtered_by']} was measured as '{theirs}', the models as "
                f"'{entry.get('protocol')}'"
            )
    ranks = {}
    for name in metric_names(halves):
        if name not in faithful or name not in robust:
            continue
        ranks[name] = overall(faithful[name].get("auc_roc"), robust[name].get("agg"))
        a, b = faithful[name].get("protocol"), robust[name].get("protocol")
        # AUC and R, Q of different protocols are facts about two different metrics; their mean is about neither.
        if a and b and a != b:
            if not accept_mixture:
                ranks[name] = None
            beginning = MIXED_OVERALL if accept_mixture else NO_OVERALL
            notes[beginning + name] = f"faithfulness was measured as '{a}', robustness as '{b}'"
    asked = old.get("asked")  # how each half was made; the command that makes a half adds its own
    return {
        "metrics": [_label(name) for name in metric_names(halves)],
        **halves,
        "overall": ranks,
        "formulas": FORMULAS,
        "notes": notes,
        "data_sources": {**(old.get("data_sources") or {}), **(sources or {})},
        "asked": dict(asked) if isinstance(asked, Mapping) else {},
        "versions": {"vestige": versions().get("vestige", "")},
    }


def metric_names(body: Mapping[str, Any]) -> list[str]:
    """The metrics that a meta_eval.json judges, those of the published table first."""
    # The published order, so that tables of several files can be laid side by side.
    judged = {*body["faithfulness"], *body["robustness"]}
    return [*(name for name in KNOWN if name in judged), *sorted(judged - set(KNOWN))]


def _label(name: str) -> dict[str, Any]:
    """A metric as the published file lists it: its name in print, its family, and what it needs (O, R, I)."""
    known = KNOWN.get(name)
    if known is None:
        return {"key": name, "label": name, "category": "own", "tags": []}
    return {"key": name, "label": known.label, "category": known.category, "tags": list(known.tags)}


def read_meta_eval(path: Path) -> dict[str, Any]:
    """A meta_eval.json, checked for the parts that a reader relies on."""
    return checked_meta_eval(read_file(path), path)


def checked_meta_eval(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The same data, if each metric has the numbers that a table, a page or a plot is made of."""
    for part, keys in (("faithfulness", ("auc_roc",)), ("robustness", ("relearning", "quantization", "agg"))):
        section = data.get(part)
        if not isinstance(section, Mapping):
            raise UserError(f"{path} is not a meta_eval.json: it has no {part}; give the file that vestige meta wrote.")
        for name, body in section.items():
            if not isinstance(body, Mapping) or any(k not in body for k in keys):
                raise UserError(f"{path}: {part} of {name} lacks {', '.join(keys)}.")
    return dict(data)


# ---- usable_models.json ------------------------------------------------------------------------------------------


def usable_json(
    judged: JudgedAttacks,
    utility: Mapping[str, float | None] | None,
    least_utility: float,
    models: Sequence[str],
    sources: Mapping[str, Any],
) -> dict[str, Any]:
    """Which models each metric's robustness was read from, by which criteria, from which files."""
    useful = Filters(utility, least_utility=least_utility)
    passed = [model for model in models if not useful.why_not(model, 0.0)]
    no_utility: list[str] = []
    rule = "not applied: none was given"
    if utility is not None:
        no_utility = [model for model in models if utility.get(model) is None]
        rule = f"utility_rel >= {least_utility:g}"
    thresholds = {}
    for name, entry in judged.entries.items():
        if entry["threshold_m"] is None:
            continue
        measured = entry.get("threshold_protocol")
        thresholds[name] = {
            "threshold_space": "m",
            "threshold": entry["threshold_m"],
            "filtered_by": entry["filtered_by"],
            "protocol": measured or entry["protocol"],
            **({"models_protocol": entry["protocol"]} if measured else {}),
        }
    sets = [set(kept) for kept in judged.kept.values()]
    by_all = set.intersection(*sets) if sets else set()
    by_any = set().union(*sets)
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
                "rule": rule,
                "excluded_count": len(models) - len(passed),
                "without_utility_rel": no_utility,
            },
            "metric_threshold_filter": {
                "rule": "m <= threshold",
                "thresholds": thresholds,
                "not_applied": [name for name in judged.entries if name not in thresholds],
            },
        },
        "counts": {
            "models": len(models),
            "metrics": len(judged.kept),
            "utility_pass_only": len(passed),
            "usable_per_metric": {name: len(kept) for name, kept in judged.kept.items()},
            "intersection_all_metrics": len(by_all),
            "union_any_metric": len(by_any),
        },
        "usable_models_per_metric": {name: list(kept) for name, kept in judged.kept.items()},
        "usable_by_all_metrics": sorted(by_all),
        "left_out": {name: dict(left_out) for name, left_out in judged.left_out.items()},
    }
