"""What trainings leave on disk, and how it is read: training.json, and watch.json with the looks at a model.

    OUT/training.json                              of `vestige train` and `unlearn`: how the checkpoint was made
    OUT/evals/watch.json, OUTPUT_DIR/vestige/...   every `Look`: one evaluation of a model while it trains

`TRAIN` and `WATCH` are the two kinds of run for reports and `vestige compare` (runs/run.py). Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.io import damaged, decode
from vestige.numeric import number
from vestige.runs.run import KINDS, Kind, Reader, RunSource
from vestige.types import RunAccount, RunCurve, RunNumber, RunTable
from vestige.verdict.best import Rank

CURVE = KINDS["watch"].marks[0]
PREFIX = "vestige/"  # of numbers in the loggers of a trainer


@dataclass(frozen=True)
class Look:
    """What one evaluation of a live model found: an entry of watch.json."""

    step: int
    epoch: float | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Where it lies between the model before unlearning and the retain model (verdict/best.py).
    share: float | None = None
    kept: float | None = None
    score: float | None = None
    why: str = ""
    seconds: float = 0.0
    tokens: int = 0  # that the model read
    directory: str = ""  # below OUT; empty: not kept
    reasons: Mapping[str, str] = field(default_factory=dict)  # metric -> why it has no value
    verdict: Mapping[str, object] = field(default_factory=dict)  # its word, and the parts on knowledge and damage

    @property
    def rank(self) -> Rank:
        return Rank(self.score, self.why, self.share, self.kept)

    def flat(self) -> dict[str, float]:
        """The numbers as loggers take them, by name; what has no value is left out."""
        numbers: dict[str, Any] = dict(self.values)
        for name, (low, high) in self.intervals.items():
            numbers[f"{name}_low"], numbers[f"{name}_high"] = low, high
        for name in ("share", "kept", "score", "seconds", "tokens"):
            numbers[name] = getattr(self, name)
        if self.share is not None:
            numbers["over_forgotten"] = self.why.startswith("over-forgotten")
        for name in ("share", "share_low", "share_high", "utility"):
            numbers[f"verdict_{name}"] = self.verdict.get(name)
        return {f"{PREFIX}{k}": float(v) for k, v in numbers.items() if v is not None and math.isfinite(v)}

    def to_json(self) -> dict[str, object]:
        body = asdict(self)
        for name in ("reasons", "verdict"):
            if not body[name]:
                del body[name]
        return body

    def __str__(self) -> str:
        shown = [f"{name} {'-' if value is None else number(value)}" for name, value in self.values.items()]
        if self.score is not None:
            shown.append(f"score {number(self.score)}")
        if self.why:
            shown.append(f"({self.why})")
        if self.verdict:
            shown.append(str(self.verdict["word"]).replace("_", " "))
        return f"step {self.step}: {'  '.join(shown)}  [{self.seconds:.1f} s]"


@dataclass(frozen=True)
class WatchFile:
    """watch.json: every look at one training."""

    suite: str
    retain: dict[str, float | None]  # values of the yardsticks: the retain model,
    before: dict[str, float | None]  # and the model before unlearning
    best: int | None  # the step of the best look
    looks: list[Look]

    def shown_look(self) -> Look | None:
        """The best look, or the last one where none may be the best."""
        for look in self.looks:
            if look.step == self.best:
                return look
        return self.looks[-1] if self.looks else None


def read_watch(path: Path) -> WatchFile:
    """watch.json of a directory, which must agree with the evaluations that are kept in it."""
    file = decode(path / CURVE, WatchFile)
    for look in file.looks:
        for summary in sorted((path / look.directory).glob("*_SUMMARY.json")) if look.directory else ():
            evaluated = decode(summary, dict[str, Any])
            for name, value in look.values.items():
                if name in evaluated and not _is_same(evaluated[name], value):
                    raise damaged(path / CURVE, f"{name} at step {look.step} is not what {summary} has")
    return file


def _is_same(a: Any, b: float | None) -> bool:
    return a == b or (isinstance(a, int | float) and b is not None and math.isclose(a, b, rel_tol=1e-12))


# ---- watch.json as a kind of run ------------------------------------------------------------------------------------

COLUMNS = ("step", "epoch", "score", "why", "share", "kept", "verdict", "seconds", "tokens", "directory")


def _gather_watch(path: Path, read: Reader) -> Iterator[RunSource]:
    data = read(path / CURVE, dict)
    if data is not None and data.get("vestige") == "watch":
        yield RunSource("watch", path, (path / CURVE,), data)


def _watch_values(path: Path) -> Mapping[str, Any]:
    look = read_watch(path).shown_look()
    return {} if look is None else look.values


def _watch_account(path: Path) -> RunAccount:
    """Every metric, and the place between both models, along the steps."""
    file, name = read_watch(path), path.resolve().name
    steps = tuple(float(look.step) for look in file.looks)
    metrics = dict.fromkeys(metric for look in file.looks for metric in look.values)
    curves = {}
    for metric in metrics:
        curves[metric] = RunCurve("step", steps, tuple(_run_number(look, metric) for look in file.looks))
    for place in ("share", "kept", "score"):
        points = tuple(RunNumber(getattr(look, place), reason=look.why) for look in file.looks)
        curves[place] = RunCurve("step", steps, points)
    rows = []
    for look in file.looks:
        row = {**vars(look), "verdict": str(look.verdict.get("word", ""))}
        rows.append(tuple(row[column] for column in COLUMNS))
    shown = file.shown_look()
    facts = {"numbers are of": "no look"}
    if shown is not None:
        which = "best" if shown.step == file.best else "last (none may be the best)"
        facts["numbers are of"] = f"step {shown.step}, {which}"
    facts |= {f"retain model, {metric}": repr(value) for metric, value in file.retain.items()}
    facts |= {f"before, {metric}": repr(value) for metric, value in file.before.items()}
    return RunAccount(
        name=path.resolve().parent.name if path.name in ("vestige", "evals") else name,
        kind="watch",
        suite=file.suite,
        numbers={} if shown is None else {metric: _run_number(shown, metric) for metric in metrics},
        curves=curves,
        tables={"looks": RunTable(COLUMNS, tuple(rows))},
        facts=facts,
    )


def _run_number(look: Look, metric: str) -> RunNumber:
    low, high = look.intervals.get(metric) or (None, None)
    return RunNumber(look.values.get(metric), low, high, reason=look.reasons.get(metric, ""))


WATCH = Kind("watch", gather=_gather_watch, values=_watch_values, account=_watch_account)


# ---- training.json as a kind of run ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Evaluated:
    values: dict[str, float | None]


@dataclass(frozen=True)
class _TrainingFile:
    """The part of training.json that is shown of a checkpoint."""

    losses: list[float | None] = field(default_factory=list)
    evals: list[_Evaluated] = field(default_factory=list)


def _train_values(path: Path) -> dict[str, Any]:
    """What the evaluation after the last epoch gave, and the last loss."""
    record = decode(path / "training.json", _TrainingFile)
    values: dict[str, Any] = dict(record.evals[-1].values) if record.evals else {}
    if record.losses:
        values["loss"] = record.losses[-1]
    return values


def _train_account(path: Path) -> RunAccount:
    """The loss along the steps, and what was evaluated while training."""
    losses = decode(path / "training.json", _TrainingFile).losses
    name, seen = path.resolve().name, RunAccount("", "train")
    if (path / "evals" / CURVE).is_file():
        seen = _watch_account(path / "evals")
    numbers, curves = dict(seen.numbers), dict(seen.curves)
    if losses:
        points = tuple(RunNumber(loss) for loss in losses)
        numbers["loss"] = points[-1]
        curves["loss"] = RunCurve("step", tuple(float(step + 1) for step in range(len(losses))), points)
    return replace(seen, name=name, kind="train", numbers=numbers, curves=curves)


WEIGHTS = "it is a checkpoint, and archives never hold weights; pack the runs that evaluated it"
TRAIN = Kind("train", values=_train_values, account=_train_account, not_packed=WEIGHTS)
