"""meta_eval/ of a result tree: pools, and models before and after attacks, in the files of the depth score's project.

runs/meta_eval/faithfulness/results.json                model -> {pool: P or N, metrics}
runs/meta_eval/robustness/{quant,relearn}/results.json  model -> {metrics_before, metrics_after_quant (_relearn)}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.meta.bench import BenchAsk, Judged, judge_attacks, judge_pools
from vestige.meta.faithfulness import RESAMPLES
from vestige.meta.files import meta_eval_json
from vestige.meta.methods import Methods
from vestige.meta.numbers import ModelNumbers, Number, read_file, with_similarities
from vestige.meta.pools import (
    ATTACKS,
    WRITTEN,
    AttackedModel,
    Attacks,
    failure,
    read_attacks,
    read_pools,
    schema_numbers,
)

RESULTS = "results.json"
MODES = ("quant", "relearn")  # as the project's folders and keys call the attacks


def faithfulness_file(root: Path) -> Path | None:
    path = root / "meta_eval" / "faithfulness" / RESULTS
    return path if path.is_file() else None


def attack_files(path: Path) -> dict[str, Path]:
    """Attack -> results.json, below a tree's root, in its meta_eval/robustness, or for such a file itself."""
    if path.is_file():
        return {path.parent.name: path} if path.parent.name in MODES and path.name == RESULTS else {}
    for place in (path, path / "meta_eval" / "robustness", path / "runs" / "meta_eval" / "robustness"):
        if found := {mode: place / mode / RESULTS for mode in MODES if (place / mode / RESULTS).is_file()}:
            return found
    return {}


def attacks_from(path: Path) -> Attacks:
    """Models before and after attacks: from a YAML file, or from the results.json of a result tree."""
    if not path.is_dir() and path.suffix != ".json":
        return read_attacks(path)
    found = attack_files(path)
    if not found:
        raise UserError(
            f"{path} holds no {{{','.join(MODES)}}}/{RESULTS}; give meta_eval/robustness of a result tree, or a YAML "
            "list of runs (see docs/meta.md)."
        )
    return read_tree_attacks(found)


def read_tree_attacks(found: Mapping[str, Path]) -> Attacks:
    """The files of one or both attacks as one set of models; an entry that is an error is left out and named."""
    states: dict[str, dict[str, dict[str, Number]]] = {}
    left_out: dict[str, str] = {}
    for mode, path in found.items():
        for name, body in read_file(path).items():
            if failed := failure(body) or _unfinished(body, mode):
                left_out[f"{name} ({mode})"] = failed
                continue
            _add(states.setdefault(name, {}), mode, body, f"{name} in {path}")
    source = (f"{WRITTEN}{', '.join(map(str, found.values()))}",)
    models = {n: {s: ModelNumbers(n, numbers, source) for s, numbers in mine.items()} for n, mine in states.items()}
    if "retain" not in models:
        raise UserError(f"{', '.join(map(str, found.values()))} has no entry `retain`, the yardstick of relearning.")
    before = models["retain"].get("before")
    made = [AttackedModel(n, {s: with_similarities(m, before) for s, m in mine.items()}) for n, mine in models.items()]
    retain = next(m for m in made if m.name == "retain")
    return Attacks(retain, tuple(m for m in made if m is not retain), {}, left_out, tuple(found.values()))


def _unfinished(body: Any, mode: str) -> str:
    """The project's script writes the file after every model; the one under way has no values after the attack."""
    begun = isinstance(body, Mapping) and "metrics_before" in body and f"metrics_after_{mode}" not in body
    return f"metrics_after_{mode} is missing" if begun else ""


def _add(states: dict[str, dict[str, Number]], mode: str, body: Any, where: str) -> None:
    """One model's entry of one file; what both files say of it before the attacks must agree."""
    parts = {"before": "metrics_before", ATTACKS[mode]: f"metrics_after_{mode}"}
    for state, key in parts.items():
        metrics = body.get(key) if isinstance(body, Mapping) else None
        if not isinstance(metrics, Mapping):
            raise UserError(f"{where} has no {key}; give the file as scripts/meta_eval_robustness.py writes it.")
        new = schema_numbers(metrics, where)
        old = states.setdefault(state, {})
        for name, number in new.items():
            if name in old and old[name].value != number.value:
                raise UserError(
                    f"{where}: {name} before the attack is {number.value}, {old[name].value} in the other attack's "
                    "file; measure both attacks from one set of values."
                )
        old |= new


@dataclass(frozen=True)
class TreeMeta:
    """What meta_eval/ of a tree says, in the schema of meta_eval.json."""

    body: Mapping[str, Any]
    notes: tuple[str, ...]


def tree_meta(root: Path, methods: Methods, attacks: Attacks | None, resamples: int = RESAMPLES) -> TreeMeta:
    """Both halves judged: thresholds come from the tree's own pools, utility_rel from its own models."""
    pools = faithfulness_file(root)
    notes: list[str] = []
    faithful = Judged()
    body: Mapping[str, Any] = {}
    if pools is not None:
        read = read_pools(pools)
        faithful = judge_pools(read, None, resamples)
        body = meta_eval_json(faithful)
        notes += [f"{n} is left out of the pools: {why}" for n, why in read.left_out.items()]
    if attacks is not None:
        said = {r.name: r.published.utility_rel for r in methods.rows}
        utility = said if any(v is not None for v in said.values()) else None
        cuts = {n: v.result.threshold.m for n, v in faithful.pools.items() if v.result.threshold}
        measured = {n: faithful.pools[n].protocol for n in cuts}
        judged = judge_attacks(
            attacks, BenchAsk(thresholds=cuts, measured=measured, utility=utility, resamples=resamples)
        )
        body = meta_eval_json(judged, body)
        notes += [f"{n} is left out of the attacks: {why}" for n, why in attacks.left_out.items()]
    return TreeMeta(body, tuple(notes))
