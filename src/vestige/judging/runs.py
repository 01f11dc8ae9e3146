"""Finished runs on disk, read for a verdict: evaluations, depth runs and attacks of one model and its references.

In: directories. Out: ModelRuns, and the verdict on them without a page. Callers: the bench (room meta), audit, lab.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.compare.facts import AuditFacts
from vestige.compare.rule import RULE, VerdictRule
from vestige.compare.verdict import verdict
from vestige.judging.attacked import AttackedRun
from vestige.judging.evaluated import Evaluated
from vestige.judging.facts import ModelRuns, References, facts_of
from vestige.judging.trajectory import handlers, path_values
from vestige.store.files import read_ours


@dataclass(frozen=True)
class JudgeAsk:
    """Directories of finished runs. Several retain runs are models of other training seeds."""

    model: Sequence[Path]  # its evaluations
    full: Sequence[Path] = ()
    retain: Sequence[Path] = ()
    depth: Path | None = None  # of the model: the directory with its summary.json
    stress: Sequence[Path] = ()  # its attacks, with the retain model's as the control


def judge_runs(ask: JudgeAsk, rule: VerdictRule = RULE) -> dict[str, Any]:
    """The verdict on one model from directories alone."""
    return verdict(facts_in(ask), rule)


def facts_in(ask: JudgeAsk) -> AuditFacts:
    """The facts of a verdict from directories alone."""
    model = model_runs(ask.model)
    outputs = handlers(model.values)
    if ask.depth:
        model = replace(model, depth=depth_records(ask.depth), values={**model.values, "uds": depth_value(ask.depth)})
    controls: list[AttackedRun] = []
    for place in ask.stress:
        by_model = attacked_runs(place)
        model = replace(model, attacks=[*model.attacks, *by_model.get("model", ())])
        controls += by_model.get("retain", ())
    retain = [model_runs([p]) for p in ask.retain]
    if retain:
        retain[0] = replace(retain[0], attacks=controls)
    full = model_runs(ask.full) if ask.full else None
    return facts_of(model, References(full, retain), outputs)


def model_runs(places: Sequence[Path]) -> ModelRuns:
    """The evaluations of one model; of a trajectory its last step."""
    found = [evaluation(place) for place in places]
    return ModelRuns(found, {k: v for e in found for k, v in path_values(e.results).items()})


def evaluation(place: Path) -> Evaluated:
    """An evaluation by its directory."""
    file = next(iter(sorted(place.glob("*_EVAL.json"))))
    manifest, stats = place / "manifest.json", file.with_name(file.name.replace("_EVAL", "_STATS"))
    return Evaluated(
        read_ours(file, dict[str, Any]),
        read_ours(manifest, dict[str, Any]) if manifest.is_file() else {},
        read_ours(stats, dict[str, Any]) if stats.is_file() else {},
    )


def depth_records(place: Path) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = read_ours(place / "results.json", list[dict[str, Any]])
    return found


def depth_value(place: Path) -> dict[str, Any]:
    """The depth score of a run and the ends of its interval."""
    summary = read_ours(place / "summary.json", dict[str, Any])
    low, high = summary.get("interval") or (None, None)
    return {"v": summary.get("avg_uds"), "lo": low, "hi": high}


def attacked_runs(place: Path) -> dict[str, list[AttackedRun]]:
    """The attacked copies of a stress run, by model | retain, with their rows where these were kept."""
    body = read_ours(place / "stress.json", dict[str, Any])
    evals = {who: dict(attacked_evaluations(place, who)) for who in ("model", "retain")}
    return attacked_of(body, evals)


def attacked_evaluations(place: Path, who: str) -> Iterator[tuple[str, Evaluated]]:
    """The evaluations inside a stress run, by label."""
    for inner in sorted((place / "evals" / who).glob("*/")):
        if any(inner.glob("*_EVAL.json")):
            yield inner.name, evaluation(inner)


def attacked_of(
    body: Mapping[str, Any],
    evals: Mapping[str, Mapping[str, Evaluated]],
) -> dict[str, list[AttackedRun]]:
    """A stress.json's rows with the evaluations behind them."""
    out: dict[str, list[AttackedRun]] = {}
    for row in body["rows"]:
        if row["attack"] == "none":
            continue
        name, budget = str(row["attack"]), row["budget"]
        told = (body.get("attacks") or {}).get(name) or {}
        label = f"{name}-{budget:g}" if budget is not None else name
        made = AttackedRun(
            name, budget, bool(told.get("teaches")), str(told.get("unit") or ""),
            (evals.get(row["model"]) or {}).get(label), row["values"], row.get("by_row") or {},
            str(told.get("zero") or ""),
        )  # fmt: skip
        out.setdefault(str(row["model"]), []).append(made)
    return out
