"""Rollouts from files: our own JSONL, and what trainers write. The format is found by content.

Every loader ends in `Rollout`s, one per turn, and says what its format has lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.collapse.reasoning import Rollout
from vestige.collapse.rollouts_ragen import ragen_history, ragen_jsonl, ragen_table
from vestige.collapse.rollouts_rows import native, trl
from vestige.collapse.rollouts_slime import slime
from vestige.collapse.rollouts_verl import verl
from vestige.data.rows import Row, read_file
from vestige.errors import UserError, unknown_name

_ROWS: dict[str, Callable[[Row, str, int], list[Rollout]]] = {
    "native": native,
    "trl": trl,
    "ragen-jsonl": ragen_jsonl,
    "ragen-history": ragen_history,
    "ragen-table": ragen_table,
}
_TABLES: dict[str, Callable[[Sequence[Row], str], list[Rollout]]] = {"verl": verl}  # rows that name each other
_FILES: dict[str, Callable[[Path], list[Rollout]]] = {"slime": slime}
FORMATS = (*_ROWS, *_TABLES, *_FILES)
PICKLES = (".pkl", ".pickle")

# What a reader of the numbers must know about the file they came from.
LOSSES = {
    "native": "",
    "verl": "verl decodes without special tokens: chat markers are gone from the prompt, and turns in an output are "
    "told apart by lines that are just the name of a role; prompts are equal texts, not token ids",
    "trl": "TRL logs only the last generation batch of a logging step, completions decoded without special tokens; "
    "prompts are equal texts or messages, not token ids",
    "ragen-jsonl": "RAGEN's JSONL has neither the system prompt nor the 'Turn / State / actions left' frame, so "
    "prompts are approximate; rewards printed into later states were removed",
    "ragen-history": "prompts are rebuilt by RAGEN's rules; warnings and truncation of the rollout are not in them",
    "ragen-table": "RAGEN's reasoning is stripped text, tokenised again without its surroundings",
    "slime": "",
}


@dataclass(frozen=True)
class Loaded:
    """The turns of one file, and what its format is and has lost."""

    rollouts: tuple[Rollout, ...]
    format: str
    source: str

    @property
    def loss(self) -> str:
        return LOSSES[self.format]


def load_rollouts(path: str | Path, format: str = "auto", prompt_template: str = "raw") -> Loaded:
    """All turns of one file. `prompt_template` "chatml-restore" puts back the markers that decoding removed."""
    place = Path(path)
    if format not in ("auto", "ragen-pickle", *FORMATS):
        raise unknown_name("rollout format", format, ("auto", *FORMATS))
    if prompt_template not in ("raw", "chatml-restore"):
        raise unknown_name("prompt template", prompt_template, ("raw", "chatml-restore"))
    if not place.is_file():
        raise UserError(f"Rollout file {place} does not exist; check the path.")
    if format == "ragen-pickle" or place.suffix in PICKLES:
        raise refused_pickle(place)
    if format == "auto" and place.suffix == ".pt":
        format = "slime"
    if format in _FILES:
        found = _FILES[format](place)
    else:
        rows = read_file(place)
        if not rows:
            raise UserError(f"{place} holds no rows; give a file with at least one turn.")
        format = detect(rows[0], place) if format == "auto" else format
        found = rows_to_rollouts(rows, format, str(place))
    if prompt_template == "chatml-restore":
        from vestige.collapse.rollouts_rows import restored

        found = [restored(r) for r in found]
    return Loaded(tuple(apart(found)), format, str(place))


def refused_pickle(place: Path) -> UserError:
    """A pickle is a program: reading one may run anything. The two lines make rows of RAGEN's arrays."""
    load = f"import json, pickle; table = pickle.load(open({place.name!r}, 'rb')).non_tensor_batch"
    write = (
        f"open({place.name + '.jsonl'!r}, 'w').writelines(json.dumps(dict(zip(table, row)), "
        "default=lambda array: array.tolist()) + '\\n' for row in zip(*table.values()))"
    )
    return UserError(
        f"{place} is a pickle, which may run any program when it is read, so it is not read here; if you trust it, "
        f"convert it to {place.name}.jsonl with two lines of Python, where verl is installed: `{load}` and `{write}`."
    )


def rows_to_rollouts(rows: Sequence[Row], format: str, source: str = "rows") -> list[Rollout]:
    if format in _TABLES:
        return _TABLES[format](rows, source)
    return [r for number, row in enumerate(rows) for r in _ROWS[format](row, f"{source} row {number + 1}", number)]


def apart(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Trajectories that share a name told apart: several samples of one data row often carry its number.

    >>> [r.trajectory for r in apart([Rollout("a"), Rollout("a"), Rollout("a", turn=1)])]
    ['a', 'a#2', 'a']
    """
    seen: dict[tuple[int | None, str, int], int] = {}
    out = []
    for r in rollouts:
        key = (r.step, r.trajectory, r.turn)
        seen[key] = seen.get(key, 0) + 1
        out.append(r if seen[key] == 1 else replace(r, trajectory=f"{r.trajectory}#{seen[key]}"))
    return out


def detect(row: Mapping[str, Any], place: Path) -> str:
    """The format of a file of rows, by the names in its first row."""
    names = set(row)
    if names & {"first_turn_prompt_ids", "all_turns_prompt_ids", "messages_list"}:
        return "ragen-table"
    if "history" in names and names & {"env_ids", "group_ids"}:
        return "ragen-table"
    if "history" in names:
        return "ragen-history"
    if {"custom_id", "messages"} <= names and "metadata" in names:
        return "ragen-jsonl"
    if {"prompt", "completion"} <= names and place.suffix == ".parquet":
        return "trl"
    if {"input", "output"} <= names:
        return "verl"
    return "native"
