"""One evaluation of a model that is being trained, by one process or by all that train it.

    live model --evaluate_config--> OUT/step-N (a run directory) --verdict/best.py--> Look --> loggers, watch.json

A `LiveEvaluator` evaluates the same model again and again, places each result between the model before unlearning and
the retain model, and keeps or prunes the run directories. A run directory is complete: it can be scored again, compared
and reported like any other.

Where several processes train (`evaluate_together`):

    replicated (DDP)          the first process evaluates its copy while the others wait; or each collects a share
    sharded (FSDP, ZeRO-3)    the weights are gathered once into a whole copy on the first process, which evaluates it

A failure on the first process is carried to the others, so that nobody waits for a look that does not come.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vestige.adapters.preserve_state import preserve_state
from vestige.engine.config import RunConfig
from vestige.engine.evaluate import Outcome, evaluate_config
from vestige.engine.references import load_reference
from vestige.errors import UserError, is_ours
from vestige.internal import summary
from vestige.io import DamagedError, decode, decode_data
from vestige.metrics.cards import direction_of
from vestige.models.load import wrap_model
from vestige.numeric import mean
from vestige.runs.directory import open_run, remove_run, temporary, write_bytes
from vestige.runs.team import alone
from vestige.show.progress import hushed
from vestige.suites.spec import MetricSpec
from vestige.unlearn.looks import CURVE, PREFIX, Look, WatchFile
from vestige.verdict.best import Gauge, Rank, Rule, RunMoment, better, ranked
from vestige.verdict.facts import UTILITY
from vestige.verdict.judge import judge
from vestige.verdict.runs import read_runs

OTHER_ROWS = ("retain_", "ra_", "wf_")  # metrics of rows that are not to be forgotten
OTHER_WORDINGS = ("_PARA_", "_PERT_", "_para", "_pert")
TOKENS = ("score_tokens", "prefill_tokens", "tokens_produced", "denoise_tokens")
WRAPPERS = ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine")  # of DeepSpeed: ZeRO-1 and 2, weights whole
ROW_COLUMNS = ["metric", "index", "value", "input", "ground_truth", "generation"]


@dataclass(frozen=True)
class WatchSettings:
    """When a model is evaluated while it trains, how looks are judged and kept, and what follows from one."""

    retain_logs: Sequence[str] = ()  # runs of the model that never knew
    full_logs: Sequence[str] = ()  # of the model before unlearning; none: the look at step 0 serves
    rule: Rule | None = None
    keep: str | int = "all"  # all | best | none | the newest N (and the best)
    every: int | str = "epoch"  # steps, or epoch, or eval (whenever the trainer itself evaluates), or never
    at_tokens: Sequence[int] = ()
    at_start: bool = True
    load_best: bool = False
    patience: int | None = None  # looks in a row without a better score
    rows: int = 0  # of each metric, as a table
    share: bool = False  # all processes collect, in place of the first alone
    bare_keys: bool = False
    on_error: str = "log"  # or raise
    label: str = "step"  # or epoch: how run directories are named
    name: str = "live model"
    diffusion: str | None = None

    def __post_init__(self) -> None:
        if not _is_count(self.every) and self.every not in ("epoch", "eval", "never"):
            raise UserError(f"every is {self.every!r}; it is a number of steps, 'epoch', 'eval' or 'never'.")
        if not _is_count(self.keep) and self.keep not in ("all", "best", "none"):
            raise UserError(f"keep is {self.keep!r}; it is 'all', 'best', 'none' or how many of the newest to keep.")
        if self.patience is not None and self.patience < 1:
            raise UserError(f"patience is {self.patience}; it counts looks, at least 1.")
        if self.on_error not in ("log", "raise"):
            raise UserError(f"on_error is {self.on_error!r}; it is 'log' or 'raise'.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def path_list(paths: Any) -> list[str]:
    """One path, several or none, as a list."""
    if paths is None:
        return []
    return [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]


class LiveEvaluator:
    """Evaluates a model again and again; remembers every look, and which was best."""

    def __init__(self, run: RunConfig, out: Path | None, settings: WatchSettings) -> None:
        self.run, self.out, self.settings = run, out, settings
        self.looks: list[Look] = []
        self.outcome: Outcome | None = None  # of the last look: its rows and texts
        self.retain = self._yardstick(settings.retain_logs)
        self.before = self._yardstick(settings.full_logs)

    def _yardstick(self, logs: Sequence[str]) -> dict[str, float]:
        """The mean over runs of every metric's value, by the definitions of this run."""
        values: dict[str, list[float]] = {}
        for path in logs:
            results = load_reference(Path(path), self.run.suite, self.run.dialect).results
            for name in self.run.suite.metrics:
                value = (results.get(name) or {}).get("agg_value")
                if isinstance(value, int | float) and math.isfinite(value):
                    values.setdefault(name, []).append(float(value))
        return {name: mean(several) for name, several in values.items()}

    # ---- what was seen

    @property
    def best(self) -> Look | None:
        """The best look so far; the model before the first step is not a candidate."""
        best: Look | None = None
        for look in self.looks:
            if look.step > 0 and better(look.score, best.score if best else None):
                best = look
        return best

    @property
    def looks_since_best(self) -> int:
        """How many looks in a row brought nothing better."""
        best_step = self.best.step if self.best else 0
        return sum(look.step > best_step for look in self.looks)

    def remember(self, looks: Iterable[Look]) -> None:
        """Adds looks; a look at the same step replaces an earlier one."""
        by_step = {look.step: look for look in (*self.looks, *looks)}
        self.looks = [by_step[step] for step in sorted(by_step)]
        if not self.settings.full_logs and 0 in by_step:  # the model before the first step is its own yardstick
            self.before = {name: value for name, value in by_step[0].values.items() if value is not None}

    def logged_looks(self, entries: Iterable[Mapping[str, Any]]) -> list[Look]:
        """Looks from what a trainer logged of them: a checkpoint carries its log, so this needs no file of ours.

        A log has numbers only. Where watch.json has a look with the same numbers, its words (verdict, reasons) are
        taken from there; one with other numbers is of another training run and is left alone.
        """
        written: dict[int, Look] = {}
        if self.out is not None and (self.out / CURVE).is_file():
            with suppress(DamagedError):  # the log has all numbers; training must not end because words are lost
                written = {look.step: look for look in decode(self.out / CURVE, WatchFile).looks}
        looks = []
        for entry in entries:
            logged = {k.removeprefix(PREFIX): v for k, v in entry.items() if k.startswith(PREFIX)}
            if "seconds" not in logged:
                continue
            values = {name: logged[name] for name in self.run.suite.metrics if name in logged}
            ends = {n: (logged[f"{n}_low"], logged[f"{n}_high"]) for n in values if f"{n}_low" in logged}
            look = Look(
                step=int(entry["step"]),
                epoch=entry.get("epoch"),
                values=values,
                intervals=ends,
                share=logged.get("share"),
                kept=logged.get("kept"),
                score=logged.get("score"),
                why="over-forgotten" if logged.get("over_forgotten") else "",
                seconds=float(logged["seconds"]),
                tokens=int(logged.get("tokens", 0)),
            )
            full = written.get(look.step)
            if full is not None and full.flat() == {f"{PREFIX}{name}": value for name, value in logged.items()}:
                look = full
            label = self._label(look.step, look.epoch)
            kept = self.out is not None and (self.out / label).is_dir()
            looks.append(replace(look, directory=label if kept else ""))
        return looks

    def rows(self, limit: int) -> tuple[list[str], list[list[Any]]]:
        """The last look's rows as a table: a line per metric and row, texts where there are any."""
        body: list[list[Any]] = []
        outcome = self.outcome
        for name in outcome.top if outcome else ():
            assert outcome is not None
            by_index = outcome.scores[name].value_by_index or {}
            for index, values in list(by_index.items())[:limit]:
                numbers = [v for v in values.values() if isinstance(v, int | float) and not isinstance(v, bool)]
                texts = [values.get(key) for key in ROW_COLUMNS[3:]]
                body.append([name, str(index), float(numbers[0]) if numbers else None, *texts])
        return ROW_COLUMNS, body

    # ---- looking

    def _label(self, step: int, epoch: float | None) -> str:
        return f"epoch-{epoch:g}" if self.settings.label == "epoch" and epoch is not None else f"step-{step}"

    def look(self, model: Any, tokenizer: Any, step: int, epoch: float | None = None, leads: bool = True) -> Look:
        """Evaluates the model as it is, and leaves it as it was. `leads`: this process writes what was found."""
        started = time.perf_counter()
        settings, label = self.settings, self._label(step, epoch)
        keeps = self.out is not None and settings.keep != "none"
        with preserve_state(model), nullcontext(self.out) if keeps else temporary() as place:
            assert place is not None
            loaded = wrap_model(model, tokenizer, f"{settings.name} {label}", settings.diffusion)
            run = replace(self.run, output_dir=place / label, progress=False)
            with hushed():  # what a suite lacks is reported once, by its reasons
                outcome = evaluate_config(run, loaded)
        self.outcome = outcome
        names = list(outcome.top)
        for utility in UTILITY:  # the first that the suite has is needed to tell a forgetful model from a ruined one
            if utility in self.run.suite.metrics:
                names.append(utility)
                break
        values = {name: outcome.scores[name].agg_value for name in names if name in outcome.scores}
        intervals = {}
        for name, stat in outcome.stats.items():
            if name in values and stat.get("interval"):
                low, high = stat["interval"]
                intervals[name] = (low, high)
        look = Look(
            step=step,
            epoch=epoch,
            values=values,
            intervals=intervals,
            tokens=sum(int(outcome.manifest["cost"].get(name, 0)) for name in TOKENS),
            directory=label if keeps else "",
            reasons={name: outcome.scores[name].reason for name, value in values.items() if value is None},
            verdict=self._verdict(outcome.directory) if keeps and leads and step > 0 else {},
        )
        self.remember([look])  # before it is ranked: at step 0 it is the yardstick
        rank = self._rank(values)
        seconds = round(time.perf_counter() - started, 3)
        look = replace(look, share=rank.share, kept=rank.kept, score=rank.score, why=rank.why, seconds=seconds)
        self.remember([look])
        if leads and self.out is not None:
            self._prune(self.out)
            self._write(self.out)
        return look

    def _rank(self, values: Mapping[str, float | None]) -> Rank:
        """Where the values lie between both models, and the rule's score."""
        if self.settings.rule is None:
            return Rank(None)
        gauges = []
        for name, value in values.items():
            spec = self.run.suite.metrics.get(name)
            direction = None if spec is None else _knowledge_direction(spec)
            if direction is not None:
                before, retain = self.before.get(name), self.retain.get(name)
                gauges.append(Gauge(name, value, before, retain, direction.knows == "high", direction.unit))
        utility = next((name for name in UTILITY if values.get(name) is not None), "")
        utility_before = self.before.get(utility, self.retain.get(utility))
        moment = RunMoment(gauges, values.get(utility), utility_before, values)
        return ranked(self.settings.rule, moment)

    def _verdict(self, place: Path) -> dict[str, object]:
        """What a verdict would be by these metrics, where the runs it is made of are all on disk."""
        assert self.out is not None
        full = [Path(path) for path in self.settings.full_logs]
        if not full:
            full = [self.out / look.directory for look in self.looks if look.step == 0 and look.directory]
        retain = [Path(path) for path in self.settings.retain_logs]
        if not full or not retain or not all((run / "manifest.json").is_file() for run in (place, *full, *retain)):
            return {}
        verdict = judge(read_runs([place], full, retain))
        knowledge, damage = verdict["parts"]["knowledge"], verdict["parts"]["damage"]
        return {
            "word": verdict["word"],
            "knowledge": knowledge["state"],
            "share": knowledge["share"],
            "share_low": knowledge["lo"],
            "share_high": knowledge["hi"],
            "damage": damage["state"],
            "utility": damage["utility"],
        }

    # ---- files

    def _prune(self, out: Path) -> None:
        """Removes run directories that the rule does not keep; their numbers stay in watch.json."""
        keep = self.settings.keep
        if keep in ("all", "none"):
            return
        newest = keep if isinstance(keep, int) else 1
        kept = {0, *(look.step for look in self.looks[-newest:])}
        if self.best is not None:
            kept.add(self.best.step)
        for number, look in enumerate(self.looks):
            if look.step not in kept and look.directory:
                remove_run(out / look.directory)
                self.looks[number] = replace(look, directory="")

    def _write(self, out: Path) -> None:
        body = {
            "vestige": "watch",
            "version": 1,
            "suite": self.run.suite.name,
            "retain": self.retain,
            "before": self.before,
            "best": self.best.step if self.best else None,
            "looks": [look.to_json() for look in self.looks],
        }
        with open_run(out, "watch", [CURVE]) as run:
            write_bytes(out / CURVE, (json.dumps(body, indent=1) + "\n").encode())
            run.finish()


