"""Every metric at every step of a denoising path: the ordinary handlers, fed with what the model thought at that step.

A prompt is denoised once. All answers anybody asks about are watched on the way (streams of one Trace). A view, a
trajectory and a step then pick the evidence that the ordinary handlers read, as if the model had been asked just then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from vestige.errors import UserError
from vestige.metrics import memorisation
from vestige.metrics.dialects import Dialect
from vestige.metrics.trajectory import Path, at_step, follow, in_text_order, scored_length, view_length, window
from vestige.metrics.trajectory_report import distribution, extend, thin
from vestige.suites.handlers.common import by_index, mean_score, one_stat, row_mean, wants_answers
from vestige.suites.registry import HANDLERS, Evidence, Inputs, Words, handler
from vestige.suites.trajectory import DECIDED, HANDLER, TrajectoryConfig, read_config
from vestige.types import Example, Prompt, Rows, Score, Target, Text, TokenStats, Trace
from vestige.wants import DenoiseWant, Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

Ids = tuple[int, ...]
T = TypeVar("T")
NEEDS_MODEL = "it needs the model's gradients or a second model, which are not followed along a trajectory"
NO_WORDS = "texts along a trajectory need the tokenizer, which was not found"


@handler(DECIDED, wants_answers)
def extraction_strength_decided(inputs: Inputs) -> Score:
    """Share of the denoising steps after which every token that was decided is right."""
    normalised = bool(inputs.spec.params.get("normalised", False))
    value = one_stat(inputs, lambda t: {"score": memorisation.extraction_strength(t, normalised=normalised)})
    return mean_score(by_index(inputs.rows, value), "score")


# ---- what is asked of the model -----------------------------------------------------------------------------------


@dataclass
class Asked:
    """What all metrics together ask about: the answers to each prompt, and which text request means which prompt."""

    streams: dict[Ids, dict[Ids, None]] = field(default_factory=dict)  # prompt -> distinct answers, in order
    answers: dict[str, tuple[Ids, Ids]] = field(default_factory=dict)  # target key -> (prompt, answer)
    texts: dict[str, Ids] = field(default_factory=dict)  # request key -> prompt

    def add(self, wants: Wants) -> None:
        for target in wants.answers:
            prompt = target.ids[: target.start]
            self.streams.setdefault(prompt, {})[target.labels] = None
            self.answers[target.key] = prompt, target.labels
        for request in wants.texts:
            self.streams.setdefault(request.prompt.ids, {})
            self.texts[request.key] = request.prompt.ids

    def ordered(self, prompt: Ids, config: TrajectoryConfig) -> list[Ids]:
        """A prompt's answers in an order that does not depend on who asks first; a guided sampler writes the first."""
        answers = list(self.streams[prompt])
        return sorted(answers) if config.denoising.mode == "unguided" else [*answers[:1], *sorted(answers[1:])]

    def want(self, prompt: Ids, config: TrajectoryConfig) -> DenoiseWant:
        laid = tuple(window(labels, config.length, config.alignment) for labels in self.ordered(prompt, config))
        return DenoiseWant(Prompt(prompt), laid, config.denoising, config.logits_path or "")


def windowed(rows: Rows, length: int, words: Words | None = None) -> Rows:
    """The rows with every answer cut to the window: what lies beyond it is never generated."""
    cut = tuple(tuple(_cut(e, length, words) for e in row) for row in rows.examples)
    return replace(rows, examples=cut)


def _cut(example: Example, length: int, words: Words | None) -> Example:
    target = example.target
    if target is None or len(target.labels) <= length:
        return example
    short = Target(target.ids[: target.start + length], target.start, target.hidden)
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


