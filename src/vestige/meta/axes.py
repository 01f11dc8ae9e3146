"""The axes of a comparison of unlearning methods: Mem, MIA, Privacy, Utility, utility_rel, Overall.

First the formulas, pure numbers; then the rows of method_results.json: models with their parts and axes.

Every part lies between 0 and 1, and 1 is good: forgotten, private, useful. An axis is a harmonic mean of its parts, and
the published one has a weakness: a similarity that was cut off at 0 makes its axis 0, and the axes above it, whatever
the rest says (99 of 150 published models have an Overall of 0.000000). So every axis is available in two ways:

    published   parts as they are; 1e-12 keeps the division alive
    floored     a part below the floor counts as the floor, and the parts so raised are named

The floor is 0.05: about one standard error of a similarity of AUCs on 400 + 400 rows, so nothing that could be measured
is hidden. A floored axis is never below the floor, and orders models which the published one puts at 0 together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.io import number
from vestige.meta.pools import (
    ModelNumbers,
    Number,
    PoolFile,
    as_number,
    has_slots,
    read_file,
    same_protocol,
    with_similarities,
    without_settings,
)
from vestige.metrics.cards import schema_protocol
from vestige.numeric import total

# The published guard of harmonic means; also of the division by the full model's utility.
EPS = 1e-12
FLOOR = 0.05

MEM = ("one_minus_es", "one_minus_em", "one_minus_paraprob", "one_minus_truth")
MIA = ("s_loss", "s_zlib", "s_mink", "s_minkpp")
UTILITY = (
    "retain_q_prob", "retain_q_rouge", "retain_truth_ratio", "ra_q_prob", "ra_q_rouge", "ra_truth_ratio", "wf_q_prob",
    "wf_q_rouge", "wf_truth_ratio",
)  # fmt: skip
PARTS = (*MEM, *MIA, *UTILITY, "fluency", "uds")


@dataclass(frozen=True)
class Axis:
    """One axis as data: computing it, its formula in print and its label all come from here."""

    key: str
    label: str
    parts: tuple[str, ...]  # of PARTS, or axes above it in AXIS_TABLE
    way: str  # plain: harmonic mean; guarded: with 1e-12 in each part; relative: a share of the full model's


AXIS_TABLE = (
    Axis("mem", "Mem", MEM, "plain"),
    Axis("privacy_mia", "MIA", MIA, "guarded"),
    Axis("privacy", "Privacy", ("privacy_mia", "uds"), "guarded"),
    Axis("model_utility", "MU", UTILITY, "guarded"),
    Axis("utility", "Utility", ("model_utility", "fluency"), "guarded"),
    Axis("utility_rel", "Utility (rel.)", ("utility",), "relative"),
    Axis("overall", "Overall", ("mem", "privacy", "utility_rel"), "guarded"),
    Axis("overall_no_uds", "Overall without UDS", ("mem", "privacy_mia", "utility_rel"), "plain"),
)
AXES = tuple(axis.key for axis in AXIS_TABLE)

PART_LABELS: dict[str, str] = {
    "one_minus_es": "1 - ES",
    "one_minus_em": "1 - EM",
    "one_minus_paraprob": "1 - ParaProb",
    "one_minus_truth": "1 - Truth Ratio",
    "s_loss": "s_LOSS",
    "s_zlib": "s_ZLib",
    "s_mink": "s_Min-K",
    "s_minkpp": "s_Min-K++",
    "retain_q_prob": "Retain Prob",
    "retain_q_rouge": "Retain ROUGE",
    "retain_truth_ratio": "Retain Truth Ratio",
    "ra_q_prob": "Real Authors Prob",
    "ra_q_rouge": "Real Authors ROUGE",
    "ra_truth_ratio": "Real Authors Truth Ratio",
    "wf_q_prob": "World Facts Prob",
    "wf_q_rouge": "World Facts ROUGE",
    "wf_truth_ratio": "World Facts Truth Ratio",
    "fluency": "Fluency",
    "uds": "UDS",
}
LABELS: dict[str, str] = {**PART_LABELS, **{axis.key: axis.label for axis in AXIS_TABLE}}

Value = float | None


@dataclass(frozen=True)
class Axes:
    """All axes of one model. What has no value is None, and `reasons` says why."""

    mem: Value = None
    privacy_mia: Value = None
    privacy: Value = None
    model_utility: Value = None
    utility: Value = None
    utility_rel: Value = None
    overall: Value = None
    overall_no_uds: Value = None  # the same without the depth score: Mem, MIA, utility_rel
    floor: float | None = None  # None: as published
    floored: tuple[str, ...] = ()  # the parts that were raised to the floor
    fluent: bool = True  # False: Utility is the model utility alone
    reasons: Mapping[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, Value]:
        return {name: getattr(self, name) for name in AXES}


def guarded_mean(values: Sequence[float]) -> float:
    """The published harmonic mean: 1e-12 added to each part, so that a zero gives next to nothing, not an error.

    >>> round(guarded_mean([1.0, 0.5]), 6), guarded_mean([0.0, 1.0]) < 1e-11
    (0.666667, True)
    """
    return len(values) / total(1 / (v + EPS) for v in values)


def plain_mean(values: Sequence[float]) -> Value:
    """The harmonic mean without a guard; None when a part is not above 0, where it has no meaning.

    >>> plain_mean([0.5, 0.5]), plain_mean([0.0, 1.0])
    (0.5, None)
    """
    return None if min(values) <= 0 else len(values) / total(1 / v for v in values)


def _relative_utility(utility: float, full_utility: float) -> float:
    """Utility as a share of the full model's, not above 1: better than before unlearning is not rewarded.

    >>> round(_relative_utility(0.35, 0.7), 9), _relative_utility(0.8, 0.7)
    (0.5, 1.0)
    """
    return min(1.0, utility / (full_utility + EPS))


def axes(
    parts: Mapping[str, Value],
    full_utility: Value = None,
    floor: float | None = None,
    fluent: bool = True,
    full_reason: str = "the full model's utility is not known",
) -> Axes:
    """The axes of one model from its parts (PARTS); `floor` as in the module's text, None for the published way.

    `fluent`: whether fluency was measured in any of the models that are shown together. Where it was not, Utility is
    the model utility, by one definition for all of them. `full_reason`: why `full_utility` is None.
    """
    floored = []
    known: dict[str, Value] = {}  # parts, and the axes above in the table
    for part in PARTS:
        value = parts.get(part)
        # Parts only: an axis made of raised parts is above the floor already.
        if floor is not None and value is not None and value < floor:
            floored.append(part)
            value = floor
        known[part] = value
    reasons: dict[str, str] = {}
    for axis in AXIS_TABLE:
        used = [part for part in axis.parts if fluent or part != "fluency"]
        values = [value for part in used if (value := known[part]) is not None]
        result, reason = None, ""
        if len(values) < len(used):
            reason = _why_missing([part for part in used if known[part] is None], reasons)
        elif axis.way == "relative":
            reason = full_reason
            if full_utility is not None:
                result = _relative_utility(values[0], full_utility)
        # A part of 0 gives next to nothing here, and no value at all in a plain mean: both as published.
        elif axis.way == "guarded":
            result = guarded_mean(values)
        else:
            result = plain_mean(values)
            zeros = [part for part, value in zip(used, values, strict=True) if value <= 0]
            reason = f"{', '.join(zeros)} not above 0: the plain harmonic mean has no value"
        known[axis.key] = result
        if result is None:
            reasons[axis.key] = reason
    by_name = {axis: known[axis] for axis in AXES}
    return Axes(**by_name, floor=floor, floored=tuple(floored), fluent=fluent, reasons=reasons)


def _why_missing(missing: Sequence[str], reasons: Mapping[str, str]) -> str:
    """What was not measured; of an axis that is itself missing, what it lacks.

    >>> _why_missing(["one_minus_es", "one_minus_em", "utility"], {"utility": "no fluency"})
    'no one_minus_es, one_minus_em; no fluency'
    """
    parts = [p for p in missing if p not in reasons]
    own = [f"no {', '.join(parts)}"] if parts else []
    return "; ".join(dict.fromkeys([*own, *(reasons[p] for p in missing if p in reasons)]))


def formula(axis: Axis) -> str:
    """An axis in print.

    >>> formula(AXIS_TABLE[2]), formula(AXIS_TABLE[5])
    ('Privacy = HM(MIA, UDS)', 'Utility (rel.) = min(1, Utility / Utility of the full model)')
    """
    names = [LABELS[p] for p in axis.parts]
    if axis.way == "relative":
        return f"{axis.label} = min(1, {names[0]} / {names[0]} of the full model)"
    return f"{axis.label} = HM({', '.join(names)})"


WAYS = {
    "plain": "Harmonic mean; it has no value when a part is not above 0.",
    "guarded": f"Harmonic mean with {EPS:g} added to each part: a part that is 0 makes it 0.",
    "relative": "Not above 1: better than before unlearning is not rewarded.",
}


def definitions() -> list[dict[str, object]]:
    """Every axis in plain data, for pages and tables: nobody types a formula or a label a second time."""
    return [
        {"key": a.key, "label": a.label, "formula": formula(a), "parts": list(a.parts), "words": WAYS[a.way]}
        for a in AXIS_TABLE
    ]


def erased(rows: Sequence[Axes], below: float = 1e-6) -> int:
    """How many models have an Overall that is 0 to six decimals: those that one clipped part has erased."""
    return sum(1 for a in rows if a.overall is not None and a.overall < below)


# ---- rows of method_results.json ---------------------------------------------------------------------------------

METHOD_RESULTS = "method_results.json"
# Part of an axis -> the metric it comes from; Mem's parts are 1 - x.
SOURCES: dict[str, str] = {
    "one_minus_es": "es",
    "one_minus_em": "em",
    "one_minus_paraprob": "paraprob",
    "one_minus_truth": "truth_ratio",
    "s_loss": "s_mia_loss",
    "s_zlib": "s_mia_zlib",
    "s_mink": "s_mia_min_k",
    "s_minkpp": "s_mia_min_kpp",
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
EXTRA = ("logit_lens",)  # shown next to the axes, part of none
REFERENCES = ("full", "retain")
UDS_ENDS = {"retain": 1.0, "full": 0.0}  # by the depth score's definition; nothing has to be measured
WITHOUT_FLUENCY = (
    "fluency was not measured: Utility is model_utility, and utility_rel is model_utility / the full model's"
)


@dataclass(frozen=True)
class MethodRow:
    """One row: a model, its parts, its axes in both ways."""

    name: str
    parts: Mapping[str, Value]
    published: Axes
    floored: Axes
    facts: Mapping[str, Any] = field(default_factory=dict)  # epoch, method, alpha, lr, is_reference, logit_lens

    @property
    def is_counted(self) -> bool:
        """Whether the row counts as a model of its method."""
        return bool(self.facts.get("method")) and not self.facts.get("is_reference")


@dataclass(frozen=True)
class Methods:
    """All rows, the full model's utility by epoch, and the protocol of every part."""

    rows: tuple[MethodRow, ...]
    full_utility: Mapping[str, Value]
    protocols: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    full_model_utility: Mapping[str, Value] = field(default_factory=dict)  # by epoch, without fluency
    read: tuple[Path, ...] = ()  # every file a number came from

    @property
    def fallback(self) -> str:
        """That Utility is another number than in published tables; empty where it is the same."""
        plain = any(not row.published.fluent and row.published.utility is not None for row in self.rows)
        return WITHOUT_FLUENCY if plain else ""

    @property
    def method_counts(self) -> dict[str, int]:
        return dict(Counter(str(row.facts["method"]) for row in self.rows if row.is_counted))

    @property
    def erased(self) -> int:
        return erased([row.published for row in self.rows])