def _knowledge_direction(spec: MetricSpec) -> Any:
    """Which end of a metric means "knows", if it says by itself how much of the forget rows is known; else None.

    Not a comparison with other runs, not of other rows or other wordings.
    """
    if spec.references or spec.children or spec.name in UTILITY or spec.name.startswith(OTHER_ROWS):
        return None
    if any(part in spec.name for part in OTHER_WORDINGS):
        return None
    try:
        direction = direction_of(spec.name, spec.handler, str(spec.params.get("aggregator", "")))
    except UserError:  # neither end means "knows"
        return None
    return direction if direction.knows in ("high", "low") else None


# ---- several processes ----------------------------------------------------------------------------------------------


def evaluate_together(
    evaluator: LiveEvaluator,
    accelerator: Any,
    model: Any,
    tokenizer: Any,
    moment: tuple[int, float | None],
    share: bool = False,
) -> Look:
    """One look, whatever the number of processes. `moment`: steps and epochs done.

    `accelerator` is the trainer's own, or the user's; None: torch.distributed alone.
    """
    rank, size = _place_of(accelerator)
    sharded = is_sharded(model)  # ZeRO-3 takes the weights apart even for one process
    if size == 1 and not sharded:
        return evaluator.look(_without_wrapper(model), tokenizer, *moment)
    look: Look | None = None
    error: Exception | None = None
    words = ""
    if share and not sharded:
        look = evaluator.look(_without_wrapper(model), tokenizer, *moment, leads=rank == 0)
    else:
        with whole_model(model, accelerator) as whole:
            if whole is not None:
                try:
                    with alone():
                        look = evaluator.look(whole, tokenizer, *moment)
                except Exception as raised:  # of the model or the suite: raised again below, when all processes know
                    error = raised
                    words = summary(raised) if is_ours(raised) else str(raised)
    # The first process's look on every process, so that all of them decide alike.
    message: list[Any] = [None if look is None else look.to_json(), words]
    torch.distributed.broadcast_object_list(message)  # the others wait here while the first one evaluates
    if error is not None:
        raise error
    if message[0] is None:
        raise UserError(f"the first process could not evaluate: {message[1]}")
    look = decode_data(message[0], Look, "The look of the first process")
    evaluator.remember([look])
    return look


