"""Depth runs as a kind of run: scored again and checked from their patched evidence. See runs/run.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vestige.depth.files import detailed, table_of, write_results
from vestige.depth.kept import KEPT, DepthAgain, score_again
from vestige.errors import UserError
from vestige.io import damaged, misfit, number
from vestige.runs.directory import open_run
from vestige.runs.files import read_ours, write_json
from vestige.runs.manifest import Manifest
from vestige.runs.run import Finding, Kind, Reader, Rescoring, RunSource, compared
from vestige.types import RunAccount, RunCurve, RunNumber, RunTable

MISSING = "evidence/{file} is not there"
SHOWN = ("data_path", "patch_scope", "em_scope", "delta_threshold", "dtype")


def _check(path: Path, manifest: Manifest | None) -> Iterator[Finding]:
    if not (path / "evidence" / KEPT).is_file():
        missing = MISSING.format(file=KEPT)
        yield Finding(words=f"{path}: {missing}, so its numbers are not recomputed", note=True)
        return
    repair = f"`vestige score {path}` writes it again."
    for made in score_again(path):
        place = path / made.folder
        yield compared(place / "results.json", made.records, read_ours(place / "results.json"), repair)
        summary = read_ours(place / "summary.json", dict[str, Any])
        yield compared(place / "summary.json", made.summary, {k: summary.get(k) for k in made.summary}, repair)
        for name, data in (
            ("results_detailed.jsonl", detailed(made.records)),
            ("layer_details.csv", table_of(made.records)),
        ):
            if (place / name).read_bytes() != data:
                yield Finding(1, f"{place / name} is not what its evidence gives; {repair}")


def _score(path: Path, how: Rescoring) -> str:
    """The numbers of every unlearned model from its patched evidence; what else a summary says stays."""
    from vestige.numeric import number as shown
    from vestige.show.tables import table

    how.refuse("depth")
    if not (path / "evidence" / KEPT).is_file():
        raise UserError(f"{path}: {MISSING.format(file=KEPT)}; rerun the same `vestige depth` command to score it.")
    with open_run(path, "depth") as run:
        made = score_again(path)
        summaries = {again.folder: _summary(path, again) for again in made}
        many = len(made) > 1
        rewritten = [f"{place}{name}" for place in _folders(made) for name in REWRITTEN]
        run.begin([*rewritten, *(["summary.json"] if many else [])])
        files = []
        for again in made:
            files += write_results(path / again.folder, summaries[again.folder], again.records)
        if many:
            write_json(path / "summary.json", summaries)
        run.finish()
    rows = [[again.folder or path.name, shown(again.summary["avg_uds"]), str(again.summary["n"])] for again in made]
    head = f"{path}  (depth, re-scored from evidence)"
    return "\n".join(["", head, "", table(rows, ["model", "UDS", "n"], right=(1, 2)), "", _listed(files)])


REWRITTEN = ("summary.json", "results.json", "results_detailed.jsonl", "layer_details.csv")


def _folders(made: list[DepthAgain]) -> list[str]:
    return [f"{again.folder}/" if again.folder else "" for again in made]


def _summary(path: Path, again: DepthAgain) -> dict[str, Any]:
    file = path / again.folder / "summary.json"
    if not file.is_file():
        raise UserError(f"{file} is not there, and evidence gives only part of it; run the same `vestige depth` again.")
    return {**read_ours(file, dict[str, Any]), **again.summary}


def _listed(files: list[Path]) -> str:
    return f"files: {', '.join(map(str, files))}"


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    file, details = path / "summary.json", path / "results.json"
    data = read(file, dict) if file.is_file() else None
    if data is None or "avg_uds" not in data:
        return  # of several models: each has a folder with its own
    records = read(details, list) if details.is_file() else None
    files = (file, details) if records else (file,)
    facts = {k: str(data[k]) for k in SHOWN if k in data}
    yield RunSource("depth", path, files, {"summary": data, "records": records or []}, facts)


def _values(path: Path) -> dict[str, Any]:
    """The score and the baselines, by the names that other tables use; of several models each under its folder."""
    file = path / "summary.json"
    body = read_ours(file, dict[str, Any])
    if "avg_uds" in body:
        if problem := misfit({"avg_uds": body["avg_uds"]}, dict[str, float | None]):
            raise damaged(file, problem)
        return _numbers(body)
    return {f"{model}/{name}": value for model, one in body.items() for name, value in _numbers(one).items()}


def _numbers(summary: Any) -> dict[str, Any]:
    return {"uds": summary["avg_uds"], **(summary.get("baselines") or {})}


def _account(path: Path) -> RunAccount:
    """The score with its interval, what each layer still carries, and a table of examples; of several models each."""
    body = read_ours(path / "summary.json", dict[str, Any])
    places = [""] if "avg_uds" in body else sorted(body)
    numbers: dict[str, RunNumber] = {}
    curves: dict[str, RunCurve] = {}
    tables: dict[str, RunTable] = {}
    for place in places:
        summary = read_ours(path / place / "summary.json", dict[str, Any])
        front = f"{place}/" if place else ""
        low, high = summary.get("interval") or (None, None)
        for name, value in _numbers(summary).items():
            numbers[f"{front}{name}"] = RunNumber(number(value))
        numbers[f"{front}uds"] = RunNumber(summary["avg_uds"], low, high, summary.get("n"))
        curves |= {f"{front}{name}": curve for name, curve in _layers(summary.get("profile") or [])}
        if (path / place / "results.json").is_file():
            tables[f"{front}examples"] = _examples(read_ours(path / place / "results.json", list[dict[str, Any]]))
    manifest = read_ours(path / "manifest.json", dict[str, Any]) if (path / "manifest.json").is_file() else {}
    facts = {k: str(body[k]) for k in SHOWN if k in body and k != "data_path"}
    created = str(manifest.get("created", ""))
    return RunAccount(path.resolve().name, "depth", "", "depth", created, numbers, curves, tables, facts)


def _layers(profile: list[Any]) -> Iterator[tuple[str, RunCurve]]:
    at = tuple(float(layer["layer"]) for layer in profile)
    for stage in ("s1", "s2"):
        ends = [layer.get(f"{stage}_interval") or (None, None) for layer in profile]
        points = [RunNumber(la[f"{stage}_drop"], *end) for la, end in zip(profile, ends, strict=True)]
        yield f"{stage}_drop", RunCurve("layer", at, tuple(points))


def _examples(records: list[dict[str, Any]]) -> RunTable:
    """A line per example: its texts and its own score; layers are in the files of the run."""
    plain = [k for k in dict.fromkeys(k for r in records for k in r) if all(_is_cell(r.get(k)) for r in records)]
    return RunTable(tuple(plain), tuple(tuple(r.get(k) for k in plain) for r in records))


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


KIND = Kind("depth", check=_check, score=_score, gather=_gather, values=_values, account=_account)