def _numbers_of_parts(model: ModelNumbers) -> dict[str, Number]:
    """The numbers that the parts of the axes come from, where they have a value."""
    out: dict[str, Number] = {}
    for part, metric in SOURCES.items():
        for name in ("fluency", metric) if part == "fluency" else (metric,):
            measured = model.numbers.get(name)
            if measured is not None and measured.value is not None:
                out.setdefault(part, measured)
    return out


def parts_of(model: ModelNumbers) -> dict[str, Value]:
    """A model's numbers as parts of axes: each 1 when all is well."""
    out: dict[str, Value] = dict.fromkeys(SOURCES)
    for part, measured in _numbers_of_parts(model).items():
        assert measured.value is not None
        out[part] = 1 - measured.value if part in MEM else measured.value
    return out


def from_models(
    models: Sequence[ModelNumbers], full: Mapping[str, ModelNumbers], retain: ModelNumbers | None, floor: float = FLOOR
) -> Methods:
    """Rows from models' numbers. `full` by epoch; the entry "" serves every epoch."""
    models = [with_similarities(model, retain) for model in models]
    everyone = [*models, *full.values()]
    protocols = _protocols(everyone)
    # Fluency is a part of Utility only where one of the models that are shown together has it.
    fluent = any(parts_of(model)["fluency"] is not None for model in everyone)
    full_axes = {epoch: axes(parts_of(model), fluent=fluent) for epoch, model in full.items()}
    rows = []
    for model in models:
        parts = parts_of(model)
        # Utility is a share of the full model's that was trained for as many epochs.
        theirs = full_axes.get(str(model.facts.get("epoch", "")), full_axes.get(""))
        why = "no full model is named"
        if theirs is not None:
            why = f"the full model has no Utility ({theirs.reasons.get('utility', '')})"
        full_utility = theirs.utility if theirs else None
        published = axes(parts, full_utility, None, fluent, why)
        floored = axes(parts, full_utility, floor, fluent, why)
        extra = {name: model.value(name) for name in EXTRA if name in model.numbers}
        rows.append(MethodRow(model.name, parts, published, floored, {**model.facts, **extra}))
    utility = {epoch: one.utility for epoch, one in full_axes.items()}
    plain = {epoch: one.model_utility for epoch, one in full_axes.items()}
    return Methods(tuple(rows), utility, protocols, full_model_utility=plain)


