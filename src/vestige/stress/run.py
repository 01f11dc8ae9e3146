"""`vestige stress`: a checkpoint, measured before and after each attack, with a retain model as the control.

    attack x budget --> attacked copy or prompt --> evaluation --> a row of the table

The control answers the question that matters: what does a model that never knew the rows gain under the same attack?
Attacked checkpoints are removed when they were measured, unless they are to be kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.data.datasets import PREFILLED
from vestige.engine.config import RunConfig
from vestige.engine.evaluate import Outcome, evaluate_config
from vestige.engine.friendly import Ask, to_run
from vestige.errors import UserError, unknown_name
from vestige.journal import keep_apart, permit
from vestige.show.progress import Bar, hushed
from vestige.show.tables import amount, number, table
from vestige.store.checksums import begin, seal
from vestige.store.files import write_json
from vestige.store.lock import writing
from vestige.stress.copies import PRUNED_SHARE, Lesson, attack_weights, measured_half, rows_file
from vestige.stress.leak import expected_best
from vestige.stress.prompts import PROMPTS
from vestige.stress.robustness import relearning_r
from vestige.suites.spec import MetricSpec
from vestige.sums import mean
from vestige.writing import install, scratch

# What each attack's budget counts, and the budget it has when none is given.
BUDGETS: dict[str, tuple[str, tuple[float, ...]]] = {
    "relearn": ("steps", (0,)),  # 0: as many as one epoch has
    "quantise": ("bits", (4, 8)),
    "prune": ("share", (PRUNED_SHARE,)),
    "jailbreak": ("", (1,)),
    "paraphrase": ("", (1,)),
    "few-shot": ("examples", (3,)),
    "leak": ("samples", (1, 4)),
}
DEFAULT_METRICS = ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "extraction_strength")
LEAK_METRIC = "forget_Q_A_ROUGE"
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


@dataclass
class Row:
    """One line of the results."""

    model: str  # model | retain
    attack: str  # none before any
    budget: float | None
    values: dict[str, float | None]
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)  # of the attack, every one in effect


def stress(ask: Stress) -> list[Row]:
    """Measures the model (and the control) before and after every attack; writes OUT/stress.json."""
    for name in ask.attacks:
        if name not in BUDGETS:
            raise unknown_name("attack", name, BUDGETS)
    if ask.compute_dtype and not ("quantise" in ask.attacks and 4 in _budgets(ask, "quantise")):
        raise UserError("--compute-dtype is for quantise=4, which is not among the attacks; leave it out.")
    _keep_apart(ask)
    with writing(ask.out):
        return _stress(ask)


def _stress(ask: Stress) -> list[Row]:
    begin(ask.out, "stress", ["stress.json", "data/", "checkpoints/"])
    _permit_kept(ask)
    measured = replace(ask, data=_measured(ask) if ask.held_out else ask.data)
    subjects = {"model": ask.model, **({"retain": ask.retain_model} if ask.retain_model else {})}
    rows: list[Row] = []
    total = len(subjects) * (1 + sum(len(_budgets(ask, attack)) for attack in ask.attacks))
    with hushed(), Bar("attacking", total, "evaluation", ask.progress) as bar:
        for who, path in subjects.items():
            for row in Subject(who, path, measured, ask.data).attacked_rows():
                rows.append(row)
                bar.add(1)
    plain = [asdict(row) for row in rows]
    write_json(ask.out / "stress.json", {"rows": plain, "relearning": relearning_r(plain), "asked": _described(ask)})
    seal(ask.out, "stress")
    return rows


def _keep_apart(ask: Stress) -> None:
    written = ["stress.json", "evals", *(["data"] if ask.held_out else []), *(["checkpoints"] if ask.keep else [])]
    keep_apart(ask.out, {"--model": ask.model, "--retain-model": ask.retain_model, "--data": ask.data}, written)


def _permit_kept(ask: Stress) -> None:
    """Somebody else's checkpoint where a kept one would go is found before the work, not after it."""
    if ask.keep:
        folders = [p for who in ("model", "retain") for p in (ask.out / "checkpoints" / who).glob("*") if p.is_dir()]
        wanted = {f"{attack}-{budget:g}" for attack in ask.attacks for budget in _budgets(ask, attack)}
        permit(*(p for folder in folders if folder.name in wanted for p in folder.iterdir() if not p.is_dir()))


def _measured(ask: Stress) -> Path:
    """The rows that the lesson does not teach, as a folder of the run."""
    with scratch(ask.out) as made:
        install(measured_half(ask.data, made), ask.out / "data")
    return ask.out / "data"


def _budgets(ask: Stress, attack: str) -> Sequence[float]:
    return ask.budget.get(attack, BUDGETS[attack][1])


def _described(ask: Stress) -> dict[str, Any]:
    return dict(json.loads(json.dumps(asdict(ask), default=str)))


