"""The models of a report: which there are, what role each has, and every number that is known of one.

A model that occurs in several runs is one model: by its weights, else by its name. Its values come from evaluations,
depth runs and the published tables; axes are computed from them by the formulas of the published tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.meta.axes import (
    AXES,
    EXTRA,
    PARTS,
    REFERENCES,
    SCHEMA_PROTOCOLS,
    SOURCES,
    UDS_ENDS,
    WITHOUT_FLUENCY,
    MethodRow,
    Methods,
    facts_of,
    from_models,
)
from vestige.meta.pools import ModelNumbers, Number
from vestige.metrics.cards import reading, schema_protocol, short
from vestige.report.gather import DepthRun, Evaluation, FoundRuns, Json, StressRun, finite
from vestige.runs.run import protocol_of
from vestige.show.tables import own_interval
from vestige.stress.attacks import attack_named
from vestige.types import MIXTURE, short_id
from vestige.verdict.points import layers_in_words

# Last parts of paths that name no model: the part before them does.
GENERIC = re.compile(r"^(checkpoint(-\d+)?|model|final|last|best|merged|[0-9a-f]{40})$")
# A checkpoint as its makers name it, with nothing added: nobody made it forget.
BASE_NAME = re.compile(r"[A-Za-z]+[-A-Za-z0-9.]*-\d+(\.\d+)?[BM](-(Instruct|Chat|it|hf|Base|v[\d.]+))*", re.I)
ROLE_WORDS = {"retain": ("retain",), "full": ("full", "before", "original", "finetuned", "pretrained")}
AUDIT_FOLDERS = {"before": "full", "after": "unlearned"}  # the folders that `vestige audit` makes

SHOWN_FLOORED = ("privacy", "overall")  # floored axes worth a column: those that one clipped part erases
OF_UTILITY = ("utility", "utility_rel", "overall", "overall_no_uds")
COLUMNS = (
    "overall", "overall_floored", "mem", "privacy", "privacy_mia", "uds", "utility_rel", "utility", "model_utility",
    "fluency", "one_minus_es", "one_minus_em", "one_minus_paraprob", "one_minus_truth", "s_loss", "s_zlib", "s_mink",
    "s_minkpp", "logit_lens", "overall_no_uds", "privacy_floored",
)  # fmt: skip
METHOD_FACTS = ("method", "epoch", "is_reference", *EXTRA)

# ---- which models there are ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelMention:
    """A model as one run names it."""

    name: str
    path: str = ""
    weights: str = ""  # fingerprint; of a quantised model with the bits: 3f9e3a7a-4bit
    role: str = ""  # only where the run says so
    family: str = ""  # what tells families apart: suite and tokenizer


@dataclass(eq=False)
class ReportModel:
    """A model of the report, with the runs that belong to it."""

    id: str
    name: str
    weights: str
    path: str
    role: str = ""
    method: str | None = None
    epoch: str | None = None
    settings: Json = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)
    families: set[str] = field(default_factory=set)
    sources: list[str] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    depth: DepthRun | None = None
    attacks: list[tuple[StressRun, dict[str, ReportModel]]] = field(default_factory=list)  # with model and control
    links: dict[str, ReportModel] = field(default_factory=dict)  # role -> its reference, as a run says
    copies: dict[str, ReportModel] = field(default_factory=dict)  # attack -> the attacked copy, evaluated by itself

    @property
    def plain_evaluations(self) -> list[Evaluation]:
        """Those with one number a metric, not curves."""
        return [run for run in self.evaluations if not run.is_trajectory]

    def value(self, metric: str) -> float | None:
        v: float | None = self.values.get(metric, {}).get("v")
        return v

    def to_json(self) -> Json:
        keys = ("id", "name", "role", "method", "epoch", "settings", "provenance", "values")
        return {key: getattr(self, key) for key in keys}


class Models:
    """The models registered so far."""

    def __init__(self) -> None:
        self.all: list[ReportModel] = []
        self.retains: list[ReportModel] = []  # several that the user names: models of other training seeds
        self.attack_facts: dict[str, Json] = {}  # of attacks on copies that were evaluated by themselves

    def register(self, mention: ModelMention, source: str) -> ReportModel:
        """The model that a run names: one that is known already, or a new one."""
        model = self._find(mention) or self._add(mention)
        model.role = model.role or mention.role
        model.path = model.path or mention.path
        if mention.family:
            model.families.add(mention.family)
        if source not in model.sources:
            model.sources.append(source)
        return model

    def by_id(self, id: str | None) -> ReportModel | None:
        return next((model for model in self.all if model.id == id), None)

    def _find(self, mention: ModelMention) -> ReportModel | None:
        if mention.weights:
            for model in self.all:
                if model.weights == mention.weights:
                    return model
        # A name is enough only where one of the two sides does not know weights, and the name is not ambiguous.
        same_name = [m for m in self.all if m.name == mention.name and not (m.weights and mention.weights)]
        return same_name[0] if len(same_name) == 1 else None

    def _add(self, mention: ModelMention) -> ReportModel:
        name = mention.name
        taken = {model.name for model in self.all}
        if name in taken and mention.path:
            name = longer_name(mention.path)
        if name in taken:
            name = f"{mention.name} ({(mention.weights or str(len(taken)))[:6]})"
        model = ReportModel(short_id("m", mention.weights or name), name, mention.weights, mention.path)
        told = facts_of(mention.name)
        if told["lr"] is not None:  # a name such as npo_lr2e5_b01_a5_ep10 says how the model was made
            model.method = told["method"]
            model.epoch = next((part for part in mention.name.split("_") if re.fullmatch(r"ep\d+", part)), None)
            model.settings = {key: told[key] for key in ("lr", "alpha") if told[key] is not None}
        self.all.append(model)
        return model

    def assign_roles(self, full: Sequence[str], retain: Sequence[str], unlearned: Sequence[str] = ()) -> None:
        """Roles as the user says, else as runs said, else by name; whatever is left was made to forget."""
        for role, names in (("full", full), ("retain", retain), ("unlearned", unlearned)):
            named = [self._named(name) for name in names]
            for model in named:
                model.role = role
            if role == "retain" and len(set(named)) > 1:
                self.retains = list(dict.fromkeys(named))
        for model in self.all:
            model.role = model.role or role_by_name(model.name)

    def _named(self, name: str) -> ReportModel:
        for model in self.all:
            if name in (model.name, model.id, model.path) or name_of(name) == model.name:
                return model
        raise unknown_name("model of these runs", name, [model.name for model in self.all])

    def reference(self, model: ReportModel, role: str) -> ReportModel | None:
        """The full (or retain) model to hold a model against: the one that a run names, else the one of its family."""
        if role in model.links:
            return model.links[role]
        candidates = [m for m in self.all if m.role == role and m is not model]
        for candidate in candidates:
            if candidate.families & model.families:
                return candidate
        loose = [m for m in candidates if not m.families or not model.families]
        return loose[0] if len(loose) == 1 else None


def role_by_name(name: str) -> str:
    """
    >>> role_by_name("tofu_retain90"), role_by_name("Full"), role_by_name("npo_lr2e5")
    ('retain', 'full', 'unlearned')
    >>> role_by_name("Llama-3.2-1B-Instruct"), role_by_name("base"), role_by_name("Llama-3.2-1B-Instruct_NPO")
    ('other', 'other', 'unlearned')
    """
    words = re.split(r"[^a-z]+", name.lower())
    for role, telling in ROLE_WORDS.items():
        if any(word in telling for word in words):
            return role
    return "other" if "base" in words or BASE_NAME.fullmatch(name) else "unlearned"


def name_of(path: str) -> str:
    """The name of a model from its path or hub id.

    >>> name_of("saves/unlearn/npo"), name_of("org/Model-1B"), name_of("saves/npo/checkpoint-500")
    ('npo', 'Model-1B', 'npo')
    """
    parts = [part for part in PurePosixPath(path.replace("\\", "/")).parts if part not in ("/", ".", "..")]
    while len(parts) > 1 and GENERIC.match(parts[-1]):
        parts.pop()
    return parts[-1] if parts else path


def longer_name(path: str) -> str:
    """A name for a second model of the same name.

    >>> longer_name("lab_diffusion/models/full"), longer_name("full")
    ('lab_diffusion/full', 'full')
    """
    parts = PurePosixPath(path).parts
    return "/".join([p for p in parts if p not in ("/", ".", "..", "models") and not GENERIC.match(p)][-2:])


def evaluated_model(run: Evaluation, planned: bool) -> ModelMention:
    """The model of an evaluation. In a sweep the plan's name (the directory's) says more than the path."""
    model = run.manifest.model
    path = str(model.get("name") or "")
    folder = run.source.path.resolve().name
    name = folder if planned or not path else name_of(path)
    if model.get("quantization") and not planned:
        name = f"{name} ({model['quantization']})"
    weights = str(model.get("fingerprint") or "")
    return ModelMention(name, path, weights, AUDIT_FOLDERS.get(folder, ""), run.manifest.family)


def depth_models(run: DepthRun) -> dict[str, ModelMention]:
    """The three models of a depth run, by role; files of the score's own project name only paths."""
    summary = run.summary
    paths = {
        "unlearned": summary.unlearn_model or run.source.path.name,
        "full": summary.full_model,
        "retain": summary.retain_model,
    }
    out = {}
    for role, path in paths.items():
        if path:
            name = name_of(str(path))
            if role == "unlearned" and summary.quantization:  # full and retain model are never quantised
                name = f"{name} ({summary.quantization})"
            weights = str(summary.fingerprints.get(role) or "")
            out[role] = ModelMention(name, str(path), weights, "" if role == "unlearned" else role)
    return out


