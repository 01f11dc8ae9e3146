"""`vestige diff RUN_A RUN_B`: why two runs disagree. Each part of a run is compared by what its manifest says."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vestige.engine.stored import dialect_for, stored_scores, suite_from_manifest
from vestige.errors import UserError
from vestige.numeric import number
from vestige.results.moved import Moved, changed_rows, moved_metrics, show_moved
from vestige.show.tables import table
from vestige.store.kinds import read_manifest
from vestige.suites.spec import RESERVED

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class RunPart:
    """One part of a run: what differs in it, and what differs without being able to move a number."""

    name: str
    differs: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    known: bool = True  # False: the manifest does not record it


def diff(a: Path, b: Path, rows: int = 3, metrics: Sequence[str] | None = None) -> str:
    """The parts, the verdict, the metrics and the rows that moved most."""
    one, other = read_manifest(a), read_manifest(b)
    if one["config"]["suite"] != other["config"]["suite"]:
        raise UserError(f"{a} is a run of {one['config']['suite']}, {b} of {other['config']['suite']}: not comparable.")
    changed = changed_rows(a, b, one, other)
    parts = compare_parts(one, other, changed)
    moved = moved_metrics(a, b, one, other, metrics)
    body = [f"A: {a}", f"B: {b}", "", *_show_parts(parts), "", verdict(parts, moved, changed), ""]
    body += [_metrics_table(moved, _definition_share(a, one, other, parts))]
    for item in moved:
        if item.rows and (item.asked or metrics):
            body += ["", *show_moved(item, rows, changed)]
    return "\n".join(body)


def compare_parts(a: Manifest, b: Manifest, changed: Mapping[str, list[str]]) -> list[RunPart]:
    return [
        _model(a, b),
        _tokenizer(a, b),
        _template(a, b),
        _data(a, b, changed),
        _mask(a, b),
        _dtype(a, b),
        _library(a, b),
        _definition(a, b),
    ]


def _said(key: str, a: Any, b: Any) -> str:
    return f"{key}: {_short(a)} -> {_short(b)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}...{text[-17:]}"


def _keys(a: Mapping[str, Any], b: Mapping[str, Any], keys: Sequence[str] | None = None) -> tuple[str, ...]:
    """What differs between two mappings, key by key."""
    wanted = sorted({*a, *b}) if keys is None else keys
    return tuple(_said(k, a.get(k), b.get(k)) for k in wanted if a.get(k) != b.get(k))


def _model(a: Manifest, b: Manifest) -> RunPart:
    x, y = a["model"], b["model"]
    if x["fingerprint"] == y["fingerprint"]:
        names = (_said("name (same weights)", x["name"], y["name"]),) if x["name"] != y["name"] else ()
        return RunPart("model", harmless=names)
    return RunPart("model", (f"weights: {x['name']} ({x['fingerprint'][:8]}) -> {y['name']} ({y['fingerprint'][:8]})",))


def _tokenizer(a: Manifest, b: Manifest) -> RunPart:
    """Vocabulary and special tokens; the pad token belongs to the mask, the chat template to the template."""
    x, y = a.get("tokenizer"), b.get("tokenizer")
    if not x or not y:
        return RunPart("tokenizer", known=False)
    special = [{k: v for k, v in (t.get("special_tokens") or {}).items() if k != "pad_token"} for t in (x, y)]
    named = ("vocabulary", "pipeline")
    words = _keys({k: x[k][:8] for k in named}, {k: y[k][:8] for k in named})
    return RunPart("tokenizer", (*words, *_keys(special[0], special[1])))


def _template(a: Manifest, b: Manifest) -> RunPart:
    settings = _keys(a.get("template") or {}, b.get("template") or {})
    x, y = a.get("prompt"), b.get("prompt")
    if x is None or y is None:
        return RunPart("template", settings, known=bool(settings))
    if x == y:
        texts = [(m.get("tokenizer") or {}).get("chat_template") for m in (a, b)]
        other = (*settings, *(["chat template text (same prompt comes out)"] if texts[0] != texts[1] else []))
        return RunPart("template", harmless=other)
    return RunPart("template", (*settings, _prompt_difference(x, y)))


def _prompt_difference(a: str, b: str) -> str:
    """The stretch in which two prompts differ, with a little of what stands around it."""
    start = next((i for i, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), min(len(a), len(b)))
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    cut = max(0, start - 12)
    shown = [repr(t[cut : max(len(t) - end, start) + 12]) for t in (a, b)]
    return f"the prompt reads {_short(shown[0])} in A, {_short(shown[1])} in B"


def _data(a: Manifest, b: Manifest, changed: Mapping[str, list[str]]) -> RunPart:
    """Data sets that both runs' common metrics read, by the fingerprint of their rows and how they were read."""
    differs: dict[str, None] = {}
    harmless: dict[str, None] = {}
    for metric in sorted(set(a["data_of"]) & set(b["data_of"])):
        for access in sorted(set(a["data_of"][metric]) & set(b["data_of"][metric])):
            keys = a["data_of"][metric][access], b["data_of"][metric][access]
            if keys[0] not in a["data"] or keys[1] not in b["data"]:
                continue
            x, y = a["data"][keys[0]], b["data"][keys[1]]
            if x["rows"] != y["rows"]:
                differs[f"{x['name']}: {x['rows']} rows -> {y['rows']} rows"] = None
            elif changed.get(x["name"]):
                differs[f"{x['name']}: {_rows_changed(changed[x['name']])}"] = None
            elif x["fingerprint"] != y["fingerprint"]:
                harmless[f"{x['name']}: its file differs only in what is not read here"] = None
            elif keys[0] != keys[1]:
                differs[f"{x['name']}: same rows, read with other settings"] = None
    return RunPart("data", tuple(differs), tuple(harmless))


