"""A run as files for a model's repository on the hub: a card with a `model-index`, evaluation results, rows, the page.

    model-card.md             front matter for the model's README.md: merge it, it is not the whole card
    .eval_results/NAME.yaml   the hub's newer form; only for a data set of the hub, which it names
    vestige/                  tables and curves as JSONL, what the numbers are of, the page

Written and read by huggingface_hub's own classes. Nothing is uploaded here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from vestige.errors import UserError
from vestige.integrations.exporters import (
    PAGE,
    Sending,
    Written,
    about_json,
    account_about,
    as_bytes,
    foreign_code,
    table_of,
)
from vestige.types import RunAccount, RunNumber, RunTable
from vestige.writing import write_bytes

CARD, RESULTS, ABOUT = "model-card.md", ".eval_results", "vestige/about.json"
TASK = "text-generation"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def write(sending: Sending) -> Written:
    account, out = sending.account, sending.out
    if sending.dataset and not REPOSITORY.fullmatch(sending.dataset):
        raise UserError(f"--dataset is '{sending.dataset}'; it is a data set of the hub, written ORG/NAME.")
    files: dict[str, bytes] = {}
    with foreign_code("huggingface_hub"):
        files[CARD] = _card(account, sending.dataset).encode()
        if sending.dataset:
            files[f"{RESULTS}/{_file(account.name)}.yaml"] = _results(account, sending.dataset).encode()
    names: dict[str, list[str]] = {}
    for kind, name, table in _all_tables(account):
        file = f"vestige/{kind}/{len(names)}-{_file(name)}.jsonl"
        names[file] = [kind, name]
        files[file] = b"".join(as_bytes(row, None) for row in [table.columns, *table.rows])
    files[ABOUT] = as_bytes({**about_json(account), "files": names})
    files |= {f"vestige/{PAGE}": sending.page} if sending.page is not None else {}
    for name, data in files.items():
        write_bytes(out / name, data)
    notes = (
        []
        if sending.dataset
        else [f"no {RESULTS}: that form is for data sets of the hub; --dataset ORG/NAME says which one was evaluated"]
    )
    return Written([out / name for name in files], [f"hf upload ORG/MODEL {out}"], notes)


def _file(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:60].lstrip(".") or "run"


def _all_tables(account: RunAccount) -> Iterator[tuple[str, str, RunTable]]:
    for name, table in account.tables.items():
        yield "tables", name, table
    for name, curve in account.curves.items():
        rows = [(x, p.value, p.low, p.high) for x, p in zip(curve.at, curve.points, strict=True)]
        yield "curves", name, RunTable((curve.axis, "value", "low", "high"), tuple(rows))


def _card(account: RunAccount, dataset: str) -> str:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    results = [
        EvalResult(
            task_type=TASK,
            dataset_type=dataset or account.suite or account.kind,
            dataset_name=account.suite or account.kind,
            metric_type=name,
            metric_name=name,
            metric_value=number.value,
            metric_args=_ends(number) or None,
        )
        for name, number in account.numbers.items()
        if number.value is not None
    ]
    data = ModelCardData(model_name=account.model or account.name, eval_results=results or None)
    lines = [f"| {n} | {_said(m)} |" for n, m in account.numbers.items()]
    head = [f"# Evaluation: {account.name}", "", "| metric | value (95 % interval) |", "|---|---|"]
    body = "\n".join([*head, *lines, ""])
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


def _ends(number: RunNumber) -> dict[str, Any]:
    return {k: v for k, v in (("low", number.low), ("high", number.high), ("n", number.n)) if v is not None}


def _said(number: RunNumber) -> str:
    if number.value is None:
        return f"none: {number.reason}".replace("|", "/").replace("\n", " ")
    return f"{number.value:.4g}" + ("" if number.low is None else f" ({number.low:.4g} to {number.high:.4g})")


def _results(account: RunAccount, dataset: str) -> str:
    """The form of huggingface.co/docs/hub/eval-results. An interval has no field there, so it is in the notes."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(dataset, name, number.value, date=account.created or None, notes=_noted(number))
        for name, number in account.numbers.items()
        if number.value is not None
    ]
    return str(yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True))


def _noted(number: RunNumber) -> str | None:
    ends = [f"95 % interval {number.low!r} to {number.high!r}"] if number.low is not None else []
    rows = [f"{number.n} rows"] if number.n is not None else []
    return ", ".join([*ends, *rows]) or None


# ---- back ---------------------------------------------------------------------------------------------------------


def read(out: Path) -> tuple[RunAccount, bytes | None]:
    """Numbers from the card, as huggingface_hub reads it; the rest from the files beside it."""
    from huggingface_hub import ModelCard

    card: Any = ModelCard.load(out / CARD).data
    numbers = {}
    for result in card.eval_results or ():
        args: Mapping[str, Any] = result.metric_args or {}
        numbers[str(result.metric_type)] = RunNumber(
            result.metric_value, args.get("low"), args.get("high"), args.get("n")
        )
    about = json.loads((out / ABOUT).read_text("utf-8", "surrogatepass"))
    tables: dict[str, RunTable] = {}
    points: dict[str, dict[float, dict[str, float]]] = {}
    for file, (kind, name) in about.pop("files").items():
        columns, *rows = [
            json.loads(line) for line in (out / file).read_text("utf-8", "surrogatepass").split("\n") if line
        ]
        if kind == "tables":
            tables[name] = table_of(columns, rows)
            continue
        for at, *found in rows:
            ends = zip((name, f"{name}_low", f"{name}_high"), found, strict=True)
            points.setdefault(name, {})[float(at)] = {k: v for k, v in ends if v is not None}
    page = out / "vestige" / PAGE
    return account_about(about, numbers, points, tables), page.read_bytes() if page.is_file() else None
