"""vestige collapse: rollout files and a model in, numbers, rows, matrices, a table and a picture out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from vestige.collapse.detector import CollapseDetector, CollapseSettings, Measured, SampledRows, Scorer, model_scorer
from vestige.collapse.evidence import Crossing, step_key
from vestige.collapse.files import RESULTS, RolloutRows, write
from vestige.collapse.reasoning import Extractor, Reasoning, Rollout
from vestige.collapse.rollouts import Loaded, load_rollouts
from vestige.collect.backend import Cost
from vestige.configs.compose import compose_config, composing
from vestige.engine.handles import ModelHandle
from vestige.errors import UserError, unknown_name
from vestige.io import damaged, json_text, misfit, write_file
from vestige.metrics.collapse import LABELS
from vestige.models.load import LoadedModel, ModelArgs, load_tokenizer
from vestige.numeric import number
from vestige.runs.directory import RunDirectory, open_run, refuse_input_in_output
from vestige.runs.files import read_ours
from vestige.runs.manifest import MANIFEST
from vestige.show.tables import table

OFF_POLICY = "these numbers are about the model that wrote the rollouts only if it is this one"
EVIDENCE = "evidence"


@dataclass(frozen=True)
class CollapseAsk:
    """What to measure. `models`: one for all files, or one for each."""

    files: Sequence[str | Path]
    models: Sequence[Any]  # paths, or LoadedModels
    settings: CollapseSettings = field(default_factory=CollapseSettings)
    reasoning: Reasoning = field(default_factory=Reasoning)
    format: str = "auto"
    prompt_template: str = "raw"
    steps: Sequence[int] = ()
    scheduled: bool = False  # only the steps that compute_freq asks for
    temperature: float = 1.0
    ema: Path | None = None
    skip_long: bool = False  # rows that the model cannot read are left out and counted, not refused
    out: Path | None = None
    model_args: Mapping[str, Any] = field(default_factory=dict)
    batch_tokens: int | None = None
    progress: bool = True


@dataclass
class CollapseReport:
    """The outcomes in the order of steps; printing it gives the table."""

    outcomes: list[Measured]
    models: dict[int, str]
    formats: dict[int, str]
    made: dict[int, dict[str, object]] = field(default_factory=dict)  # step -> whose weights, and how they were held
    means: dict[int, dict[str, object]] = field(default_factory=dict)  # step -> the running means that it began with
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """step -> W&B name -> number."""
        return {o.step: o.metrics for o in self.outcomes}

    def note(self, *words: str) -> None:
        """What a reader must know, once each."""
        self.notes += [w for w in words if w and w not in self.notes]

    def __str__(self) -> str:
        return show(self)


def scheduled_settings(
    overrides: Sequence[str] = (), flags: Mapping[str, Any] | None = None, config_dir: Path | None = None
) -> tuple[CollapseSettings, bool]:
    """The `collapse_detection` group with overrides, then flags that were given; and whether a flag, an override or a
    config file sets how often to measure.
    """
    from omegaconf import OmegaConf

    with composing(config_dir) as directories:
        config = compose_config("collapse.yaml", overrides, directories)
    block = OmegaConf.to_container(config.collapse_detection, resolve=True)
    assert isinstance(block, dict)
    given = {k: v for k, v in (flags or {}).items() if v is not None}
    merged = {**{str(k): v for k, v in block.items()}, **given}
    return CollapseSettings.from_config(merged), merged.get("compute_freq") is not None


def reasoning_for(settings: CollapseSettings, tokenization: str | None = None, **rules: Any) -> Reasoning:
    """How reasoning is found; in parity with RAGEN it is also tokenised as RAGEN does, unless said otherwise."""
    parity = settings.parity or ""
    return Reasoning(tokenization=tokenization or ("separate" if parity else "exact"), parity=parity, **rules)


def collapse(ask: CollapseAsk) -> CollapseReport:
    """Measures every step of every file, in the order of steps."""
    if not ask.models:
        raise UserError("No model given; add --model PATH (the checkpoint that wrote the rollouts).")
    if len(ask.models) not in (1, len(ask.files)):
        raise UserError(
            f"Give one --model, or one for each of the {len(ask.files)} files; there are {len(ask.models)}."
        )
    if ask.out is not None:
        files = {f"the file {n + 1}": path for n, path in enumerate(ask.files)}
        paths = enumerate(ask.models)
        models = {f"--model ({n + 1})": path for n, path in paths if not isinstance(path, LoadedModel)}
        refuse_input_in_output(ask.out, {**files, **models, "the means": ask.ema}, [*RESULTS, MANIFEST, EVIDENCE])
    with open_run(ask.out, "collapse") if ask.out is not None else contextlib.nullcontext() as run:
        return _collapse(ask, run)


def _collapse(ask: CollapseAsk, run: RunDirectory | None) -> CollapseReport:
    detector = CollapseDetector(ask.settings)
    batches = by_step(ask)
    due = [step for step in sorted(batches) if not ask.scheduled or detector.should_compute(step)]
    if not ask.skip_long:
        _check_lengths(ask, batches, due)
    means = _read_means(ask.ema, detector)
    report = CollapseReport([], {}, {})
    model, rows = _Current(ask), RolloutRows()
    if run is not None:
        run.begin([*RESULTS, "collapse.png", f"{EVIDENCE}/"])
    for step in due:
        rollouts, file, loaded = batches[step]
        handle, tokenizer = model.get(file)
        longest = handle.context_length if ask.skip_long else None
        trajectories = Extractor(tokenizer, ask.reasoning, longest).trajectories(rollouts)
        cost = Cost()
        detector.scorer = _scorer(ask, handle, step, step_key(trajectories), cost)
        report.means[step] = means.before(step)
        detector.load_state_dict(report.means[step])
        outcome = detector.compute(trajectories, step)
        means.after[step] = detector.state_dict()
        handle.check()  # numbers of weights that were overwritten meanwhile describe no model
        report.outcomes.append(outcome)
        report.models[step], report.formats[step] = handle.name, loaded.format
        report.made[step] = {"fingerprint": handle.fingerprint, **handle.made}
        report.note(loaded.loss, *cost.notes)
        if ask.out is not None:
            rows.add(outcome, tokenizer)
    if not report.outcomes:
        raise UserError("None of these steps is due by compute_freq; leave --compute-freq out to measure all of them.")
    report.note(OFF_POLICY)
    if run is not None and ask.out is not None:
        run.finish(write(ask, report, rows))
    if ask.ema is not None:
        # The user's file, or a trainer's: what was read from it shows that it holds running means.
        write_file(ask.ema, json_text(means.to_json()).encode())
    return report


def _check_lengths(
    ask: CollapseAsk, batches: Mapping[int, tuple[list[Rollout], int, Loaded]], due: Sequence[int]
) -> None:
    """Rows that their model was not made to read are refused before any weights are loaded."""
    for n, wanted in enumerate(ask.models):
        steps = [step for step in due if len(ask.models) == 1 or batches[step][1] == n]
        loaded = wanted if isinstance(wanted, LoadedModel) else None
        args = None if loaded else ModelArgs(path=str(wanted), **ask.model_args)
        longest = ModelHandle(args, loaded).context_length if steps else None
        if longest is None:
            continue
        tokenizer = load_tokenizer(args)[0] if args is not None else wanted.tokenizer
        extractor = Extractor(tokenizer, ask.reasoning)
        for step in steps:
            extractor.check_lengths(batches[step][0], longest)


@dataclass
class RunningMeans:
    """The running means after each step. A step that is measured again begins with those of the step before it, so
    that windows of steps that overlap count each step once."""

    begun: dict[str, Any]  # before the first step
    after: dict[int, dict[str, Any]] = field(default_factory=dict)

    def before(self, step: int) -> dict[str, Any]:
        earlier = [known for known in self.after if known < step]
        return self.after[max(earlier)] if earlier else self.begun

    def to_json(self) -> dict[str, Any]:
        latest = self.after[max(self.after)]
        return {**latest, "begun": self.begun, "steps": sorted(self.after.items())}


def _read_means(file: Path | None, detector: CollapseDetector) -> RunningMeans:
    """The running means that a file holds. A trainer's file has the latest ones only."""
    if file is None or not file.is_file():
        return RunningMeans(detector.state_dict())
    kept = read_ours(file)
    detector.load_state_dict(kept)
    means = RunningMeans(detector.state_dict())
    if "steps" in kept:
        if words := misfit(kept["steps"], list[tuple[int, dict[str, Any]]]):
            raise damaged(file, words)
        detector.load_state_dict(kept.get("begun"))
        means.begun = detector.state_dict()
        for step, state in kept["steps"]:
            detector.load_state_dict(state)
            means.after[step] = detector.state_dict()
    return means


