"""What a published result tree says beyond the rows of its table: raw metrics, attacks on models, meta-evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vestige.meta.pools import Attacks
from vestige.meta.tree import ResultTree, methods_of, tree_meta
from vestige.metrics.cards import CHAT, KNOWN
from vestige.report.attacks_part import sweep_curve
from vestige.report.gather import FoundRuns
from vestige.report.methods_part import value
from vestige.store.kinds import RunSource
from vestige.stress.attacks import attack_named

# The published tables' metrics of outputs, with the handlers that explain them.
OUTPUTS = {k: known.handler for k, known in KNOWN.items() if known.handler and known.protocol == CHAT}
ATTACK_NAMES = {"relearning": "relearn", "quantization": "quantise"}
SHOWN = ("prob", "rouge")  # metrics whose return under attack a verdict looks at: high means it still knows


def raw_values(source: RunSource) -> dict[str, dict[str, Any]]:
    """Model -> metric -> value: the published metrics as measured, of which the table holds only parts of axes."""
    tree: ResultTree | None = source.data.get("tree")
    out: dict[str, dict[str, Any]] = {}
    for (_, name), model in tree.models.items() if tree else ():
        mine = {k: n for k, n in model.numbers.items() if k in OUTPUTS}
        out[name] = {k: value(n.value, source.id, "not in the file", protocol=n.protocol) for k, n in mine.items()}
    return out


def told(values: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The published metrics a model has, with the handler that would compute each."""
    return [(k, h) for k, h in OUTPUTS.items() if values.get(k, {}).get("v") is not None]


def meta_data(source: RunSource, found: FoundRuns) -> Mapping[str, Any]:
    """meta_eval/ of the tree, judged as `vestige import` judges it."""
    tree: ResultTree = source.data["tree"]
    made = tree_meta(tree.root, methods_of(tree), source.data["attacks"])
    for note in made.notes:
        found.problem(f"{note}.", source.path)
    return made.body


def curves(found: FoundRuns, model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What attacks did to a model, from robustness/{quant,relearn}/results.json of the trees found."""
    out = []
    for source in found.of("meta"):
        attacks: Attacks | None = source.data.get("attacks")
        mine = (
            next((a for a in (attacks.retain, *attacks.models) if a.name == model["name"]), None) if attacks else None
        )
        for state, attack in ATTACK_NAMES.items() if mine else ():
            for metric in SHOWN:
                assert mine is not None
                before, after = mine.value("before", metric), mine.value(state, metric)
                if after is not None:
                    told = {"v": after, "source": source.id}
                    out.append(sweep_curve(attack, metric, model, before, told, attack_named(attack).facts()))
    return out