def attacked_models(run: StressRun) -> dict[str, ModelMention]:
    """The attacked model and its control, by model | retain."""
    out = {}
    for who, path, role in (("model", run.asked.model, ""), ("retain", run.asked.retain_model, "retain")):
        if path:
            manifest = run.manifests.get(who)
            weights = str(manifest.model.get("fingerprint") or "") if manifest else ""
            out[who] = ModelMention(name_of(path), path, weights, role, manifest.family if manifest else "")
    return out


def identify_models(
    found: FoundRuns, full: Sequence[str] = (), retain: Sequence[str] = (), unlearned: Sequence[str] = ()
) -> Models:
    """Every model of the runs with the runs that belong to it, and its role (the names are those the user gives)."""
    models = Models()
    sweeps = {sweep.source.path.resolve() for sweep in found.sweeps}
    # Runs that know weights first: whatever has only a name can then join them.
    for run in sorted(found.evaluations, key=lambda run: not run.judged.manifest):
        in_sweep = bool(run.task) or any(parent in sweeps for parent in run.source.path.resolve().parents)
        model = models.register(evaluated_model(run, in_sweep), run.source.id)
        model.provenance = model.provenance or provenance(run)
        model.evaluations.append(run)
    for depth in found.depth_runs:
        by_role = {role: models.register(mention, depth.source.id) for role, mention in depth_models(depth).items()}
        model = by_role.pop("unlearned")
        if model.depth is None:
            model.depth = depth
        elif model.depth.numbers["uds"].value != depth.numbers["uds"].value:
            both = f"{model.depth.source.path} and {depth.source.path}"
            found.problem(f"{both} are depth runs of one model with different scores; the first is shown.")
        model.links = {role: other for role, other in by_role.items() if other is not model}
    for attack in found.stress_runs:
        subjects = {who: models.register(mention, attack.source.id) for who, mention in attacked_models(attack).items()}
        if "model" in subjects:
            subjects["model"].attacks.append((attack, subjects))
            if "retain" in subjects:
                subjects["model"].links.setdefault("retain", subjects["retain"])
    for sweep in found.sweeps:
        for model in models.all:
            if model.name == sweep.plan.retain:
                model.role = model.role or "retain"
    models.assign_roles(full, retain, unlearned)
    _find_copies(models, found)
    return models