def _protocols(models: Sequence[ModelNumbers]) -> dict[str, str]:
    """Each part's protocol; two protocols in one part, or in one axis, are refused. Privacy and Overall join axes of
    different kinds, and say of which."""
    by_part: dict[str, dict[str, Number]] = {}
    for i, model in enumerate(models):
        for part, measured in _numbers_of_parts(model).items():
            numbers = by_part.setdefault(part, {})
            # Models of several epochs may share a name.
            numbers[model.name if model.name not in numbers else f"{model.name} ({i})"] = measured
    protocols = {part: same_protocol(by_part[part], SOURCES[part]) for part in SOURCES if part in by_part}
    for axis, parts in (("Mem", MEM), ("MIA", MIA), ("Utility", (*UTILITY, "fluency"))):
        kinds: dict[str, str] = {}
        for part in parts:
            if part in protocols:
                kinds.setdefault(without_settings(protocols[part]), part)
        if len(kinds) > 1:
            (a, first), (b, second) = list(kinds.items())[:2]
            raise UserError(
                f"{axis} would mix protocols: {first} is '{a}', {second} is '{b}'; measure both in the same way "
                "(numbers without a manifest: write `protocol:` in the file)."
            )
    return protocols


def read_methods(path: Path, floor: float = FLOOR) -> Methods:
    """A YAML file with `models`, `retain` and `full` (one, or one for each epoch)."""
    file = PoolFile(path, ("models",))
    retain = file.retain_model()
    models = []
    for model in file.models("models"):
        # Only a name in the published form (it ends in its epoch) is taken to say anything of the model.
        in_name = facts_of(model.name)
        models.append(replace(model, facts={**(in_name if "epoch" in in_name else {}), **model.facts}))
    entry = file.body.get("full")
    full: dict[str, ModelNumbers] = {}
    by_epoch = entry if isinstance(entry, Mapping) and not has_slots(entry) else {}
    if by_epoch and not any(isinstance(value, (int, float)) for value in by_epoch.values()):
        full = {str(epoch): file.model_state(slot, f"full ({epoch})") for epoch, slot in by_epoch.items()}
    elif entry is not None:
        full = {"": file.model_state(entry, "full")}
    return replace(from_models(models, full, retain, floor), read=file.read)


