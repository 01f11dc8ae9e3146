"""Rows of method_results.json: one model, its parts and its axes, from runs, from a result tree or from such a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from vestige.errors import UserError
from vestige.meta.axes import AXES, FLOOR, MEM, MIA, PARTS, UTILITY, Axes, axes
from vestige.meta.numbers import ModelNumbers, Number, same_protocol, with_similarities, without_settings
from vestige.meta.pools import PoolFile, has_slots, read_pool_file
from vestige.metrics.cards import schema_protocol
from vestige.schema import check_form

# Part of an axis -> the metric it comes from; Mem's parts are 1 - x.
SOURCES: dict[str, str] = {
    **dict(zip(MEM, ("es", "em", "paraprob", "truth_ratio"), strict=True)),
    **dict(zip(MIA, ("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp"), strict=True)),
    "retain_q_prob": "retain_Q_A_Prob",
    "retain_q_rouge": "retain_Q_A_ROUGE",
    "retain_truth_ratio": "retain_Truth_Ratio",
    "ra_q_prob": "ra_Q_A_Prob_normalised",
    "ra_q_rouge": "ra_Q_A_ROUGE",
    "ra_truth_ratio": "ra_Truth_Ratio",
    "wf_q_prob": "wf_Q_A_Prob_normalised",
    "wf_q_rouge": "wf_Q_A_ROUGE",
    "wf_truth_ratio": "wf_Truth_Ratio",
    "fluency": "forget_Q_A_gibberish",
    "uds": "uds",
}
SCHEMA_PROTOCOLS = {part: schema_protocol(metric) for part, metric in SOURCES.items()}
EXTRA = ("logit_lens",)  # shown beside the axes, part of none
REFERENCES = ("full", "retain")
UDS_ENDS = {"retain": 1.0, "full": 0.0}  # by the depth score's definition; nothing has to be measured


@dataclass(frozen=True)
class MethodRow:
    """One row: a model, its parts, its axes in both ways."""

    name: str
    parts: Mapping[str, float | None]
    published: Axes
    floored: Axes
    facts: Mapping[str, Any] = field(default_factory=dict)  # epoch, method, alpha, lr, is_reference, logit_lens


@dataclass(frozen=True)
class Methods:
    """All rows, the full model's utility by epoch, and the protocol of every part."""

    rows: tuple[MethodRow, ...]
    full_utility: Mapping[str, float | None]
    protocols: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    full_model_utility: Mapping[str, float | None] = field(default_factory=dict)  # by epoch, without fluency
    read: tuple[Path, ...] = ()  # every file a number came from

    @property
    def fallback(self) -> str:
        """That Utility is another number than in published tables; empty where it is the same."""
        plain = any(not row.published.fluent and row.published.utility is not None for row in self.rows)
        return WITHOUT_FLUENCY if plain else ""


WITHOUT_FLUENCY = (
    "fluency was not measured: Utility is model_utility, and utility_rel is model_utility / the full model's"
)


def has_fluency(parts: Iterable[Mapping[str, float | None]]) -> bool:
    """Whether any of the models that are shown together has a fluency; only then it is a part of Utility."""
    return any(own.get("fluency") is not None for own in parts)


def parts_of(model: ModelNumbers) -> dict[str, float | None]:
    """A model's numbers as parts of axes: each 1 when all is well."""
    out: dict[str, float | None] = {}
    for part, metric in SOURCES.items():
        value = model.value(metric) if part != "fluency" else _fluency(model)
        out[part] = None if value is None else 1 - value if part in MEM else value
    return out


def _fluent(model: ModelNumbers) -> Number | None:
    there = (model.numbers.get(n) for n in ("fluency", SOURCES["fluency"]))
    return next((n for n in there if n is not None and n.value is not None), None)


def _fluency(model: ModelNumbers) -> float | None:
    found = _fluent(model)
    return None if found is None else found.value