def _scorer(ask: CollapseAsk, handle: ModelHandle, step: int, key: str, cost: Cost) -> Scorer:
    """Evidence in the run directory, and the model for what it lacks; without a directory the model alone."""
    if ask.out is None:
        how = {"temperature": ask.temperature, "row_tokens": ask.batch_tokens, "cost": cost}
        return model_scorer(handle.get().model, ask.settings, **how)
    return Crossing(
        handle, ask.out / EVIDENCE, key, ask.settings, ask.temperature, ask.batch_tokens, f"step {step}", ask.progress,
        cost,
    )  # fmt: skip


class _Current:
    """One model in memory at a time, and none before it is needed."""

    def __init__(self, ask: CollapseAsk) -> None:
        self.ask = ask
        self.which: Any = None
        self.held: tuple[ModelHandle, Any] | None = None

    def get(self, file: int) -> tuple[ModelHandle, Any]:
        """The model of a file, and its tokenizer."""
        wanted = self.ask.models[file if len(self.ask.models) > 1 else 0]
        if self.held is None or wanted is not self.which:
            if self.held is not None:
                self.held[0].free()  # the old one goes before the new one comes
            self.held, self.which = self._make(wanted), wanted
        return self.held

    def _make(self, wanted: Any) -> tuple[ModelHandle, Any]:
        if isinstance(wanted, LoadedModel):
            return ModelHandle(None, wanted), wanted.tokenizer
        args = ModelArgs(path=str(wanted), **self.ask.model_args)
        handle = ModelHandle(args)
        assert handle.fingerprint  # taken now: weights that are written over from here on are noticed
        return handle, load_tokenizer(args)[0]