def _rows_changed(rows: Sequence[str]) -> str:
    shown = ", ".join(rows[:8]) + (", ..." if len(rows) > 8 else "")
    return f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} changed ({shown})"


def _mask(a: Manifest, b: Manifest) -> RunPart:
    """Which tokens attention does not see. A mask that hides nothing is like any other that hides nothing."""
    facts = [{"mask": m["dialect"]["mask"], "hides": _hidden_token(m)} for m in (a, b)]
    counts = {"answers with a hidden token": a["hidden_tokens"]}, {"answers with a hidden token": b["hidden_tokens"]}
    words = (*_keys(facts[0], facts[1]), *_keys(*counts))
    if not a["hidden_tokens"] and not b["hidden_tokens"]:
        return RunPart("mask", harmless=tuple(f"{w} (nothing is hidden in either)" for w in words))
    return RunPart("mask", words)


def _hidden_token(m: Manifest) -> str | None:
    """The token the mask hides: pad, or the end token without one (as open-unlearning sets it)."""
    if m["dialect"]["mask"] != "pad-id" or "tokenizer" not in m:
        return None
    special = m["tokenizer"].get("special_tokens") or {}
    token = special.get("pad_token") or special.get("eos_token")
    same = token == special.get("eos_token")
    return f"{token} (pad = eos)" if same else token


def _dtype(a: Manifest, b: Manifest) -> RunPart:
    x, y = a["model"], b["model"]
    if x["fingerprint"] == y["fingerprint"] and x["evidence"] == y["evidence"]:
        return RunPart("dtype")  # one identity: precision, attention and device are in it
    keys = ("dtype", "attention", "device", "quantization")
    if "dtype" not in x or "dtype" not in y:
        return RunPart("dtype", known=False)
    return RunPart("dtype", _keys(x, y, keys))


def _library(a: Manifest, b: Manifest) -> RunPart:
    return RunPart("library", _keys(a["versions"], b["versions"]))


def _definition(a: Manifest, b: Manifest) -> RunPart:
    """Dialect, settings of metrics, decoding, and what a metric is compared with."""
    out = list(_keys(_dialect(a), _dialect(b), ("dialect", "version")))
    x, y = a["config"]["metrics"], b["config"]["metrics"]
    seen: set[str] = set()
    for name in sorted(set(x) & set(y)):
        for key in sorted({*x[name], *y[name]} - {"datasets", "collators", "pre_compute", "reference_logs"}):
            if x[name].get(key) != y[name].get(key):
                out.append(_said(f"{name}.{key}", x[name].get(key), y[name].get(key)))
        paths = [sorted(str(r.get("path")) for r in m[name].get("reference_logs", {}).values()) for m in (x, y)]
        if paths[0] != paths[1] and not _same_files(*paths) and (words := _said("retain logs", *paths)) not in seen:
            seen.add(words)
            out.append(words)
    return RunPart("definition", tuple(out))


def _dialect(m: Manifest) -> dict[str, Any]:
    return {"dialect": m["dialect"]["name"], "version": m["dialect"]["version"]}


