"""Why two runs disagree: what differs between them, which numbers and rows moved, and what that is due to.

`vestige diff RUN_A RUN_B` compares each part of a run (model, tokenizer, template, data, mask, precision, libraries,
definitions) by what the manifests say, then every metric both runs have, row by row. A part may differ without being
able to move a number, such as the name of a folder with the same weights; that is said, and not blamed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.engine.stored import dialect_for, stored_scores, suite_from_manifest
from vestige.errors import UserError, unknown_name
from vestige.metrics.cards import full_name
from vestige.numeric import mean, number
from vestige.runs.files import load_rows, read_scores, result_file
from vestige.runs.run import read_manifest
from vestige.show.progress import hushed
from vestige.show.tables import table
from vestige.suites.spec import RESERVED
from vestige.types import Rows, Score

Manifest = Mapping[str, Any]
ROUNDING = 1e-6  # values of a row that are closer than this are the same
# The field of a row that is the metric's value, by preference.
VALUE_FIELDS = ("score", "rougeL_recall", "prob")
WIDTH = 100  # of a text in the list of rows


@dataclass(frozen=True)
class RunPart:
    """One part of a run: what differs in it, and what differs without being able to move a number."""

    name: str
    differs: Sequence[str] = ()
    harmless: Sequence[str] = ()
    known: bool = True  # False: a manifest does not record it


@dataclass
class MetricChange:
    """One metric in two runs."""

    metric: str
    a: float | None
    b: float | None
    asked: bool = False  # asked for in both runs, not only a parent
    rows: dict[str, tuple[float, float]] = field(default_factory=dict)  # "3" or "holdout 3" -> values in A and B
    texts: dict[str, list[str]] = field(default_factory=dict)  # the same keys -> question, answer, what was generated

    @property
    def difference(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def changed_rows(self) -> list[str]:
        """Rows whose value changed, the largest change first."""
        distances = {row: abs(b - a) for row, (a, b) in self.rows.items()}
        changed = [row for row in distances if distances[row] > ROUNDING]
        return sorted(changed, key=lambda row: (-distances[row], row))


def explain_difference(a: Path, b: Path, rows: int = 3, metrics: Sequence[str] | None = None) -> str:
    """The parts, the verdict, the metrics and the rows that changed most, as text."""
    one, other = read_manifest(a), read_manifest(b)
    if one["config"]["suite"] != other["config"]["suite"]:
        raise UserError(f"{a} is a run of {one['config']['suite']}, {b} of {other['config']['suite']}: not comparable.")
    edited = edited_rows(a, b, one, other)
    parts = compare_parts(one, other, edited)
    changes = compare_metrics(a, b, one, other, metrics)
    lines = [f"A: {a}", f"B: {b}", "", parts_table(parts), "", verdict(parts, changes, edited), ""]
    lines.append(_metrics_table(changes, _scores_by_other_definition(a, one, other, parts)))
    for change in changes:
        if change.rows and (change.asked or metrics):
            lines += ["", *_row_lines(change, rows, edited)]
    return "\n".join(lines)


# ---- the parts of a run ----------------------------------------------------------------------------------------------


def compare_parts(a: Manifest, b: Manifest, edited: Mapping[str, list[str]]) -> list[RunPart]:
    """Every part of two runs, by their manifests. `edited`: data set -> rows whose text is not the same."""
    return [
        _compare_models(a["model"], b["model"]),
        _compare_tokenizers(a.get("tokenizer"), b.get("tokenizer")),
        _compare_templates(a, b),
        _compare_data(a, b, edited),
        _compare_masks(a, b),
        _compare_precision(a["model"], b["model"]),
        RunPart("library", changed_keys(a["versions"], b["versions"])),
        _compare_definitions(a, b),
    ]


def change_in_words(key: str, a: Any, b: Any) -> str:
    return f"{key}: {_shorten(a)} -> {_shorten(b)}"


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}...{text[-17:]}"


def changed_keys(a: Mapping[str, Any], b: Mapping[str, Any], keys: Sequence[str] | None = None) -> list[str]:
    """What differs between two mappings, key by key."""
    changes = []
    for key in sorted({*a, *b}) if keys is None else keys:
        if a.get(key) != b.get(key):
            changes.append(change_in_words(key, a.get(key), b.get(key)))
    return changes


def _compare_models(a: Manifest, b: Manifest) -> RunPart:
    if a["fingerprint"] != b["fingerprint"]:
        words = f"weights: {a['name']} ({a['fingerprint'][:8]}) -> {b['name']} ({b['fingerprint'][:8]})"
        return RunPart("model", [words])
    if a["name"] != b["name"]:
        return RunPart("model", harmless=[change_in_words("name (same weights)", a["name"], b["name"])])
    return RunPart("model")


def _compare_tokenizers(a: Manifest | None, b: Manifest | None) -> RunPart:
    """Vocabulary and special tokens; the pad token belongs to the mask, the chat template to the template."""
    if not a or not b:
        return RunPart("tokenizer", known=False)
    digests, special = [], []
    for tokenizer in (a, b):
        digests.append({key: tokenizer[key][:8] for key in ("vocabulary", "pipeline")})
        tokens = dict(tokenizer.get("special_tokens") or {})
        tokens.pop("pad_token", None)
        special.append(tokens)
    return RunPart("tokenizer", [*changed_keys(digests[0], digests[1]), *changed_keys(special[0], special[1])])


def _compare_templates(a: Manifest, b: Manifest) -> RunPart:
    settings = changed_keys(a.get("template") or {}, b.get("template") or {})
    before, after = a.get("prompt"), b.get("prompt")
    if before is None or after is None:
        return RunPart("template", settings, known=bool(settings))
    if before != after:
        return RunPart("template", [*settings, _prompt_difference(before, after)])
    # The same prompt comes out: settings and template text make no difference.
    texts = [(manifest.get("tokenizer") or {}).get("chat_template") for manifest in (a, b)]
    if texts[0] != texts[1]:
        settings.append("chat template text (same prompt comes out)")
    return RunPart("template", harmless=settings)


def _prompt_difference(a: str, b: str) -> str:
    """The stretch in which two prompts differ, with a little of the text around it."""
    shorter = min(len(a), len(b))
    start = 0
    while start < shorter and a[start] == b[start]:
        start += 1
    end = 0
    while end < shorter - start and a[-1 - end] == b[-1 - end]:
        end += 1
    first = max(0, start - 12)
    stretches = [repr(text[first : max(len(text) - end, start) + 12]) for text in (a, b)]
    return f"the prompt reads {_shorten(stretches[0])} in A, {_shorten(stretches[1])} in B"


def _compare_data(a: Manifest, b: Manifest, edited: Mapping[str, list[str]]) -> RunPart:
    """Data sets that metrics of both runs read, by the fingerprint of their rows and how they were read."""
    differs: list[str] = []
    harmless: list[str] = []
    for key, other_key in _common_data(a, b):
        if key not in a["data"] or other_key not in b["data"]:
            continue
        mine, theirs = a["data"][key], b["data"][other_key]
        name, rows = mine["name"], edited.get(mine["name"], [])
        if mine["rows"] != theirs["rows"]:
            differs.append(f"{name}: {mine['rows']} rows -> {theirs['rows']} rows")
        elif rows:
            shown = ", ".join(rows[:8]) + (", ..." if len(rows) > 8 else "")
            differs.append(f"{name}: {len(rows)} {'row' if len(rows) == 1 else 'rows'} changed ({shown})")
        elif mine["fingerprint"] != theirs["fingerprint"]:
            harmless.append(f"{name}: its file differs only in what is not read here")
        elif key != other_key:
            differs.append(f"{name}: same rows, read with other settings")
    return RunPart("data", list(dict.fromkeys(differs)), list(dict.fromkeys(harmless)))


def _common_data(a: Manifest, b: Manifest) -> list[tuple[str, str]]:
    """The keys, in either manifest, of each data set that a metric of both runs reads."""
    pairs = []
    for metric in sorted(set(a["data_of"]) & set(b["data_of"])):
        mine, theirs = a["data_of"][metric], b["data_of"][metric]
        pairs += [(mine[access], theirs[access]) for access in sorted(set(mine) & set(theirs))]
    return list(dict.fromkeys(pairs))


def _compare_masks(a: Manifest, b: Manifest) -> RunPart:
    """Which tokens attention does not see."""
    facts = []
    for manifest in (a, b):
        hidden = manifest["hidden_tokens"]
        facts.append(
            {
                "mask": manifest["dialect"]["mask"],
                "hides": _hidden_token(manifest),
                "answers with a hidden token": hidden,
            }
        )
    changes = changed_keys(facts[0], facts[1], list(facts[0]))
    if a["hidden_tokens"] or b["hidden_tokens"]:
        return RunPart("mask", changes)
    # A mask that hides nothing is like any other that hides nothing.
    return RunPart("mask", harmless=[f"{change} (nothing is hidden in either)" for change in changes])


def _hidden_token(manifest: Manifest) -> str | None:
    """The token the mask hides: pad, or the end token where there is none (as open-unlearning sets it)."""
    if manifest["dialect"]["mask"] != "pad-id" or "tokenizer" not in manifest:
        return None
    special = manifest["tokenizer"].get("special_tokens") or {}
    end = special.get("eos_token")
    token = special.get("pad_token") or end
    return f"{token} (pad = eos)" if token == end else token


def _compare_precision(a: Manifest, b: Manifest) -> RunPart:
    if a["fingerprint"] == b["fingerprint"] and a["evidence"] == b["evidence"]:
        return RunPart("dtype")  # one identity: precision, attention and device are in it
    if "dtype" not in a or "dtype" not in b:
        return RunPart("dtype", known=False)
    return RunPart("dtype", changed_keys(a, b, ("dtype", "attention", "device", "quantization")))


def _compare_definitions(a: Manifest, b: Manifest) -> RunPart:
    """Dialect, settings of metrics, decoding, and what a metric is compared with."""
    dialects = [{"dialect": m["dialect"]["name"], "version": m["dialect"]["version"]} for m in (a, b)]
    changes = changed_keys(dialects[0], dialects[1], ("dialect", "version"))
    mine, theirs = a["config"]["metrics"], b["config"]["metrics"]
    for name in sorted(set(mine) & set(theirs)):
        settings = {*mine[name], *theirs[name]} - {"datasets", "collators", "pre_compute", "reference_logs"}
        for key in sorted(settings):
            if mine[name].get(key) != theirs[name].get(key):
                changes.append(change_in_words(f"{name}.{key}", mine[name].get(key), theirs[name].get(key)))
        logs = []
        for metrics in (mine, theirs):
            references = metrics[name].get("reference_logs", {})
            logs.append(sorted(str(reference.get("path")) for reference in references.values()))
        if logs[0] != logs[1] and not _hold_the_same(*logs):
            changes.append(change_in_words("retain logs", *logs))
    return RunPart("definition", list(dict.fromkeys(changes)))


def _hold_the_same(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether files at other paths hold the same bytes."""
    if len(a) != len(b):
        return False
    for one, other in zip(a, b, strict=True):
        if not Path(one).is_file() or not Path(other).is_file() or Path(one).read_bytes() != Path(other).read_bytes():
            return False
    return True