def gather(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Asked:
    asked = Asked()
    for name, child in children(spec).items():
        mine = child_data(spec, data, name)
        if len(mine) == len(child.datasets):  # else something it needs is not there
            asked.add(HANDLERS[child.handler].wants(child, mine, dialect))
    return asked


def wants_trajectory(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    config = read_config(spec.params, spec.name)
    asked = gather(spec, {k: windowed(r, config.length) for k, r in data.items()}, dialect)
    return Wants(denoised=[asked.want(prompt, config) for prompt in asked.streams])


# ---- what the model thought at each step --------------------------------------------------------------------------


class At(Mapping[str, T], Generic[T]):
    """Evidence at one step: a mapping by content key, made when asked."""

    def __init__(self, keys: Iterable[str], make: Callable[[str], T]) -> None:
        self.keys_ = dict.fromkeys(keys)
        self.make = make

    def __getitem__(self, key: str) -> T:
        if key not in self.keys_:
            raise KeyError(key)
        return self.make(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_)

    def __len__(self) -> int:
        return len(self.keys_)


class Reading:
    """All traces read along one trajectory in one view."""

    def __init__(self, run: TrajectoryRun, trajectory: str, view: str) -> None:
        self.run = run
        self.view = view
        self.paths = run.paths(trajectory)
        self.early = run.paths("fixation_start")  # what is known when a token is decided, whatever the trajectory
        self.stats: dict[str, TokenStats] = {}
        self.decided: dict[str, TokenStats] = {}
        self.ids: dict[Ids, list[Ids]] = {}

    def evidence(self, step: int, by_decision: bool) -> Evidence:
        answers = self._decided if by_decision else self._stats
        return Evidence(
            answers=At(self.run.asked.answers, lambda key: self._step(answers(key), step)),
            texts=At(self.run.asked.texts, lambda key: self._text(self.run.asked.texts[key], step)),
        )

    def _step(self, t: TokenStats, step: int) -> TokenStats:
        return at_step(t, min(step, len(t.top1) - 1))  # a run that ended earlier keeps its last step

    def _stats(self, key: str) -> TokenStats:
        if key not in self.stats:
            self.stats[key] = in_text_order(self._read(self.paths, key))
        return self.stats[key]

    def _decided(self, key: str) -> TokenStats:
        if key not in self.decided:
            self.decided[key] = self._read(self.early, key)
        return self.decided[key]

    def _read(self, paths: Mapping[Ids, Path], key: str) -> TokenStats:
        prompt, answer = self.run.asked.answers[key]
        rows = scored_length(self._length(prompt), self.run.config.alignment)
        return paths[prompt].stats(self.run.stream[prompt, answer], rows)

    def _length(self, prompt: Ids) -> int:
        return view_length(self.view, self.run.traces[prompt].final, self.run.eos_ids)

    def _text(self, prompt: Ids, step: int) -> Text:
        if prompt not in self.ids:
            found = self.paths[prompt].ids(self.run.config.text_source, self._length(prompt))
            self.ids[prompt] = [tuple(int(i) for i in ids) for ids in found]
        steps = self.ids[prompt]
        ids = steps[min(step, len(steps) - 1)]
        return Text(ids, self.run.text(ids))


class TrajectoryRun:
    """The traces of one trajectory metric, and how to read them."""

    def __init__(self, inputs: Inputs) -> None:
        self.config = read_config(inputs.spec.params, inputs.spec.name)
        self.words = inputs.words
        self.data = {k: windowed(r, self.config.length, inputs.words) for k, r in inputs.data.items()}
        self.notes = (*self.config.notes, *_cut_note(inputs.data, self.config.length))
        self.asked = gather(inputs.spec, self.data, inputs.dialect)
        self.eos_ids = self.config.eos_ids or (inputs.words.eos_ids if inputs.words else ())
        self.traces: dict[Ids, Trace] = {}
        self.stream: dict[tuple[Ids, Ids], int] = {}
        for prompt in self.asked.streams:
            found = inputs.evidence.denoised[self.asked.want(prompt, self.config).key]
            self.traces[prompt] = thin(found, self.config.interval if self.config.interval > 1 else None)
            answers = self.asked.ordered(prompt, self.config)
            self.stream.update({(prompt, answer): i for i, answer in enumerate(answers)})
        self.steps = max((t.steps for t in self.traces.values()), default=0)
        self._paths: dict[str, dict[Ids, Path]] = {}
        self._texts: dict[Ids, str] = {}

    def paths(self, trajectory: str) -> dict[Ids, Path]:
        if trajectory not in self._paths:
            self._paths[trajectory] = {prompt: follow(t, trajectory) for prompt, t in self.traces.items()}
        return self._paths[trajectory]

    def text(self, ids: Ids) -> str:
        assert self.words is not None
        if ids not in self._texts:  # neighbouring steps and trajectories mostly say the same
            self._texts[ids] = self.words.decode(ids)
        return self._texts[ids]


# ---- scoring ------------------------------------------------------------------------------------------------------

FIELDS = {"probability": "prob", "probability_confidence_ordered": "prob", "probability_w_options": "prob"}


def _field(spec: MetricSpec) -> str:
    """Where a child's per-row value stands."""
    return (
        str(spec.params.get("rouge_type", "rougeL_recall"))
        if spec.handler == "rouge"
        else FIELDS.get(spec.handler, "score")
    )


@handler(HANDLER, wants_trajectory)
def trajectory_metrics(inputs: Inputs) -> Score:
    """Metrics at each step of a diffusion model's denoising path."""
    run = TrajectoryRun(inputs)
    if not run.traces:
        reasons = "; ".join(dict.fromkeys(inputs.unavailable.values()))
        return Score(None, reason=reasons or "its data sets hold no prompts")
    _check_reference(inputs, run.config)
    found = _Results(inputs, run)
    for view in run.config.views:
        for trajectory in run.config.trajectories:
            reading = Reading(run, trajectory, view)
            for step in range(run.steps):
                refs = _references(inputs, view, trajectory, step)
                found.add(view, trajectory, _score_children(inputs, run, reading, step, refs))
    return found.score()


def _score_children(
    inputs: Inputs, run: TrajectoryRun, reading: Reading, step: int, references: Callable[[str], Score | None]
) -> dict[str, Score]:
    """All children at one step, parents first."""
    scores: dict[str, Score] = {}
    for name, child in children(inputs.spec).items():
        scores[name] = _score_child(inputs, run, reading, step, child, scores, references)
    return scores


def _score_child(
    inputs: Inputs,
    run: TrajectoryRun,
    reading: Reading,
    step: int,
    child: MetricSpec,
    scores: Mapping[str, Score],
    references: Callable[[str], Score | None],
) -> Score:
    kind = HANDLERS[child.handler]
    if child.name in inputs.unavailable:
        return Score(None, reason=inputs.unavailable[child.name])
    if kind.live is not None or kind.classify is not None or child.handler in ("mia_gradnorm", "mia_reference"):
        return Score(None, reason=NEEDS_MODEL)
    if child.handler in ("rouge", "bleu") and run.words is None:
        return Score(None, reason=NO_WORDS)
    given = Inputs(
        spec=child,
        dialect=inputs.dialect,
        data=child_data(inputs.spec, run.data, child.name),
        evidence=reading.evidence(step, child.handler == DECIDED),
        parents={key: scores[parent] for key, parent in child.parents.items()},
        references={r.name: {key: references(m) for m, key in r.include.items()} for r in child.references},
    )
    return kind.score(given)


def _check_reference(inputs: Inputs, config: TrajectoryConfig) -> None:
    """Equal step numbers of runs with other windows are not the same step."""
    ours = inputs.reference("trajectory")
    theirs = (ours.extra.get("trajectory_step_metadata") if ours else None) or {}
    mine = _protocol(config)
    for name, value in mine.items():
        if theirs.get(name, value) != value:
            raise UserError(
                f"The retain logs of '{inputs.spec.name}' were made with {name}={theirs[name]}, this run has {value}: "
                "steps do not match; evaluate the retain model with the same settings."
            )


def _protocol(config: TrajectoryConfig) -> dict[str, Any]:
    """What two runs must have in common for their steps to be the same steps."""
    sampling = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(config.denoising).items()}
    return {"trajectory_sample_interval": config.interval, "logit_alignment": config.alignment, **sampling}


def _references(inputs: Inputs, view: str, trajectory: str, step: int) -> Callable[[str], Score | None]:
    """The retain model's value of a metric at the same view, trajectory and step. Never another step's."""
    ours = inputs.reference("trajectory")
    by_step = (ours.extra.get("reference_by_step") if ours else None) or {}

    def find(metric: str) -> Score | None:
        theirs = inputs.reference(metric)  # open-unlearning's fork keeps one list for all views and trajectories
        if ours is None and theirs is None:
            return None
        if ours is not None:
            known = dict(enumerate(by_step.get(view, {}).get(trajectory, {}).get(metric, [])))
        else:
            known = {int(k): v for k, v in (theirs.extra if theirs else {}).items() if str(k).isdigit()}
        if step not in known:
            have = f"have {min(known)}..{max(known)}" if known else "have none"
            raise UserError(
                f"reference_logs was provided but step-matched {metric} not found for step {step} ({have}; view "
                f"{view}, trajectory {trajectory}): make the reference with equal steps, max_new_tokens and interval."
            )
        return Score.from_json(known[step])

    return find


class _Results:
    """Curves in the making: view -> trajectory -> metric -> a score a step."""

    def __init__(self, inputs: Inputs, run: TrajectoryRun) -> None:
        self.inputs = inputs
        self.run = run
        self.scores: dict[str, dict[str, list[dict[str, Score]]]] = {}

    def add(self, view: str, trajectory: str, scores: dict[str, Score]) -> None:
        self.scores.setdefault(view, {}).setdefault(trajectory, []).append(scores)

    def score(self) -> Score:
        suite = self.inputs.spec.children
        assert suite is not None
        curves = self._each(lambda steps: {m: [s[m].agg_value for s in steps] for m in suite.top})
        spread = self._each(lambda steps: {m: d for m in suite.top if (d := self._distribution(steps, m))})
        extra: dict[str, Any] = {
            "step_distribution": self._flat(spread),
            "trajectory_step_metadata": self._metadata(),
            "reference_by_step": self._each(self._for_reference),
        }
        if "model_utility" in suite.metrics:
            extra["retain_mu_components_by_step"] = self._components(suite.metrics["model_utility"])
        reasons = self._reasons(suite.top)
        if reasons:
            extra["reasons"] = reasons
        missing = tuple(f"{m}: no value, because {why}" for m, why in reasons.items())
        per_row = self._per_row() if self.run.config.store_per_sample else None
        return Score(None, per_row, extra, notes=(*self.run.notes, *missing), curves=self._flat(curves))

    def _several_retain(self) -> list[str]:
        more = sum(len(r.others) for r in self.inputs.spec.references)
        return [f"compared with the first of {more + 1} retain runs given"] if more else []

    def _each(self, make: Callable[[list[dict[str, Score]]], Any]) -> dict[str, Any]:
        return {v: {t: make(steps) for t, steps in by_t.items()} for v, by_t in self.scores.items()}

    def _flat(self, nested: dict[str, Any]) -> dict[str, Any]:
        """One view without its name, on request: the shape of older result files."""
        return next(iter(nested.values())) if self.run.config.legacy_flat and len(nested) == 1 else nested

    def _values(self, scores: Mapping[str, Score], metric: str) -> dict[str, float | None]:
        spec, rows = children(self.inputs.spec)[metric], scores[metric].value_by_index or {}
        return {i: row_mean(entry, _field(spec)) for i, entry in rows.items() if _field(spec) in entry}

    def _distribution(self, steps: list[dict[str, Score]], metric: str) -> dict[str, list[float | None]]:
        by_step = [self._values(s, metric) for s in steps]
        if not by_step or not by_step[0]:
            return {}  # one number a step: nothing is spread
        table = [extend([b.get(i) for b in by_step], len(steps)) for i in by_step[0]]
        return {k: _numbers(v) for k, v in distribution(np.asarray(table, float)).items()}

    def _for_reference(self, steps: list[dict[str, Score]]) -> dict[str, list[dict[str, Any]]]:
        """What another model's run compares with, step by step."""
        names = {m for child in children(self.inputs.spec).values() for r in child.references for m in r.include}
        return {m: [_compact(s[m]) for s in steps] for m in sorted(names) if m in steps[0]}

    def _components(self, spec: MetricSpec) -> dict[str, Any]:
        """What model utility is made of, by step and view, along `steps` (or the first trajectory there is)."""
        out: dict[str, Any] = {}
        for view, by_trajectory in self.scores.items():
            steps = by_trajectory.get("steps") or next(iter(by_trajectory.values()))
            for k, scores in enumerate(steps):
                out.setdefault(str(k), {})[view] = {m: scores[m].agg_value for m in spec.parents.values()}
        return out

    def _reasons(self, top: Iterable[str]) -> dict[str, str]:
        """Why a metric has no value anywhere."""
        all_steps = [s for by_t in self.scores.values() for steps in by_t.values() for s in steps]
        return {m: all_steps[0][m].reason for m in top if all(s[m].agg_value is None for s in all_steps)}

    def _per_row(self) -> dict[str, dict[str, Any]]:
        """Values of single rows, in the first view."""
        out: dict[str, dict[str, Any]] = {}
        suite = self.inputs.spec.children
        assert suite is not None
        for trajectory, steps in next(iter(self.scores.values())).items():
            for k, scores in enumerate(steps):
                for metric in suite.top:
                    for i, value in self._values(scores, metric).items():
                        row = out.setdefault(i, {"trajectories": {}})["trajectories"]
                        row.setdefault(trajectory, {}).setdefault(f"step_{k}", {})[metric] = value
        return out

    def _metadata(self) -> dict[str, Any]:
        run = self.run
        rows = next(iter(run.data.values()))
        by_index = {row[0].index: run.traces.get(row[0].prompt.ids) for row in rows.examples}
        traces = {i: t for i, t in by_index.items() if t is not None}
        longest = max(run.traces.values(), key=lambda t: t.steps)
        return {
            "num_trajectory_steps": run.steps,
            **_protocol(run.config),
            "step_meaning": "unmasked_tokens: how many tokens stood decided before the pass",
            "step_values": [int(n) for n in longest.committed],
            "num_steps_by_index": {i: t.steps for i, t in traces.items()},
            "never_fixed_by_index": {i: n for i, t in traces.items() if (n := int((_looked(t) & (t.fixed < 0)).sum()))},
            "never_reached_by_index": {i: n for i, t in traces.items() if (n := int((~_looked(t)).sum()))},
            "effective_length_by_index": {i: view_length("eos", t.final, run.eos_ids) for i, t in traces.items()},
            "prompt_len_by_index": {row[0].index: len(row[0].prompt.ids) for row in rows.examples},
        }


def _looked(trace: Trace) -> Any:
    """Positions the sampler came to: a block sampler stops after the block with the end token."""
    return (trace.proposal >= 0).any(axis=0)


def _compact(score: Score) -> dict[str, Any]:
    rows = score.value_by_index or {}
    values = {i: {"score": v["score"]} for i, v in rows.items() if "score" in v}
    return {"agg_value": score.agg_value, **({"value_by_index": values} if values else {})}


def _numbers(values: Any) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in np.atleast_1d(np.asarray(values, float))]
