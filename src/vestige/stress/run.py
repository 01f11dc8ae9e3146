"""`vestige stress`: a checkpoint, measured before and after each attack, with a retain model as the control.

    attack x budget --> attacked copy or prompt --> evaluation --> a row of the table

The control answers the question that matters: what does a model that never knew the rows gain under the same attack?
Attacked checkpoints are removed when they were measured, unless they are to be kept.

    make_stress(model, data, attacks, out, ...) --Stress--> stress(ask) --> rows, and OUT/stress.json
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.adapters.plugins import plugin_digests
from vestige.data.datasets import PREFILLED
from vestige.engine.config import RunConfig, make_config
from vestige.engine.evaluate import evaluate_config
from vestige.errors import UserError, unknown_name
from vestige.guard import read_json
from vestige.isolation import DiedError, isolated
from vestige.meta.robustness import RULES
from vestige.metrics.cards import direction_of
from vestige.models.quantised import check_low_precision
from vestige.numeric import counted, number
from vestige.runs.directory import install, open_run, refuse_input_in_output, scratch, write_bytes
from vestige.runs.evidence import evidence_files
from vestige.runs.files import write_json
from vestige.runs.manifest import MANIFEST, manifest
from vestige.secrets import masked
from vestige.show.progress import Bar, hushed
from vestige.show.tables import table
from vestige.stress.attacks import OURS, AnswersAttack, PromptAttack, WeightsAttack, attack_named, records
from vestige.stress.copies import AttackLesson, attack_weights, taught_keys, write_measured_half
from vestige.suites.spec import DataSpec

DEFAULT_METRICS = ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "extraction_strength", "forget_secrets_said")
ATTACKED_DATA = ("forget", "holdout")  # both, so that membership attacks compare rows asked alike
RELEARNING = "relearning"  # what models are after the attacks that R is about
NO_WEIGHTS = "it changes weights, and those of a served model stay at its server"

# The keywords of `vestige.attack`, which are also flags of `vestige stress`:
RECIPE = ("epochs", "lr", "batch_size", "accumulation")  # of relearning,
PASSED_ON = (  # of the evaluations,
    "suite", "system_prompt", "limit", "cluster", "dtype", "device", "tokenizer", "trust_remote_code", "server",
    "server_key_env",
)  # fmt: skip
OWN = ("metrics", "held_out", "examples", "keep", "temperature", "compute_dtype", "progress")  # and of the run.
SETTINGS = (*OWN, *RECIPE, *PASSED_ON)

Attacks = str | Sequence[str] | Mapping[str, Any]


# ---- what is asked --------------------------------------------------------------------------------------------------


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
    relearning: Mapping[str, Any] = field(default_factory=dict)  # fields of a TrainingRecipe
    examples: int | None = None  # relearn: teach only so many rows
    held_out: bool = False
    keep: bool = False
    temperature: float = 1.0
    compute_dtype: str | None = None  # quantise: what 4-bit layers multiply in
    settings: Mapping[str, Any] = field(default_factory=dict)  # other options of an evaluation
    progress: bool = False  # a bar of evaluations
    control: Path | None = None  # a finished run of the same attacks on the retain model, so that it is attacked once
    # model | retain -> a finished evaluation of it: what it collected is not collected again before the attack.
    collected: Mapping[str, Path] = field(default_factory=dict)

    def budgets(self, attack: str) -> Sequence[float]:
        """Those that were asked for, or the attack's own."""
        record = attack_named(attack)
        budgets = self.budget.get(attack, record.budgets)
        if min(budgets) < record.least:
            raise UserError(
                f"Cannot attack with {attack}={min(budgets):g}; its budget must be at least {record.least:g}."
            )
        return budgets

    def describe(self) -> dict[str, Any]:
        """As it is recorded: plain data."""
        return dict(json.loads(json.dumps(asdict(self), default=str)))


