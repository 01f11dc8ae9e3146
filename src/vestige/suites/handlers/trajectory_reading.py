"""What trajectory metrics ask of a model, and what it thought at each step of its denoising path.

A prompt is denoised once. All answers anybody asks about are watched on the way (streams of one Trace). A view, a
trajectory pick the evidence that the ordinary handlers read, with an axis of steps, as if the model had been asked at
each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from vestige.metrics.dialects import Dialect
from vestige.metrics.trajectory import (
    Path,
    at_step,
    captures,
    follow,
    for_steps,
    in_text_order,
    reported_steps,
    scored_length,
    thin,
    view_length,
    window,
)
from vestige.suites.handlers.common import wants_answers
from vestige.suites.registry import HANDLERS, Evidence, Inputs, Words
from vestige.suites.steps import At
from vestige.suites.trajectory import TrajectoryConfig, read_config
from vestige.types import BROKEN, IGNORE, Array, Example, Prompt, Rows, Target, Text, TokenStats, Trace
from vestige.wants import DenoiseWant, Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

Ids = tuple[int, ...]

# ---- what is asked of the model -----------------------------------------------------------------------------------


@dataclass
class Asked:
    """What all metrics together ask about: the answers to each prompt, and which text request means which prompt."""

    streams: dict[Prompt, dict[Ids, None]] = field(default_factory=dict)  # prompt -> distinct answers, in order
    answers: dict[str, tuple[Prompt, Ids]] = field(default_factory=dict)  # target key -> (prompt, answer)
    texts: dict[str, Prompt] = field(default_factory=dict)  # request key -> prompt

    def add(self, wants: Wants) -> None:
        for target in wants.answers:
            prompt = prompt_of(target)
            self.streams.setdefault(prompt, {})[target.labels] = None
            self.answers[target.key] = prompt, target.labels
        for request in wants.texts:
            prompt = prompt_of(request.prompt)
            self.streams.setdefault(prompt, {})
            self.texts[request.key] = prompt

    def ordered(self, prompt: Prompt, config: TrajectoryConfig) -> list[Ids]:
        """A prompt's answers in an order that does not depend on who asks first; a guided sampler writes the first."""
        answers = list(self.streams[prompt])
        return sorted(answers) if config.denoising.mode == "unguided" else [*answers[:1], *sorted(answers[1:])]

    def want(self, prompt: Prompt, config: TrajectoryConfig) -> DenoiseWant:
        laid = tuple(window(labels, config.length, config.alignment) for labels in self.ordered(prompt, config))
        return DenoiseWant(prompt, laid, config.denoising, config.logits_path or "")


def prompt_of(asked: Target | Prompt) -> Prompt:
    """What a window is denoised for: a sampler sees every token, so nothing is hidden."""
    return Prompt(asked.ids[: asked.start] if isinstance(asked, Target) else asked.ids, row=asked.row)


def windowed(rows: Rows, config: TrajectoryConfig, words: Words | None = None) -> Rows:
    """The rows with every answer cut to the window: what lies beyond it is never generated."""
    own = _by_row if config.logits_path else lambda e: e
    cut = tuple(tuple(_cut(own(e), config.length, words) for e in row) for row in rows.examples)
    return replace(rows, examples=cut)


def _by_row(example: Example) -> Example:
    """One sampler answers a question in one way; recorded logits may differ for two rows that ask the same."""
    target = None if example.target is None else replace(example.target, row=example.index)
    return replace(example, target=target, prompt=replace(example.prompt, row=example.index))


def _cut(example: Example, length: int, words: Words | None) -> Example:
    target = example.target
    if target is None or len(target.labels) <= length:
        return example
    short = replace(target, ids=target.ids[: target.start + length])
    if words is None:
        return replace(example, target=short)
    text = words.decode(short.labels)
    return replace(example, target=short, reference=text, answer=text, label_text=text)