def parts_table(parts: Sequence[RunPart]) -> str:
    rows = []
    for part in parts:
        changes = [*part.differs, *(f"no effect: {change}" for change in part.harmless)]
        state = "DIFFERS" if part.differs else "same"
        rows.append([part.name, state if part.known else "not recorded", changes[0] if changes else ""])
        rows += [["", "", change] for change in changes[1:]]
    return table(rows, ["part", "", "what"])


def verdict(parts: Sequence[RunPart], changes: Sequence[MetricChange], edited: Mapping[str, list[str]]) -> str:
    """One sentence: what the disagreement is due to, as far as the manifests tell."""
    different = [part for part in parts if part.differs]
    names = " and ".join(part.name for part in different)
    equal = all(change.difference in (0, None) and not change.changed_rows for change in changes)
    unknown = ", ".join(part.name for part in parts if not part.known)
    caveat = f" (Not recorded in both manifests: {unknown}.)" if unknown else ""
    if not different and equal:
        return f"Verdict: the runs are the same in every recorded part and in every number.{caveat}"
    if not different:
        return f"Verdict: no recorded part differs, yet numbers do; batch order and hardware are not recorded.{caveat}"
    if equal:
        return f"Verdict: the runs differ in the {names}, but in no number.{caveat}"
    if len(different) > 1:
        return f"Verdict: the runs differ in the {names}; together these account for the rows that moved.{caveat}"
    differs = different[0].differs
    words = differs[0] if len(differs) == 1 else f"{differs[0]} (and {len(differs) - 1} more)"
    cause = "the moved rows are due to that"
    if names == "data":
        known = {row for rows in edited.values() for row in rows}
        others = {row.split()[-1] for change in changes for row in change.changed_rows} - known
        cause = "only rows that changed have moved"
        if others:
            cause = f"yet other rows moved too ({', '.join(sorted(others)[:8])})"
    return f"Verdict: the runs differ only in the {names}: {words}: {cause}.{caveat}"


