"""`vestige stress`: a checkpoint, measured before and after each attack, with a retain model as the control.

    attack x budget --> attacked copy or prompt --> evaluation --> a row of the table

The control answers the question that matters: what does a model that never knew the rows gain under the same attack?
Attacked checkpoints are removed when they were measured, unless they are to be kept.

In: a checkpoint, attacks with budgets, and a retain model. Out: a directory with stress.json, a row per attack and
budget. Callers: stress/flags.py, lab/demo_report.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.data.datasets import PREFILLED
from vestige.engine.config import RunConfig
from vestige.engine.evaluate import evaluate_config
from vestige.engine.flags import EvalAsk, to_run
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.integrations.plugin_files import plugin_digests
from vestige.isolation import DiedError, isolated
from vestige.models.quantised import check_low_precision
from vestige.numeric import counted, number
from vestige.runs.directory import (
    RunDirectory,
    install,
    open_run,
    refuse_input_in_output,
    scratch,
    write_bytes,
)
from vestige.runs.evidence import evidence_files
from vestige.runs.manifest import MANIFEST, manifest
from vestige.secrets import masked
from vestige.show.progress import Bar, hushed
from vestige.show.tables import table
from vestige.store.files import write_json
from vestige.stress.copies import AttackLesson, attack_weights, measured_half
from vestige.stress.registry import AnswersAttack, PromptAttack, WeightsAttack, attack_named
from vestige.stress.robustness import relearning_r
from vestige.suites.spec import MetricSpec

DEFAULT_METRICS = ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "extraction_strength", "forget_secrets_said")
ATTACKED_DATA = ("forget", "holdout")  # both, so that membership attacks compare rows asked alike


@dataclass(frozen=True)
class Stress:
    """What to attack, and how."""

    model: str
    data: Path
    attacks: Sequence[str]
    out: Path
    retain_model: str | None = None
    metrics: Sequence[str] = DEFAULT_METRICS
    budget: Mapping[str, Sequence[float]] = field(default_factory=dict)  # attack -> budgets
    relearning: Mapping[str, Any] = field(default_factory=dict)  # fields of a Recipe
    examples: int | None = None  # relearn: teach only so many rows
    held_out: bool = False
    keep: bool = False
    temperature: float = 1.0
    compute_dtype: str | None = None  # quantise: what 4-bit layers multiply in
    settings: Mapping[str, Any] = field(default_factory=dict)  # other fields of Ask
    progress: bool = False  # a bar of evaluations
    control: Path | None = None  # a finished run of the same attacks on the retain model, so that it is attacked once
    # model | retain -> a finished evaluation of it: what it collected is not collected again before the attack.
    collected: Mapping[str, Path] = field(default_factory=dict)


@dataclass
class AttackRow:
    """One line of the results."""

    model: str  # model | retain
    attack: str  # none before any
    budget: float | None
    values: dict[str, float | None]
    notes: list[str] = field(default_factory=list)
    settings: Mapping[str, object] = field(default_factory=dict)  # of the attack, every one in effect
    by_row: dict[str, dict[str, float]] = field(default_factory=dict)  # of attacks that no single evaluation shows
    reason: str = ""  # why there are no values: its process died

    @property
    def name(self) -> str:
        """The attack and the model in words, for messages about one row."""
        budget = "" if self.budget is None else f"={self.budget:g}"
        return f"{self.attack}{budget} on the {'retain ' if self.model == 'retain' else ''}model"


def stress(ask: Stress) -> list[AttackRow]:
    """Measures the model (and the control) before and after every attack; writes OUT/stress.json.

    An attack on weights whose process dies has a row with a reason and no values. The file lists it under `not_tested`.
    """
    if ask.compute_dtype and not any("compute_dtype" in said for said in _all_settings(ask)):
        raise UserError("--compute-dtype is for quantise=4, which is not among the attacks; leave it out.")
    for record in map(attack_named, ask.attacks):
        if isinstance(record, WeightsAttack) and record.check:
            for budget in _budgets(ask, record.name):
                record.check(record.settings_for(ask, budget))
    _keep_apart(ask)
    with open_run(ask.out, "stress") as run:
        return _stress(ask, run)


def _stress(ask: Stress, run: RunDirectory) -> list[AttackRow]:
    run.begin(["stress.json", "data/", "evals/", "checkpoints/", *_kept_checkpoints(ask)])
    measured = replace(ask, data=_measured(ask) if ask.held_out else ask.data)
    subjects = {"model": ask.model, **({"retain": ask.retain_model} if ask.retain_model else {})}
    check_precision(ask.attacks, ask.settings.get("device"))
    rows: list[AttackRow] = []
    total = evaluations(ask)
    with hushed(), Bar("attacking", total, "evaluation", ask.progress) as bar:
        for who, path in subjects.items():
            shared = who == "retain" and ask.control is not None
            subject = AttackSubject(who, path, measured, ask.data)
            for row in taken_over(ask, _described(ask)) if shared else subject.attacked_rows():
                rows.append(row)
                bar.add(1)
    plain = [{k: v for k, v in asdict(row).items() if k != "reason"} for row in rows if not row.reason]
    facts = {attack: attack_named(attack).facts() for attack in ask.attacks}
    body: dict[str, Any] = {
        "rows": plain,
        "relearning": relearning_r(plain),
        "asked": _described(ask),
        "attacks": facts,
    }
    if len(plain) < len(rows):
        body["not_tested"] = [asdict(row) for row in rows if row.reason]
    if ask.settings.get("plugins"):
        body["plugins"] = plugin_digests(ask.settings["plugins"])
    write_json(ask.out / "stress.json", body)
    run.finish(manifest("stress", masked(_described(ask)), attacks=facts))
    return rows


def check_precision(attacks: Sequence[str], device: str | None) -> None:
    """Before any model runs: after a product in float32 it is too late for the attacks that read in fewer bits."""
    if any(getattr(attack_named(attack), "reads", None) for attack in attacks):
        check_low_precision(device or "auto")


def evaluations(ask: Stress) -> int:
    """How many there are in all: of each model before any attack, and under every budget of every attack."""
    return (2 if ask.retain_model else 1) * (1 + sum(len(_budgets(ask, attack)) for attack in ask.attacks))


def plan_words(ask: Stress) -> str:
    """What is about to be done, for a terminal: attacks with their budgets, and how many evaluations they take.

    >>> plan_words(Stress("m", Path("d"), ["relearn"], Path("o"), budget={"relearn": [5, 20]}))
    'Plan: 3 evaluations: before any attack, relearn=5,20.'
    """
    attacks = [f"{name}={','.join(f'{budget:g}' for budget in _budgets(ask, name))}" for name in ask.attacks]
    control = ", each also on the retain model" if ask.retain_model else ""
    return f"Plan: {counted(evaluations(ask), 'evaluation')}: {', '.join(['before any attack', *attacks])}{control}."


def _keep_apart(ask: Stress) -> None:
    asked = {"data": ask.held_out, "checkpoints": ask.keep}
    written = ["stress.json", MANIFEST, "evals", *(name for name, wanted in asked.items() if wanted)]
    inputs = {"--model": ask.model, "--retain-model": ask.retain_model, "--data": ask.data}
    refuse_input_in_output(ask.out, inputs, written)


def _kept_checkpoints(ask: Stress) -> list[str]:
    """Folders of the checkpoints to keep; somebody else's weights there are found before the work, not after it."""
    names = []
    for who in ("model", "retain") if ask.keep else ():
        for attack in ask.attacks:
            for budget in _budgets(ask, attack):
                folder = f"checkpoints/{who}/{attack}-{budget:g}"
                names += [f"{folder}/", f"{folder}/config.json", f"{folder}/model.safetensors"]
    return names


