"""`vestige verify` on what `vestige meta` and `vestige import` wrote: the checklist before numbers are published.

    models    the same models as in the run set, no more and no fewer
    sources   every file a number came from, by its digest
    numbers   made again by the same question, and equal
    labels    names and formulas in print are those that compute
    keys      no mixture of the depth score's former and present names

Files of others do not say how they were made: their sources and models cannot be checked, and that is a note.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.meta import files
from vestige.meta.asked import MetaAsk, ask_again, short_digest
from vestige.meta.kind import KIND as META
from vestige.meta.methods import from_results
from vestige.meta.numbers import read_file
from vestige.meta.old_keys import ages
from vestige.meta.robustness import RULES, overall
from vestige.meta.run import QUESTIONS, Made
from vestige.runs.manifest import Manifest, sha256
from vestige.schema import number
from vestige.store.findings import Finding, compared

EXACT = 1e-9  # another machine may add up in another order
PRINTED = 1.5e-4  # published parts are rounded to four decimals; their harmonic mean is off by no more
AGAIN = {
    "axes": "run the same `vestige meta axes` or `vestige import` again",
    "faithfulness": "run the same `vestige meta faithfulness` again",
    "robustness": "run the same `vestige meta robustness` again",
}
NOT_NUMBERS = ("versions", "data_sources", "asked", "provenance", "notes")
UNCHECKED = "not checked: labels of a page made elsewhere; `vestige report` writes them from the formulas"
_NAMED = re.compile(r"(?P<path>.+?) \((?P<digest>[0-9a-f]{12})\)(?:, |$)")


@dataclass
class Checked:
    """What was found, what could not be looked at, and what was looked at."""

    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    numbers: int = 0

    def add(self, other: Checked) -> None:
        self.findings += other.findings
        self.notes += [n for n in other.notes if n not in self.notes]
        self.checks += other.checks
        self.numbers += other.numbers


@dataclass(frozen=True)
class Part:
    """One answer in a file: its question, the file's content, and how it was asked (None: it does not say)."""

    what: str
    file: Path
    body: Mapping[str, Any]
    asked: Mapping[str, Any] | None
    ask: MetaAsk | None


def check_meta(place: Path, again: bool = True) -> Checked:
    """The checklist, for the files of meta-evaluation in one directory."""
    out = Checked()
    bodies = dict(_bodies(place, out))
    parts = [p for file, body in bodies.items() for p in _parts(file, body)]
    for part in parts:
        intact = _sources(place, part, out)
        if part.ask is not None and again and intact:
            _again(place, part, part.ask, out)
    for file, body in bodies.items():
        (_meta_labels if file.name == files.META_EVAL else _axes_labels)(file, body, out)
    _keys(place, bodies, parts, out)
    out.notes.append(UNCHECKED)
    return out


def _bodies(place: Path, out: Checked) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for name in (files.METHOD_RESULTS, files.META_EVAL):
        file = place / name
        if not file.is_file():
            continue
        try:
            body = read_file(file)
            if name == files.META_EVAL:
                files.checked_meta_eval(body, file)
            else:
                from_results(body, str(file))
        except UserError as error:
            out.findings.append(str(error))
        else:
            yield file, body


def _parts(file: Path, body: Mapping[str, Any]) -> Iterator[Part]:
    asked = body.get("asked")
    said: Mapping[str, Any] = asked if isinstance(asked, Mapping) else {}
    halves = ("faithfulness", "robustness")
    for what in [h for h in halves if body.get(h)] if file.name == files.META_EVAL else ["axes"]:
        yield Part(what, file, body, said.get(what), ask_again(said.get(what), file.parent))


# ---- sources -----------------------------------------------------------------------------------------------------


def _sources(place: Path, part: Part, out: Checked) -> bool:
    """Every file behind an answer is as it was; False if one is not."""
    if part.ask is None or part.asked is None:
        return _named_sources(place, part, out)
    found = []
    for name, digest in part.asked["read"].items():
        there = _at(place, name)
        if not there.is_file():
            found.append(f"{there} is gone; {part.what} in {part.file} was made from it: {AGAIN[part.what]}.")
        elif sha256(there) != digest:
            found.append(f"{there} has changed since {part.what} in {part.file} was made; {AGAIN[part.what]}.")
    out.findings += found
    count = len(part.asked["read"])
    out.checks.append(f"sources: {count - len(found)} of {count} files behind {part.what} are as they were (sha256)")
    return not found


