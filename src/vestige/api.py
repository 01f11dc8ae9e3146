"""The Python interface: the names of `vestige.__all__`, one function per question, with plain arguments.

In: paths, names and numbers, as the command line takes them. Out: objects that print as the command line does. A
setting that is not known is refused by name. Rooms are imported when a function is called.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError, how_to_install, unknown_name
from vestige.types import Score
from vestige.writing import lasting

if TYPE_CHECKING:
    from vestige.collapse.run import CollapseReport
    from vestige.costs.estimate import CostPlan
    from vestige.depth.run import DepthResult
    from vestige.engine.evaluate import Outcome
    from vestige.engine.friendly import EvalAsk
    from vestige.results.compare import Comparison
    from vestige.stress.run import AttackRow

log = logging.getLogger("vestige.api")
Place = str | Path


class Result:
    """The scores of one evaluation. `print(result)` is the table; `result["forget_Q_A_Prob"]` is one Score.

    `evaluate`, `score` and `load_run` return one. `directory` is the run directory, `files` are the result files.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.directory = outcome.directory
        self.files = outcome.files

    @property
    def scores(self) -> Mapping[str, Score]:
        """Every metric and parent."""
        return self.outcome.scores

    @property
    def summary(self) -> dict[str, float | None]:
        """The asked-for metrics' values."""
        return {name: self.scores[name].agg_value for name in self.outcome.top}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % intervals of all metrics that have one (of forget_quality: of its KS distance)."""
        ends = {name: stat["interval"] for name, stat in self.outcome.stats.items()}
        return {name: (e[0], e[1]) for name, e in ends.items() if e}

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self.outcome.manifest

    def __getitem__(self, name: str) -> Score:
        if name not in self.scores:
            raise unknown_name("metric", name, self.scores)
        return self.scores[name]

    def rows(self, metric: str) -> list[dict[str, Any]]:
        """One metric's per-row values as a list of records (attacks: forget and holdout rows, told apart by `set`)."""
        score = self[metric]
        if score.value_by_index is not None:
            return [{"index": i, **v} for i, v in score.value_by_index.items()]
        sets = {k: v for k, v in score.extra.items() if isinstance(v, Mapping) and "value_by_index" in v}
        return [{"set": k, "index": i, **r} for k, v in sets.items() for i, r in v["value_by_index"].items()]

    def to_pandas(self, metric: str | None = None) -> Any:
        """The summary, or one metric's rows, as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise UserError(f"to_pandas needs pandas; run `{how_to_install('pandas')}` or use .rows().") from None
        if metric is not None:
            return pandas.DataFrame(self.rows(metric)).set_index("index")
        return pandas.DataFrame({"value": self.summary})

    def __repr__(self) -> str:
        from vestige.engine.harness import report
        from vestige.show.tables import summary

        if "harness" in self.manifest:
            return report(self.outcome).strip()
        place = self.files[0].parent if self.files else self.directory
        head = f"{self.manifest['model']['name']}  (dialect {self.outcome.dialect}; files in {place})"
        outcome = self.outcome
        return f"{head}\n{summary(outcome.metrics, outcome.top, self.scores, outcome.retain, outcome.stats)}"


# ---- evaluate ---------------------------------------------------------------------------------------------------


def evaluate(  # noqa: PLR0913 - keywords that users know
    model: Any,
    suite: str = "tofu",
    *,
    tokenizer: Any = None,
    data: Place | None = None,
    retain_logs: Place | Sequence[Place] | None = None,
    out: Place | None = None,
    metrics: Sequence[str] | str | None = None,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Evaluates a checkpoint (a path or hub id) or a model in memory (with its `tokenizer`).

        result = vestige.evaluate("MODEL", "tofu", data="DIR", out="saves/eval/mine", limit=100)
        print(result, result.summary["forget_Q_A_Prob"])

    `metrics` is a list of names or "all"; `settings` are the other flags of `vestige eval` (dialect, system_prompt,
    limit, reference_model, plugins=[...], overrides=[...], ...). Without `out` the files go to a temporary directory.
    A training run may call this between two steps: random state and the model's train or eval modes are afterwards as
    they were before.
    """
    from vestige.engine.evaluate import evaluate_config
    from vestige.engine.friendly import to_run
    from vestige.integrations.undisturbed import undisturbed
    from vestige.models.load import wrap_model

    live = None if isinstance(model, (str, Path)) else model
    if live is not None and tokenizer is None:
        raise UserError("A model in memory needs its tokenizer: evaluate(model, suite, tokenizer=tokenizer).")
    if live is None and tokenizer is not None:
        settings["tokenizer"] = str(tokenizer)
    said = {"data": data, "retain_logs": retain_logs, "out": out if out is not None else lasting(), "metrics": metrics}
    path = "in-memory" if live is not None else str(model)
    ask = _ask("evaluate", settings, model=path, suite=suite, progress=progress, **said)
    with undisturbed(live):
        return Result(evaluate_config(to_run(ask), None if live is None else wrap_model(live, tokenizer)))