def _find_copies(models: Models, found: FoundRuns) -> None:
    """Attacked copies of a sweep, a killed one's too, are not models of their own: they say what comes back.

    So does a model that was read in fewer bits, where the same model was also measured as it is.
    """
    facts: dict[str, Json] = {}  # of each attack that a sweep, or the note beside a run of it, names
    for sweep in found.sweeps:
        for name in sweep.plan.attacks:
            facts[name] = facts.get(name) or sweep.plan.attack_facts.get(name) or {}
    for run in found.evaluations:
        name = run.task.get("attack")
        if name:
            facts[name] = facts.get(name) or run.task.get("attack_facts") or {}
    by_name = {model.name: model for model in reversed(models.all)}
    by_weights = {model.weights: model for model in models.all}
    for copy in models.all:
        base, _, attack = copy.name.rpartition("+")
        if attack in facts and base in by_name:
            _mark_as_copy(models, copy, by_name[base], attack, facts[attack])
            continue
        weights, _, bits = copy.weights.partition("-")
        if bits and weights in by_weights:
            _mark_as_copy(models, copy, by_weights[weights], f"quantise {bits}", attack_named("quantise").facts())


def _mark_as_copy(models: Models, copy: ReportModel, original: ReportModel, attack: str, facts: Json) -> None:
    copy.role, copy.method = "other", attack
    original.copies[attack] = copy
    models.attack_facts[attack] = facts