def make_stress(
    model: str | Path,
    data: str | Path,
    attacks: Attacks,
    out: str | Path,
    retain_model: str | Path | None = None,
    plugins: Sequence[str] = (),
    **given: Any,
) -> Stress:
    """The ask of plain values; `given` are SETTINGS, None for the default. Plug-ins must be loaded already."""
    for name in given:
        if name not in SETTINGS:
            raise unknown_name("setting of attack()", name, (*SETTINGS, "plugins"))
    given = {name: value for name, value in given.items() if value is not None}
    budgets = read_attacks(attacks)
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise UserError(f"--data {data} is not a folder; give one with forget.jsonl, retain.jsonl, ...")
    settings = {name: given[name] for name in PASSED_ON if name in given and given[name] is not False}
    if plugins:
        settings["plugins"] = list(plugins)
    if given.get("server"):
        changing = [name for name in budgets if not can_be_served(name)]
        if changing:
            raise UserError(f"{', '.join(changing)}: {NO_WEIGHTS}; leave out the attack, or --server.")
        if retain_model is not None:
            settings["server_by_name"] = True
    own = {name: given[name] for name in OWN if name in given and name != "metrics"}
    if own.get("examples", 1) < 1:
        raise UserError(f"--examples must be at least 1, it is {own['examples']}.")
    metrics = given.get("metrics") or DEFAULT_METRICS
    if isinstance(metrics, str):
        metrics = [metric.strip() for metric in metrics.split(",")]
    return Stress(
        model=str(model),
        data=folder,
        attacks=list(budgets),
        out=Path(out),
        retain_model=None if retain_model is None else str(retain_model),
        metrics=list(metrics),
        budget={name: several for name, several in budgets.items() if several},
        relearning={name: given[name] for name in RECIPE if name in given},
        settings=settings,
        **own,
    )


def can_be_served(name: str) -> bool:
    """Whether an attack leaves the weights alone."""
    return not isinstance(attack_named(name), WeightsAttack)


def read_attacks(attacks: Attacks) -> dict[str, list[float]]:
    """Attacks with their budgets, from words or from a mapping; no budgets: the attack's own.

    >>> read_attacks(["relearn=5,20", "leak"])
    {'relearn': [5.0, 20.0], 'leak': []}
    >>> read_attacks({"relearn": [5, 20], "prune": 0.5, "leak": None})
    {'relearn': [5.0, 20.0], 'prune': [0.5], 'leak': []}
    """
    asked: dict[str, Any] = {}
    if isinstance(attacks, Mapping):
        asked = {str(name): budgets for name, budgets in attacks.items()}
    else:
        for word in attacks.split() if isinstance(attacks, str) else attacks:
            name, _, budgets = word.partition("=")
            asked[name] = budgets.split(",")
    if not asked:
        raise UserError("No attack is named; write for example relearn=5,20 (see `vestige stress --help`).")
    out = {}
    for name, budgets in asked.items():
        several = budgets if isinstance(budgets, list | tuple) else [budgets]
        try:
            out[name] = [float(str(budget)) for budget in several if budget not in (None, "")]
        except ValueError:
            shown = ",".join(map(str, several))
            raise UserError(f"Cannot read '{name}={shown}'; a budget is a number or several: relearn=5,20.") from None
        least = attack_named(name).least
        if any(budget < least for budget in out[name]):
            shown = ",".join(f"{budget:g}" for budget in out[name])
            raise UserError(f"Cannot attack with the budget of '{name}={shown}'; it must be larger.")
    return out


def evaluations(ask: Stress) -> int:
    """How many there are in all: of each model before any attack, and under every budget of every attack."""
    return (2 if ask.retain_model else 1) * (1 + sum(len(ask.budgets(attack)) for attack in ask.attacks))


def plan_words(ask: Stress) -> str:
    """What is about to be done, for a terminal: attacks with their budgets, and how many evaluations they take.

    >>> plan_words(Stress("m", Path("d"), ["relearn"], Path("o"), budget={"relearn": [5, 20]}))
    'Plan: 3 evaluations: before any attack, relearn=5,20.'
    """
    attacks = [f"{name}={','.join(f'{budget:g}' for budget in ask.budgets(name))}" for name in ask.attacks]
    control = ", each also on the retain model" if ask.retain_model else ""
    return f"Plan: {counted(evaluations(ask), 'evaluation')}: {', '.join(['before any attack', *attacks])}{control}."


