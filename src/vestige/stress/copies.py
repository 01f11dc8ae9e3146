"""Attacked copies of checkpoints, and the rows they learn from, for `vestige stress` and for sweeps alike.

    attack + settings --attack_weights--> attacked copy (relearn, prune), or how to read the same files (quantise)

Relearning needs rows to teach. Held out, it teaches every other forget row, and the rest are measured: before and after
the attack alike. A sweep writes the rows to measure once for all its runs (`write_held`), in folders that are named by
the content they are made of, so that shards and later runs find them and other rows never hide under an old name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.data.rows import find_in_directory, load_rows
from vestige.engine.config import RunConfig
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.io import make_directory, write_file
from vestige.models.fingerprint import digests, fingerprint
from vestige.runs.directory import install, scratch
from vestige.runs.manifest import versions
from vestige.stress.attacks import Attacked, AttackTarget, weights_attacks
from vestige.types import content_key

if TYPE_CHECKING:  # the driver of a sweep needs no torch
    from vestige.unlearn.objectives import ChatRow

RECORD = "attack.json"  # in an attacked copy: every setting in effect


@dataclass(frozen=True)
class AttackLesson:
    """What relearning teaches: the forget rows of a folder, or every other one of them."""

    data: Path
    held_out: bool = False
    examples: int | None = None


def rows_file(folder: Path, name: str) -> Path:
    """The file with a folder's rows of one kind."""
    files = find_in_directory(folder, name, "train")
    if not files:
        raise UserError(f"{folder} has no {name} rows ({name}.jsonl), which this attack needs.")
    return files[0]


def lesson_rows(run: RunConfig, lesson: AttackLesson) -> list[ChatRow]:
    """The rows to teach, in the words of the evaluation: its tokenizer, template and limit."""
    from vestige.data.chat import make_template
    from vestige.data.datasets import make_context
    from vestige.engine.handles import ModelHandle
    from vestige.engine.prepare import model_args
    from vestige.models.load import load_tokenizer
    from vestige.unlearn.lesson import read_training_rows

    tokenizer, _ = load_tokenizer(model_args(run))
    context = make_context(tokenizer, make_template(run.template_args, tokenizer, []), "none", "count")
    context.longest = ModelHandle(model_args(run)).context_length
    path = str(rows_file(lesson.data, "forget"))
    file = {"handler": "AutoDataset", "args": {"hf_args": {"path": path}}}
    rows = read_training_rows({"forget": file}, context, {}, run.limit, 0).rows
    return (rows[::2] if lesson.held_out else rows)[: lesson.examples]


def attack_weights(
    kind: str, settings: Mapping[str, Any], run: RunConfig, lesson: AttackLesson | None, place: Path
) -> Attacked:
    """Attacks the model of a run; a copy, where the attack makes one, goes to `place` and says how it was made."""
    from vestige.engine.prepare import model_args

    args = model_args(run)
    attacked = weights_attacks()[kind].make(AttackTarget(args, place, run, lesson), **settings)
    # A plug-in's copy may bring the record of an attack before: `settings_of` checks which attack it names.
    if place.is_dir() and not (place / RECORD).exists():
        body = {
            "attack": kind,
            "settings": dict(attacked.settings),
            "notes": list(attacked.notes),
            "model": {"name": args.path, "fingerprint": fingerprint(args)},
            "versions": versions(),
        }
        write_file(place / RECORD, json.dumps(body, indent=2, default=str).encode())
    return attacked


def settings_of(checkpoint: Path, kind: str) -> dict[str, Any]:
    """The settings in effect when this attack made a checkpoint; none where another did."""
    record = checkpoint / RECORD
    body = read_json(record) if record.is_file() else {}
    return dict(body["settings"]) if body.get("attack") == kind else {}


# ---- rows held out of the lesson ------------------------------------------------------------------------------------


def row_key(row: Mapping[str, Any]) -> str:
    """What makes a row the same row in another file: its question, or all of it where it has none."""
    return str(row.get("question") or json.dumps(row, sort_keys=True, ensure_ascii=False, default=str))


def taught_keys(data: Path) -> frozenset[str]:
    """The rows that a held-out lesson of this folder teaches."""
    rows, _ = load_rows({"path": str(rows_file(data, "forget"))})
    return frozenset(row_key(row) for row in rows[::2])


def write_untaught(file: Path, taught: frozenset[str], target: Path) -> None:
    """The rows of a file that are not taught, as JSON lines."""
    rows = [row for row in load_rows({"path": str(file)})[0] if row_key(row) not in taught]
    if not rows:
        raise UserError(f"{file}: held-out relearning needs rows that are not taught; every other forget row is.")
    lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows]
    write_file(target, ("\n".join(lines) + "\n").encode())


def write_measured_half(data: Path, taught: frozenset[str], folder: Path) -> None:
    """Fills a new folder like the user's, with only those forget rows that a held-out lesson does not teach."""
    make_directory(folder)
    for file in data.iterdir():
        if file.is_file() and not file.name.startswith("forget."):
            shutil.copyfile(file, folder / file.name)
    write_untaught(rows_file(data, "forget"), taught, folder / "forget.jsonl")


def held_paths(suites: Mapping[str, Mapping[str, Any]], teaching: Path, place: Path) -> dict[str, str]:
    """Where each suite's remaining rows are to be; suites without data of their own are left alone."""
    out = {}
    for name, flags in suites.items():
        if not flags.get("data"):
            continue
        data = Path(str(flags["data"])).expanduser()
        files: list[Path] = []
        for source in (data, teaching):
            files += [file for file in (sorted(source.iterdir()) if source.is_dir() else [source]) if file.is_file()]
        content = [f"{file.name}={digest}" for file, digest in zip(files, digests(files), strict=True)]
        key = content_key(*(part.encode() for part in content))[:12]
        out[name] = str(place / f"{name}-{key}{'' if data.is_dir() else '.jsonl'}")
    return out


def write_held(suites: Mapping[str, Mapping[str, Any]], teaching: Path, held: Mapping[str, str]) -> None:
    """Writes what is not there yet. Another shard may do so at the same time: both are alike."""
    taught = taught_keys(teaching)
    for name, where in held.items():
        target, data = Path(where), Path(str(suites[name]["data"])).expanduser()
        if target.exists():
            continue
        make_directory(target.parent)
        with scratch(target.parent) as made:
            if data.is_dir():
                write_measured_half(data, taught, made / target.name)
            else:
                write_untaught(data, taught, made / target.name)
            if not target.exists():
                install(made / target.name, target)