def _same_files(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether other paths hold the same bytes."""
    pairs = [(Path(p), Path(q)) for p, q in zip(a, b, strict=False)]
    return len(a) == len(b) and all(p.is_file() and q.is_file() and p.read_bytes() == q.read_bytes() for p, q in pairs)


def _show_parts(parts: Sequence[RunPart]) -> list[str]:
    rows = []
    for part in parts:
        words = [*part.differs, *(f"no effect: {h}" for h in part.harmless)]
        first = "not recorded" if not part.known else ("DIFFERS" if part.differs else "same")
        rows.append([part.name, first, words[0] if words else ""])
        rows += [["", "", w] for w in words[1:]]
    return table(rows, ["part", "", "what"]).splitlines()


def verdict(parts: Sequence[RunPart], moved: Sequence[Moved], changed: Mapping[str, list[str]]) -> str:
    """One sentence: what the disagreement is due to, as far as the manifests tell."""
    guilty = [p for p in parts if p.differs]
    still = all(m.difference in (0, None) and not m.moved_rows for m in moved)
    unknown = ", ".join(p.name for p in parts if not p.known)
    caveat = f" (Not recorded in both manifests: {unknown}.)" if unknown else ""
    if not guilty:
        if still:
            return f"Verdict: the runs are the same in every recorded part and in every number.{caveat}"
        return f"Verdict: no recorded part differs, yet numbers do; batch order and hardware are not recorded.{caveat}"
    names = " and ".join(p.name for p in guilty)
    if still:
        return f"Verdict: the runs differ in the {names}, but in no number.{caveat}"
    if len(guilty) > 1:
        return f"Verdict: the runs differ in the {names}; together these account for the rows that moved.{caveat}"
    words = guilty[0].differs[0] + (f" (and {len(guilty[0].differs) - 1} more)" if len(guilty[0].differs) > 1 else "")
    due = _due(guilty[0], moved, changed)
    return f"Verdict: the runs differ only in the {names}: {words}: {due}.{caveat}"


def _due(part: RunPart, moved: Sequence[Moved], changed: Mapping[str, list[str]]) -> str:
    if part.name != "data":
        return "the moved rows are due to that"
    indices = {i for rows in changed.values() for i in rows}
    strays = {i.split()[-1] for m in moved for i in m.moved_rows} - indices
    if strays:
        return f"yet other rows moved too ({', '.join(sorted(strays)[:8])})"
    return "only rows that changed have moved"


def _definition_share(a: Path, one: Manifest, other: Manifest, parts: Sequence[RunPart]) -> dict[str, float]:
    """A's numbers by B's dialect and settings, from A's evidence: what of the difference is the definition's alone.

    Metrics compared with a retain model are left out: their retain logs would have to be re-scored as well.
    """
    if not any(p.name == "definition" and p.differs for p in parts):
        return {}
    level = logging.getLogger("vestige").level
    logging.getLogger("vestige").setLevel(logging.ERROR)  # what is missing there was printed when A was made
    try:
        chosen = dialect_for(one, other["dialect"]["name"], a)
        scores = stored_scores(a, suite_from_manifest(one, _settings_of(one, other)), chosen, {})
    except UserError:
        return {}  # the other definition needs other evidence
    finally:
        logging.getLogger("vestige").setLevel(level)
    metrics = one["config"]["metrics"]
    return {
        name: s.agg_value
        for name, s in scores.items()
        if s.agg_value is not None and not metrics[name].get("reference_logs")
    }


def _settings_of(one: Manifest, other: Manifest) -> dict[str, dict[str, Any]]:
    """B's plain settings (k, aggregator, ...) of metrics that both have, where they are not A's."""
    x, y = one["config"]["metrics"], other["config"]["metrics"]
    out: dict[str, dict[str, Any]] = {}
    for name in set(x) & set(y):
        for key in set(x[name]) & set(y[name]) - RESERVED:
            if x[name][key] != y[name][key] and not isinstance(y[name][key], (dict, list)):
                out.setdefault(name, {})[key] = y[name][key]
    return out


def _metrics_table(moved: Sequence[Moved], by_definition: Mapping[str, float]) -> str:
    heads = ["metric", "A", "B", "B - A", "rows moved"]
    rows = []
    for m in moved:
        count = f"{len(m.moved_rows)} of {m.compared}" if m.compared else "-"
        row = [m.metric, number(m.a), number(m.b), number(m.difference), count]
        rows.append([*row[:2], number(by_definition.get(m.metric)), *row[2:]] if by_definition else row)
    if by_definition:
        heads.insert(2, "A by B's definition")
    return table(rows, heads, right=tuple(range(1, len(heads))))
