"""Overrides as people type them: what Hydra cannot lay over our groups, and the comma lists of its --multirun.

In: overrides, and for --multirun the function that makes runs of them (records with an `output_dir`). Out: overrides
that Hydra takes, or the runs of every combination. Callers: engine/config.py, engine/flags.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError

_METRIC_LIST = re.compile(r"^eval\.\w+\.metrics=\[(.*)\]$")
_GLOBAL_PACKAGE = re.compile(r"^(\+*eval\.\w+\.metrics\.\w+)=_global_\.")
_MAPPING_OF_METRICS = re.compile(r"^(eval\.\w+\.metrics\.\w+\.metrics)=\{")


def for_hydra(overrides: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Overrides that Hydra can lay over our groups; beside them the metrics that a list names, if one does.

    >>> for_hydra(["seed=1", "eval.tofu.metrics=[a, b]"])
    (['seed=1'], ['a', 'b'])
    >>> for_hydra(["+eval.tofu.metrics.trajectory_metrics=_global_.eval.metrics.trajectory_metrics"])
    (['+eval.tofu.metrics.trajectory_metrics={}'], None)
    >>> for_hydra(["eval.a.metrics.b.metrics={rouge:{}}"])
    (['~eval.a.metrics.b.metrics', '+eval.a.metrics.b.metrics={rouge:{}}'], None)
    """
    out: list[str] = []
    listed = None
    for word in overrides:
        if found := _METRIC_LIST.match(word):  # Hydra cannot lay a list over the mapping it fills
            listed = [name.strip() for name in found[1].split(",") if name.strip()]
        elif found := _GLOBAL_PACKAGE.match(word):  # the trajectory guide names a package, and means an entry
            out.append(f"{found[1]}={{}}")
        elif found := _MAPPING_OF_METRICS.match(word):  # a mapping cannot replace a list: the list goes first
            out += [f"~{found[1]}", f"+{word}"]
        else:
            out.append(word)
    return out, listed


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the values that the overrides list, the last one changing fastest, as Hydra does.

    >>> expand(["a=1,2", "b=x", "c=range(0,2)"])
    [['a=1', 'b=x', 'c=0'], ['a=1', 'b=x', 'c=1'], ['a=2', 'b=x', 'c=0'], ['a=2', 'b=x', 'c=1']]
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        choices = [
            [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
            if o.is_sweep_override()
            else [str(o.input_line)]
            for o in parsed
        ]
    except HydraException as error:
        raise UserError(f"--multirun cannot read the overrides: {' '.join(str(error).split())}") from None
    return [list(combination) for combination in itertools.product(*choices)]


def multirun(overrides: Sequence[str], compose: Callable[[list[str]], list[Any]]) -> list[Any]:
    """The runs of every combination. Where two would write to one directory, each has a folder named by its choices."""
    combinations = expand(overrides)
    by_choice = [(_chosen(overrides, words), run) for words in combinations for run in compose(words)]
    places = [run.output_dir for _, run in by_choice]
    if len(set(places)) == len(places):
        return [run for _, run in by_choice]
    runs = [replace(run, output_dir=run.output_dir / folder) for folder, run in by_choice]
    places = [run.output_dir for run in runs]
    if len(set(places)) < len(places):
        twice = next(p for p in places if places.count(p) > 1)
        raise UserError(f"Two runs of --multirun would write to {twice}; make task_name differ between them.")
    return runs


def _chosen(before: Sequence[str], after: Sequence[str]) -> Path:
    """A folder for a combination, from the overrides that had a choice: mia_min_k.k=0.2,seed=1."""
    words = [a for b, a in zip(before, after, strict=True) if a != b]
    return Path(re.sub(r"[^A-Za-z0-9._=,-]+", "_", ",".join(words)) or ".")