# ---- metrics and rows ------------------------------------------------------------------------------------------------


def stored_rows(run: Path) -> dict[str, Rows]:
    path = run / "evidence" / "examples.json.gz"
    if not path.is_file():
        raise UserError(f"{run} has no evidence/examples.json.gz; give a whole run directory.")
    return load_rows(path)


def edited_rows(a: Path, b: Path, one: Manifest, other: Manifest) -> dict[str, list[str]]:
    """Data set -> rows whose text is not the same in both runs.

    Questions are compared as part of their prompts, so only where both runs wrap them in the same way.
    """
    same_prompt = one.get("prompt") is not None and one.get("prompt") == other.get("prompt")
    mine, theirs = stored_rows(a), stored_rows(b)
    edited: dict[str, list[str]] = {}
    for key, other_key in sorted(_common_data(one, other)):
        if key not in mine or other_key not in theirs:
            continue
        before, after = _row_texts(mine[key], same_prompt), _row_texts(theirs[other_key], same_prompt)
        rows = {row for row in before if row in after and before[row] != after[row]}
        if rows:
            name = mine[key].name
            edited[name] = sorted({*edited.get(name, []), *rows}, key=lambda row: (len(row), row))
    return edited


def _row_texts(rows: Rows, with_prompt: bool) -> dict[str, list[str]]:
    texts = {}
    for row in rows.examples:
        texts[row[0].index] = [e.answer + e.input_text if with_prompt else e.answer for e in row]
    return texts


