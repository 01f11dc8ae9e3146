"""Any task list through lm-evaluation-harness, with a model and tokenizer that are already loaded.

The harness is an extra and slow to import, so nothing of it is imported before `evaluate` is called. Tasks are read
before the model is: a misspelt name should not cost the loading of seven billion weights.
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from vestige.adapters.lm_eval_kept import KeptAnswers, LoadOrAsk
from vestige.adapters.lm_eval_results import blank, read_results
from vestige.adapters.lm_eval_tasks import Tasks, load_tasks
from vestige.collect.backend import Backend, Cost
from vestige.errors import UserError, how_to_install, unknown_name
from vestige.models.foreign import error_sentence, quiet
from vestige.models.load import LoadedModel
from vestige.models.tokenizer import tokenizer_facts
from vestige.types import BAD_LOGITS, content_key

# Arguments of simple_evaluate that are set elsewhere, and where.
ELSEWHERE = {
    "model": "model=NAME or --model PATH",
    "model_args": "model.model_args",
    "device": "model.model_args.device",
    "tasks": "eval.lm_eval.tasks",
    "task_manager": "eval.lm_eval.include_path",
    "evaluation_tracker": "the files of the run directory",
    "log_samples": "LMEval_EVAL.json, which always has the samples",
    "verbosity": "the notes of manifest.json",
}
FOR_THE_MODEL = ("batch_size", "max_batch_size")  # simple_evaluate ignores them when it is handed a model


@dataclass
class HarnessResults:
    """What the harness found, in plain data."""

    details: dict[str, Any]  # task or group -> metrics, samples by document
    summary: dict[str, float]  # "task/metric" -> value, of what was asked for and of every task in a group
    data: dict[str, Any]  # task -> rows, source, fingerprint
    settings: dict[str, Any]  # what the harness was really called with
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # "task/metric" -> why it has no value
    reused: list[str] = field(default_factory=list)  # tasks whose answers were kept from an interrupted run


@dataclass(frozen=True)
class ServedSubject:
    """What the harness's model is made of, where it is served."""

    name: str
    tokenizer: Any
    answerer: Backend
    cost: Cost
    longest: int | None  # tokens that the server reads and writes together
    lacks: str = ""  # why it gives none of its log-probabilities; empty: it does
    first: bool = True  # it tells first choices


@dataclass(frozen=True)
class Keeping:
    """Where answers are kept while tasks are asked, and the name of the model that gives them."""

    answers: Callable[[str], LoadOrAsk]  # by the identity of what answers
    model: Callable[[], str]  # weights and all that changes its numbers; asked for once it is loaded


def evaluate(
    settings: Mapping[str, Any],
    get_model: Callable[[], LoadedModel | ServedSubject],
    max_samples: int | None,
    progress: bool,
    keeping: Keeping | None = None,
) -> HarnessResults:
    """Runs `settings["tasks"]` in one call of the harness. `get_model` is asked for the model once tasks are read."""
    _need_harness()
    from lm_eval import simple_evaluate

    args = _arguments(settings.get("simple_evaluate_args") or {}, max_samples, simple_evaluate)
    draws = _draws(settings.get("draws"))
    bars = progress and sys.stderr.isatty()
    with quiet(bars), _Warnings() as warned:
        tasks = load_tasks(settings.get("tasks"), settings.get("include_path"), args)
        model = get_model()
        lm = _wrapped(model, args, draws)
        try:
            with _watching(model) as watch, _no_git():
                kept = _kept(keeping, lm, model, args, draws, watch, warned)
                raw = simple_evaluate(model=lm, tasks=list(tasks.objects), task_manager=tasks.manager, **args)
        except ValueError as error:
            raise UserError(f"lm-evaluation-harness refused to run: {error_sentence(error)}") from error
    assert raw is not None  # None is for the helpers of a distributed run, and ours is not one
    details, summary, data = read_results(raw, tasks.top)
    missing: dict[str, str] = {}
    if watch.broken:  # the harness makes accuracies of NaN all the same
        why = f"{BAD_LOGITS} in {watch.broken} of {watch.forwards} forward passes"
        missing, summary = dict.fromkeys(summary, why), {}
        blank(details, why)
    used = {k: v for k, v in args.items() if v is not None} | _used(raw["config"])
    used |= {"max_length": raw.get("max_length"), "tokenizer": type(model.tokenizer).__name__}
    notes = [*_shot_notes(raw, args, tasks), *warned.lines]
    if not isinstance(lm, _in_process()):
        used |= lm.settings()
        notes += lm.notes()
    elif draws is not None:
        notes.append(f"draws={draws} means nothing to this model: its log-likelihoods are exact.")
    return HarnessResults(details, summary, data, used, notes, missing, kept.reused if kept else [])


