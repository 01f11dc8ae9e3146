"""Training rows from data-set configurations: questions and answers tokenised as evaluation does, and alternates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.data.datasets import DATASETS, Context, Examples, check_lengths, column
from vestige.data.rows import load_rows, read_file, redirect
from vestige.errors import UserError, unknown_name
from vestige.types import content_key
from vestige.unlearn.objectives import ChatRow
from vestige.unlearn.refusals import REFUSALS, refusals_for

# open-unlearning's data sets that bring an answer to be preferred.
IDK, ALTERNATE = "QAwithIdkDataset", "QAwithAlternateDataset"


@dataclass
class TrainingRows:
    rows: list[ChatRow] = field(default_factory=list)
    alternates: list[ChatRow] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)  # for the record: where from, how many, which content


@dataclass(frozen=True)
class RowReading:
    """What reading depends on besides the data sets themselves."""

    context: Context
    local: Mapping[str, Any]
    limit: int | None
    seed: int


def read_training_rows(datasets: Mapping[str, Any], reading: RowReading) -> TrainingRows:
    """All rows of the data sets of one kind (data.forget, data.retain, data.train), one after the other."""
    out = TrainingRows()
    for name, config in datasets.items():
        _read_one(str(name), config, reading, out)
    return out


def _read_one(name: str, config: Mapping[str, Any], reading: RowReading, out: TrainingRows) -> None:
    handler, args = str(config.get("handler")), dict(config.get("args") or {})
    if "hf_args" not in args:
        raise UserError(f"Data set '{name}' has no args.hf_args; say where its rows are (path, name, split).")
    rows, source = load_rows(redirect(dict(args["hf_args"]), reading.local), reading.limit)
    reading.context.source = source
    plain = "QADataset" if handler in (IDK, ALTERNATE) else handler
    if plain not in DATASETS:
        raise unknown_name("data-set handler", handler, [*DATASETS, IDK, ALTERNATE], f"(data set '{name}')")
    examples, _ = DATASETS[plain](rows, args, reading.context)
    check_lengths(examples, reading.context)
    trained = _chat_rows(examples)
    if not trained:
        raise UserError(f"{source} has no row with an answer to train on; check its columns.")
    out.rows += trained
    if handler in (IDK, ALTERNATE):
        answers = _alternates(handler, rows, args, reading)
        others = [{**row, "alternate": answer} for row, answer in zip(rows, answers, strict=True)]
        examples, _ = DATASETS[plain](others, {**args, "answer_key": "alternate"}, reading.context)
        out.alternates += _chat_rows(examples)
    text = json.dumps(rows, sort_keys=True, default=str, ensure_ascii=False)
    out.sources.append({"source": source, "rows": len(rows), "fingerprint": content_key(text.encode())})


def _alternates(handler: str, rows: list[dict[str, Any]], args: Mapping[str, Any], reading: RowReading) -> list[str]:
    if handler == IDK:
        return refusals_for(len(rows), reading.seed, _sentences(args.get("idk_path")))
    values = column(rows, str(args.get("alternate_key") or "alternate"), reading.context.source)
    return [str(v[0]) if isinstance(v, (list, tuple)) and v else str(v) for v in values]


def _sentences(path: str | None) -> tuple[str, ...]:
    """One refusal per row, in whatever column the file has; a text file has one per line."""
    if path is None:
        return REFUSALS
    place = Path(path).expanduser()
    if not place.is_file():
        raise UserError(f"idk_path {path} does not exist; give a file with one refusal per line.")
    if place.suffix == ".jsonl" and not place.read_text(encoding="utf-8").lstrip().startswith("{"):
        return tuple(line.strip() for line in place.read_text(encoding="utf-8").splitlines() if line.strip())
    return tuple(str(next(iter(row.values()))) for row in read_file(place))


def _chat_rows(examples: Examples) -> list[ChatRow]:
    targets = [example.target for row in examples for example in row]
    return [ChatRow(tuple(t.ids), t.start) for t in targets if t is not None]