def _measured(ask: Stress) -> Path:
    """The rows that the lesson does not teach, as a folder of the run."""
    with scratch(ask.out) as made:
        install(measured_half(ask.data, made), ask.out / "data")
    return ask.out / "data"


def _budgets(ask: Stress, attack: str) -> Sequence[float]:
    record = attack_named(attack)
    given = ask.budget.get(attack, record.budgets)
    if any(budget < record.least for budget in given):
        raise UserError(f"Cannot attack with {attack}={min(given):g}; its budget must be at least {record.least:g}.")
    return given


def _all_settings(ask: Stress) -> Iterator[Mapping[str, Any]]:
    """The settings of every weights attack and budget."""
    for record in map(attack_named, ask.attacks):
        if isinstance(record, WeightsAttack):
            yield from (record.settings_for(ask, budget) for budget in _budgets(ask, record.name))


def _described(ask: Stress) -> dict[str, Any]:
    return dict(json.loads(json.dumps(asdict(ask), default=str)))


class AttackSubject:
    """One model under every attack."""

    def __init__(self, who: str, path: str, ask: Stress, whole: Path) -> None:
        self.who, self.path, self.ask, self.whole = who, path, ask, whole

    def attacked_rows(self) -> Iterator[AttackRow]:
        before = self.evaluation(self.path, "before")
        self._take_over_evidence(before)
        yield self.row("none", None, self._measure(before))
        for record in map(attack_named, self.ask.attacks):
            budgets = _budgets(self.ask, record.name)
            if isinstance(record, AnswersAttack):
                yield from record.measure(self, budgets)
            elif isinstance(record, PromptAttack):
                yield from (self._asked(record, budget) for budget in budgets)
            elif isinstance(record, WeightsAttack):
                yield from (self._copied(record, budget) for budget in budgets)

    def row(self, attack: str, budget: float | None, values: dict[str, float | None], **more: Any) -> AttackRow:
        """A line of the results about this model."""
        return AttackRow(self.who, attack, budget, values, **more)

    def evaluation(self, path: str, label: str, **more: Any) -> RunConfig:
        """The evaluation of one checkpoint."""
        settings = {**self.ask.settings, **more}
        out = str(self.ask.out / "evals" / self.who / label)
        metrics = list(self.ask.metrics)
        run = to_run(EvalAsk(model=path, data=str(self.ask.data), out=out, metrics=metrics, progress=False, **settings))
        if not isinstance(run, RunConfig):
            raise UserError("Attacks are measured by a suite of metrics, not by a harness of tasks.")
        return replace(run, resamples=0)

    @property
    def lesson(self) -> AttackLesson:
        return AttackLesson(self.whole, self.ask.held_out, self.ask.examples)

    def _take_over_evidence(self, run: RunConfig) -> None:
        """Folders are named by what they are evidence of: those of anything else would lie there unread."""
        given, place = self.ask.collected.get(self.who), run.output_dir / "evidence"
        if given is None or place.is_dir() or run.overwrite:
            return
        with open_run(run.output_dir, "eval", ["evidence/"]):
            for file in evidence_files(given / "evidence"):
                write_bytes(place / file.relative_to(given / "evidence"), file.read_bytes())

    def _measure(self, run: RunConfig) -> dict[str, float | None]:
        outcome = evaluate_config(run)
        return {name: outcome.scores[name].agg_value for name in outcome.top}

    def _asked(self, record: PromptAttack, budget: float) -> AttackRow:
        def change(config: Mapping[str, Any]) -> dict[str, Any]:
            return record.change(config, budget, self.whole)

        run = under_prompt(self.evaluation(self.path, f"{record.name}-{budget:g}"), change)
        return self.row(record.name, budget, self._measure(run), settings=change({"args": {}})["args"])

    def _copied(self, record: WeightsAttack, budget: float) -> AttackRow:
        """A copy is made and run by libraries that can take the process down, so that is done in a child."""
        record.import_modules()
        try:
            return isolated(self._attack_copy, record, budget)
        except DiedError as died:
            return self.row(record.name, budget, {}, reason=str(died))

    def _attack_copy(self, record: WeightsAttack, budget: float) -> AttackRow:
        label = f"{record.name}-{budget:g}"
        with scratch(self.ask.out) as made:
            settings = record.settings_for(self.ask, budget)
            lesson = self.lesson if record.teaches else None
            before = self.evaluation(self.path, "before")
            attacked = attack_weights(record.name, settings, before, lesson, made / label)
            if self.ask.keep and (made / label).is_dir():
                kept = self.ask.out / "checkpoints" / self.who / label
                install(made / label, kept)
                attacked = replace(attacked, path=str(kept))
            read = {"quantization": attacked.quantization, "compute_dtype": attacked.compute_dtype}
            more = {key: value for key, value in read.items() if value}
            values = self._measure(self.evaluation(attacked.path, label, overwrite=True, **more))
            said = {"notes": list(attacked.notes), "settings": dict(attacked.settings)}
            return self.row(record.name, budget, values, **said)