def provenance(run: Evaluation) -> dict[str, str]:
    """Where the numbers of an evaluation come from, in texts by name."""
    manifest = run.manifest
    model = manifest.model
    data = sorted({f"{one.name} {one.fingerprint[:12]}" for one in manifest.data.values()})
    raw = run.judged.manifest
    facts = {
        "path": model.get("name"),
        "weights": model.get("fingerprint"),
        "tokenizer": manifest.tokenizer.get("fingerprint"),
        "dtype": model.get("dtype"),
        "quantization": model.get("quantization"),
        "attention": model.get("attention"),
        "dialect": manifest.dialect.get("name"),
        "template": protocol_of(raw) if raw else None,
        "prompt": manifest.prompt,
        "data": ", ".join(data),
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "made": manifest.created,
    }
    return {name: str(fact) for name, fact in facts.items() if fact}


# ---- values ----------------------------------------------------------------------------------------------------------


def value(v: float | None, source: str, reason: str = "", **more: Any) -> Json:
    """One value of a model: empty things are left away, a reason only stands beside what is missing."""
    out: Json = {"v": v, "source": source}
    for key, fact in more.items():
        if fact not in (None, ""):
            out[key] = fact
    if v is None:
        out["reason"] = reason or "no value"
    return out


def evaluation_values(run: Evaluation) -> dict[str, Json]:
    """Every metric that is one number with its interval, n, dialect and protocol; missing ones with their reason."""
    raw = run.judged.manifest
    dialect, protocol = run.manifest.dialect.get("name"), protocol_of(raw) if raw else None
    out = {}
    for metric, result in run.results.items():
        if result.is_curve:
            continue  # curves have a part of their own
        v = finite(result.agg_value)
        stat = run.stat(metric)
        facts: Json = {"dialect": dialect, "protocol": protocol}
        if stat.interval:
            facts["lo"], facts["hi"] = stat.interval
            if stat.of:
                facts |= {"of": stat.of, "of_v": stat.value}
        either = len(result.forget.value_by_index) + len(result.holdout.value_by_index)
        facts["n"] = stat.n or len(result.value_by_index) or either or None
        if v is not None and not any(str(note).startswith(MIXTURE) for note in result.notes):
            against_retain = not any("ref_value" in str(note) for note in result.notes)
            ends = own_interval(run.judged.stats.get(metric) or {})
            facts["reading"] = reading(run.handler(metric), v, run.aggregator(metric), against_retain, ends)
        facts["note"] = "; ".join(map(str, result.notes))
        out[metric] = value(v, run.source.id, result.reason or "the run gives no value", **facts)
    return out


def depth_values(run: DepthRun) -> dict[str, Json]:
    """The score, and the representation baselines where there are any."""
    summary = run.summary
    lo, hi = summary.interval or (None, None)
    reason = str(summary.reason or "the run gives no value")
    out = {}
    for key, number in run.numbers.items():
        facts: Json = {"protocol": number.protocol}
        if key == "uds":
            words = layers_in_words(number.value, summary.interval)
            facts |= {"lo": lo, "hi": hi, "n": summary.n, "reading": words}
        out[key] = value(number.value, run.source.id, reason, **facts)
    return out


def depth_end(role: str, run: DepthRun) -> Json:
    """The score of a reference: an end of the scale, not a measurement, and it says so."""
    note = f"by definition: the {role} model is this end of the scale"
    return value(UDS_ENDS[role], run.source.id, note=note, protocol=run.numbers["uds"].protocol)


# ---- published tables ------------------------------------------------------------------------------------------------