# ---- the run --------------------------------------------------------------------------------------------------------


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
    settings = []
    for record in map(attack_named, ask.attacks):
        for budget in ask.budgets(record.name) if isinstance(record, WeightsAttack) else ():
            assert isinstance(record, WeightsAttack)
            settings.append(record.settings_for(ask, budget))
            if record.check:
                record.check(settings[-1])
    if ask.compute_dtype and not any("compute_dtype" in one for one in settings):
        raise UserError("--compute-dtype is for quantise=4, which is not among the attacks; leave it out.")
    written = ["stress.json", MANIFEST, "evals"]
    written += [name for name, wanted in (("data", ask.held_out), ("checkpoints", ask.keep)) if wanted]
    inputs = {"--model": ask.model, "--retain-model": ask.retain_model, "--data": ask.data}
    refuse_input_in_output(ask.out, inputs, written)
    with open_run(ask.out, "stress") as run:
        run.begin(["stress.json", "data/", "evals/", "checkpoints/", *_kept_checkpoints(ask)])
        measured = ask
        if ask.held_out:  # only rows that the lesson does not teach are measured: a folder of the run has them
            with scratch(ask.out) as made:
                write_measured_half(ask.data, taught_keys(ask.data), made)
                install(made, ask.out / "data")
            measured = replace(ask, data=ask.out / "data")
        check_precision(ask.attacks, ask.settings.get("device"))
        subjects = [AttackSubject("model", ask.model, measured, ask.data)]
        if ask.retain_model:
            subjects.append(AttackSubject("retain", ask.retain_model, measured, ask.data))
        rows: list[AttackRow] = []
        with hushed(), Bar("attacking", evaluations(ask), "evaluation", ask.progress) as bar:
            for subject in subjects:
                shared = subject.who == "retain" and ask.control is not None
                for row in rows_of_control(ask) if shared else subject.attacked_rows():
                    rows.append(row)
                    bar.add(1)
        plain = [asdict(row) for row in rows if not row.reason]
        for measured_row in plain:
            del measured_row["reason"]
        facts = {attack: attack_named(attack).facts() for attack in ask.attacks}
        body: dict[str, Any] = {"rows": plain, "relearning": relearning_r(plain), "asked": ask.describe()}
        body["attacks"] = facts
        if len(plain) < len(rows):
            body["not_tested"] = [asdict(row) for row in rows if row.reason]
        if ask.settings.get("plugins"):
            body["plugins"] = plugin_digests(ask.settings["plugins"])
        write_json(ask.out / "stress.json", body)
        run.finish(manifest("stress", masked(ask.describe()), attacks=facts))
    return rows


def check_precision(attacks: Sequence[str], device: str | None) -> None:
    """Before any model runs: after a product in float32 it is too late for the attacks that read in fewer bits."""
    if any(getattr(attack_named(attack), "reads", None) for attack in attacks):
        check_low_precision(device or "auto")


def _kept_checkpoints(ask: Stress) -> list[str]:
    """Folders of the checkpoints to keep; foreign weights there are refused before the work, not after it."""
    names = []
    for who in ("model", "retain") if ask.keep else ():
        for attack in ask.attacks:
            for budget in ask.budgets(attack):
                folder = f"checkpoints/{who}/{attack}-{budget:g}"
                names += [f"{folder}/", f"{folder}/config.json", f"{folder}/model.safetensors"]
    return names


# What a shared control must have in common with the run that takes it over.
SAME = ("data", "attacks", "metrics", "budget", "relearning", "examples", "held_out", "temperature", "settings")


def rows_of_control(ask: Stress) -> Iterator[AttackRow]:
    """The control's rows and evaluations from a run that attacked it as this one attacks its model."""
    assert ask.control is not None
    described, theirs = ask.describe(), read_json(ask.control / "stress.json")
    differ = [key for key in SAME if theirs["asked"].get(key) != described[key]]
    if differ or theirs["asked"]["model"] != ask.retain_model:
        what = ", ".join(differ) or "model"
        raise UserError(f"{ask.control} did not attack {ask.retain_model} as asked here ({what}); leave it out.")
    with scratch(ask.out) as made:
        shutil.copytree(ask.control / "evals" / "model", made, dirs_exist_ok=True)
        install(made, ask.out / "evals" / "retain")
    for row in theirs["rows"]:
        if row["model"] == "model":
            yield AttackRow(**{**row, "model": "retain"})


