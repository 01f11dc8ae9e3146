"""A run as a log of inspect_ai, which `inspect view` opens: a sample per row, a score per metric.

Written in inspect's own JSON form (version 2) without its package, whose dependencies do not fit beside ours;
tools/inspect_check.py reads what is written with inspect's own reader, in an environment of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.integrations.exporters import Sending, Written, about_json, account_about, as_bytes, table_of
from vestige.types import RunAccount, RunNumber, RunTable, content_key
from vestige.writing import write_bytes

VERSION = 2  # of inspect's log
EPOCH = "1970-01-01T00:00:00+00:00"
ENDS = ("low", "high")


def write(sending: Sending) -> Written:
    account = sending.account
    log = log_of(account)
    # By such names inspect's viewer finds logs, newest first.
    time = log["eval"]["created"].replace(":", "-")
    task = re.sub(r"[^A-Za-z0-9-]", "-", log["eval"]["task"])
    file = sending.out / f"{time}_{task}_{log['eval']['task_id']}.json"
    write_bytes(file, as_bytes(log))
    notes = ["the page is not part of a log"] if sending.page is not None else []
    return Written([file], [f"inspect view --log-dir {sending.out}"], notes)


def log_of(account: RunAccount) -> dict[str, Any]:
    samples = list(_samples(account))
    model = account.model or "unknown"
    created = account.created or EPOCH
    id = content_key(json.dumps(about_json(account), sort_keys=True).encode())[:22]
    spec = {
        "eval_id": id,
        "run_id": id,
        "created": created,
        "task": account.suite or account.kind,
        "task_id": id,
        "task_version": 0,
        "dataset": {
            "name": account.suite or account.kind,
            "samples": len(samples),
            "sample_ids": [s["id"] for s in samples],
            "shuffled": False,
        },
        "model": f"vestige/{model}",
        "config": {},
        "packages": {"vestige": account.facts.get("version of vestige", "")},
        "metadata": {"vestige": about_json(account)},
    }
    results = {
        "total_samples": len(samples),
        "completed_samples": len(samples),
        "scores": [_score(name, number) for name, number in account.numbers.items()],
        "metadata": {"curves": _curves(account), "columns": {k: list(t.columns) for k, t in account.tables.items()}},
    }
    stats = {"started_at": created, "completed_at": created, "model_usage": {}}
    plan = {"name": "plan", "steps": [{"solver": "vestige", "params": {}}], "config": {}}
    return {
        "version": VERSION,
        "status": "success",
        "eval": spec,
        "plan": plan,
        "results": results,
        "stats": stats,
        "samples": samples,
    }


def _score(name: str, number: RunNumber) -> dict[str, Any]:
    """A number is a metric of inspect's, its ends two more. One that has no value has a reason and no metric."""
    found = {"value": number.value, **dict(zip(ENDS, (number.low, number.high), strict=True))}
    metrics = {k: {"name": k, "value": v, "params": {}} for k, v in found.items() if v is not None}
    body = {"name": name, "scorer": name, "params": {}, "metrics": metrics}
    rows = {"scored_samples": number.n} if number.n is not None else {}
    return {**body, **rows, "metadata": {"reason": number.reason, "n": number.n}}


def _curves(account: RunAccount) -> dict[str, Any]:
    return {
        name: [[x, p.value, p.low, p.high] for x, p in zip(curve.at, curve.points, strict=True)]
        for name, curve in account.curves.items()
    }


def _samples(account: RunAccount) -> Iterator[dict[str, Any]]:
    """A sample per row of a table; what is not a text of the row is a score."""
    for table_name, table in account.tables.items():
        for place, row in enumerate(table.rows):
            cells = dict(zip(table.columns, row, strict=True))
            said = cells.get("generation")
            question, answer = (str(cells.get(k) or "") for k in ("input", "ground_truth"))
            output: dict[str, Any] = {
                "model": f"vestige/{account.model or 'unknown'}",
                "choices": [],
                "completion": str(said or ""),
            }
            turns = [{"role": "user", "content": question}]
            if said is not None:
                message = {"role": "assistant", "content": str(said), "source": "generate"}
                output["choices"] = [{"message": message, "stop_reason": "stop"}]
                turns.append(message)
            yield {
                "id": f"{table_name}/{cells.get('index', place)}",
                "epoch": 1,
                "input": question,
                "target": answer,
                "messages": turns,
                "output": output,
                "scores": {k: {"value": v} for k, v in cells.items() if _is_score(v)},
                "metadata": {"table": table_name, "cells": list(row)},
                "store": {},
                "events": [],
                "model_usage": {},
                "attachments": {},
            }


def _is_score(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- back ---------------------------------------------------------------------------------------------------------


def read(out: Path) -> tuple[RunAccount, bytes | None]:
    logs = sorted(out.glob("*_*.json"), key=lambda p: (p.stat().st_mtime_ns, p.name))
    if not logs:
        raise UserError(f"{out} holds no log of inspect.")
    return account_in(json.loads(logs[-1].read_text("utf-8", "surrogatepass"))), None


def account_in(log: Mapping[str, Any]) -> RunAccount:
    """An account from a log, ours as it was written or as inspect wrote it again."""
    about = log["eval"]["metadata"]["vestige"]
    numbers = {}
    for score in log["results"]["scores"]:
        found = {k: m["value"] for k, m in score["metrics"].items()}
        said = score["metadata"]
        low, high = (found.get(end) for end in ENDS)
        numbers[score["name"]] = RunNumber(found.get("value"), low, high, said["n"], said["reason"])
    more = log["results"]["metadata"]
    rows: dict[str, list[Any]] = {name: [] for name in more["columns"]}
    for sample in log["samples"] or ():
        rows[sample["metadata"]["table"]].append(sample["metadata"]["cells"])
    tables: dict[str, RunTable] = {name: table_of(columns, rows[name]) for name, columns in more["columns"].items()}
    points = {name: {float(x): _ends(name, found) for x, *found in curve} for name, curve in more["curves"].items()}
    return account_about(about, numbers, points, tables)


def _ends(name: str, found: list[float | None]) -> dict[str, float]:
    pairs = zip((name, f"{name}_low", f"{name}_high"), found, strict=True)
    return {k: v for k, v in pairs if v is not None}
