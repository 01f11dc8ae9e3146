"""`vestige verify report/`: does a report still say what its runs say, by the formulas it prints?"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.meta.axes import AXIS_TABLE, definitions
from vestige.meta.checks import Checked, check_meta
from vestige.meta.files import META_EVAL, METHOD_RESULTS, RENAMED, key_ages
from vestige.report.assemble import assemble
from vestige.report.format import PAGE, REPORT, Report
from vestige.report.format import check_report as misfits
from vestige.report.gather import digest, gather
from vestige.report.glossary import entry
from vestige.report.run import again as asked_again
from vestige.show.progress import hushed

DATA = re.compile(r'<script type="application/json"[^>]*>(.*?)</script>', re.S)


def check_report(path: Path, again: bool = True) -> Checked:
    """A report, and the files of meta-evaluation it was made from, with what was looked at."""
    report = _read(path)
    if isinstance(report, list):
        return Checked(findings=report)
    fresh = _fresh(path, report)
    there = [] if isinstance(fresh, str) else [*_compared(report, fresh)]
    gone = [f"the runs cannot be gathered again: {fresh}"] if isinstance(fresh, str) else []
    found = [*_page(path, report), *_sources(path, report), *_axes(report), *_keys(path, report), *there, *gone]
    out = Checked(findings=found, checks=_checks(report, fresh))
    for place in _meta_places(path, report):
        out.add(check_meta(place, again))
    return out


def _checks(report: Report, fresh: Mapping[str, Any] | str) -> list[str]:
    count = "not gathered" if isinstance(fresh, str) else str(len(fresh["models"]))
    files = sum(len(s["files"]) for s in report["sources"])
    formulas = len(definitions())
    metrics = sum(told["group"] == "axis" for told in report["metrics"].values())
    return [
        f"models: {len(report['models'])} in {REPORT}, {count} in the runs",
        f"sources: {files} files of {len(report['sources'])} runs, by sha256",
        f"labels: {formulas} axis definitions and {metrics} axis labels against the formulas that compute them",
        f"keys: former and present names ({', '.join(RENAMED)}) in {files} files and the report",
        f"page: {PAGE} against {REPORT}",
    ]


def _meta_places(path: Path, report: Report) -> list[Path]:
    """Directories of meta-evaluation behind the report."""
    files = [path / s["path"] for s in report["sources"] if s["kind"] in ("meta", "methods")]
    return list(dict.fromkeys(f.parent for f in files if f.name in (META_EVAL, METHOD_RESULTS) and f.is_file()))


def _read(path: Path) -> Report | list[str]:
    """The report, or what keeps it from being read."""
    try:
        report = read_json(path / REPORT)
    except FileNotFoundError:
        raise UserError(
            f"{path} is not a report: it has no {REPORT}. Give a directory that vestige report wrote."
        ) from None
    except ValueError:
        return [f"{REPORT} is not valid JSON; run vestige report again."]
    if not isinstance(report, dict):
        return [f"{REPORT} does not hold a report; run vestige report again."]
    wrong = [f"{REPORT}: {words}." for words in misfits(report)]
    return wrong or report


def _page(path: Path, report: Report) -> Iterator[str]:
    """The page must show the data that lies beside it."""
    file = path / PAGE
    if not file.is_file():
        yield f"{PAGE} is missing; run vestige report again."
        return
    held = DATA.search(file.read_text(encoding="utf-8", errors="replace"))
    try:
        shown = json.loads(held[1]) if held else None
    except ValueError:
        shown = None
    if shown is None:
        yield f"{PAGE} holds no data that can be read; run vestige report again."
    elif shown != report:
        yield f"{PAGE} does not show what {REPORT} says; run vestige report again."


def _sources(path: Path, report: Report) -> Iterator[str]:
    """Every file a number came from, by its content."""
    for source in report["sources"]:
        place = path / source["path"]
        directory = place if place.is_dir() else place.parent
        for file in source["files"]:
            there = directory / file["path"]
            if not there.is_file():
                yield f"{there} is gone; the report was made from it."
            elif digest(there) != file["sha256"]:
                yield f"{there} has changed since the report was made; run vestige report again."


def _axes(report: Report) -> Iterator[str]:
    """Labels and formulas in print must be those that compute."""
    said = {d["key"]: d for d in report["axes"].get("definitions", ())}
    for truth in definitions():
        key = str(truth["key"])
        if said.get(key) != truth:
            yield f"the report's definition of the axis {key} is not the one that computes it ({truth['formula']})."
    keys = {axis.key for axis in AXIS_TABLE} | {f"{axis.key}_floored" for axis in AXIS_TABLE}
    for key, told in report["metrics"].items():
        if key in keys and told["group"] == "axis":
            truth = entry(key)
            if any(told.get(part) != truth[part] for part in ("label", "formula")):
                yield f"the report calls {key} '{told.get('label')}: {told.get('formula')}', not '{truth['formula']}'."


def _keys(path: Path, report: Report) -> Iterator[str]:
    """Former and present names side by side hide which number is meant."""
    names = {k for m in report["models"] for k in m["values"]} | set(report["metrics"])
    for old in sorted(names & set(RENAMED)):
        yield f"the report uses the former key {old}; it is {RENAMED[old]} now."
    seen: dict[str, str] = {}
    for source in report["sources"]:
        if source["kind"] not in ("depth", "meta", "methods"):
            continue
        place = path / source["path"]
        directory = place if place.is_dir() else place.parent
        found = {age for f in source["files"] for age in _ages(directory / f["path"])}
        if found == {"old", "new"}:
            yield f"{source['path']} uses former and present keys together (udr, uds)."
        seen |= {age: source["path"] for age in found if age not in seen}
    if len(seen) == 2:
        yield f"{seen['old']} uses the former keys (avg_udr), {seen['new']} the present ones (avg_uds)."


def _ages(file: Path) -> set[str]:
    try:
        return key_ages(read_json(file))
    except (OSError, ValueError):
        return set()  # said elsewhere


def _fresh(path: Path, report: Report) -> Report | str:
    """The report's runs gathered again; a sentence where they cannot be."""
    try:
        ask = asked_again(report, path)
        with hushed():
            return assemble(gather(ask.runs), ask.ask, path)[0]
    except UserError as error:
        return str(error)


def _compared(report: Mapping[str, Any], fresh: Mapping[str, Any]) -> Iterator[str]:
    """The runs gathered again must hold the models and files of the report, no more and no fewer."""
    said, there = (Counter(m["name"] for m in r["models"]) for r in (report, fresh))
    if said != there:
        more, fewer = sorted((there - said).elements()), sorted((said - there).elements())
        words = [f"not in the report: {', '.join(more)}"] if more else []
        words += [f"not in the runs: {', '.join(fewer)}"] if fewer else []
        yield f"the report has {sum(said.values())} models, the runs {sum(there.values())} ({'; '.join(words)})."
    paths = [{s["path"]: {f["path"] for f in s["files"]} for s in r["sources"]} for r in (report, fresh)]
    for new in sorted(set(paths[1]) - set(paths[0])):
        yield f"{new} was not there when the report was made; run vestige report again."
    for source, files in paths[0].items():
        for new in sorted(paths[1].get(source, set()) - files):
            yield f"{source}/{new} was not there when the report was made; run vestige report again."
