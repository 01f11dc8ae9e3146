"""`vestige verify` on what `vestige meta` and `vestige import` wrote: the checklist before numbers are published.

    models    the same models as in the run set, no more and no fewer
    sources   every file a number came from, by its digest
    numbers   made again by the same question, and equal: names of metrics and formulas in words included
    labels    axes and means in print follow from their parts by the formulas of their names, in any author's file
    keys      no mixture of the depth score's former and present names

Files of others do not say how they were made: their sources and models cannot be checked, and that is a note.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.io import number
from vestige.meta import files
from vestige.meta.axes import from_results
from vestige.meta.pools import read_file
from vestige.meta.robustness import RULES, overall
from vestige.meta.run import QUESTIONS, StoredQuestion, read_question
from vestige.runs.files import read_ours
from vestige.runs.manifest import Manifest, sha256
from vestige.runs.run import Finding, Kind, Reader, RunSource, compared

EXACT = 1e-9  # another machine may add up in another order
_PRINTED = 1.5e-4  # published parts are rounded to four decimals; their harmonic mean is off by no more
AGAIN = {
    "axes": "run the same `vestige meta axes` or `vestige import` again",
    "faithfulness": "run the same `vestige meta faithfulness` again",
    "robustness": "run the same `vestige meta robustness` again",
}
_NOT_NUMBERS = ("versions", "data_sources", "asked", "provenance", "notes")
_UNCHECKED = "not checked: labels of a page made elsewhere; `vestige report` writes them from the formulas"


@dataclass
class Checked:
    """What is wrong, what could not be looked at, and what was looked at."""

    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    numbers: int = 0

    def add(self, other: Checked) -> None:
        self.findings += other.findings
        self.notes += [n for n in other.notes if n not in self.notes]
        self.checks += other.checks
        self.numbers += other.numbers


def check_meta(place: Path, again: bool = True) -> Checked:
    """The checklist, for the files of meta-evaluation in one directory."""
    out = Checked()
    key_files: list[Path] = []
    for name in (files.METHOD_RESULTS, files.META_EVAL):
        file = place / name
        if not file.is_file():
            continue
        try:
            body = read_file(file)
            if name == files.META_EVAL:
                files.checked_meta_eval(body, file)
                _check_meta_eval_labels(file, body, out)
            else:
                _check_axes_labels(file, body, out)
        except UserError as error:
            out.findings.append(str(error))
            continue
        key_files.append(file)
        stored = body.get("asked")
        halves = ("faithfulness", "robustness")
        for what in [half for half in halves if body.get(half)] if name == files.META_EVAL else ["axes"]:
            question = read_question(stored.get(what)) if isinstance(stored, Mapping) else None
            if question is None:
                out.notes.append(
                    f"{file} does not say how its {what} was made: models against the run set and values are not "
                    "checked"
                )
                continue
            if _check_sources(file, what, question, out) and again:
                _check_numbers(file, what, body, question, out)
            key_files += [place / source for source in question.read if source.endswith(".json")]
    _check_keys(list(dict.fromkeys(key_files)), out)
    out.notes.append(_UNCHECKED)
    return out


def _check_sources(file: Path, what: str, question: StoredQuestion, out: Checked) -> bool:
    """Every file an answer was made from is as it was; False if one is not."""
    count = len(out.findings)
    for name, digest in question.read.items():
        source = Path(os.path.normpath(file.parent / name))
        if not source.is_file():
            out.findings.append(f"{source} is gone; {what} in {file} was made from it: {AGAIN[what]}.")
        elif sha256(source) != digest:
            out.findings.append(f"{source} has changed since {what} in {file} was made; {AGAIN[what]}.")
    changed, total = len(out.findings) - count, len(question.read)
    out.checks.append(f"sources: {total - changed} of {total} files behind {what} are as they were (sha256)")
    return not changed


def _check_numbers(file: Path, what: str, body: Mapping[str, Any], question: StoredQuestion, out: Checked) -> None:
    """The same question asked again: the same models, the same numbers."""
    try:
        answer = QUESTIONS[what](question.ask(file.parent))
    except UserError as error:
        out.findings.append(f"{what} in {file} cannot be made again: {error}")
        return
    # Other models make other numbers: that is one finding, not one for each number.
    alike = True
    for part, now in answer.models.items():
        stored = [str(row["model"]) for row in body["models"]] if what == "axes" else question.models.get(part, [])
        out.checks.append(f"models: {len(stored)} in {file.name}, {len(now)} in the run set ({what}, {part})")
        more, fewer = Counter(now) - Counter(stored), Counter(stored) - Counter(now)
        if more or fewer:
            alike = False
            words = [f"not in the file: {', '.join(more.elements())}"] if more else []
            words += [f"not in the run set: {', '.join(fewer.elements())}"] if fewer else []
            out.findings.append(
                f"{file} has {len(stored)} {part} ({what}), the run set {len(now)} ({'; '.join(words)}); {AGAIN[what]}."
            )
    if not alike:
        return
    count = 0
    for name, expected in answer.files.items():
        written = file.parent / name
        try:
            found = _numbers(body if written == file else read_file(written))
        except UserError as error:
            out.findings.append(f"{error} Run the same `vestige meta` again.")
            continue
        # Through JSON and back, so that tuples and lists, or 1 and 1.0, are no difference.
        finding = compared(written, _numbers(json.loads(json.dumps(expected))), found, f"{AGAIN[what]}.")
        count += finding.compared
        if finding.words:
            out.findings.append(finding.words)
    out.numbers += count
    out.checks.append(f"numbers: {count:,} values of {what} made again")


def _numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in _NOT_NUMBERS}


def _check_axes_labels(file: Path, body: Mapping[str, Any], out: Checked) -> None:
    """Axes in print follow from their parts by the formulas; methods are counted as they are listed."""
    methods = from_results(body, str(file))
    out.findings += [f"{file}: {words}; {AGAIN['axes']}." for words in methods.notes]
    counts = body.get("method_counts")
    if counts is not None and counts != methods.method_counts:
        out.findings.append(
            f"{file}: method_counts is {counts}, its models give {methods.method_counts}; {AGAIN['axes']}."
        )
    count = sum(value is not None for row in methods.rows for value in row.published.values().values())
    out.checks.append(f"labels: {count} axes of {len(methods.rows)} models against the formulas of their names")


def _check_meta_eval_labels(file: Path, body: Mapping[str, Any], out: Checked) -> None:
    """HM(R, Q) and HM(faithfulness, robustness) are what their halves give."""
    ours = "versions" in body
    if not ours:
        out.notes.append(f"{file}: its labels and formulas in words were written elsewhere and are not compared")
    elif body.get("formulas") != files.FORMULAS:
        out.findings.append(f"{file}: its formulas in words are not those that compute; {AGAIN['robustness']}.")
    means = []
    for name, entry in body["robustness"].items():
        rule = str(entry.get("rule"))
        if rule in RULES and entry.get("rule_in_words") != RULES[rule].words:
            out.findings.append(
                f"{file}: robustness of {name} says it is by '{entry.get('rule_in_words')}', not '{RULES[rule].words}'."
            )
        expected = overall(number(entry["relearning"]), number(entry["quantization"]))
        means.append((f"robustness of {name}", entry["agg"], expected))
    ranks = body.get("overall")
    for name, value in ranks.items() if isinstance(ranks, Mapping) else ():
        if value is not None:  # null where the halves do not belong together
            faithful, robust = (body[half].get(name) or {} for half in ("faithfulness", "robustness"))
            expected = overall(number(faithful.get("auc_roc")), number(robust.get("agg")))
            means.append((f"overall of {name}", value, expected))
    for what, stored, expected in means:
        value = number(stored)
        # None on both sides is alike; None on one side is not.
        alike = value is expected
        if value is not None and expected is not None:
            alike = abs(value - expected) <= (EXACT if ours else _PRINTED)
        if not alike:
            out.findings.append(f"{file}: {what} is {stored}, its formula gives {expected}; {AGAIN['robustness']}.")
    out.checks.append(f"labels: {len(means)} means of {file.name} against their formulas")


def _check_keys(looked: list[Path], out: Checked) -> None:
    """Former and present names of the depth score, in the files and in what they were made from."""
    seen: dict[str, Path] = {}
    for file in looked:
        try:
            ages = files.key_ages(read_json(file))
        except (OSError, ValueError):
            # A file that is gone or damaged.
            continue  # reported with the sources
        if len(ages) == 2:
            out.findings.append(f"{file} uses former and present keys together (udr, uds); write it with one of them.")
        for age in ages:
            seen.setdefault(age, file)
    if len(seen) == 2 and seen["old"] != seen["new"]:
        out.findings.append(
            f"{seen['old']} uses the former keys (avg_udr), {seen['new']} the present ones (avg_uds); "
            "bring both to one schema."
        )
    out.checks.append(f"keys: former and present names (avg_udr, avg_uds) in {len(looked)} files")


# ---- the kind of run, for verify, report and compare ---------------------------------------------------------------


def _check(place: Path, manifest: Manifest | None, again: bool = True) -> Iterator[Finding]:
    """The checklist as findings, which `vestige verify` prints for runs of every kind."""
    checked = check_meta(place, again)
    yield Finding(checked.numbers)
    yield from (Finding(words=words) for words in checked.findings)
    yield from (Finding(words=words, note=True) for words in checked.notes)
    yield from (Finding(words=words, check=True) for words in checked.checks)


def in_file(path: Path, read: Reader) -> Iterator[RunSource]:
    """One result file, ours or published: which of the two it is shows in its content."""
    data = read(path, dict)
    if data is not None and "faithfulness" in data:
        yield RunSource("meta", path, (path,), data)
    elif data is not None and isinstance(data.get("models"), list):
        yield RunSource("methods", path, (path,), data)


def _gather(path: Path, read: Reader) -> Iterator[RunSource]:
    for name in (files.METHOD_RESULTS, files.META_EVAL):
        if (path / name).is_file():
            yield from in_file(path / name, read)


def _values(path: Path) -> dict[str, Any]:
    """The overall figure of each metric on the bench."""
    file = path / files.META_EVAL
    return dict(read_ours(file, dict[str, Any]).get("overall") or {}) if file.is_file() else {}


KIND = Kind(
    "meta",
    check=_check,
    sources=partial(_check, again=False),
    gather=_gather,
    values=_values,
    not_packed="its answers are made of files outside it; pack those runs, and run `vestige meta` on them again",
)