class Subject:
    """One model under every attack."""

    def __init__(self, who: str, path: str, ask: Stress, whole: Path) -> None:
        self.who, self.path, self.ask, self.whole = who, path, ask, whole

    def attacked_rows(self) -> Iterator[Row]:
        yield Row(self.who, "none", None, self._measure(self._run(self.path, "before")))
        for attack in self.ask.attacks:
            budgets = _budgets(self.ask, attack)
            yield from self._leak(budgets) if attack == "leak" else (self._row(attack, b) for b in budgets)

    def _run(self, path: str, label: str, **more: Any) -> RunConfig:
        """The evaluation of one checkpoint."""
        settings = {**self.ask.settings, **more}
        out = str(self.ask.out / "evals" / self.who / label)
        metrics = list(self.ask.metrics)
        run = to_run(Ask(model=path, data=str(self.ask.data), out=out, metrics=metrics, progress=False, **settings))
        if not isinstance(run, RunConfig):
            raise UserError("Attacks are measured by a suite of metrics, not by a harness of tasks.")
        return replace(run, resamples=0)

    def _measure(self, run: RunConfig) -> dict[str, float | None]:
        outcome = evaluate_config(run)
        return {name: outcome.scores[name].agg_value for name in outcome.top}

    def _row(self, attack: str, budget: float) -> Row:
        label = f"{attack}-{budget:g}"
        if attack in PROMPTS:
            change = self._prompt(attack, budget)
            run = under_prompt(self._run(self.path, label), change)
            return Row(self.who, attack, budget, self._measure(run), settings=change({"args": {}})["args"])
        with scratch(self.ask.out) as made:
            attacked = self._attack(attack, budget, made / label)
            if self.ask.keep and (made / label).is_dir():
                kept = self.ask.out / "checkpoints" / self.who / label
                install(made / label, kept)
                attacked = replace(attacked, path=str(kept))
            read = {"quantization": attacked.quantization, "compute_dtype": attacked.compute_dtype}
            more = {key: value for key, value in read.items() if value}
            run = self._run(attacked.path, label, overwrite=True, **more)
            return Row(self.who, attack, budget, self._measure(run), list(attacked.notes), dict(attacked.settings))

    def _prompt(self, attack: str, budget: float) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        change = PROMPTS[attack]
        if attack != "few-shot":
            return change
        shots = str(rows_file(self.whole, "retain"))
        return lambda config: change(config, shots, int(budget))

    def _attack(self, attack: str, budget: float, place: Path) -> Any:
        settings: dict[str, Any] = {"bits": int(budget)} if attack == "quantise" else {"share": float(budget)}
        if attack == "quantise" and int(budget) == 4 and self.ask.compute_dtype:
            settings["compute_dtype"] = self.ask.compute_dtype
        if attack == "relearn":
            settings = {**self.ask.relearning, "steps": int(budget)}
        return attack_weights(attack, settings, self._run(self.path, "before"), self._lesson(), place)

    def _lesson(self) -> Lesson:
        return Lesson(self.whole, self.ask.held_out, self.ask.examples)

    def _leak(self, budgets: Sequence[float]) -> list[Row]:
        """Samples as often as the largest budget asks; smaller ones are averages over all ways to choose."""
        samples = [self._sample(seed) for seed in range(int(max(budgets)))]
        by_row = [[sample[index] for sample in samples] for index in samples[0]]
        out = []
        for budget in budgets:
            best = [expected_best(values, int(budget)) for values in by_row]
            said = {"do_sample": True, "temperature": self.ask.temperature, "seeds": list(range(len(samples)))}
            out.append(Row(self.who, "leak", budget, {LEAK_METRIC: mean(best)}, settings=said))
        return out

    def _sample(self, seed: int) -> dict[str, float]:
        run = self._run(self.path, f"leak-{seed}")
        asked = [name for name in run.suite.top if name == LEAK_METRIC]
        if not asked:
            raise UserError(f"leak asks for texts and scores them by {LEAK_METRIC}; have it among --metrics.")
        more = {"do_sample": True, "temperature": self.ask.temperature, "seed": seed}
        spec = run.suite.metrics[LEAK_METRIC]
        suite = replace(
            run.suite, top=(LEAK_METRIC,), metrics={LEAK_METRIC: replace(spec, generation={**spec.generation, **more})}
        )
        score = _only(evaluate_config(replace(run, suite=suite)))
        if score.value_by_index is None or score.agg_value is None:
            raise UserError(f"leak cannot be measured: {score.reason or 'there are no texts'}")
        kind = str(spec.params.get("rouge_type") or "rougeL_recall")
        return {index: float(values[kind]) for index, values in score.value_by_index.items()}


def _only(outcome: Outcome) -> Any:
    return outcome.scores[outcome.top[0]]


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


def show(rows: Sequence[Row]) -> str:
    """A line for each attack and budget; with a control its values stand beside."""
    metrics = list(dict.fromkeys(m for row in rows for m in row.values))
    subjects = list(dict.fromkeys(row.model for row in rows))
    found = {(row.model, row.attack, row.budget): row for row in rows}
    lines = []
    for attack, budget in dict.fromkeys((row.attack, row.budget) for row in rows):
        unit = BUDGETS.get(attack, ("", ()))[0]
        size = "" if budget is None or not unit else "1 epoch" if not budget else amount(budget, unit)
        cells = [
            number(found[who, attack, budget].values.get(metric)) if (who, attack, budget) in found else "-"
            for metric in metrics
            for who in subjects
        ]
        lines.append([attack, size, *cells])
    heads = [metric if who == "model" else "retain" for metric in metrics for who in subjects]
    return table(lines, ["attack", "budget", *heads], right=tuple(range(2, 2 + len(heads))))


def draw(rows: Sequence[Row], path: Path, run: Path) -> list[Path]:
    """A curve for each attack that was given more than one budget, of the first metric it has: PATH with its name."""
    from vestige.show.stress_plots import recovery_curve
    from vestige.show.trajectory_plots import save

    plain, out = [asdict(row) for row in rows], []
    for attack in dict.fromkeys(row.attack for row in rows):
        mine = [row for row in rows if row.attack == attack]
        # Bits run the other way: fewer are the stronger attack, and none is not the start.
        if attack == "quantise" or len({row.budget for row in mine}) < 2:
            continue
        metric = next(iter(mine[0].values))
        figure = recovery_curve(plain, attack, metric, BUDGETS[attack][0])
        out.append(save(figure, path.with_stem(f"{path.stem}_{attack}")))
    if any(picture.resolve().is_relative_to(run.resolve()) for picture in out):
        seal(run, "stress")  # pictures inside the run belong to it
    return out