def _cut_note(data: Mapping[str, Rows], length: int) -> list[str]:
    """Says when answers did not fit: what tells a right answer from a wrong one may lie beyond the window."""
    found = {e.target.key: len(e.target.labels) for r in data.values() for row in r.examples for e in row if e.target}
    cut = sum(n > length for n in found.values())
    share = f"{cut} ({cut / max(1, len(found)):.0%})"
    words = f"{share} of the answers are longer than the window of {length} tokens and count up to its end"
    return [f"{words}; raise sampler_kwargs.max_new_tokens to see all"] if cut else []


def child_data(spec: MetricSpec, data: Mapping[str, Rows], child: str) -> dict[str, Rows]:
    """The data sets of one child, by its own access keys."""
    return {key.partition("/")[2]: rows for key, rows in data.items() if key.partition("/")[0] == child}


def children(spec: MetricSpec) -> Mapping[str, MetricSpec]:
    assert spec.children is not None
    return spec.children.metrics


def gather(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect, takes_back: bool) -> Asked:
    """With `takes_back` the answers of the first data set are watched whatever the metrics read: `revocations` does."""
    asked = Asked()
    for name, child in children(spec).items():
        mine = child_data(spec, data, name)
        if len(mine) == len(child.datasets):  # else something it needs is not there
            kind = HANDLERS[child.handler]
            asked.add((wants_answers if kind.live else kind.wants)(child, mine, dialect))
    if takes_back and data:
        targets = [row[0].target for row in next(iter(data.values())).examples]
        asked.add(Wants(answers=[target for target in targets if target is not None]))
    return asked


# ---- what the model thought at each step --------------------------------------------------------------------------


class Reading:
    """All traces read along one trajectory in one view."""

    def __init__(self, run: TrajectoryRun, trajectory: str, view: str) -> None:
        self.run = run
        self.view, self.trajectory = view, trajectory
        self.paths = run.paths(trajectory)
        self.early = run.paths("fixation_start")  # what is known when a token is decided, whatever the trajectory
        self.stats: dict[str, TokenStats] = {}
        self.decided: dict[str, TokenStats] = {}
        self.ids: dict[Prompt, list[Ids]] = {}
        self.lengths: dict[Prompt, int] = {}

    def evidence(self, by_decision: bool) -> Evidence:
        """What the model thought at all steps: (steps, tokens) statistics, and a text for each step."""
        return Evidence(
            answers=At(self.run.asked.answers, self._decided if by_decision else self._stats),
            texts=At(self.run.asked.texts, lambda key: self._texts(self.run.asked.texts[key])),
        )

    def _stats(self, key: str) -> TokenStats:
        if key not in self.stats:
            prompt, answer = self.run.asked.answers[key]
            rows = scored_length(self._length(prompt), self.run.config.alignment)
            found = in_text_order(self.paths[prompt].stats(self.run.stream[prompt, answer], rows))
            self.stats[key] = for_steps(found, self.run.steps)
        return self.stats[key]

    def _decided(self, key: str) -> TokenStats:
        if key not in self.decided:
            prompt, answer = self.run.asked.answers[key]
            stream, alignment = self.run.stream[prompt, answer], self.run.config.alignment
            found = self.early[prompt].in_decision_order(answer, stream, self._length(prompt), alignment)
            self.decided[key] = for_steps(found, self.run.steps)
        return self.decided[key]

    def _length(self, prompt: Prompt) -> int:
        if prompt not in self.lengths:
            self.lengths[prompt] = view_length(self.view, self.run.traces[prompt].final, self.run.eos_ids)
        return self.lengths[prompt]

    def _texts(self, prompt: Prompt) -> list[Text]:
        if self.run.traces[prompt].broken:
            return [Text((BROKEN,), "")] * self.run.steps
        said = (self.text_ids(prompt, step) for step in range(self.run.steps))
        return [Text(ids, self.run.text(ids)) for ids in said]

    def text_ids(self, prompt: Prompt, step: int) -> Ids:
        """The text at one step."""
        if prompt not in self.ids:
            found = self.paths[prompt].ids(self.run.config.text_source, self._length(prompt))
            self.ids[prompt] = [tuple(ids.tolist()) for ids in found]
        steps = self.ids[prompt]
        return steps[min(step, len(steps) - 1)]

    def places(self, target: Target, step: int) -> tuple[Array, Array, Array]:
        """Where an answer's tokens are scored at one step: (token of the answer, position of the window, pass).

        The same tokens as in `_stats`: those in the view that the sampler ever looked at.
        """
        prompt, config = prompt_of(target), self.run.config
        path = self.paths[prompt]
        laid = np.asarray(window(target.labels, config.length, config.alignment))
        rows = scored_length(self._length(prompt), config.alignment)
        at = np.flatnonzero((laid[:rows] != IGNORE) & path.seen[:rows])
        passes = path.source[min(step, path.steps - 1), at]
        if config.thins:
            passes = np.asarray(captures(self.run.whole[prompt].committed, config.interval))[passes]
        return at + (config.alignment == "causal"), at, passes


