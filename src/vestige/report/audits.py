"""One audited model: its panels, what is missing in them and why, and the facts its verdict rests on.

In: models with their runs (report/models.py). Out: an entry of `audits` in report.json. Caller: report/build.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vestige.meta.pools import AttackedModel, Attacks
from vestige.metrics.cards import CHAT, KNOWN
from vestige.report.gather import AttackedRow, DepthExample, DepthRun, FoundRuns, Json, StressRun, finite
from vestige.report.metrics import group
from vestige.report.models import Models, ReportModel
from vestige.report.rows import distributions, is_side, roc_curves, said_rows
from vestige.stress.attacks import attack_named
from vestige.verdict.facts import commands
from vestige.verdict.judge import judge, reading_against
from vestige.verdict.runs import (
    AttackedRun,
    Evaluated,
    JudgedRuns,
    ModelRuns,
    attacked_of,
    path_handlers,
    path_values,
    split_of,
)

if TYPE_CHECKING:
    pass

NOTHING = {
    "says": "no generations of forget rows: evaluate a ROUGE metric",
    "likely": "no likelihoods of forget rows: evaluate a probability metric",
    "roc": "no membership attack: it needs holdout rows and a mia_ metric",
    "layers": "the layers were not looked into: vestige depth does",
    "attacks": "no attack was tried: vestige stress does",
    "utility": "other abilities were not measured: they need retain rows",
    "retain": "no retain model among these runs",
}
PANEL_OF = {"mia": "roc", "privleak": "roc", "uds": "layers"}  # by how a metric's name begins
WITH_TOKENS = 60  # examples whose tokens are kept: the matrix of the others is enough

# The published tables' metrics of outputs, with the handlers that explain them.
OUTPUTS = {name: known.handler for name, known in KNOWN.items() if known.handler and known.protocol == CHAT}
PUBLISHED_ATTACKS = {"relearning": "relearn", "quantization": "quantise"}
PUBLISHED_SHOWN = ("prob", "rouge")  # metrics whose return under attack a verdict looks at: high means it still knows


def audit(models: Models, found: FoundRuns, model: ReportModel, most_rows: int) -> Json:
    """All of an audit. References are those a run names, else those of the model's family."""
    full, retain = models.reference(model, "full"), models.reference(model, "retain")
    everyone = [one for one in (model, full, retain) if one is not None]
    runs = {one.id: one.plain_evaluations for one in everyone}
    retain_id = retain.id if retain else None
    says = said_rows(runs, model.id, retain_id, most_rows, [run for run, _ in model.attacks])
    utility = [m for run in runs[model.id] for m in run.results if group(m, run.handler(m)) == "utility"]
    utility = list(dict.fromkeys([*utility, "utility_rel", "utility"]))
    out: Json = {
        "model": model.id,
        "full": full.id if full else None,
        "retain": retain_id,
        "says": says,
        "likely": distributions(runs),
        "roc": roc_curves(runs),
        "layers": layers(model.depth, model.id, most_rows) if model.depth else None,
        "attacks": _attack_curves(models, found, model, retain),
        "utility": [metric for metric in utility if metric in model.values and not is_side(metric)],
    }
    out["missing"] = []
    for panel, reason in NOTHING.items():
        shown = says["rows"] if panel == "says" else out[panel]
        if not shown:
            # What a run says of a missing metric of this panel is better than what would fill it.
            for metric, value in reversed(model.values.items()):
                if value["v"] is None and PANEL_OF.get(metric.split("_")[0]) == panel:
                    reason = value["reason"]
            out["missing"].append({"panel": panel, "reason": reason})
    out["verdict"] = _judge(models, found, model, full, retain)
    return out


# ---- layers ----------------------------------------------------------------------------------------------------------