def _at(place: Path, name: str) -> Path:
    return Path(os.path.normpath(place / name))


OLD_NAMES = {"axes": ("models",), "faithfulness": ("pools",), "robustness": ("attacks", "thresholds", "utility")}


def _named_sources(place: Path, part: Part, out: Checked) -> bool:
    """Files made before questions were kept name their sources as `path (digest)`; others name none."""
    said = part.body.get("data_sources")
    told = [str(said[k]) for k in OLD_NAMES[part.what] if k in said] if isinstance(said, Mapping) else []
    named = [m for text in told for m in _NAMED.finditer(text)]
    for match in named:
        path = Path(match["path"])
        there = path if path.is_file() else place / path
        if not there.is_file():
            out.findings.append(f"{path} is gone; {part.what} in {part.file} was made from it: {AGAIN[part.what]}.")
        elif short_digest(there) != match["digest"]:
            out.findings.append(f"{path} has changed since {part.what} in {part.file} was made; {AGAIN[part.what]}.")
    if named:
        out.checks.append(f"sources: {len(named)} files that {part.file.name} names for {part.what}, by digest")
    out.notes.append(
        f"{part.file} does not say how its {part.what} was made: models against the run set and values are not checked"
    )
    return False


# ---- models and numbers ------------------------------------------------------------------------------------------


def _again(place: Path, part: Part, ask: MetaAsk, out: Checked) -> None:
    """The same question asked again: the same models, the same numbers."""
    try:
        made = QUESTIONS[part.what](ask)
    except UserError as error:
        out.findings.append(f"{part.what} in {part.file} cannot be made again: {error}")
        return
    if not _models(part, made, out):
        return
    count = 0
    for name, body in made.files.items():
        file = place / name
        stands = part.body if file == part.file else _stands(file, out)
        if stands is not None:
            expected = json.loads(json.dumps(body))
            found = compared(file, _numbers(expected), _numbers(stands), f"{AGAIN[part.what]}.")
            count += found.compared
            out.findings += [found.words] if found.words else []
    out.numbers += count
    out.checks.append(f"numbers: {count:,} values of {part.what} made again")


def _stands(file: Path, out: Checked) -> Mapping[str, Any] | None:
    try:
        return read_file(file)
    except UserError as error:
        out.findings.append(f"{error} Run the same `vestige meta` again.")
        return None


def _numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in body.items() if k not in NOT_NUMBERS}


def _models(part: Part, made: Made, out: Checked) -> bool:
    """The models of the file against those of the run set; False if they differ."""
    asked = part.asked or {}
    stored = {"models": [str(r["model"]) for r in part.body["models"]]} if part.what == "axes" else asked["models"]
    alike = True
    for name, there in made.models.items():
        said = stored.get(name, [])
        out.checks.append(f"models: {len(said)} in {part.file.name}, {len(there)} in the run set ({part.what}, {name})")
        more, fewer = Counter(there) - Counter(said), Counter(said) - Counter(there)
        if more or fewer:
            alike = False
            words = [f"not in the file: {', '.join(more.elements())}"] if more else []
            words += [f"not in the run set: {', '.join(fewer.elements())}"] if fewer else []
            out.findings.append(
                f"{part.file} has {len(said)} {name} ({part.what}), the run set {len(there)} ({'; '.join(words)}); "
                f"{AGAIN[part.what]}."
            )
    return alike


# ---- labels and formulas -----------------------------------------------------------------------------------------


def _axes_labels(file: Path, body: Mapping[str, Any], out: Checked) -> None:
    """Axes in print follow from their parts by the formulas; methods are counted as they are listed."""
    methods = from_results(body, str(file))
    out.findings += [f"{file}: {words}; {AGAIN['axes']}." for words in methods.notes]
    told = body.get("method_counts")
    counted = Counter(str(r.facts["method"]) for r in methods.rows if files.is_counted(r.facts))
    if told is not None and told != dict(counted):
        out.findings.append(f"{file}: method_counts is {told}, its models give {dict(counted)}; {AGAIN['axes']}.")
    axes = sum(v is not None for r in methods.rows for v in r.published.values().values())
    out.checks.append(f"labels: {axes} axes of {len(methods.rows)} models against the formulas of their names")