def by_step(ask: CollapseAsk) -> dict[int, tuple[list[Rollout], int, Loaded]]:
    """Turns by step: as asked, else as their rows say, else by the number in the file's name, else in order."""
    if ask.steps and len(ask.steps) != len(ask.files):
        raise UserError(f"Give one --step for each of the {len(ask.files)} files; there are {len(ask.steps)}.")
    out: dict[int, tuple[list[Rollout], int, Loaded]] = {}
    for n, file in enumerate(ask.files):
        loaded = load_rollouts(file, ask.format, ask.prompt_template)
        whole = ask.steps[n] if ask.steps else None
        parts: dict[int, list[Rollout]] = {}
        for r in loaded.rollouts:
            said = whole if whole is not None else r.step
            parts.setdefault(_named_step(Path(file), n) if said is None else said, []).append(r)
        for step, rollouts in parts.items():
            if step in out:
                other = ask.files[out[step][1]]
                raise UserError(f"{file} and {other} are both of step {step}; say which is which with --step.")
            out[step] = (rollouts, n, loaded)
    return out


def _named_step(file: Path, position: int) -> int:
    """The last number in a file's name (verl writes 50.jsonl, TRL completions_00050.parquet).

    >>> _named_step(Path("completions_00050.parquet"), 0), _named_step(Path("mine.jsonl"), 2)
    (50, 3)
    """
    found = re.findall(r"\d+", file.name.split(".")[0])
    return int(found[-1]) if found else position + 1


COLUMNS = (
    ("MI, nats", "mi_seq_estimate"),
    ("at most", "mi_bound_attainable"),
    ("own found", "retrieval_accuracy"),
    ("chance", "retrieval_chance_level"),
    ("H(Z|X)", "conditional_entropy_est"),
    ("H(Z)", "reasoning_entropy_est"),
)
TITLES = dict(zip(LABELS, ("First turns", "Turns of trajectories drawn evenly", "Turns drawn evenly"), strict=True))


