"""`vestige verify report/`: does a report still say what its runs say, by the formulas it prints?"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.meta.axes import AXIS_TABLE, definitions
from vestige.meta.checks import Checked, check_meta
from vestige.meta.files import META_EVAL, METHOD_RESULTS, RENAMED, key_ages
from vestige.report.build import assemble, request_again
from vestige.report.build import check_report as check_form
from vestige.report.gather import PAGE, REPORT, Json, digest, gather
from vestige.report.metrics import describe_metric
from vestige.show.progress import hushed

DATA = re.compile(r'<script type="application/json"[^>]*>(.*?)</script>', re.S)
AGAIN = "run vestige report again"


def check_report(path: Path, again: bool = True) -> Checked:
    """A report, and the files of meta-evaluation it was made from, with what was looked at."""
    try:
        report = read_json(path / REPORT)
        check_form(report)
    except FileNotFoundError:
        raise UserError(
            f"{path} is not a report: it has no {REPORT}. Give a directory that vestige report wrote."
        ) from None
    except ValueError:
        return Checked(findings=[f"{REPORT} is not valid JSON; {AGAIN}."])
    except UserError as error:
        return Checked(findings=[f"{REPORT}: {error}; {AGAIN}."])
    files = {}  # of each source: its directory, and the digests of its files by name
    for source in report["sources"]:
        place = path / source["path"]
        digests = {file["path"]: file["sha256"] for file in source["files"]}
        files[source["path"]] = (place if place.is_dir() else place.parent, digests)
    findings = [*_page(path, report)]
    for directory, digests in files.values():
        for name, sha256 in digests.items():
            if not (directory / name).is_file():
                findings.append(f"{directory / name} is gone; the report was made from it.")
            elif digest(directory / name) != sha256:
                findings.append(f"{directory / name} has changed since the report was made; {AGAIN}.")
    findings += [*_labels(report), *_keys(path, report)]
    count = "not gathered"
    try:
        request = request_again(report, path)
        with hushed():
            fresh, _ = assemble(gather(request.runs), request)
    except UserError as error:
        findings.append(f"the runs cannot be gathered again: {error}")
    else:
        count = str(len(fresh["models"]))
        findings += _news(report, fresh)
    looked_at = sum(len(digests) for _, digests in files.values())
    axis_labels = sum(metric["group"] == "axis" for metric in report["metrics"].values())
    checks = [
        f"models: {len(report['models'])} in {REPORT}, {count} in the runs",
        f"sources: {looked_at} files of {len(report['sources'])} runs, by sha256",
        f"labels: {len(definitions())} axis definitions and {axis_labels} axis labels against the formulas that "
        "compute them",
        f"keys: former and present names ({', '.join(RENAMED)}) in {looked_at} files and the report",
        f"page: {PAGE} against {REPORT}",
    ]
    out = Checked(findings=findings, checks=checks)
    answers = [path / name for name in files if Path(name).name in (META_EVAL, METHOD_RESULTS)]
    for directory in dict.fromkeys(file.parent for file in answers if file.is_file()):
        out.add(check_meta(directory, again))
    return out


def _page(path: Path, report: Json) -> Iterator[str]:
    """The page must show the data that lies beside it."""
    file = path / PAGE
    if not file.is_file():
        yield f"{PAGE} is missing; {AGAIN}."
        return
    match = DATA.search(file.read_text(encoding="utf-8", errors="replace"))
    try:
        data = json.loads(match[1]) if match else None
    except ValueError:
        data = None
    if data is None:
        yield f"{PAGE} holds no data that can be read; {AGAIN}."
    elif data != report:
        yield f"{PAGE} does not show what {REPORT} says; {AGAIN}."


def _labels(report: Json) -> Iterator[str]:
    """Labels and formulas in print must be those that compute."""
    printed = {axis["key"]: axis for axis in report["axes"].get("definitions", ())}
    for truth in definitions():
        key = str(truth["key"])
        if printed.get(key) != truth:
            yield f"the report's definition of the axis {key} is not the one that computes it ({truth['formula']})."
    for axis in AXIS_TABLE:
        for key in (axis.key, f"{axis.key}_floored"):
            metric, right = report["metrics"].get(key), describe_metric(key)
            if metric is None or metric["group"] != "axis":
                continue
            label, formula = metric.get("label"), metric.get("formula")
            if (label, formula) != (right["label"], right["formula"]):
                yield f"the report calls {key} '{label}: {formula}', not '{right['formula']}'."


def _keys(path: Path, report: Json) -> Iterator[str]:
    """Former and present names side by side hide which number is meant."""
    names = {key for model in report["models"] for key in model["values"]} | set(report["metrics"])
    for old in sorted(names & set(RENAMED)):
        yield f"the report uses the former key {old}; it is {RENAMED[old]} now."
    first: dict[str, str] = {}  # old | new -> the first source that uses such keys
    for source in report["sources"]:
        if source["kind"] not in ("depth", "meta", "methods"):
            continue
        place = path / source["path"]
        found: set[str] = set()
        for file in source["files"]:
            try:
                found |= key_ages(read_json((place if place.is_dir() else place.parent) / file["path"]))
            except (OSError, ValueError):
                continue  # it has changed, which is a finding already
        if found == {"old", "new"}:
            yield f"{source['path']} uses former and present keys together (udr, uds)."
        for age in found:
            first.setdefault(age, source["path"])
    if len(first) == 2:
        yield f"{first['old']} uses the former keys (avg_udr), {first['new']} the present ones (avg_uds)."


def _news(report: Json, fresh: Json) -> Iterator[str]:
    """The runs gathered again must hold the models and files of the report, no more and no fewer."""
    before, now = (Counter(model["name"] for model in one["models"]) for one in (report, fresh))
    if before != now:
        words = []
        for where, names in (("report", now - before), ("runs", before - now)):
            if names:
                words.append(f"not in the {where}: {', '.join(sorted(names.elements()))}")
        yield f"the report has {before.total()} models, the runs {now.total()} ({'; '.join(words)})."
    known = {source["path"]: {file["path"] for file in source["files"]} for source in report["sources"]}
    for source in sorted(fresh["sources"], key=lambda one: one["path"]):
        if source["path"] not in known:
            yield f"{source['path']} was not there when the report was made; {AGAIN}."
            continue
        for name in sorted({file["path"] for file in source["files"]} - known[source["path"]]):
            yield f"{source['path']}/{name} was not there when the report was made; {AGAIN}."