def _kept(
    keeping: Keeping | None,
    lm: Any,
    model: LoadedModel | ServedSubject,
    args: Mapping[str, Any],
    draws: int | None,
    *seen: Any,
) -> KeptAnswers | None:
    """Answers kept task by task, if there is a place for them."""
    if keeping is None:
        return None
    from importlib.metadata import version

    facts = {
        "model": keeping.model(),
        "tokenizer": tokenizer_facts(model.tokenizer)["fingerprint"],
        "as": type(lm).__name__,
        "harness": version("lm_eval"),
        "max_length": getattr(lm, "max_length", None),
        "draws": draws,
        **{name: args.get(name) for name in FOR_THE_MODEL},
    }
    identity = content_key(json.dumps(facts, sort_keys=True, default=repr).encode())[:16]
    kept = KeptAnswers(lm, keeping.answers(identity), *seen)
    kept.install()
    return kept


@dataclass
class LogitWatch:
    """How many forward passes there were, and how many of them gave logits that are not numbers."""

    forwards: int = 0
    broken: int = 0

    def __call__(self, module: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        import torch

        logits = getattr(output, "logits", None)
        if not isinstance(logits, torch.Tensor):
            return
        self.forwards += 1
        finite = torch.isfinite(logits.detach().amax(dim=-1))
        mask = kwargs.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.ndim == 2 and finite.ndim == 2 and mask.shape[1] >= finite.shape[1]:
            finite = finite | (mask[:, -finite.shape[1] :] == 0)  # nobody reads what stands at padding
        self.broken += not bool(finite.all())


@contextmanager
def watched(model: Any) -> Iterator[LogitWatch]:
    """Looks at the logits of every forward pass while somebody else's code runs the model."""
    watch = LogitWatch()
    hook = model.register_forward_hook(watch, with_kwargs=True)
    try:
        yield watch
    finally:
        hook.remove()


def _watching(model: LoadedModel | ServedSubject) -> AbstractContextManager[LogitWatch]:
    """A server's logits are not seen here: its log-probabilities are checked as they arrive."""
    return nullcontext(LogitWatch()) if isinstance(model, ServedSubject) else watched(model.model)


@contextmanager
def _no_git() -> Iterator[None]:
    """The harness asks git for the commit of the current directory, which may not be a repository, and git complains
    on our standard error. Nothing here reads the answer: versions are in the manifest."""
    from lm_eval import evaluator

    asks = evaluator.get_git_commit_hash
    evaluator.get_git_commit_hash = lambda: None
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = asks


def _need_harness() -> None:
    try:
        import lm_eval
        import lm_eval.models.huggingface  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"This evaluation needs lm-evaluation-harness ({error_sentence(error).rstrip('.')}); "
            f"run `{how_to_install('lm-eval')}`."
        ) from None


def _arguments(given: Mapping[str, Any], max_samples: int | None, function: Any) -> dict[str, Any]:
    """The arguments of simple_evaluate: checked, without those not said, `limit` from data.max_samples by default."""
    known = [n for n in inspect.signature(function).parameters if n not in ELSEWHERE]
    for name in given:
        if name in ELSEWHERE:
            raise UserError(f"simple_evaluate_args.{name} has another place here: {ELSEWHERE[name]}.")
        if name not in known:
            raise unknown_name("setting of simple_evaluate_args", str(name), known)
    out = {str(k): v for k, v in given.items() if v is not None}
    if max_samples is not None and "samples" not in out:
        out.setdefault("limit", max_samples)
    if "limit" in out and not float(out["limit"]) > 0:
        raise UserError(f"simple_evaluate_args.limit must be more than 0, it is {out['limit']}.")
    out["batch_size"] = _batch_size(out.get("batch_size", 1))
    return out