def layers(run: DepthRun, model: str, most: int) -> Json | None:
    """Where the knowledge sits and what is left of it, layer by layer; the examples that hold most come first."""
    summary = run.summary
    examples = sorted(run.records, key=lambda record: (record.uds is None, record.uds or 0.0))
    if not summary.profile and not examples:
        return None
    profile: Json = {"model": model}
    for stage in ("s1", "s2"):
        profile[stage] = [getattr(layer, f"{stage}_drop") for layer in summary.profile]
        intervals = [getattr(layer, f"{stage}_interval") for layer in summary.profile]
        if all(intervals):
            profile[f"{stage}_lo"] = [lo for lo, _ in intervals]
            profile[f"{stage}_hi"] = [hi for _, hi in intervals]
    lo, hi = summary.interval or (None, None)
    return {
        "layers": summary.layers or [layer.layer for layer in summary.profile],
        "threshold": summary.delta_threshold,
        "uds": summary.avg_uds,
        "lo": lo,
        "hi": hi,
        "n": summary.n or len(run.records),
        "profile": [profile] if summary.profile else [],
        "examples": [_example(record, i < WITH_TOKENS) for i, record in enumerate(examples[:most])],
        "left_off": max(0, len(examples) - most),
    }


def _example(record: DepthExample, with_tokens: bool) -> Json:
    return {
        "i": str(record.idx),
        "question": str(record.question or ""),
        "answer": f"{record.prefix or ''}{record.reference_text or ''}".strip(),
        "entity": str(record.entity or record.entity_text or ""),
        "uds": finite(record.uds),
        "s1": record.s1_deltas,
        "s2": record.s2_deltas,
        "erasure": [layer.get("ratio_s2_over_s1_clipped") for layer in record.layer_records],
        "tokens": [str(token) for token in record.tokens],
        "token_logprobs": record.token_logprobs if with_tokens else None,
    }


# ---- attacks ---------------------------------------------------------------------------------------------------------


def _attack_curves(models: Models, found: FoundRuns, model: ReportModel, retain: ReportModel | None) -> list[Json]:
    """What comes back: from stress.json, from copies that a sweep evaluated, and from published trees."""
    out = []
    for run, subjects in model.attacks:
        out += _stress_curves(run, subjects)
    for one in (model, retain):
        if one is None:
            continue
        for attack, copy in one.copies.items():
            for metric, after in copy.values.items():
                of_forget_rows = split_of(metric) == "forget" and not is_side(metric)
                if metric in one.values and (of_forget_rows or metric == "uds"):
                    teaches = bool(models.attack_facts[attack].get("teaches"))
                    out.append(
                        _single_curve(attack, metric, one, one.value(metric), after["v"], teaches, after["source"])
                    )
        out += _published_curves(found, one)
    return out


def _stress_curves(run: StressRun, subjects: Mapping[str, ReportModel]) -> list[Json]:
    """A curve for each attack, metric and model."""
    out = []
    asked = run.asked.metrics
    for attack in dict.fromkeys(row.attack for row in run.rows if row.attack != "none"):
        measured = dict.fromkeys(metric for row in run.rows if row.attack == attack for metric in row.values)
        for metric in sorted(measured, key=lambda m: asked.index(m) if m in asked else len(asked)):
            for who in dict.fromkeys(row.model for row in run.rows):
                rows = [row for row in run.rows if row.model == who and row.attack == attack]
                if rows and who in subjects:
                    rows.sort(key=lambda row: row.budget or 0.0)
                    out.append(_stress_curve(run, rows, metric, subjects[who]))
    return out


def _stress_curve(run: StressRun, rows: Sequence[AttackedRow], metric: str, subject: ReportModel) -> Json:
    attack, who = rows[0].attack, rows[0].model
    facts = run.attacks.get(attack, {})
    before = next((row.values.get(metric) for row in run.rows if row.model == who and row.attack == "none"), None)
    notes = [str(note) for row in rows for note in row.notes]
    if facts.get("zero") and any(not row.budget for row in rows):
        notes.append(f"a budget of 0 {facts['unit']} stands for {facts['zero'].replace('1 ', 'one ')}")
    return {
        "attack": attack,
        "unit": facts.get("unit", ""),
        "metric": metric,
        "is_control": who == "retain",
        "budgets": [row.budget or 0.0 for row in rows],
        "values": [finite(row.values.get(metric)) for row in rows],
        "before": finite(before),
        "reverse": bool(facts.get("reverse")),
        "teaches": bool(facts.get("teaches")),
        "notes": list(dict.fromkeys(notes)),
        "model": subject.id,
        "name": subject.name,
        "source": run.source.id,
    }