def from_models(
    models: Sequence[ModelNumbers], full: Mapping[str, ModelNumbers], retain: ModelNumbers | None, floor: float = FLOOR
) -> Methods:
    """Rows from models' numbers. `full` by epoch; the entry "" serves every epoch."""
    done = [with_similarities(m, retain) for m in models]
    protocols = _protocols([*done, *full.values()])
    fluent = has_fluency(parts_of(m) for m in (*done, *full.values()))
    of_full = {epoch: axes(parts_of(m), fluent=fluent) for epoch, m in full.items()}
    utility = {epoch: a.utility for epoch, a in of_full.items()}
    rows = []
    for m in done:
        epoch, parts = str(m.facts.get("epoch", "")), parts_of(m)
        theirs = of_full.get(epoch, of_full.get(""))
        if theirs is None:
            why = "no full model is named"
        else:
            why = f"the full model has no Utility ({theirs.reasons.get('utility', '')})"
        both = [axes(parts, theirs.utility if theirs else None, least, fluent, why) for least in (None, floor)]
        extra = {k: m.value(k) for k in EXTRA if k in m.numbers}
        rows.append(MethodRow(m.name, parts, both[0], both[1], {**m.facts, **extra}))
    plain = {epoch: a.model_utility for epoch, a in of_full.items()}
    return Methods(tuple(rows), utility, protocols, full_model_utility=plain)


def _protocols(models: Sequence[ModelNumbers]) -> dict[str, str]:
    """Each part's protocol; two protocols in one part, or in one axis, are refused. Privacy and Overall join axes of
    different kinds, and say of which."""
    out = {}
    for part, metric in SOURCES.items():
        numbers: dict[str, Number] = {}
        for i, m in enumerate(models):
            found = _fluent(m) if part == "fluency" else m.numbers.get(metric)
            if found is not None and found.value is not None:
                numbers[m.name if m.name not in numbers else f"{m.name} ({i})"] = found
        if numbers:
            out[part] = same_protocol(numbers, metric)
    for axis, parts in (("Mem", MEM), ("MIA", MIA), ("Utility", (*UTILITY, "fluency"))):
        _one_kind(axis, {p: out[p] for p in parts if p in out})
    return out


def _one_kind(axis: str, protocols: Mapping[str, str]) -> None:
    seen: dict[str, str] = {}
    for part, protocol in protocols.items():
        seen.setdefault(without_settings(protocol), part)
    if len(seen) > 1:
        (a, first), (b, second) = list(seen.items())[:2]
        raise UserError(
            f"{axis} would mix protocols: {first} is '{a}', {second} is '{b}'; measure both in the same way (numbers "
            "without a manifest: write `protocol:` in the file)."
        )


def read_methods(path: Path, floor: float = FLOOR) -> Methods:
    """A YAML file with `models`, `retain` and `full` (one, or one for each epoch)."""
    file = read_pool_file(path, ("models",))
    retain = file.slot(file.body["retain"], "retain") if "retain" in file.body else None
    models = [replace(m, facts={**_facts_in(m.name), **m.facts}) for m in file.models("models")]
    return replace(from_models(models, _full(file), retain, floor), read=tuple(file.read))


def facts_of(name: str) -> dict[str, Any]:
    """What a model's folder name says: its method, learning rate and alpha.

    >>> facts_of("npo_lr2e5_b01_a5_ep10")
    {'method': 'npo', 'alpha': 5, 'lr': 2e-05, 'is_reference': False}
    """
    method, *rest = name.split("_")
    lr = next((p[2:] for p in rest if p.startswith("lr")), "")
    alpha = next((p[1:] for p in rest if p[:1] == "a" and p[1:].isdigit()), "")
    base, _, power = lr.partition("e")
    return {
        "method": method,
        "alpha": int(alpha) if alpha else None,
        "lr": float(f"{base}e-{power}") if base.isdigit() and power.isdigit() else None,
        "is_reference": name in REFERENCES,
    }


def _facts_in(name: str) -> dict[str, Any]:
    """The same with the epoch, for names in the published form; any other name says nothing.

    >>> _facts_in("npo_lr2e5_b01_a5_ep10")["epoch"], _facts_in("my_model")
    ('ep10', {})
    """
    last = name.rpartition("_")[2]
    return {"epoch": last, **facts_of(name)} if last[:2] == "ep" and last[2:].isdigit() and last != name else {}