def plan(model: Place, suite: str = "tofu", **settings: Any) -> CostPlan:
    """What an evaluation would cost, before it is paid for. Loads no model and writes nothing.

        cost = vestige.plan("MODEL", "tofu", data="DIR", out="saves/eval/mine")
        print(cost, cost.answers.tokens, cost.seconds)

    `settings` are those of `evaluate`; answers that are in `out` already cost nothing. The result prints as
    `vestige plan` and has the counts as fields: asked, answers (distinct, cached, tokens, batches), references,
    prompts, new_tokens, memory, seconds, unavailable, ...
    """
    from vestige.costs.estimate import make_plan
    from vestige.engine.friendly import to_run

    return make_plan(to_run(_ask("plan", settings, model=_path("plan", model), suite=suite)))


def _ask(function: str, settings: dict[str, Any], **said: Any) -> EvalAsk:
    """An evaluation's ask from plain values; `settings` are checked by name, and plug-ins are loaded."""
    from vestige.engine.friendly import EvalAsk

    _check(function, settings, {f.name for f in fields(EvalAsk)} - {"model", "suite"})
    _load_plugins(settings)
    given = {**said, **settings}
    for name in ("data", "out", "retain_logs", "tokenizer", "reference_model", "full", "config_dir", "include_path"):
        given[name] = _as_text(given.get(name))
    if isinstance(given.get("metrics"), str):
        given["metrics"] = given["metrics"].split(",")
    return EvalAsk(**given)


# ---- finished runs ----------------------------------------------------------------------------------------------


def load_run(run: Place) -> Result:
    """A finished evaluation, read back from its directory. Runs no model and writes nothing.

        result = vestige.load_run("saves/eval/mine")
        print(result.summary, result.intervals, result.rows("forget_Q_A_Prob")[0])

    The numbers are those of the result files; a file that has changed since the run was finished is refused.
    """
    from vestige.results.load import load_outcome

    _load_plugins({})
    return Result(load_outcome(Path(run).expanduser()))


def score(
    run: Place,
    dialect: str | None = None,
    retain_logs: Place | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    cluster: str | None = None,
) -> Result:
    """Scores a finished evaluation again from its evidence, without a model; another definition if asked.

        strict = vestige.score("saves/eval/mine", dialect="strict")
        print(strict, vestige.score("saves/eval/mine", changes={"mia_min_k": {"k": 0.2}}).files)

    `changes` maps metric -> setting -> value. Another definition gets a folder of its own below the run (scores/NAME),
    so that the run's files keep meaning what its manifest says. `cluster` names the column whose rows hang together:
    the run's intervals are made with it from then on ("none": rows are independent).
    """
    from vestige.engine.rescore import rescore

    _load_plugins({})
    return Result(rescore(Path(run).expanduser(), dialect, changes, _as_text(retain_logs), cluster))


def compare_runs(
    *runs: Place,
    metrics: Sequence[str] | str | None = None,
    margin: float = 0.05,
    resamples: int = 10_000,
    cluster: str | None = None,
) -> Comparison:
    """Runs side by side, and whether each one's difference from the first could be chance. Writes nothing.

        found = vestige.compare_runs("saves/eval/retain", "saves/eval/mine")
        print(found)
        print(found.differences["mine"][0].holm, found.rows()[0])

    `metrics` is a list of names or "all"; by default those the first run was asked for. `margin` is what counts as
    equal on metrics between 0 and 1. `cluster` names the column whose rows hang together, where the runs do not say.
    """
    from vestige.results.compare import compare

    _load_plugins({})
    names = metrics if metrics is None or isinstance(metrics, str) else ",".join(metrics)
    return compare([Path(run).expanduser() for run in runs], names, margin, resamples, cluster)


def make_report(runs: Place | Sequence[Place], out: Place, **settings: Any) -> Path:
    """Writes the page of any mixture of runs, and returns its path. The data is in report.json beside it.

        page = vestige.make_report(["saves/eval", "saves/depth"], "saves/report", title="My model")
        print(page)

    `settings`: title, full and retain (names of the reference models), rows (examples kept of a split), shorten_paths,
    plugins. Runs that cannot be read are left out with a warning, and listed on the page.
    """
    from vestige.report.assemble import PageAsk
    from vestige.report.format import PAGE
    from vestige.report.run import ReportAsk, write_report

    own = {f.name for f in fields(PageAsk)}
    _check("make_report", settings, {*own, "shorten_paths", "plugins"})
    _load_plugins(settings)
    said = {name: settings[name] for name in own & set(settings)}
    said |= {name: [said[name]] for name in ("full", "retain") if isinstance(said.get(name), str)}
    if said.get("rows", 1) < 1:
        raise UserError(f"rows is {said['rows']}; keep at least 1 row of a split.")
    places = [Path(run).expanduser() for run in ([runs] if isinstance(runs, (str, Path)) else runs)]
    place = Path(out).expanduser()
    report = write_report(ReportAsk(places, place, PageAsk(**said), bool(settings.get("shorten_paths"))))
    for words in report.get("left_out") or ():
        log.warning("Left out of the report: %s", words)
    return place / PAGE