def compare_metrics(a: Path, b: Path, one: Manifest, other: Manifest, only: Sequence[str] | None) -> list[MetricChange]:
    """Every metric both runs have, those asked for in both first."""
    mine, theirs = read_scores(result_file(a)), read_scores(result_file(b))
    asked = [name for name in one["config"]["top"] if name in other["config"]["top"]]
    names = [*asked, *sorted(name for name in mine if name in theirs and name not in asked)]
    if only is not None:
        wanted = [name if name in names else full_name(name) for name in only]
        for name in wanted:
            if name not in names:
                raise unknown_name("metric in both runs", name, names)
        names = wanted
    rows = stored_rows(a)
    changes = []
    for name in names:
        if name not in mine or name not in theirs:
            continue
        before, after = Score.from_json(mine[name]), Score.from_json(theirs[name])
        if before.curves is not None and after.curves is not None:
            changes += _compare_curves(name, before.curves, after.curves, name in asked)
            continue
        change = MetricChange(name, before.agg_value, after.agg_value, name in asked)
        _compare_rows(change, mine[name], theirs[name], one["config"]["metrics"].get(name, {}).get("rouge_type"))
        _add_questions(change, one, rows)
        changes.append(change)
    return changes


def _compare_curves(name: str, a: Mapping[str, Any], b: Mapping[str, Any], asked: bool) -> list[MetricChange]:
    """One entry for each metric of a trajectory, at the point where the two runs are farthest apart."""
    farthest: dict[str, MetricChange] = {}
    others = dict(_list_curves(b))
    for place, curve in _list_curves(a):
        *path, metric = place
        for step, (before, after) in enumerate(zip(curve, others.get(place, []), strict=False)):
            change = MetricChange(f"{name}: {metric} ({'/'.join(path)}, step {step})", before, after, asked)
            known = farthest.setdefault(metric, change)
            if abs(change.difference or 0) > abs(known.difference or 0):
                farthest[metric] = change
    return list(farthest.values())


