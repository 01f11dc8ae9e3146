"""One look at a model that is being trained: evaluate it, place it between both models, keep or prune the evidence.

    live model --evaluate_config--> OUT/step-N (a run directory) --verdict/best.py--> Look --> loggers, watch.json

In: an evaluation's configuration, the retain run as yardstick, a rule. Out: a Look per evaluation, and OUT/watch.json
with all of them. Callers: watch/callback.py (trainers) and watch/loop.py (plain loops). A run directory is complete: it
can be scored again, compared and reported like any other.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.engine.config import RunConfig
from vestige.engine.evaluate import Outcome, evaluate_config
from vestige.engine.references import load_reference
from vestige.errors import UserError
from vestige.integrations.undisturbed import undisturbed
from vestige.metrics.cards import direction_of
from vestige.models.load import wrap_model
from vestige.numeric import mean, number
from vestige.runs.directory import open_run, remove_run, temporary, write_bytes
from vestige.show.progress import hushed
from vestige.store.files import read_ours
from vestige.store.forms import WatchForm
from vestige.suites.spec import MetricSpec
from vestige.verdict.best import Gauge, Rank, Rule, RunMoment, better, ranked, rule_named
from vestige.verdict.facts import UTILITY
from vestige.verdict.judge import JudgeAsk, judge_runs

CURVE = "watch.json"
PREFIX = "vestige/"
KEPT_ROWS = ("retain_", "ra_", "wf_")  # metrics of rows that are not to be forgotten
OTHER_WORDINGS = ("_PARA_", "_PERT_", "_para", "_pert")
TOKENS = ("score_tokens", "prefill_tokens", "tokens_produced", "denoise_tokens")
OWN = ("share", "kept", "score", "over_forgotten", "seconds", "tokens")  # numbers of a look beside the metrics


@dataclass(frozen=True)
class Look:
    """What one evaluation of a live model found."""

    step: int
    epoch: float | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rank: Rank = field(default_factory=lambda: Rank(None))
    seconds: float = 0.0
    tokens: int = 0  # that the model read
    directory: str = ""  # below OUT; empty: not kept
    reasons: Mapping[str, str] = field(default_factory=dict)  # metric -> why it has no value
    verdict: Mapping[str, object] = field(default_factory=dict)  # its word, and the parts on knowledge and damage

    def flat(self) -> dict[str, float]:
        """The numbers as loggers take them, by name; what has no value is left out."""
        found: dict[str, float | None] = dict(self.values)
        for name, (low, high) in self.intervals.items():
            found |= {f"{name}_low": low, f"{name}_high": high}
        rank = self.rank
        over = rank.why.startswith("over-forgotten") if rank.share is not None else None
        own = (rank.share, rank.kept, rank.score, over, self.seconds, self.tokens)
        found |= dict(zip(OWN, own, strict=True))
        verdict: Mapping[str, Any] = self.verdict
        found |= {f"verdict_{k}": verdict.get(k) for k in ("share", "share_low", "share_high", "utility")}
        return {f"{PREFIX}{k}": float(v) for k, v in found.items() if v is not None and math.isfinite(v)}

    def to_json(self) -> dict[str, object]:
        return {
            "step": self.step,
            "epoch": self.epoch,
            "values": dict(self.values),
            "intervals": {k: list(v) for k, v in self.intervals.items()},
            **{k: getattr(self.rank, k) for k in ("share", "kept", "score", "why")},
            "seconds": self.seconds,
            "tokens": self.tokens,
            "directory": self.directory,
            **({"reasons": dict(self.reasons)} if self.reasons else {}),
            **({"verdict": dict(self.verdict)} if self.verdict else {}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Look:
        said: Mapping[str, Any] = body
        rank = Rank(said["score"], said["why"], said["share"], said["kept"])
        intervals = {k: (v[0], v[1]) for k, v in said["intervals"].items()}
        own = {k: said[k] for k in ("seconds", "tokens", "directory")}
        own |= {k: said.get(k, {}) for k in ("reasons", "verdict")}
        return cls(said["step"], said["epoch"], said["values"], intervals, rank, **own)

    def __str__(self) -> str:
        shown = [f"{name} {'-' if value is None else number(value)}" for name, value in self.values.items()]
        shown += [f"score {number(self.rank.score)}"] if self.rank.score is not None else []
        shown += [f"({self.rank.why})"] if self.rank.why else []
        shown += [str(self.verdict["word"]).replace("_", " ")] if self.verdict else []
        return f"step {self.step}: {'  '.join(shown)}  [{self.seconds:.1f} s]"


@dataclass(frozen=True)
class LookSettings:
    """How looks are judged and kept."""

    retain_logs: Sequence[str] = ()  # runs of the model that never knew
    full_logs: Sequence[str] = ()  # of the model before unlearning; none: the look at step 0 serves
    rule: Rule | None = None
    keep: str | int = "all"  # all | best | none | the newest N (and the best)
    label: str = "step"  # or epoch: how run directories are named
    name: str = "live model"
    diffusion: str | None = None

    def __post_init__(self) -> None:
        right = self.keep in ("all", "best", "none") or (isinstance(self.keep, int) and self.keep > 0)
        if not right or isinstance(self.keep, bool):
            raise UserError(f"keep is {self.keep!r}; it is 'all', 'best', 'none' or how many of the newest to keep.")


class Looking:
    """Looks at a model again and again; remembers what it saw, and which look was best."""

    def __init__(self, run: RunConfig, out: Path | None, settings: LookSettings) -> None:
        self.run, self.out, self.settings = run, out, settings
        self.looks: list[Look] = []
        self.outcome: Outcome | None = None  # of the last look: its rows and texts
        self.retain = self._yardstick(settings.retain_logs)
        self.before = self._yardstick(settings.full_logs)

    # ---- what was seen

    @property
    def best(self) -> Look | None:
        """The best look so far; the model before the first step is not a candidate."""
        found: Look | None = None
        for look in self.looks:
            if look.step > 0 and better(look.rank.score, found.rank.score if found else None):
                found = look
        return found

    @property
    def looks_since_best(self) -> int:
        """How many looks in a row brought nothing better."""
        best = self.best
        return sum(1 for look in self.looks if look.step > (best.step if best else 0))

    def remember(self, looks: Iterable[Look]) -> None:
        """Takes up a run that was interrupted: what was seen until then."""
        self.looks = sorted({look.step: look for look in (*self.looks, *looks)}.values(), key=lambda look: look.step)
        if not self.settings.full_logs and self.looks and self.looks[0].step == 0:
            self.before = {name: value for name, value in self.looks[0].values.items() if value is not None}

    def logged_looks(self, entries: Iterable[Mapping[str, Any]]) -> list[Look]:
        """Looks from what a trainer logged of them: a checkpoint carries its log, so this needs no file of ours.

        A log has numbers only. Where watch.json has a look with the same numbers, its words (verdict, reasons) are
        taken from there; one with other numbers is of another training run and is left alone.
        """
        written = self._written()
        out = []
        for entry in entries:
            said = {k.removeprefix(PREFIX): v for k, v in entry.items() if k.startswith(PREFIX)}
            if "seconds" not in said:
                continue
            step, epoch = int(entry["step"]), entry.get("epoch")
            values = {name: said[name] for name in self.run.suite.metrics if name in said}
            ends = {n: (said[f"{n}_low"], said[f"{n}_high"]) for n in values if f"{n}_low" in said}
            why = "over-forgotten" if said.get("over_forgotten") else ""
            rank = Rank(said.get("score"), why, said.get("share"), said.get("kept"))
            label = self._label(step, epoch)
            there = self.out is not None and (self.out / label).is_dir()
            seconds, tokens = float(said["seconds"]), int(said.get("tokens", 0))
            look = Look(step, epoch, values, ends, rank, seconds, tokens, label if there else "")
            full = written.get(step)
            if full is not None and full.flat() == {f"{PREFIX}{name}": value for name, value in said.items()}:
                look = replace(full, directory=look.directory)
            out.append(look)
        return out

    def _written(self) -> dict[int, Look]:
        """The looks in watch.json, by step; none without such a file, or if it is damaged."""
        if self.out is None or not (self.out / CURVE).is_file():
            return {}
        try:
            body: WatchForm = read_ours(self.out / CURVE, WatchForm)
        except UserError:  # the trainer's log has all numbers; training must not end because words are lost
            return {}
        return {look["step"]: Look.from_json(dict(look)) for look in body["looks"]}

    def _label(self, step: int, epoch: float | None) -> str:
        return f"epoch-{epoch:g}" if self.settings.label == "epoch" and epoch is not None else f"step-{step}"

    # ---- looking

    def look(self, model: Any, tokenizer: Any, step: int, epoch: float | None = None, leads: bool = True) -> Look:
        """Evaluates the model as it is, and leaves it as it was. `leads`: this process writes what was found."""
        started = time.perf_counter()
        label = self._label(step, epoch)
        keeps = self.out is not None and self.settings.keep != "none"
        with undisturbed(model), nullcontext(self.out) if keeps else temporary() as place:
            assert place is not None
            seen = wrap_model(model, tokenizer, f"{self.settings.name} {label}", self.settings.diffusion)
            run = replace(self.run, output_dir=place / label, progress=False)
            with hushed():  # what a suite lacks is reported once, by its reasons
                outcome = evaluate_config(run, seen)
        self.outcome = outcome
        able = next((n for n in UTILITY if n in self.run.suite.metrics), None)
        names = dict.fromkeys([*outcome.top, *([able] if able else [])])
        values = {name: outcome.scores[name].agg_value for name in names if name in outcome.scores}
        if step == 0 and not self.settings.full_logs:  # its own yardstick
            self.before = {name: value for name, value in values.items() if value is not None}
        found = {n: s.get("interval") for n, s in outcome.stats.items() if n in values}
        look = Look(
            step=step,
            epoch=epoch,
            values=values,
            intervals={n: (e[0], e[1]) for n, e in found.items() if e},
            rank=self._rank(values),
            seconds=round(time.perf_counter() - started, 3),
            tokens=sum(int(outcome.manifest["cost"].get(name, 0)) for name in TOKENS),
            directory=label if keeps else "",
            reasons={n: outcome.scores[n].reason for n, v in values.items() if v is None},
            verdict=self._verdict(outcome.directory) if keeps and leads and step > 0 else {},
        )
        self.remember([look])
        if leads:
            self._prune()
            self._write()
        return look

    def rows(self, limit: int) -> tuple[list[str], list[list[Any]]]:
        """The last look's rows as a table: a line per metric and row, texts where there are any."""
        columns, body = ["metric", "index", "value", "input", "ground_truth", "generation"], []
        outcome = self.outcome
        for name in outcome.top if outcome else ():
            assert outcome is not None
            by_index = outcome.scores[name].value_by_index or {}
            for index, values in list(by_index.items())[:limit]:
                numbers = [v for v in values.values() if isinstance(v, (int, float)) and not isinstance(v, bool)]
                texts = [values.get(key) for key in columns[3:]]
                body.append([name, str(index), float(numbers[0]) if numbers else None, *texts])
        return columns, body

    # ---- judging

    def _yardstick(self, logs: Sequence[str]) -> dict[str, float]:
        """The mean over runs of every metric's value, by the definitions of this run."""
        found: dict[str, list[float]] = {}
        for path in logs:
            results = load_reference(Path(path), self.run.suite, self.run.dialect).results
            for name in self.run.suite.metrics:
                value = (results.get(name) or {}).get("agg_value")
                if isinstance(value, (int, float)) and math.isfinite(value):
                    found.setdefault(name, []).append(float(value))
        return {name: mean(values) for name, values in found.items()}

    def _rank(self, values: Mapping[str, float | None]) -> Rank:
        specs = self.run.suite.metrics
        gauges = [self._gauge(specs[n], v) for n, v in values.items() if n in specs and _of_forget_rows(specs[n])]
        utility = next((n for n in UTILITY if values.get(n) is not None), None)
        moment = RunMoment(
            gauges,
            None if utility is None else values[utility],
            None if utility is None else self.before.get(utility, self.retain.get(utility)),
            values,
        )
        return Rank(None) if self.settings.rule is None else ranked(self.settings.rule, moment)

    def _verdict(self, place: Path) -> dict[str, Any]:
        """What a verdict would be by these metrics, where the runs it is made of are all on disk."""
        assert self.out is not None
        full = [Path(p) for p in self.settings.full_logs]
        full = full or [self.out / look.directory for look in self.looks if look.step == 0 and look.directory]
        retain = [Path(path) for path in self.settings.retain_logs]
        if not full or not retain or not all((p / "manifest.json").is_file() for p in (place, *full, *retain)):
            return {}
        found = judge_runs(JudgeAsk([place], full, retain))
        knowledge, damage = found["parts"]["knowledge"], found["parts"]["damage"]
        share = {"share": knowledge["share"], "share_low": knowledge["lo"], "share_high": knowledge["hi"]}
        return {"word": found["word"], "knowledge": knowledge["state"], **share, "damage": damage["state"],
                "utility": damage["utility"]}  # fmt: skip

    def _gauge(self, spec: MetricSpec, value: float | None) -> Gauge:
        end = direction_of(spec.name, spec.handler, str(spec.params.get("aggregator", "")))
        before, retain = self.before.get(spec.name), self.retain.get(spec.name)
        return Gauge(spec.name, value, before, retain, end.knows == "high", end.unit)

    # ---- files

    def _prune(self) -> None:
        """Evidence that the rule does not keep goes; what was found stays in watch.json."""
        if self.out is None or self.settings.keep in ("all", "none"):
            return
        best, newest = self.best, self.settings.keep if isinstance(self.settings.keep, int) else 1
        kept = {look.step for look in self.looks[-newest:]} | {0} | ({best.step} if best else set())
        for n, look in enumerate(self.looks):
            if look.step not in kept and look.directory:
                remove_run(self.out / look.directory)
                self.looks[n] = replace(look, directory="")

    def _write(self) -> None:
        if self.out is None:
            return
        best = self.best
        body = {
            "vestige": "watch",
            "version": 1,
            "suite": self.run.suite.name,
            "retain": self.retain,
            "before": self.before,
            "best": best.step if best else None,
            "looks": [look.to_json() for look in self.looks],
        }
        with open_run(self.out, "watch", [CURVE]) as directory:
            write_bytes(self.out / CURVE, (json.dumps(body, indent=1) + "\n").encode())
            directory.finish()


def _of_forget_rows(spec: MetricSpec) -> bool:
    """Whether a metric says by itself how much of the forget rows is known: not a comparison, not other wordings."""
    if spec.references or spec.children or spec.name in UTILITY or spec.name.startswith(KEPT_ROWS):
        return False
    if any(part in spec.name for part in OTHER_WORDINGS):
        return False
    try:
        return direction_of(spec.name, spec.handler, str(spec.params.get("aggregator", ""))).knows in ("high", "low")
    except UserError:  # neither end means "knows"
        return False


def look_settings(
    retain_logs: Any = None, full_logs: Any = None, best: Any = "closest", keep: str | int = "all"
) -> LookSettings:
    """From what a user gave."""

    def paths(said: Any) -> tuple[str, ...]:
        if said is None:
            return ()
        return (str(said),) if isinstance(said, (str, Path)) else tuple(map(str, said))

    return LookSettings(paths(retain_logs), paths(full_logs), rule_named(best), keep)