# ---- other questions --------------------------------------------------------------------------------------------


def measure_depth(
    unlearned: Place | Sequence[Place], full: Place, retain: Place, data: Place, **settings: Any
) -> list[DepthResult]:
    """Is it gone from the layers, or only from what the model says? One result per unlearned checkpoint.

        [depth] = vestige.measure_depth("MODEL", "FULL", "RETAIN", "DIR/forget.jsonl", out="saves/depth", limit=50)
        print(depth.uds, depth.summary["interval"])

    `settings` are the flags of `vestige depth` (out, layers, last_layer, delta_threshold, baselines, limit, ...),
    progress and plugins. Without `out` the files go to a temporary directory.
    """
    from vestige.depth.ask import make_ask
    from vestige.depth.run import depth_run
    from vestige.integrations.undisturbed import undisturbed

    many = [unlearned] if isinstance(unlearned, (str, Path)) or not isinstance(unlearned, Iterable) else unlearned
    paths = {name: _path("measure_depth", path) for name, path in (("full", full), ("retain", retain), ("data", data))}
    _load_plugins(settings)
    plain = {name: _as_text(v) if isinstance(v, Path) else v for name, v in settings.items() if name != "plugins"}
    plain = {"progress": False, **plain, "out": plain.get("out") or str(lasting())}
    ask = make_ask(unlearned=[_path("measure_depth", path) for path in many], **paths, **plain)
    with undisturbed():
        return depth_run(ask)


def measure_collapse(
    rollouts: Place | Sequence[Place], model: Any, tokenizer: Any = None, out: Place | None = None, **settings: Any
) -> CollapseReport:
    """Does reasoning still depend on its prompt? Rollout files, and the checkpoint or model in memory that wrote them.

        report = vestige.measure_collapse("rollouts.jsonl", "MODEL", num_samples="all", resamples=200)
        print(report)
        print(report.metrics[1]["collapse_first_turn_sample/mi_seq_estimate"])  # step -> name -> number

    `settings` are those of the `collapse_detection` group (num_samples, resamples, seed, columns, ...), or
    settings=CollapseSettings(...); reasoning=Reasoning(...), format, prompt_template, steps, temperature, ema,
    batch_tokens and progress. Without `out` nothing is written.
    """
    from vestige.collapse.run import measure

    return measure(rollouts, model, tokenizer, out, **settings)


def attack(
    model: Place,
    data: Place,
    attacks: str | Sequence[str] | Mapping[str, Any],
    out: Place | None = None,
    retain_model: Place | None = None,
    **settings: Any,
) -> list[AttackRow]:
    """Does what was forgotten come back? The checkpoint measured before and after each attack, one row for each.

        rows = vestige.attack("MODEL", "DIR", ["relearn=5,20", "leak"], retain_model="RETAIN")
        rows = vestige.attack("MODEL", "DIR", {"relearn": [5, 20], "leak": None})  # the same attacks
        print([(row.model, row.attack, row.budget, row.values) for row in rows])

    `retain_model` is the control: a model that never knew, under the same attacks. `settings` are the flags of
    `vestige stress` (metrics, held_out, examples, keep, epochs, lr, limit, ...), progress and plugins. Without `out`
    the files go to a temporary directory.
    """
    from vestige.integrations.undisturbed import undisturbed
    from vestige.stress.ask import make_stress
    from vestige.stress.run import stress

    _load_plugins(settings)
    control = None if retain_model is None else _path("attack", retain_model)
    place = Path(out).expanduser() if out is not None else lasting()
    ask = make_stress(_path("attack", model), data, attacks, place, control, **settings)
    with undisturbed():
        return stress(ask)


# ---- arguments --------------------------------------------------------------------------------------------------


def _as_text(paths: Place | Sequence[Place] | None) -> Any:
    if paths is None or isinstance(paths, (str, Path)):
        return None if paths is None else str(paths)
    return [str(p) for p in paths]


def _path(function: str, model: Any) -> str:
    """A checkpoint by its path. Models in memory are for `evaluate` and `measure_collapse`."""
    if not isinstance(model, (str, Path)):
        raise UserError(f"{function}() takes paths or hub ids, not {type(model).__name__}; save the model first.")
    return str(model)


def _check(function: str, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in settings:
        if name not in known:
            raise unknown_name(f"setting of {function}()", name, known)


def _load_plugins(settings: dict[str, Any]) -> None:
    """Loads installed plug-ins, and the files that `plugins` names: one, or a list."""
    from vestige.integrations.plugins import load_plugins

    if isinstance(settings.get("plugins"), (str, Path)):
        settings["plugins"] = [settings["plugins"]]
    settings["plugins"] = [str(file) for file in settings.get("plugins", ())]
    load_plugins(settings["plugins"])