def method_models(methods: Methods, source: str, raw: Mapping[str, Mapping[str, Json]] | None = None) -> list[Json]:
    """Every row of a method_results.json as a model of the report, its axes computed again from its parts.

    `raw`: further values by model.
    """
    out = []
    for row in methods.rows:
        facts = row.facts
        settings = {k: v for k, v in facts.items() if k not in METHOD_FACTS and isinstance(v, (str, int, float))}
        out.append(
            {
                "id": short_id("m", row.name),
                "name": row.name,
                "role": _role_of_row(row),
                "method": facts.get("method"),
                "epoch": facts.get("epoch"),
                "settings": settings,
                "provenance": {},
                "values": {**_method_values(row, methods, source), **(raw or {}).get(row.name, {})},
            }
        )
    return out


def _role_of_row(row: MethodRow) -> str:
    names = [str(row.facts.get("method") or "").lower(), row.name.lower()]
    if not row.facts.get("is_reference") and not set(names) & set(REFERENCES):
        return "unlearned"
    for role in REFERENCES:
        if any(name.startswith(role) for name in names):
            return role
    return "other"


def _method_values(row: MethodRow, methods: Methods, source: str) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for part in PARTS:
        protocol = methods.protocols.get(part) or SCHEMA_PROTOCOLS[part]
        out[part] = value(row.parts.get(part), source, "not in the file", protocol=protocol)
    for axis in AXES:
        out[axis] = value(row.published.values()[axis], source, row.published.reasons.get(axis, ""))
    for axis in SHOWN_FLOORED:
        out[f"{axis}_floored"] = _floored(row, axis, source, row.floored.reasons.get(axis, ""))
    for name in EXTRA:
        if name in row.facts:
            out[name] = value(row.facts[name], source, "not in the file", protocol=schema_protocol(name))
    return out


def _floored(row: MethodRow, axis: str, source: str, reason: str = "") -> Json:
    raised = ", ".join(row.floored.floored)
    note = f"raised to the floor: {raised}" if raised else ""
    return value(row.floored.values()[axis], source, reason, note=note)


# ---- axes ------------------------------------------------------------------------------------------------------------


def add_axes(models: Iterable[ReportModel], found: FoundRuns) -> None:
    """Adds the axes that some model can have; what a single model lacks is missing there, with the reason.

    `models` were evaluated here; axes of published rows are computed elsewhere. Only models that were put the same
    questions are held against each other.
    """
    families: dict[str, list[ReportModel]] = {}
    for model in models:
        if "overall" not in model.values:
            families.setdefault(min(model.families, default=""), []).append(model)
    for family in families.values():
        full = next((model for model in family if model.role == "full"), None)
        retain = next((model for model in family if model.role == "retain"), None)
        references = ({"": _numbers_of(full)} if full else {}, _numbers_of(retain) if retain else None)
        try:
            rows = from_models([_numbers_of(model) for model in family], *references).rows
        except UserError as error:
            found.problem(f"no axes: {error}")
            continue
        known = {axis for row in rows for axis, v in row.published.values().items() if v is not None}
        known -= set(family[0].values)
        for model, row in zip(family, rows, strict=True):
            _add_row(model, row, known)


def _numbers_of(model: ReportModel) -> ModelNumbers:
    numbers: dict[str, Number] = {}
    for key, found in model.values.items():
        numbers.setdefault(short(key), Number(found["v"], found.get("protocol") or ""))
    return ModelNumbers(model.name, numbers)


def _add_row(model: ReportModel, row: MethodRow, known: set[str]) -> None:
    # The run that most parts of the axes come from.
    parts = [found for key, found in model.values.items() if short(key) in SOURCES.values()]
    origins = [str(found["source"]) for found in parts or list(model.values.values())]
    source = max(dict.fromkeys(origins), key=origins.count) if origins else model.sources[0]
    for axis in AXES:
        if axis not in known:
            continue
        if axis not in model.values:
            note = WITHOUT_FLUENCY if axis in OF_UTILITY and not row.published.fluent else ""
            reason = row.published.reasons.get(axis, "")
            model.values[axis] = value(row.published.values()[axis], source, reason, note=note)
        if axis in SHOWN_FLOORED:
            model.values[f"{axis}_floored"] = _floored(row, axis, source)