class AttackSubject:
    """One model under every attack."""

    def __init__(self, who: str, path: str, ask: Stress, whole: Path) -> None:
        self.who, self.path, self.ask, self.whole = who, path, ask, whole

    def attacked_rows(self) -> Iterator[AttackRow]:
        before = self.evaluation(self.path, "before")
        self._copy_evidence(before)
        yield self.row("none", None, _measure(before))
        for record in map(attack_named, self.ask.attacks):
            budgets = self.ask.budgets(record.name)
            if isinstance(record, AnswersAttack):
                yield from record.measure(self, budgets)
                continue
            for budget in budgets:
                if isinstance(record, PromptAttack):
                    yield self._ask_otherwise(record, budget)
                elif isinstance(record, WeightsAttack):
                    yield self._attack_in_child(record, budget)

    def row(self, attack: str, budget: float | None, values: dict[str, float | None], **more: Any) -> AttackRow:
        """A line of the results about this model."""
        return AttackRow(self.who, attack, budget, values, **more)

    def evaluation(self, path: str, label: str, **more: Any) -> RunConfig:
        """The evaluation of one checkpoint."""
        ask, out = self.ask, str(self.ask.out / "evals" / self.who / label)
        settings = {**ask.settings, **more}
        run = make_config(
            model=path, data=str(ask.data), out=out, metrics=list(ask.metrics), progress=False, **settings
        )
        if not isinstance(run, RunConfig):
            raise UserError("Attacks are measured by a suite of metrics, not by a harness of tasks.")
        return replace(run, resamples=0)

    @property
    def lesson(self) -> AttackLesson:
        return AttackLesson(self.whole, self.ask.held_out, self.ask.examples)

    def _copy_evidence(self, run: RunConfig) -> None:
        """Evidence of a finished evaluation is copied: it is named by what it is evidence of, so that of anything else
        would lie there unread.
        """
        given, place = self.ask.collected.get(self.who), run.output_dir / "evidence"
        if given is None or place.is_dir() or run.overwrite:
            return
        with open_run(run.output_dir, "eval", ["evidence/"]):
            for file in evidence_files(given / "evidence"):
                write_bytes(place / file.relative_to(given / "evidence"), file.read_bytes())

    def _ask_otherwise(self, record: PromptAttack, budget: float) -> AttackRow:
        def change(config: Mapping[str, Any]) -> dict[str, Any]:
            return record.change(config, budget, self.whole)

        run = under_prompt(self.evaluation(self.path, f"{record.name}-{budget:g}"), change)
        return self.row(record.name, budget, _measure(run), settings=change({"args": {}})["args"])

    def _attack_in_child(self, record: WeightsAttack, budget: float) -> AttackRow:
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
            path = attacked.path
            if self.ask.keep and (made / label).is_dir():
                kept = self.ask.out / "checkpoints" / self.who / label
                install(made / label, kept)
                path = str(kept)
            reading = {"quantization": attacked.quantization, "compute_dtype": attacked.compute_dtype}
            reading = {key: value for key, value in reading.items() if value}
            values = _measure(self.evaluation(path, label, overwrite=True, **reading))
        notes, used = list(attacked.notes), dict(attacked.settings)
        return self.row(record.name, budget, values, notes=notes, settings=used)


def _measure(run: RunConfig) -> dict[str, float | None]:
    outcome = evaluate_config(run)
    return {name: outcome.scores[name].agg_value for name in outcome.top}