def under_prompt(run: RunConfig, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> RunConfig:
    """The same evaluation with other prompts in every data set of questions that is attacked."""
    touched = 0

    def attacked(spec: MetricSpec) -> MetricSpec:
        nonlocal touched
        datasets = []
        for data in spec.datasets:
            theirs = any(word in data.name.lower() for word in ATTACKED_DATA)
            questions = data.config.get("handler") in ("QADataset", "AutoDataset", PREFILLED)
            touched += theirs and questions
            datasets.append(replace(data, config=change(data.config)) if theirs and questions else data)
        return replace(spec, datasets=tuple(datasets))

    metrics = {name: attacked(spec) for name, spec in run.suite.metrics.items()}
    if not touched:
        raise UserError("None of these metrics asks a question about forget rows, so a prompt attack changes nothing.")
    return replace(run, suite=replace(run.suite, metrics=metrics))


def taken_over(ask: Stress, described: Mapping[str, Any]) -> Iterator[AttackRow]:
    """The control's rows and evaluations from a run that attacked it as this one attacks its model."""
    assert ask.control is not None
    theirs = read_json(ask.control / "stress.json")
    differ = [k for k in SAME if theirs["asked"].get(k) != described[k]]
    if differ or theirs["asked"]["model"] != ask.retain_model:
        what = ", ".join(differ) or "model"
        raise UserError(f"{ask.control} did not attack {ask.retain_model} as asked here ({what}); leave it out.")
    with scratch(ask.out) as made:
        shutil.copytree(ask.control / "evals" / "model", made, dirs_exist_ok=True)
        install(made, ask.out / "evals" / "retain")
    yield from (AttackRow(**{**row, "model": "retain"}) for row in theirs["rows"] if row["model"] == "model")


# What a shared control must have in common with the run that takes it over.
SAME = ("data", "attacks", "metrics", "budget", "relearning", "examples", "held_out", "temperature", "settings")


def show(rows: Sequence[AttackRow]) -> str:
    """A line for each attack and budget; with a control its values stand beside."""
    metrics = list(dict.fromkeys(m for row in rows for m in row.values))
    subjects = list(dict.fromkeys(row.model for row in rows))
    found = {(row.model, row.attack, row.budget): row for row in rows}
    lines = []
    for attack, budget in dict.fromkeys((row.attack, row.budget) for row in rows):
        size = "" if budget is None else attack_named(attack).size(budget)
        cells = [
            number(found[who, attack, budget].values.get(metric)) if (who, attack, budget) in found else "-"
            for metric in metrics
            for who in subjects
        ]
        lines.append([attack, size, *cells])
    heads = [metric if who == "model" else "retain" for metric in metrics for who in subjects]
    return table(lines, ["attack", "budget", *heads], right=tuple(range(2, 2 + len(heads))))


def explained(rows: Sequence[AttackRow]) -> str:
    """What each column of the table is, below it."""
    attacks = list(dict.fromkeys(row.attack for row in rows))
    lines = ["none: the model as it is", *(f"{a}: {attack_named(a).does}" for a in attacks if a != "none")]
    lines.append("metrics: measured after the attack; what rises above `none` came back (`vestige explain NAME`)")
    if any(row.model != "model" for row in rows):
        lines.append("retain: the same attack on the retain model; what it gains, too, was taught and not remembered")
    return "\n".join(lines)


def judged(out: Path) -> list[str]:
    """What each attack says, as the verdict judges it: against the control, over all budgets."""
    from vestige.verdict.judge import JudgeAsk, judge_runs

    before = {who: out / "evals" / who / "before" for who in ("model", "retain")}
    if not all(any(place.glob("*_EVAL.json")) for place in before.values()):
        return []  # without a control nothing can be judged
    found = judge_runs(JudgeAsk([before["model"]], retain=[before["retain"]], stress=[out]))
    return [e["text"] for e in found["evidence"] if e["panel"] == "attacks"]


def draw(rows: Sequence[AttackRow], path: Path, run: Path) -> list[Path]:
    """A curve for each attack that was given more than one budget, of the first metric it has: PATH with its name."""
    from vestige.show.figures import recovery_curve, save

    plain, out = [asdict(row) for row in rows], []
    for attack in dict.fromkeys(row.attack for row in rows):
        mine = [row for row in rows if row.attack == attack and row.budget is not None]
        # Where fewer is stronger (bits), no budget is not the start.
        if len({row.budget for row in mine}) < 2 or attack_named(attack).fewer_is_stronger:
            continue
        metric = next(iter(mine[0].values))
        figure = recovery_curve(plain, attack, metric, attack_named(attack).unit)
        out.append(save(figure, path.with_stem(f"{path.stem}_{attack}")))
    return out
