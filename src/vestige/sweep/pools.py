"""What `vestige meta` reads, written from a sweep: nobody types 151 entries.

    robustness.yaml   the retain model and every unlearned one, before and after the plan's attacks
    axes.yaml         the unlearned models to rank, with retain and full as references

Paths in them are relative to the files, so the sweep's directory can be moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vestige.runs.directory import write_bytes
from vestige.sweep.attacks import PlannedAttack
from vestige.sweep.graph import make_tasks
from vestige.sweep.plan import SweepPlan, full_model, run_directory
from vestige.sweep.tasks import is_done


def write_meta(plan: SweepPlan) -> list[Path]:
    """The files, from the runs that are there. None without a retain model: every question compares with it."""
    done = {Path(t.out) for t in make_tasks(plan) if t.kind in ("eval", "depth") and is_done(t)}
    if not plan.retain or not _runs(plan, plan.retain, None, done):
        return []
    unlearned = [m.name for m in plan.models if m.name not in (plan.retain, full_model(plan))]
    written = [_write(plan, name, _robustness(plan, unlearned, states, done)) for name, states in _files(plan).items()]
    return [*written, _write(plan, "axes.yaml", _axes(plan, unlearned, done))]


def _files(plan: SweepPlan) -> dict[str, dict[str, PlannedAttack]]:
    """Attacks by what meta calls them. A file has room for one of each; a second of a kind gets a file of its own."""
    first: dict[str, PlannedAttack] = {}
    more: list[tuple[str, PlannedAttack]] = []
    for attack in plan.attacks:
        state = attack.record.state
        if state and state not in first:
            first[state] = attack
        elif state:
            more.append((state, attack))
    out = {"robustness.yaml": first} if first else {}
    return {**out, **{f"robustness-{a.name}.yaml": {**first, state: a} for state, a in more}}


def _runs(plan: SweepPlan, model: str, attack: PlannedAttack | None, done: set[Path]) -> list[str]:
    found = [run_directory(plan, model, suite, attack) for suite in plan.suites]
    return [str(place.relative_to(plan.out)) for place in found if place in done]


def _states(plan: SweepPlan, model: str, states: Mapping[str, PlannedAttack], done: set[Path]) -> dict[str, list[str]]:
    found = {"before": _runs(plan, model, None, done)}
    found |= {state: _runs(plan, model, attack, done) for state, attack in states.items()}
    return {state: runs for state, runs in found.items() if runs}


def _robustness(
    plan: SweepPlan, unlearned: list[str], states: Mapping[str, PlannedAttack], done: set[Path]
) -> dict[str, Any]:
    entries = [{"model": name, **_states(plan, name, states, done)} for name in unlearned]
    return {
        "retain": _states(plan, str(plan.retain), states, done),
        "models": [entry for entry in entries if "before" in entry],
    }


def _axes(plan: SweepPlan, unlearned: list[str], done: set[Path]) -> dict[str, Any]:
    full = full_model(plan)
    references = {"retain": plan.retain, "full": full}
    out: dict[str, Any] = {
        key: runs for key, name in references.items() if name and (runs := _runs(plan, name, None, done))
    }
    entries = [{"model": name, "run": _runs(plan, name, None, done)} for name in unlearned]
    return {**out, "models": [entry for entry in entries if entry["run"]]}


def _write(plan: SweepPlan, name: str, body: Mapping[str, Any]) -> Path:
    import yaml

    text = yaml.safe_dump(dict(body), sort_keys=False, allow_unicode=True, width=1000)
    write_bytes(plan.out / name, text.encode())
    return plan.out / name
