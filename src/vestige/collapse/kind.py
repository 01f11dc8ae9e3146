"""Collapse runs as a kind of run: scored again and checked from their cross matrices. See runs/run.py."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vestige.collapse.detector import CollapseSettings, numbers_of
from vestige.io import damaged, misfit, number
from vestige.metrics.collapse import LABELS, Cross, Ema, row_table, verdict
from vestige.runs.directory import open_run, write_bytes
from vestige.runs.files import read_ours, write_json
from vestige.runs.manifest import Manifest
from vestige.runs.run import Finding, Kind, Reader, Rescoring, RunSource, compared
from vestige.types import RunAccount, RunCurve, RunNumber, RunTable

# In the order they were computed in: the running means advance with each.
ORDER = (LABELS[1], LABELS[2], LABELS[0])


@dataclass(frozen=True)
class CollapseAgain:
    """One label of one step, computed again from its matrix."""

    step: Mapping[str, Any]  # as metrics.json has it
    label: str
    metrics: dict[str, float | None]
    rows: list[dict[str, Any]]

    @property
    def numbers(self) -> dict[str, float]:
        """Those that have a value, under the names of metrics.json."""
        return {f"{self.label}/{k}": v for k, v in self.metrics.items() if v is not None}


def _again(path: Path, body: Mapping[str, Any]) -> Iterator[CollapseAgain]:
    with np.load(io.BytesIO((path / "cross.npz").read_bytes()), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    names = {f.name for f in CollapseSettings.__dataclass_fields__.values()}
    settings = CollapseSettings(**{k: v for k, v in body["settings"].items() if k in names})
    for step in body["steps"]:
        ema = Ema.from_json(step["ema"])
        ema.decay = settings.ema_decay
        for label in (n for n in ORDER if f"{step['step']}/{n}/sums" in arrays):
            parts = {k: arrays[f"{step['step']}/{label}/{k}"] for k in ("sums", "lengths", "own", "prompts")}
            cross = Cross(**parts)
            metrics, _ = numbers_of(cross, label, step["step"], settings, ema, settings.seed)
            yield CollapseAgain(step, label, metrics, row_table(cross))


def _metrics(path: Path) -> dict[str, Any]:
    file = path / "metrics.json"
    body = read_ours(file, dict[str, Any])
    if problem := misfit({"steps": body.get("steps")}, dict[str, list[dict[str, Any]]]):
        raise damaged(file, problem)
    return dict(body)


def _rows(path: Path) -> list[dict[str, Any]]:
    file = path / "rows.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8", "surrogatepass").splitlines() if line]


def _mine(rows: list[dict[str, Any]], again: CollapseAgain) -> list[dict[str, Any]]:
    return [r for r in rows if r["step"] == again.step["step"] and r["label"] == again.label]


def _check(path: Path, manifest: Manifest | None) -> Iterator[Finding]:
    body = _metrics(path)
    rows = _rows(path)
    repair = f"`vestige score {path}` writes it again."
    for again in _again(path, body):
        stands = {k: again.step["metrics"].get(k) for k in again.numbers}
        yield compared(path / "metrics.json", again.numbers, stands, repair)
        kept = [{k: r.get(k) for k in again.rows[0]} for r in _mine(rows, again)]
        yield compared(path / "rows.jsonl", again.rows, kept, repair)


def _score(path: Path, how: Rescoring) -> str:
    """Numbers, verdicts and ranks from the matrices; what else the files say stays."""
    from vestige.numeric import number as shown_as
    from vestige.show.tables import table

    how.refuse("collapse")
    with open_run(path, "collapse") as run:
        body, rows = _metrics(path), _rows(path)
        shown = []
        for again in _again(path, body):
            again.step["metrics"].update(again.numbers)
            (again.step.get("verdicts") or {}).update({again.label: verdict(again.metrics)})
            mine = _mine(rows, again)
            if len(mine) != len(again.rows):
                raise damaged(path / "rows.jsonl", f"step {again.step['step']} has {len(mine)} rows of {again.label}")
            for row, new in zip(mine, again.rows, strict=True):
                row.update(new)
            mi = again.metrics.get("mi_seq_estimate")
            shown.append([str(again.step["step"]), again.label, shown_as(mi), verdict(again.metrics)])
        files = [path / "metrics.json", path / "rows.jsonl"]
        run.begin(f.name for f in files)
        write_json(files[0], body)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_bytes(files[1], "".join(lines).encode("utf-8", "surrogatepass"))
        run.finish()
    head = f"{path}  (collapse, re-scored from evidence)"
    listed = f"files: {', '.join(map(str, files))}"
    return "\n".join(["", head, "", table(shown, ["step", "label", "MI, nats", "verdict"], right=(0, 2)), "", listed])


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    file = path / "metrics.json"
    data = read(file, dict) if file.is_file() else None
    if data is not None and {"steps", "settings", "reasoning"} <= set(data):
        yield RunSource("collapse", path, (file,), data)


def _values(path: Path) -> dict[str, Any]:
    """The last step's numbers, without times."""
    steps = _metrics(path)["steps"]
    return {k: v for k, v in (steps[-1]["metrics"] if steps else {}).items() if not k.startswith("timing_s/")}


def _account(path: Path) -> RunAccount:
    """Every number along the training steps, the last step's as the run's own, and the rows."""
    body = _metrics(path)
    steps = sorted(body["steps"], key=lambda s: s["step"])
    names = [n for n in dict.fromkeys(n for s in steps for n in s["metrics"]) if not n.startswith("timing_s/")]
    names = [n for n in names if not n.endswith(("_ci_low", "_ci_high"))]
    at = tuple(float(s["step"]) for s in steps)
    curves = {n: RunCurve("step", at, tuple(_measured(s["metrics"], n) for s in steps)) for n in names}
    rows = _rows(path) if (path / "rows.jsonl").is_file() else []
    columns = list(dict.fromkeys(k for row in rows for k in row))
    cells = [tuple(v if _is_cell(v) else json.dumps(v) for v in (row.get(k) for k in columns)) for row in rows]
    manifest = read_ours(path / "manifest.json", dict[str, Any]) if (path / "manifest.json").is_file() else {}
    said = {f"verdict at step {s['step']}, {k}": str(v) for s in steps for k, v in (s.get("verdicts") or {}).items()}
    return RunAccount(
        name=path.resolve().name,
        kind="collapse",
        suite="collapse",
        created=str(manifest.get("created", "")),
        numbers={n: curve.points[-1] for n, curve in curves.items() if curve.points},
        curves=curves,
        tables={"rollouts": RunTable(tuple(columns), tuple(cells))} if rows else {},
        facts=said,
        notes=tuple(map(str, body.get("notes") or ())),
    )


def _measured(metrics: Mapping[str, Any], name: str) -> RunNumber:
    value, low, high = (number(metrics.get(f"{name}{end}")) for end in ("", "_ci_low", "_ci_high"))
    return RunNumber(value, low, high, reason="" if value is not None else "not measured at this step")


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


KIND = Kind("collapse", check=_check, score=_score, gather=_gather, values=_values, account=_account)