def _batch_size(value: Any) -> int | str:
    text = str(value)
    if text.startswith("auto"):
        return text
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"simple_evaluate_args.batch_size must be a number from 1 or auto, it is {value}.")
    return int(text)


def _draws(value: Any) -> int | None:
    """How many draws a diffusion model's likelihood is estimated with; None leaves it to collect."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"eval.lm_eval.draws must be a whole number from 1, it is {value!r}.")
    return value


def _in_process() -> type:
    from lm_eval.models.huggingface import HFLM

    return HFLM


def _wrapped(model: LoadedModel | ServedSubject, args: Mapping[str, Any], draws: int | None) -> Any:
    """Our model as the harness sees models. The tokenizer is a copy, because the harness gives it a padding token."""
    if args.get("apply_chat_template") and not getattr(model.tokenizer, "chat_template", None):
        raise UserError(
            f"apply_chat_template is set, but the tokenizer of {model.name} has no chat template; "
            "set eval.lm_eval.simple_evaluate_args.apply_chat_template=false or give --tokenizer PATH."
        )
    sizes = {name: args[name] for name in FOR_THE_MODEL if name in args}
    tokenizer = copy.deepcopy(model.tokenizer)
    if isinstance(model, ServedSubject):
        from vestige.adapters.lm_eval_served import ServedLM

        return ServedLM(model, tokenizer)
    if model.diffusion is not None:
        from vestige.adapters.lm_eval_diffusion import DiffusionLM

        return DiffusionLM(model, tokenizer, draws, **sizes)
    return _in_process()(pretrained=model.model, tokenizer=tokenizer, **sizes)


def _used(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the harness itself says it used, seeds and found batch sizes above all."""
    names = ("batch_sizes", "bootstrap_iters", "random_seed", "numpy_seed", "torch_seed", "fewshot_seed")
    return {name: config[name] for name in names if name in config}


def _shot_notes(raw: Mapping[str, Any], args: Mapping[str, Any], tasks: Tasks) -> list[str]:
    """The harness never gives examples to a task whose own config says zero, whatever was asked."""
    asked = args.get("num_fewshot")
    other = [name for name, shots in raw["n-shot"].items() if asked is not None and shots != asked]
    if not other:
        return []
    return [f"num_fewshot={asked} does not hold for {', '.join(sorted(other))}: the task itself fixes another number."]


class _Warnings:
    """Collects the harness's warnings, which would otherwise go to the terminal as if they were ours."""

    CHATTER = (
        "`pretrained` model kwarg",
        "Passed an already-initialized model",
        "Overwriting default num_fewshot",
        "generation_kwargs:",
        "is defined, but aggregation is not",
        "is defined, but higher_is_better is not",
    )
    SILENT = ("huggingface_hub", "datasets")  # their retries; what comes of them is an error of ours
    MANY = 20

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.logger = logging.getLogger("lm_eval")
        self.handler = logging.Handler(logging.WARNING)
        self.handler.emit = self._keep  # type: ignore[method-assign]

    def _keep(self, record: Any) -> None:
        line = f"lm_eval: {' '.join(record.getMessage().split())[:300]}"
        if not any(words in line for words in self.CHATTER):
            self.add(line)

    def add(self, line: str) -> None:
        if line not in self.lines and len(self.lines) < self.MANY:
            self.lines.append(line)

    def __enter__(self) -> _Warnings:
        self.propagate, self.logger.propagate = self.logger.propagate, False
        self.logger.addHandler(self.handler)
        self.levels = {name: logging.getLogger(name).level for name in self.SILENT}
        for name in self.SILENT:
            logging.getLogger(name).setLevel(logging.ERROR)
        return self

    def __exit__(self, *error: object) -> None:
        self.logger.removeHandler(self.handler)
        self.logger.propagate = self.propagate
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)