def _list_curves(nested: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every curve with the names that lead to it: view (unless left out), trajectory, metric."""
    curves: list[tuple[tuple[str, ...], Any]] = []
    for key, value in nested.items():
        curves += _list_curves(value, (*path, key)) if isinstance(value, Mapping) else [((*path, key), value)]
    return curves


def _compare_rows(change: MetricChange, a: Mapping[str, Any], b: Mapping[str, Any], rouge: str | None) -> None:
    mine, theirs = _entries_by_row(a), _entries_by_row(b)
    for row, entry in mine.items():
        other = theirs.get(row, {})
        before, after = _row_value(entry, rouge), _row_value(other, rouge)
        if before is None or after is None:
            continue
        change.rows[row] = before, after
        texts = {"A": entry.get("generation"), "B": other.get("generation")}
        change.texts[row] = [f"{run} says: {text}" for run, text in texts.items() if isinstance(text, str)]


def _entries_by_row(score: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Per-row entries; those of an attack's two sets under "forget 3" and "holdout 3"."""
    if score.get("value_by_index"):
        return {str(row): entry for row, entry in score["value_by_index"].items()}
    entries = {}
    for key, part in sorted(score.items()):
        if isinstance(part, Mapping) and part.get("value_by_index"):
            for row, entry in part["value_by_index"].items():
                entries[f"{key} {row}"] = entry
    return entries


def _row_value(entry: Mapping[str, Any], rouge: str | None) -> float | None:
    fields = [rouge, *VALUE_FIELDS] if rouge else VALUE_FIELDS
    for name in fields:
        if name in entry:
            values = entry[name] if isinstance(entry[name], list) else [entry[name]]
            known = [value for value in values if value is not None]
            return mean(known) if known else None
    return None


def _add_questions(change: MetricChange, manifest: Manifest, stored: Mapping[str, Rows]) -> None:
    sources = _data_of(change.metric, manifest)
    for key in change.rows:
        access, _, index = key.rpartition(" ")
        rows = stored.get(sources.get(access) or next(iter(sources.values()), ""))
        for row in rows.examples if rows else ():
            if row[0].index == index:
                question = [f"question: {row[0].input_text.strip()}", f"answer: {row[0].answer}"]
                change.texts[key] = [*question, *change.texts.get(key, [])]
                break


def _data_of(metric: str, manifest: Manifest) -> dict[str, str]:
    """The data a metric reads; a metric made of parents reads what its first parent reads."""
    own = manifest["data_of"].get(metric)
    if own:
        return dict(own)
    for parent in manifest["config"]["metrics"].get(metric, {}).get("pre_compute") or {}:
        return _data_of(parent, manifest)
    return {}


def _scores_by_other_definition(a: Path, one: Manifest, other: Manifest, parts: Sequence[RunPart]) -> dict[str, float]:
    """A's numbers by B's dialect and settings, from A's evidence: what of the difference is the definition's alone.

    Metrics compared with a retain model are left out: their retain logs would have to be scored again as well.
    """
    if not any(part.name == "definition" and part.differs for part in parts):
        return {}
    metrics, theirs = one["config"]["metrics"], other["config"]["metrics"]
    settings: dict[str, dict[str, Any]] = {}
    for name in set(metrics) & set(theirs):
        for key in set(metrics[name]) & set(theirs[name]) - RESERVED:
            value = theirs[name][key]
            if metrics[name][key] != value and not isinstance(value, (dict, list)):
                settings.setdefault(name, {})[key] = value
    try:
        with hushed():  # what is missing there was printed when A was made
            dialect = dialect_for(one, other["dialect"]["name"], a)
            scores = stored_scores(a, suite_from_manifest(one, settings), dialect, {})
    except UserError:
        return {}  # the other definition needs other evidence
    values = {}
    for name, score in scores.items():
        if score.agg_value is not None and not metrics[name].get("reference_logs"):
            values[name] = score.agg_value
    return values


def _metrics_table(changes: Sequence[MetricChange], by_definition: Mapping[str, float]) -> str:
    heads = ["metric", "A", "B", "B - A", "rows moved"]
    if by_definition:
        heads.insert(2, "A by B's definition")
    rows = []
    for change in changes:
        count = f"{len(change.changed_rows)} of {len(change.rows)}" if change.rows else "-"
        row = [change.metric, number(change.a), number(change.b), number(change.difference), count]
        if by_definition:
            row.insert(2, number(by_definition.get(change.metric)))
        rows.append(row)
    return table(rows, heads, right=tuple(range(1, len(heads))))


def _row_lines(change: MetricChange, count: int, edited: Mapping[str, list[str]]) -> list[str]:
    """The rows that changed most, with their values and texts."""
    names = change.changed_rows
    if not names[:count]:
        return [f"{change.metric}: no row moved"]
    texts_changed = {row for rows in edited.values() for row in rows}
    cells = []
    for name in names[:count]:
        before, after = change.rows[name]
        mark = "text changed" if name.split()[-1] in texts_changed else ""
        cells.append([name, number(before), number(after), number(after - before), mark])
    head, line, *body = table(cells, ["row", "A", "B", "B - A", ""], right=(1, 2, 3)).splitlines()
    lines = [f"{change.metric}: {len(names)} of {len(change.rows)} rows moved, most of all:"]
    lines += [f"  {head}".rstrip(), f"  {line}".rstrip()]
    for name, values in zip(names, body, strict=False):
        lines.append(f"  {values}")
        for text in change.texts.get(name, []):
            flat = " ".join(text.split())
            if len(flat) > WIDTH:  # the middle is left out, because both ends of a prompt tell
                flat = f"{flat[: WIDTH // 3]} ... {flat[-(WIDTH - WIDTH // 3 - 5) :]}"
            lines.append(f"      {flat}")
    return lines
