"""The verb `eval`: its flags, and from what was asked, in flags or by the Python API, to runs.

In: parsed arguments, or an EvalAsk: the common case said in a few words, as `vestige eval tofu --model PATH --data DIR`
does. Out: a RunConfig (or HarnessConfig); of the verb, run directories, a table on the screen and an exit status.
Callers: cli.py; costs/flags.py for the runs that `vestige plan` estimates; api and every room that evaluates for
`to_run`. What composes and evaluates is imported when it is needed: `--help` needs none of it.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError, nothing_computed, unknown_name
from vestige.flags import settings_of, shared_flags

if TYPE_CHECKING:
    from vestige.engine.config import AnyConfig


def add_verbs(verbs: Any) -> None:
    evaluate = verbs.add_parser("eval", help="evaluate a checkpoint", description="Evaluate a checkpoint.")
    evaluation_flags(evaluate, "eval")
    evaluate.set_defaults(do=run_eval, late="words")


def suite_names() -> list[str]:
    from vestige.configs.compose import PACKAGE_DIR

    return sorted(path.stem for path in (PACKAGE_DIR / "eval").glob("*.yaml"))


def evaluation_flags(p: Any, verb: str) -> None:
    p.add_argument("words", nargs="*", metavar="SUITE | KEY=VALUE", help="a suite (tofu) and/or Hydra overrides")
    shared_flags(
        p,
        verb,
        retain_model="it is evaluated first, and the model compared with it",
        retain_logs={"nargs": "+", "says": "or of several"},
        metrics="instead of the suite's own",
        out="default: saves/eval/<task_name>",
        batch_size="at most; default: 128",
        config_name={"default": "eval.yaml"},
    )


def _check_words(args: argparse.Namespace, suites: Sequence[str], overrides: Sequence[str]) -> None:
    """A suite is one word, and a model is not a word but a flag."""
    places = [word for word in suites if "/" in word or Path(word).is_dir()]
    if places and args.model is None:
        raise UserError(f"'{places[0]}' is not a suite; a model is given as --model {places[0]}.")
    if len(suites) > 1:
        raise UserError(f"One suite at a time, please: {', '.join(suites)}. Overrides are written KEY=VALUE.")
    own = args.config_dir or args.config_name != "eval.yaml"  # a configuration that may say everything
    if not (suites or overrides or args.model or own):
        raise UserError(f"No suite and no model given; write `vestige {args.verb} tofu --model PATH --data DIR`.")


def runs_of(args: argparse.Namespace) -> list[Any]:
    """The evaluations a command line means: friendly flags, Hydra overrides, or both."""
    if args.plugin:
        from vestige.adapters.plugins import load_plugins

        load_plugins(args.plugin)
    suites: list[str] = []
    overrides: list[str] = []
    for word in args.words:
        (overrides if "=" in word or word.startswith(("+", "~")) else suites).append(word)
    _check_words(args, suites, overrides)
    metrics = None if args.metrics is None else list(filter(None, map(str.strip, args.metrics.split(","))))
    if metrics == []:
        raise UserError("--metrics is empty; name metrics (see `vestige ls metrics`) or write all.")
    said: dict[str, Any] = {"metrics": metrics, "plugins": args.plugin}
    for name in (f.name for f in fields(EvalAsk)):
        if name not in said and hasattr(args, name):
            said[name] = getattr(args, name)
    if args.quiet:
        said["progress"] = False

    def compose(words: list[str]) -> list[Any]:
        return to_runs(EvalAsk(**{**said, "suite": suites[0] if suites else None, "overrides": words}))

    return multirun(overrides, compose) if args.multirun else compose(overrides)


def _retain_first(args: argparse.Namespace) -> None:
    """Evaluates --retain-model into a folder of the run, and makes it the reference."""
    from vestige.engine.evaluate import evaluate_config
    from vestige.show.progress import hushed

    out = runs_of(args)[0].output_dir / "retain-model"
    retain = argparse.Namespace(**{**vars(args), "model": args.retain_model, "out": str(out), "retain_logs": None})
    print(f"Evaluating the retain model {args.retain_model} ...", flush=True)
    with hushed():  # it has no retain logs itself
        evaluate_config(runs_of(retain)[0], accumulate=True)
    args.retain_logs = [*(args.retain_logs or []), str(out)]


def run_eval(args: argparse.Namespace) -> int:
    if args.retain_model and not args.cfg:
        _retain_first(args)
    runs = runs_of(args)
    if args.cfg:
        return print_config(runs)
    from vestige.engine.evaluate import evaluate_config

    failed: list[str] = []
    for run in runs:
        outcome = evaluate_config(run, accumulate=True)
        _print_outcome(outcome, run)
        # A run without any value is a failure, though its files and reasons are written.
        if outcome.top and all(outcome.scores[name].missing for name in outcome.top):
            failed += [outcome.scores[name].reason for name in outcome.top]
    if failed:
        raise nothing_computed("metrics", failed)
    return 0


def _print_outcome(outcome: Any, run: Any) -> None:
    from vestige.show.tables import harness_report, summary, without_retain

    if "harness" in outcome.manifest:
        print(harness_report(outcome))
        return
    rows = {}  # several metrics may read one source
    for data in outcome.manifest["data"].values():
        rows[data["source"]] = data["rows"]
    about = f"{run.suite.name}, dialect {outcome.dialect}, {sum(rows.values())} rows read"
    print(f"\n{outcome.manifest['model']['name']}  ({about})")
    print(f"prompt: {outcome.manifest['prompt']!r}\n")
    print(summary(outcome.metrics, outcome.top, outcome.scores, outcome.retain, outcome.stats))
    for note in dict.fromkeys(outcome.notes):  # several metrics may read one file
        print(f"note: {note}")
    if not run.retain_logs and (words := without_retain(outcome.metrics, outcome.scores)):
        print(f"\n{words}")
    print(f"\nfiles: {', '.join(map(str, outcome.files))}")
    cost, seconds = outcome.manifest["cost"], outcome.manifest["seconds"]
    print(
        f"cost:  {cost['score_tokens']:,} tokens scored, {cost['tokens_produced']:,} generated "
        f"({cost['tokens_proven']:,} of them without a step), "
        + (
            f"{cost['denoise_tokens']:,} denoised in {cost['denoise_forwards']:,} passes, "
            * bool(cost["denoise_tokens"])
        )
        + f"{seconds['total']:.1f} s"
    )


def print_config(runs: Sequence[Any]) -> int:
    from omegaconf import OmegaConf

    from vestige.store.directories import config_json

    for run in runs:
        body = {**config_json(run.describe()), "output_dir": str(run.output_dir)}
        if hasattr(run, "dialect"):
            body["dialect"] = run.dialect
        print(OmegaConf.to_yaml(OmegaConf.create(body)))
    return 0


# ---- from an ask to a run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvalAsk:
    """What the flags say, or the keywords of Python. None means: not said."""

    suite: str | None = "tofu"  # None: an experiment, or a configuration of the user's own, chooses
    model: str | None = None
    data: str | None = None
    retain_logs: str | Sequence[str] | None = None  # several: other seeds of the retain model
    out: str | None = None
    task_name: str | None = None
    metrics: Sequence[str] | None = None  # ["all"] for every metric of the suite
    tasks: Sequence[Any] | str | None = None  # of lm_eval: names, paths, task configs
    include_path: str | None = None
    reference_model: str | None = None
    full: str | None = None  # the model before unlearning: reads texts for said_likelihood
    dialect: str | None = None
    system_prompt: str | None = None
    batch_tokens: int | None = None
    batch_size: int | None = None  # rows in one forward, at most
    limit: int | None = None
    cluster: str | None = None  # the column whose rows hang together
    dtype: str | None = None
    device: str | None = None
    tokenizer: str | None = None
    adapter_base: str | None = None  # of Python's pair (base, adapter)
    quantization: str | None = None
    compute_dtype: str | None = None  # of 4-bit layers
    trust_remote_code: bool = False
    server: str | None = None  # addresses of servers that run the model, separated by commas
    server_key_env: str | None = None  # the environment variable that holds their key
    server_by_name: bool = False  # several models: each is asked at those of the servers that list it
    overwrite: bool = False
    accept_mixture: bool = False  # of this run and its retain logs
    trajectory_views: str | None = None  # both | full | eos: the suite along a denoising path
    benchmark: str | None = None  # of trajectory-eval
    seed: int | None = None
    progress: bool | None = None
    overrides: Sequence[str] = ()
    config_dir: str | None = None
    config_name: str = "eval.yaml"
    plugins: Sequence[str] = ()


# Flags that mean something to one kind of evaluation only; said to the other kind they would change nothing.
METRICS_ONLY = ("data", "retain_logs", "reference_model", "full", "dialect", "batch_tokens", "seed", "cluster")
TASKS_ONLY = ("tasks", "include_path")


# Overrides with which the composition chooses the suite and the model, and flags only change single settings of it.
_CHOOSES_ALL = re.compile(r"(experiment|eval)=")
_ABOUT_MODEL, _CHOOSES_MODEL = re.compile("model"), re.compile("model=")
# Settings of a suite that open-unlearning's experiments have at the top level: `vestige eval muse data_split=Books`.
_OF_SUITE = re.compile(r"(data_split|forget_split|holdout_split|retain_logs_path)=")


def to_run(ask: EvalAsk) -> AnyConfig:
    """The configuration of a friendly request: one suite, one model."""
    return to_runs(ask)[0]


def to_runs(ask: EvalAsk) -> list[AnyConfig]:
    """The configurations of a request. Flags and keywords lie over what is composed, each on its own setting."""
    from vestige.engine.config import compose_runs

    if ask.suite in ALONG or ask.benchmark is not None or ask.trajectory_views is not None:
        ask = _along_trajectories(ask)
    composed = ask.config_name != "eval.yaml" or any(map(_CHOOSES_ALL.match, ask.overrides))
    if ask.suite is None and not composed and not ask.config_dir:
        ask = replace(ask, suite="tofu")
    overrides = list(ask.overrides)
    if ask.suite is not None:
        if ask.config_dir is None and ask.suite not in suite_names():
            raise unknown_name("suite", ask.suite, suite_names())
        if not composed:
            overrides = [f"eval.{ask.suite}.{word}" if _OF_SUITE.match(word) else word for word in overrides]
        overrides.insert(0, f"eval={ask.suite}")
    if not composed:
        if ask.model is None and not any(map(_ABOUT_MODEL.match, ask.overrides)):
            raise UserError("No model given; add --model PATH (a directory, a .gguf file or a hub id).")
        if not any(map(_CHOOSES_MODEL.match, ask.overrides)):
            overrides.insert(0, "model=local")
    config_dir = Path(ask.config_dir) if ask.config_dir else None
    values = _values(ask, composed)
    runs = compose_runs(overrides, ask.config_name, config_dir, ask.metrics, ask.plugins, values)
    return [_with_tasks_or_data(run, ask) for run in runs]


def _with_tasks_or_data(run: AnyConfig, ask: EvalAsk) -> AnyConfig:
    from vestige.data.rows import local_data
    from vestige.engine.config import HarnessConfig

    name = run.name if isinstance(run, HarnessConfig) else run.suite.name
    for other in METRICS_ONLY if isinstance(run, HarnessConfig) else TASKS_ONLY:
        if getattr(ask, other) is not None:
            raise UserError(f"--{other.replace('_', '-')} means nothing to '{name}'; leave it out.")
    if isinstance(run, HarnessConfig):
        return run if ask.tasks is None else replace(run, settings={**run.settings, "tasks": ask.tasks})
    if not ask.data:
        return run
    return replace(run, missing="skip", local=local_data(name, run.settings.get("local_data"), str(ask.data)))


ALONG = ("trajectory-eval", "trajectory_eval")
VIEWS = {"both": "[full,eos]", "full": "[full]", "eos": "[eos]"}


def _along_trajectories(ask: EvalAsk) -> EvalAsk:
    """`trajectory-eval --benchmark B` and `B --trajectory-views V` both mean the suite B_trajectory."""
    suites, views = suite_names(), ask.trajectory_views
    if ask.suite not in ALONG and ask.benchmark is not None:
        raise UserError("--benchmark belongs to `vestige eval trajectory-eval`; here the suite's name says it.")
    if views is not None and views not in VIEWS:
        raise unknown_name("view", views, VIEWS, "(--trajectory-views)")
    base = ask.benchmark or "tofu" if ask.suite in ALONG else ask.suite or "tofu"
    wanted = base if "trajectory" in base else f"{base}_trajectory"
    if wanted not in suites and ask.config_dir is None:
        known = [s.removesuffix("_trajectory") for s in suites if s.endswith("_trajectory")]
        raise unknown_name("benchmark with trajectories", base, known)
    said = [f"eval.{wanted}.metrics.trajectory_metrics.trajectory_config.include_views={VIEWS[views]}"] if views else []
    return replace(ask, suite=wanted, overrides=[*said, *ask.overrides])


def _values(ask: EvalAsk, composed: bool) -> dict[str, Any]:
    """What the ask says, as settings of the configuration (the table of flags knows their keys)."""
    said = dict(vars(ask))
    if not composed and not any(o.startswith("task_name=") for o in ask.overrides):
        said["task_name"] = ask.task_name or _task_name(ask)
    logs = said["retain_logs"]
    said["retain_logs"] = logs[0] if isinstance(logs, (list, tuple)) and len(logs) == 1 else logs
    more: dict[str, Any] = {"progress": ask.progress, "model.model_args.adapter_base": ask.adapter_base}
    more["server.by_name"] = True if ask.server and ask.server_by_name else None
    # lm-evaluation-harness makes its own prompts, from its own setting.
    more["eval.lm_eval.simple_evaluate_args.system_instruction"] = ask.system_prompt
    values = settings_of(said)
    for key, value in more.items():
        if value is not None:
            values[key] = value
    return values


def _task_name(ask: EvalAsk) -> str:
    if ask.out:
        return Path(ask.out).absolute().name.replace("..", "_") or "run"
    chosen = [o.partition("=")[2] for o in ask.overrides if re.match(r"model=|model.*name_or_path=", o)]
    name = Path(str(ask.model or (chosen[-1] if chosen else "run"))).name
    return f"{ask.suite or 'eval'}_{re.sub(r'[^A-Za-z0-9._-]+', '_', name).removesuffix('.gguf')}"


# ---- several runs from comma lists ---------------------------------------------------------------------------------


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the values that the overrides list, the last one changing fastest, as Hydra does.

    >>> expand(["a=1,2", "b=x", "c=range(0,2)"])
    [['a=1', 'b=x', 'c=0'], ['a=1', 'b=x', 'c=1'], ['a=2', 'b=x', 'c=0'], ['a=2', 'b=x', 'c=1']]
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        choices = [
            [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
            if o.is_sweep_override()
            else [str(o.input_line)]
            for o in parsed
        ]
    except HydraException as error:
        raise UserError(f"--multirun cannot read the overrides: {' '.join(str(error).split())}") from None
    return [list(combination) for combination in itertools.product(*choices)]


def multirun(overrides: Sequence[str], compose: Callable[[list[str]], list[Any]]) -> list[Any]:
    """The runs of every combination. Where two would write to one directory, each has a folder named by its choices."""
    combinations = expand(overrides)
    by_choice = [(_chosen(overrides, words), run) for words in combinations for run in compose(words)]
    places = [run.output_dir for _, run in by_choice]
    if len(set(places)) == len(places):
        return [run for _, run in by_choice]
    runs = [replace(run, output_dir=run.output_dir / folder) for folder, run in by_choice]
    places = [run.output_dir for run in runs]
    if len(set(places)) < len(places):
        twice = next(p for p in places if places.count(p) > 1)
        raise UserError(f"Two runs of --multirun would write to {twice}; make task_name differ between them.")
    return runs


def _chosen(before: Sequence[str], after: Sequence[str]) -> Path:
    """A folder for a combination, from the overrides that had a choice: mia_min_k.k=0.2,seed=1."""
    words = [a for b, a in zip(before, after, strict=True) if a != b]
    return Path(re.sub(r"[^A-Za-z0-9._=,-]+", "_", ",".join(words)) or ".")