def facts_of(name: str) -> dict[str, Any]:
    """What a model's folder name says: its method, learning rate, alpha and, in the published form, its epoch.

    >>> facts_of("npo_lr2e5_b01_a5_ep10")
    {'method': 'npo', 'alpha': 5, 'lr': 2e-05, 'is_reference': False, 'epoch': 'ep10'}
    """
    method, *rest = name.split("_")
    facts: dict[str, Any] = {"method": method, "alpha": None, "lr": None, "is_reference": name in REFERENCES}
    for word in reversed(rest):  # of several such words the first counts
        base, _, power = word.removeprefix("lr").partition("e")
        if word.startswith("lr"):
            facts["lr"] = float(f"{base}e-{power}") if base.isdigit() and power.isdigit() else None
        elif word[:1] == "a" and word[1:].isdigit():
            facts["alpha"] = int(word[1:])
    if rest and rest[-1][:2] == "ep" and rest[-1][2:].isdigit():
        facts["epoch"] = rest[-1]
    return facts


def hidden_rows(rows: Sequence[MethodRow]) -> list[str]:
    """A note on rows that the depth score's dashboard would not show: it shows a model by its epoch and its method."""
    names = []
    keys = set()
    for row in rows:
        missing = [key for key in ("epoch", "method") if not row.facts.get(key)]
        if missing and not row.facts.get("is_reference"):
            names.append(row.name)
            keys.update(missing)
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [
        "the depth score's dashboard shows only models with an epoch (ep5 or ep10) and a method: "
        f"{', '.join(names[:3])}{more} would be hidden; add {' and '.join(sorted(keys))} to their entries, as in "
        "{model: npo, method: npo, epoch: ep10}"
    ]