def hidden(rows: Sequence[MethodRow]) -> list[str]:
    """Which rows the depth score's dashboard would not show: it shows a model by its epoch and its method."""
    lacking = {
        r.name: [k for k in ("epoch", "method") if not r.facts.get(k)]
        for r in rows
        if not r.facts.get("is_reference") and not (r.facts.get("epoch") and r.facts.get("method"))
    }
    if not lacking:
        return []
    keys = sorted({k for missing in lacking.values() for k in missing})
    names = f"{', '.join(list(lacking)[:3])}{f' and {len(lacking) - 3} more' if len(lacking) > 3 else ''}"
    return [
        "the depth score's dashboard shows only models with an epoch (ep5 or ep10) and a method: "
        f"{names} would be hidden; add {' and '.join(keys)} to their entries, as in "
        "{model: npo, method: npo, epoch: ep10}"
    ]


def _full(file: PoolFile) -> dict[str, ModelNumbers]:
    entry = file.body.get("full")
    if entry is None:
        return {}
    plain = not isinstance(entry, Mapping) or has_slots(entry)
    if not plain and not any(isinstance(v, (int, float)) for v in entry.values()):
        return {str(epoch): file.slot(slot, f"full ({epoch})") for epoch, slot in entry.items()}
    return {"": file.slot(entry, "full")}


# A row of method_results.json beside its parts, which are checked one by one.
_RowForm = TypedDict("_RowForm", dict.fromkeys(AXES, float | None), total=False)  # type: ignore[misc]


class _Form(TypedDict, total=False):
    models: list[_RowForm]
    full_utility: dict[str, float | None] | None
    full_model_utility: dict[str, float | None] | None
    protocols: dict[str, Any] | None


def from_results(data: Mapping[str, Any], where: str, floor: float = FLOOR) -> Methods:
    """A method_results.json, ours or published: its parts are taken, its axes computed again."""
    rows = data.get("models")
    if not isinstance(rows, list) or not all(isinstance(r, Mapping) and "model" in r for r in rows):
        raise UserError(f"{where} is not a method_results.json: it has no list of models with a name each.")
    check_form(data, _Form, where)
    all_parts = [{p: _part(r.get(p), p, str(r["model"]), where) for p in PARTS} for r in rows]
    fluent = has_fluency(all_parts)
    utility = {str(k): v for k, v in (data.get("full_utility" if fluent else "full_model_utility") or {}).items()}
    out, notes = [], []
    for r, parts in zip(rows, all_parts, strict=True):
        facts = {k: v for k, v in r.items() if k not in (*PARTS, *AXES, "model", *_OURS)}
        full_utility = utility.get(str(r.get("epoch", "")), utility.get(""))
        both = [axes(parts, full_utility, least, fluent) for least in (None, floor)]
        row = MethodRow(str(r["model"]), parts, both[0], both[1], facts)
        notes += _disagreements(r, row)
        out.append(row)
    stated = {str(k): str(v) for k, v in (data.get("protocols") or {}).items()}
    return Methods(tuple(out), utility, stated or dict(SCHEMA_PROTOCOLS), tuple(notes))


_OURS = ("floored", "floored_parts", "reasons")  # what our files add to a row


def _part(value: Any, part: str, model: str, where: str) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise UserError(f"{where}: {part} of {model} is {value!r}; write a number or null.")
    return None if value is None or value != value else float(value)


def _disagreements(stored: Mapping[str, Any], row: MethodRow, tolerance: float = 1e-9) -> list[str]:
    """Axes that the file has otherwise than its own parts give."""
    out = []
    for axis, value in row.published.values().items():
        old = stored.get(axis)
        if old is not None and value is not None and abs(old - value) > tolerance:
            out.append(f"{axis} of {row.name} is {old:.6g} in the file, {value:.6g} from its parts")
    return out


def row_json(row: MethodRow) -> dict[str, Any]:
    """A row in the published schema, with the floored axes and the reasons for what is missing beside it."""
    facts = {"epoch": None, "method": None, "alpha": None, "lr": None, "is_reference": False, **row.facts}
    out: dict[str, Any] = {"model": row.name, **facts, **row.parts, **row.published.values()}
    out["floored"] = row.floored.values()
    out["floored_parts"] = list(row.floored.floored)
    if row.published.reasons:
        out["reasons"] = dict(row.published.reasons)
    return out


assert set(SOURCES) == set(PARTS) and set(UTILITY) < set(PARTS)