def evidence_at(evidence: Evidence, step: int) -> Evidence:
    """One step of evidence with a step axis, for metrics that know no axis."""
    return Evidence(
        answers=At(evidence.answers, lambda key: at_step(evidence.answers[key], step)),
        texts=At(evidence.texts, lambda key: _text_at(evidence.texts[key], step)),
    )


def _text_at(text: Text | Sequence[Text], step: int) -> Text:
    return text if isinstance(text, Text) else text[step]


@dataclass(frozen=True)
class Moment:
    """One step of one trajectory in one view: what a metric that runs a model itself is asked about."""

    spec: MetricSpec  # of the trajectory metric
    reading: Reading
    step: int
    data: Mapping[str, Rows]  # of the child, by access key

    def want(self, prompt: Prompt) -> DenoiseWant:
        """Whose logits these are."""
        run = self.reading.run
        return run.asked.want(prompt, run.config)

    def trace(self, prompt: Prompt) -> Trace:
        return self.reading.run.whole[prompt]


class TrajectoryRun:
    """The traces of one trajectory metric, and how to read them."""

    def __init__(self, inputs: Inputs) -> None:
        self.config = read_config(inputs.spec.params, inputs.spec.name)
        self.words = inputs.words
        self.data = {k: windowed(r, self.config, inputs.words) for k, r in inputs.data.items()}
        self.notes = (*self.config.notes, *_cut_note(inputs.data, self.config.length))
        self.asked = gather(inputs.spec, self.data, inputs.dialect, self.config.denoising.takes_back)
        self.eos_ids = self.config.eos_ids or (inputs.words.eos_ids if inputs.words else ())
        self.whole: dict[Prompt, Trace] = {}  # with every pass
        self.traces: dict[Prompt, Trace] = {}  # that trajectories are made of: every pass, or the reported ones
        self.reported: dict[Prompt, list[int]] = {}  # the steps of those trajectories that are reported
        self.stream: dict[tuple[Prompt, Ids], int] = {}
        for prompt in self.asked.streams:
            found = inputs.evidence.denoised[self.asked.want(prompt, self.config).key]
            self.whole[prompt] = found
            self.traces[prompt] = found
            self.reported[prompt] = list(range(found.steps))
            if self.config.thins:
                self.traces[prompt] = thin(found, self.config.interval)
                self.reported[prompt] = list(range(self.traces[prompt].steps))
            elif self.config.interval > 1:
                self.reported[prompt] = reported_steps(found, self.config.interval)
            answers = self.asked.ordered(prompt, self.config)
            self.stream.update({(prompt, answer): i for i, answer in enumerate(answers)})
        self.steps = max(map(len, self.reported.values()), default=0)
        self._paths: dict[str, dict[Prompt, Path]] = {}
        self._texts: dict[Ids, str] = {}

    def paths(self, trajectory: str) -> dict[Prompt, Path]:
        if trajectory not in self._paths:
            found = {prompt: follow(t, trajectory, self.reported[prompt]) for prompt, t in self.traces.items()}
            self._paths[trajectory] = found
        return self._paths[trajectory]

    def text(self, ids: Ids) -> str:
        assert self.words is not None
        if ids not in self._texts:  # neighbouring steps and trajectories mostly say the same
            self._texts[ids] = self.words.decode(ids)
        return self._texts[ids]