def show(report: CollapseReport) -> str:
    """One table per label with one row per step, then verdicts, what is missing, and what must be known."""
    lines = []
    for label in LABELS:
        rows = [(o, o.samples[label]) for o in report.outcomes if label in o.samples]
        if not rows:
            continue
        heads = ["step", "rows", "prompts", COLUMNS[0][0], "its 95 % interval", *(head for head, _ in COLUMNS[1:])]
        body = [_row(o, s) for o, s in rows]
        lines += [f"{TITLES[label]} ({label})", "", table(body, heads, right=tuple(range(len(heads)))), ""]
        lines += [f"step {o.step}: {s.verdict}" for o, s in rows]
        if len(rows) > 1:
            lines.append(_trend(rows[0], rows[-1]))
        lines += [f"note, step {o.step}: {n}" for o, s in rows for n in s.notes] + [""]
    for o in report.outcomes:
        left = ", ".join(f"{n} x {why}" for why, n in sorted(o.left_out.items()))
        if left:
            lines.append(f"step {o.step}: {sum(o.left_out.values())} of {o.turns} turns left out: {left}")
        lines += [f"step {o.step}: {label}: not computed: {why}" for label, why in o.reasons.items()]
    lines += [f"note: {n}" for n in report.notes]
    lines.append("MI is in nats per reasoning, H in nats per token; docs/collapse.md says how to read them.")
    if report.files:
        lines.append(f"files: {', '.join(map(str, report.files))}")
    return "\n".join(lines)


def _row(o: Measured, s: SampledRows) -> list[str]:
    prompts = len(np.unique(s.cross.prompts))
    span = s.spans.get(COLUMNS[0][1])
    words = "-" if span is None else f"{number(span[0])} to {number(span[1])}"
    first, *rest = [number(s.metrics.get(key)) for _, key in COLUMNS]
    return [str(o.step), str(len(s.turns)), str(prompts), first, words, *rest]


def _trend(first: tuple[Measured, SampledRows], last: tuple[Measured, SampledRows]) -> str:
    """What happened between the first and the last step, in numbers."""
    parts = []
    for words, key in (
        ("MI", "mi_seq_estimate"),
        ("own prompt found", "retrieval_accuracy"),
        ("H(Z|X)", COLUMNS[4][1]),
    ):
        a, b = first[1].metrics.get(key), last[1].metrics.get(key)
        if a is not None and b is not None:
            parts.append(f"{words} {number(a)} -> {number(b)}")
    return f"from step {first[0].step} to {last[0].step}: {', '.join(parts)}"


HOW = (
    "format",
    "prompt_template",
    "steps",
    "scheduled",
    "temperature",
    "ema",
    "skip_long",
    "model_args",
    "batch_tokens",
    "progress",
)


def measure(
    rollouts: str | Path | Sequence[str | Path],
    model: Any,
    tokenizer: Any = None,
    out: str | Path | None = None,
    settings: CollapseSettings | None = None,
    reasoning: Reasoning | None = None,
    **more: Any,
) -> CollapseReport:
    """`vestige.measure_collapse`: `more` are HOW, and fields of CollapseSettings in place of those of `settings`."""
    from vestige.adapters.preserve_state import preserve_state
    from vestige.models.load import wrap_model

    own = {f.name for f in fields(CollapseSettings)}
    for name in more:
        if name not in (*HOW, *own):
            raise unknown_name("setting of measure_collapse()", name, (*HOW, *own, "settings", "reasoning"))
    files = [rollouts] if isinstance(rollouts, (str, Path)) else list(rollouts)
    used = replace(settings or CollapseSettings(), **{name: more.pop(name) for name in own & set(more)})
    how = reasoning or reasoning_for(used)
    live = not isinstance(model, (str, Path, LoadedModel))
    if live and tokenizer is None:
        raise UserError("A model in memory needs its tokenizer: measure_collapse(rollouts, model, tokenizer).")
    if isinstance(model, (str, Path)) and tokenizer is not None:
        more["model_args"] = {**more.get("model_args", {}), "tokenizer": str(tokenizer)}
    if more.get("ema") is not None:
        more["ema"] = Path(more["ema"])
    where = {"out": None if out is None else Path(out), "progress": False}
    with preserve_state(model):
        held = wrap_model(model, tokenizer) if live else model
        return collapse(CollapseAsk(files, [held], used, how, **{**where, **more}))