def under_prompt(run: RunConfig, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> RunConfig:
    """The same evaluation with other prompts in every data set of questions that is attacked."""

    def is_attacked(data: DataSpec) -> bool:
        questions = data.config.get("handler") in ("QADataset", "AutoDataset", PREFILLED)
        return questions and any(word in data.name.lower() for word in ATTACKED_DATA)

    metrics, changed = {}, 0
    for name, spec in run.suite.metrics.items():
        datasets = []
        for data in spec.datasets:
            if is_attacked(data):
                data = replace(data, config=change(data.config))
                changed += 1
            datasets.append(data)
        metrics[name] = replace(spec, datasets=tuple(datasets))
    if not changed:
        raise UserError("None of these metrics asks a question about forget rows, so a prompt attack changes nothing.")
    return replace(run, suite=replace(run.suite, metrics=metrics))


# ---- R: how much of what relearning brings back would a model gain that never knew the rows? ------------------------


def relearning_r(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each budget and metric that was measured before and after, on the model and on the control.

    R is 1 when the unlearned model gains no more than the control under the same attack, and near 0 when what it gains
    was in it all along. The formulas are those of meta-evaluation.

    >>> seen = {("model", "none"): 0.1, ("model", "relearn"): 0.5, ("retain", "none"): 0.1, ("retain", "relearn"): 0.2}
    >>> budgets = {"none": None, "relearn": 5}
    >>> rows = [{"model": m, "attack": a, "budget": budgets[a], "values": {"em": x}} for (m, a), x in seen.items()]
    >>> [{k: round(v, 2) if isinstance(v, float) else v for k, v in entry.items()} for entry in relearning_r(rows)]
    [{'budget': 5, 'metric': 'em', 'gained': 0.4, 'control': 0.1, 'one-sided': 0.25, 'symmetric': 0.4}]
    """
    measured = {(row["model"], row["attack"], row["budget"]): row["values"] for row in rows}
    relearning = {name for name, record in records().items() if record.state == RELEARNING}
    out = []
    for attack, budget in dict.fromkeys((row["attack"], row["budget"]) for row in rows if row["attack"] in relearning):
        before = {who: measured.get((who, "none", None), {}) for who in ("model", "retain")}
        after = {who: measured.get((who, attack, budget), {}) for who in ("model", "retain")}
        for metric in before["model"]:
            model = _gain(metric, before["model"], after["model"])
            control = _gain(metric, before["retain"], after["retain"])
            if model is None or control is None:
                continue
            by_rule = {name: RULES[name].relearning(model, control) for name in sorted(RULES)}
            out.append({"budget": budget, "metric": metric, "gained": model, "control": control, **by_rule})
    return out


def _gain(metric: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """By how much the value moved towards "knows"; None where it is missing, or for metrics that have no such end."""
    if before.get(metric) is None or after.get(metric) is None:
        return None
    try:
        direction = direction_of(metric)
        return direction.m(after[metric]) - direction.m(before[metric])
    except UserError:
        return None


# ---- what a terminal shows ------------------------------------------------------------------------------------------


def show(rows: Sequence[AttackRow]) -> str:
    """A line for each attack and budget; with a control its values stand next to each value."""
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.values))
    subjects = list(dict.fromkeys(row.model for row in rows))
    by_key = {(row.model, row.attack, row.budget): row for row in rows}
    lines = []
    for attack, budget in dict.fromkeys((row.attack, row.budget) for row in rows):
        line = [attack, "" if budget is None else attack_named(attack).size(budget)]
        for metric in metrics:
            for who in subjects:
                row = by_key.get((who, attack, budget))
                line.append("-" if row is None else number(row.values.get(metric)))
        lines.append(line)
    heads = [metric if who == "model" else "retain" for metric in metrics for who in subjects]
    return table(lines, ["attack", "budget", *heads], right=tuple(range(2, 2 + len(heads))))


def show_r(entries: Sequence[Mapping[str, Any]]) -> str:
    """The entries of `relearning_r` as a table."""
    attack = next(record for record in OURS.values() if record.state == RELEARNING)
    columns = ("gained", "control", "one-sided", "symmetric")
    lines = [[e["metric"], attack.size(e["budget"]), *(number(e[name]) for name in columns)] for e in entries]
    return table(lines, ["relearning", "budget", "gained", "control", "R", "symmetric R"], right=(2, 3, 4, 5))


def explain_columns(rows: Sequence[AttackRow]) -> str:
    """What each column of the table is, below it."""
    lines = ["none: the model as it is"]
    for attack in dict.fromkeys(row.attack for row in rows):
        if attack != "none":
            lines.append(f"{attack}: {attack_named(attack).does}")
    lines.append("metrics: measured after the attack; what rises above `none` came back (`vestige explain NAME`)")
    if any(row.model != "model" for row in rows):
        lines.append("retain: the same attack on the retain model; what it gains, too, was taught and not remembered")
    return "\n".join(lines)


def judge_attacks(out: Path) -> list[str]:
    """What each attack says, as the verdict judges it: against the control, over all budgets."""
    from vestige.verdict.judge import judge
    from vestige.verdict.runs import read_runs

    before = {who: out / "evals" / who / "before" for who in ("model", "retain")}
    if not all(any(place.glob("*_EVAL.json")) for place in before.values()):
        return []  # without a control nothing can be judged
    found = judge(read_runs([before["model"]], retain=[before["retain"]], stress=[out]))
    return [e["text"] for e in found["evidence"] if e["panel"] == "attacks"]


def draw(rows: Sequence[AttackRow], path: Path, run: Path) -> list[Path]:
    """A curve for each attack that was given more than one budget, of the first metric it has: PATH with its name."""
    from vestige.show.figures import recovery_curve, save

    plain, pictures = [asdict(row) for row in rows], []
    for attack in dict.fromkeys(row.attack for row in rows):
        budgeted = [row for row in rows if row.attack == attack and row.budget is not None]
        # Where fewer is stronger (bits), no budget is not the start.
        if len({row.budget for row in budgeted}) < 2 or attack_named(attack).fewer_is_stronger:
            continue
        figure = recovery_curve(plain, attack, next(iter(budgeted[0].values)), attack_named(attack).unit)
        pictures.append(save(figure, path.with_stem(f"{path.stem}_{attack}")))
    return pictures