def _place_of(accelerator: Any) -> tuple[int, int]:
    """Which process this is, and of how many that train together."""
    if accelerator is not None:
        return accelerator.process_index, accelerator.num_processes
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _without_wrapper(model: Any) -> Any:
    """Without the wrapper that synchronises gradients: a forward through it would wait for the other processes."""
    model = getattr(model, "_orig_mod", model)  # torch.compile
    return model.module if type(model).__name__ in WRAPPERS else model


def is_sharded(model: Any) -> bool:
    """Whether no process holds all weights (FSDP of either version, ZeRO-3)."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return True
    return any(type(p.data).__name__ == "DTensor" or hasattr(p, "ds_id") for p in model.parameters())


@contextmanager
def whole_model(model: Any, accelerator: Any) -> Iterator[Any]:
    """The model to evaluate on the first process; None on the others."""
    leads = _place_of(accelerator)[0] == 0
    if not is_sharded(model):
        yield _without_wrapper(model) if leads else None
        return
    weights = gather_weights(model, accelerator)  # every process takes part
    if not leads:
        yield None
        return
    if accelerator is not None:
        plain = accelerator.unwrap_model(model)
    else:
        plain = _without_wrapper(model)
        plain = plain.module if type(plain).__name__ == "FullyShardedDataParallel" else plain
    with preserve_state():  # building a model draws random numbers
        copy = _rebuild(plain, weights)
    yield copy
    del copy, weights


def gather_weights(model: Any, accelerator: Any) -> dict[str, Any]:
    """All weights in the first process's CPU memory. On a CPU the others get them too, and drop them."""
    if any(hasattr(p, "ds_id") for p in model.parameters()):  # ZeRO-3: only its own engine can
        if accelerator is None:
            raise UserError("Weights that DeepSpeed shards are gathered by accelerate: give Watch its accelerator.")
        return dict(accelerator.get_state_dict(model) or {})  # the other processes get None
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    # Asked to bring weights to the CPU that are there already, FSDP of torch 2.13 reads freed memory (SIGSEGV).
    elsewhere = any(p.device.type != "cpu" for p in model.parameters())
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=elsewhere))


def _rebuild(model: Any, weights: dict[str, Any]) -> Any:
    """A model of the same architecture in one piece, on the CPU, with these weights."""
    adapters = getattr(model, "peft_config", None)
    base = model.get_base_model() if adapters else model
    kind = next(c for c in type(base).__mro__ if not c.__name__.startswith("FSDP"))
    dtype = next((t.dtype for t in weights.values() if t.is_floating_point()), torch.float32)
    copy = kind(base.config)
    if adapters:
        from peft import get_peft_model

        copy = get_peft_model(copy, next(iter(adapters.values())))
    copy = copy.to(dtype)
    weights = {name.replace("_checkpoint_wrapped_module.", ""): tensor for name, tensor in weights.items()}
    report = copy.load_state_dict(weights, strict=False)
    copy.tie_weights()
    state = copy.state_dict()
    loaded = {tensor.data_ptr() for name, tensor in state.items() if name in weights}
    # A tensor may be absent that is tied to one that was loaded.
    strange = [name for name in report.missing_keys if state[name].data_ptr() not in loaded]
    strange += report.unexpected_keys
    if strange:
        raise UserError(f"The gathered weights do not fit the model ('{strange[0]}'); evaluate its saved checkpoint.")
    return copy.eval()