def _single_curve(
    attack: str, metric: str, model: ReportModel, before: float | None, after: float | None, teaches: bool, source: str
) -> Json:
    """An attack of one budget."""
    return {
        "attack": attack,
        "unit": "",
        "metric": metric,
        "model": model.id,
        "name": model.name,
        "is_control": model.role == "retain",
        "budgets": [1.0],
        "values": [after],
        "before": before,
        "reverse": False,
        "teaches": teaches,
        "notes": [],
        "source": source,
    }


def _published_curves(found: FoundRuns, model: ReportModel) -> list[Json]:
    """What attacks did to a model, from robustness/{quant,relearn}/results.json of the trees found."""
    out = []
    for source in found.of("meta"):
        attacks: Attacks | None = source.data.get("attacks")
        everyone: Iterable[AttackedModel] = (attacks.retain, *attacks.models) if attacks else ()
        attacked = next((one for one in everyone if one.name == model.name), None)
        if attacked is None:
            continue
        for state, attack in PUBLISHED_ATTACKS.items():
            teaches = bool(attack_named(attack).facts().get("teaches"))
            for metric in PUBLISHED_SHOWN:
                after = attacked.value(state, metric)
                if after is not None:
                    before = attacked.value("before", metric)
                    out.append(_single_curve(attack, metric, model, before, after, teaches, source.id))
    return out


# ---- the verdict -----------------------------------------------------------------------------------------------------


def _judge(
    models: Models, found: FoundRuns, model: ReportModel, full: ReportModel | None, retain: ReportModel | None
) -> Json:
    """The one judgement (verdict/judge.py) on what was found of a model and its references."""
    attacked: dict[str, list[AttackedRun]] = {}
    for run, _ in model.attacks:
        for who, copies in attacked_of(run.source.data, run.evaluations).items():
            attacked.setdefault(who, []).extend(copies)
    mine = _runs_of(models, found, model, attacked.get("model", ()))
    controls = []
    if retain is not None:
        controls.append(_runs_of(models, found, retain, attacked.get("retain", ())))
        controls += [_runs_of(models, found, other) for other in models.retains if other not in (retain, model)]
    curves = path_handlers(mine.values)
    published = {metric: handler for metric, handler in OUTPUTS.items() if model.value(metric) is not None}
    how_to_test = {}
    if mine.evals or not curves:
        how_to_test = commands(model.path, full.path if full else "", retain.path if retain else "", mine.evals)
    mine = replace(mine, handlers={**published, **curves})
    runs = JudgedRuns(mine, _runs_of(models, found, full) if full else None, controls, how_to_test)
    # Readings next to the forget rows' numbers: against full and retain model where there are such, not fixed ends.
    for metric, value in model.values.items():
        words = reading_against(runs, metric) if value.get("v") is not None else ""
        if words:
            value["reading"] = words
    return judge(runs)


def _runs_of(models: Models, found: FoundRuns, model: ReportModel, attacked: Sequence[AttackedRun] = ()) -> ModelRuns:
    """Everything that was measured of one model, for the judge."""
    copies = list(attacked)
    for attack, copy in model.copies.items():
        evaluated = next((run.judged for run in copy.plain_evaluations), None)
        numbers = {key: value["v"] for key, value in copy.values.items()}
        teaches = bool(models.attack_facts[attack].get("teaches"))
        copies.append(AttackedRun(attack, None, teaches, "", evaluated, numbers))
    for curve in _published_curves(found, model):
        value = {curve["metric"]: curve["values"][0]}
        copies.append(AttackedRun(curve["attack"], None, curve["teaches"], "", None, value))
    values: dict[str, Any] = dict(model.values)
    for run in model.evaluations:
        if run.is_trajectory:
            values |= path_values(run.judged.results)
    evaluated_runs: list[Evaluated] = [run.judged for run in model.plain_evaluations]
    depth = model.depth.source.data["records"] if model.depth else ()
    return ModelRuns(evaluated_runs, values, depth, copies)


def note_unequal_tests(audits: Sequence[Json], names: Mapping[str, str]) -> None:
    """Where models of one report were not tested alike, each says what it lacks and who has it."""
    done = {one["model"]: set(one["verdict"]["parts"]["testing"]["done"]) for one in audits}
    for one in audits:
        for lacking in one["verdict"]["parts"]["testing"]["missing"]:
            others = [names[id] for id, tests in done.items() if lacking["test"] in tests]
            if others:
                lacking["text"] += f"; it was made of {', '.join(others)}"