def _meta_labels(file: Path, body: Mapping[str, Any], out: Checked) -> None:
    """Names and formulas in words, where they are ours; means in any file."""
    ours = "versions" in body
    labels = files.labels_of(body)
    if ours and body.get("metrics") != labels:
        told = body.get("metrics")
        pairs = zip(told if isinstance(told, list) else [], labels, strict=False)
        wrong = next(
            (f"says {a}, it is {b}" for a, b in pairs if a != b), f"names other metrics than its {len(labels)}"
        )
        out.findings.append(f"{file}: metrics {wrong}; {AGAIN['robustness']}.")
    if ours and body.get("formulas") != files.FORMULAS:
        out.findings.append(f"{file}: its formulas in words are not those that compute; {AGAIN['robustness']}.")
    if not ours:
        out.notes.append(f"{file}: its labels and formulas in words were written elsewhere and are not compared")
    found = list(_means(file, body, EXACT if ours else PRINTED))
    out.findings += [words for words in found if words]
    told = f"{len(labels)} names of metrics, {len(files.FORMULAS)} formulas, " if ours else ""
    out.checks.append(f"labels: {told}{len(found)} means of {file.name} against their formulas")


def _means(file: Path, body: Mapping[str, Any], tolerance: float) -> Iterator[str]:
    """HM(R, Q) and HM(faithfulness, robustness) where they are printed; a sentence for each that is another number."""
    for name, r in body["robustness"].items():
        rule = str(r.get("rule"))
        if rule in RULES and r.get("rule_in_words") != RULES[rule].words:
            yield f"{file}: robustness of {name} says it is by '{r.get('rule_in_words')}', not '{RULES[rule].words}'."
        made = overall(number(r["relearning"]), number(r["quantization"]))
        yield _other(file, f"robustness of {name}", r["agg"], made, tolerance)
    told = body.get("overall")
    for name, value in told.items() if isinstance(told, Mapping) else ():
        halves = [body[half].get(name) or {} for half in ("faithfulness", "robustness")]
        made = overall(number(halves[0].get("auc_roc")), number(halves[1].get("agg")))
        if value is not None:  # null where the halves do not belong together
            yield _other(file, f"overall of {name}", value, made, tolerance)


def _other(file: Path, what: str, said: Any, made: float | None, tolerance: float) -> str:
    value = number(said)
    alike = value is made if value is None or made is None else abs(value - made) <= tolerance
    return "" if alike else f"{file}: {what} is {said}, its formula gives {made}; {AGAIN['robustness']}."


# ---- keys --------------------------------------------------------------------------------------------------------


def _keys(place: Path, bodies: Mapping[Path, Any], parts: list[Part], out: Checked) -> None:
    """Former and present names of the depth score, in the files and in what they were made from."""
    behind = [place / name for p in parts if p.ask and p.asked for name in p.asked["read"] if name.endswith(".json")]
    seen: dict[str, Path] = {}
    looked = dict.fromkeys([*bodies, *behind])
    for file in looked:
        found = _ages(file)
        if found == {"old", "new"}:
            out.findings.append(f"{file} uses former and present keys together (udr, uds); write it with one of them.")
        seen |= {age: file for age in found if age not in seen}
    if len(seen) == 2 and seen["old"] != seen["new"]:
        out.findings.append(
            f"{seen['old']} uses the former keys (avg_udr), {seen['new']} the present ones (avg_uds); "
            "bring both to one schema."
        )
    out.checks.append(f"keys: former and present names (avg_udr, avg_uds) in {len(looked)} files")


def _ages(file: Path) -> set[str]:
    try:
        return ages(read_json(file))
    except (OSError, ValueError):
        return set()  # said elsewhere


def _check(place: Path, manifest: Manifest | None, again: bool = True) -> Iterator[Finding]:
    checked = check_meta(place, again)
    yield Finding(checked.numbers)
    yield from (Finding(words=words) for words in checked.findings)
    yield from (Finding(words=words, note=True) for words in checked.notes)
    yield from (Finding(words=words, check=True) for words in checked.checks)


# Here, not in meta: the checklist reads other people's results, too.
KIND = replace(META, check=_check, sources=partial(_check, again=False))