# ---- method_results.json -----------------------------------------------------------------------------------------

_OURS = ("floored", "floored_parts", "reasons")  # what our files add to a row


def from_results(data: Mapping[str, Any], where: str, floor: float = FLOOR) -> Methods:
    """A method_results.json, ours or published: its parts are taken, its axes computed again."""
    stored = data.get("models")
    if not isinstance(stored, list) or not all(isinstance(r, Mapping) and "model" in r for r in stored):
        raise UserError(f"{where} is not a method_results.json: it has no list of models with a name each.")
    all_parts = []
    for r in stored:
        all_parts.append({part: as_number(r.get(part), f"{part} of {r['model']} in {where}") for part in PARTS})
    fluent = any(parts["fluency"] is not None for parts in all_parts)
    utility = _by_epoch(data, "full_utility" if fluent else "full_model_utility", where)
    rows, notes = [], []
    for r, parts in zip(stored, all_parts, strict=True):
        name = str(r["model"])
        # Whatever else a row has (alpha, lr, logit_lens, ...) goes through unchanged.
        facts = {key: value for key, value in r.items() if key not in (*PARTS, *AXES, "model", *_OURS)}
        full_utility = utility.get(str(r.get("epoch", "")), utility.get(""))
        row = MethodRow(
            name, parts, axes(parts, full_utility, None, fluent), axes(parts, full_utility, floor, fluent), facts
        )
        rows.append(row)
        for axis, value in row.published.values().items():
            # Axes are computed again from the parts; a note names a file whose axes do not follow from them.
            old = as_number(r.get(axis), f"{axis} of {name} in {where}")
            if old is not None and value is not None and abs(old - value) > 1e-9:
                notes.append(f"{axis} of {name} is {old:.6g} in the file, {value:.6g} from its parts")
    protocols = data.get("protocols")
    stated = {str(k): str(v) for k, v in protocols.items()} if isinstance(protocols, Mapping) else {}
    return Methods(tuple(rows), utility, stated or dict(SCHEMA_PROTOCOLS), tuple(notes))


def _by_epoch(data: Mapping[str, Any], key: str, where: str) -> dict[str, Value]:
    """The full model's utility by epoch; a file without one leaves every utility_rel without a value."""
    values = data.get(key) or {}
    if not isinstance(values, Mapping):
        raise UserError(f"{where}: {key} must hold a number for each epoch, it is {values!r}.")
    return {str(epoch): as_number(value, f"{key} of {epoch} in {where}") for epoch, value in values.items()}


def read_method_results(path: Path, floor: float = FLOOR) -> Methods:
    return replace(from_results(read_file(path), str(path), floor), read=(path,))


def read_utility(path: Path) -> tuple[dict[str, Value], str]:
    """utility_rel of every model that is not a reference, as a method_results.json states it, and of what it is made.

    The stated value is taken where there is one: published filters use it, and it need not be computable here.
    """
    data = read_file(path)
    methods = from_results(data, str(path))
    out: dict[str, Value] = {}
    for stored, row in zip(data["models"], methods.rows, strict=True):
        if not stored.get("is_reference"):
            stated = number(stored.get("utility_rel"))
            out[row.name] = row.published.utility_rel if stated is None else stated
    return out, methods.fallback


def method_results_json(methods: Methods, floor: float, sources: Mapping[str, Any]) -> dict[str, Any]:
    """The file in the published schema, with the floored axes and the reasons for what is missing next to it."""
    rows = []
    for row in methods.rows:
        facts = {"epoch": None, "method": None, "alpha": None, "lr": None, "is_reference": False, **row.facts}
        out: dict[str, Any] = {"model": row.name, **facts, **row.parts, **row.published.values()}
        out["floored"] = row.floored.values()
        out["floored_parts"] = list(row.floored.floored)
        if row.published.reasons:
            out["reasons"] = dict(row.published.reasons)
        rows.append(out)
    return {
        "models": rows,
        "method_counts": methods.method_counts,
        "full_utility": dict(methods.full_utility),
        "full_model_utility": dict(methods.full_model_utility),
        "protocols": dict(methods.protocols),
        "floor": floor,
        "erased": {"published": methods.erased, "of": len(methods.rows)},
        "notes": [*methods.notes, *([methods.fallback] if methods.fallback else [])],
        "data_sources": dict(sources),
    }
