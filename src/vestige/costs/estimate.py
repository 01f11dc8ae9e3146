"""`vestige plan`: what an evaluation would push through the model, before it is paid for."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from vestige.collect.backend import text_want
from vestige.costs.answers import AnswersPlan, PackingEstimate, plan_answers, weights_stored
from vestige.costs.depth import DepthPlan, plan_depth
from vestige.engine.config import AnyConfig, HarnessConfig, RunConfig
from vestige.engine.handles import ModelHandle, second_model
from vestige.engine.prepare import Prepared, make_encoder_context, model_args, prepare, with_own_sampler
from vestige.errors import UserError
from vestige.models.batch_budget import DEFAULT_BUDGET
from vestige.models.diffusion import Canvases
from vestige.models.load import load_tokenizer
from vestige.packed_ids import count_nodes
from vestige.runs.collect import folder_of
from vestige.show.tables import table
from vestige.suites.handlers.depth import NO_MODELS, into
from vestige.types import Target
from vestige.wants import DenoiseWant, Request, Wants

# How far a measured speed carries: a machine that is shared, memory slower than arithmetic, and what each call of
# a model costs besides arithmetic were seen to add up to 2.3 times the estimate.
ENDS_EARLY, BUSY = 0.25, 3.0
START, CALL = 15.0, 0.05  # seconds: to import libraries and load a small model; of one call on a CPU
BESIDES = 512 * 2**20  # libraries, activations, caches


@dataclass(frozen=True, repr=False)
class CostPlan:
    """Counts of what is asked, what is cached, and what the rest would cost. It prints as `vestige plan` does."""

    prepared: Prepared
    asked: int  # answers, each metric's for itself
    answers: AnswersPlan  # by the evaluated model
    references: tuple[AnswersPlan, ...]  # by the second models of attacks
    sequence_tokens: int
    nodes: int
    prompts: int
    prompts_cached: int
    new_tokens: int  # upper bound of tokens to generate
    gradients: int
    windows: int  # to be denoised
    windows_cached: int
    denoise_tokens: int  # to be pushed in their passes
    passes: int  # over those windows, at most: several windows share a forward where they fit
    canvas_cells: int  # of the logits that one pass over a window or canvas holds; 0: nothing is denoised
    depth: DepthPlan
    seconds: float  # at this machine's measured speed, if no text ends early
    forwards: int  # calls of a model, at most
    model: str  # as it was asked for
    unavailable: dict[str, str]  # metric -> why it cannot be computed from this data

    @property
    def memory(self) -> int:
        """One model is in memory at a time; a reference model whose answers are all there is never loaded."""
        loaded = [self.answers, *(r for r in self.references if r.pushed)]
        return max(one.memory for one in loaded) + 4 * self.canvas_cells + BESIDES

    @property
    def time_range(self) -> tuple[float, float]:
        """Seconds from the least to the most: texts that end early, or an own cost of each call on a busy machine.

        >>> CostPlan.between(120.0, 200)
        (30.0, 405.0)
        """
        return self.between(self.seconds, self.forwards)

    @staticmethod
    def between(seconds: float, forwards: int) -> tuple[float, float]:
        return seconds * ENDS_EARLY, START + BUSY * (seconds + forwards * CALL)

    def __repr__(self) -> str:
        return show(self)


def make_plan(config: AnyConfig) -> CostPlan:
    """Reads data, tokenizer and the headers of weights; loads no model and writes nothing."""
    if isinstance(config, HarnessConfig):
        raise UserError(f"vestige plan counts the cost of metrics; '{config.name}' has tasks. Try --limit 10 instead.")
    args = model_args(config)
    tokenizer, _ = load_tokenizer(args)
    handle = ModelHandle(args)
    canvases = handle.canvases
    config = with_own_sampler(config, canvases) if canvases else config
    context = make_encoder_context(config, tokenizer, [])
    context.longest = handle.context_length
    prepared = prepare(config, context, canvases, handle.is_diffusion)
    directory = config.output_dir / "evidence"
    wants = prepared.wants
    fresh = config.overwrite or not weights_stored(args)  # without weights evidence has no name to be looked up by
    packing = PackingEstimate(directory, fresh, tokenizer, len(tokenizer), config.batch_tokens)
    answers = plan_answers(handle, wants.answers, packing)
    references = _references(wants, handle, packing)
    texts = {r.key: r for r in wants.texts}
    have_texts = folder_of(directory, "texts", handle, tokenizer).load() if not fresh else {}
    new = [r for k, r in texts.items() if k not in have_texts]
    windows = {w.key: w for w in wants.denoised if not w.logits}
    have_windows = folder_of(directory, "denoised", handle, tokenizer).load() if not fresh else {}
    undone = [w for k, w in windows.items() if k not in have_windows]
    denoised = sum(pushed_by(w, canvases) for w in undone)
    passes, waiting = sum(passes_of(w, canvases) for w in undone), len(undone)
    text_passes = 0
    if handle.is_diffusion:  # a text is denoised
        asked = [text_want(r, canvases.for_texts if canvases else {}) for r in new]
        text_passes = sum(pushed_by(w, canvases) for w in asked)
        undone += asked
    cells = max((_cells(w, len(tokenizer), canvases) for w in undone), default=0)
    depth = plan_depth(wants.patched, handle, args, directory, fresh)
    upper = sum(r.decoding.max_new_tokens for r in new)
    steps = _decoding_steps(new, config.max_rows or DEFAULT_BUDGET.rows)
    pushed = answers.pushed + denoised + text_passes + depth.pushed + upper
    work = answers.parameters * pushed + sum(r.parameters * r.pushed for r in references)
    unique = {t.key: t for t in wants.answers}
    return CostPlan(
        prepared=prepared,
        asked=len(wants.answers),
        answers=answers,
        references=references,
        sequence_tokens=sum(len(t.ids) for t in unique.values()),
        nodes=count_nodes(unique.values()) if unique else 0,
        prompts=len(texts),
        prompts_cached=len(texts) - len(new),
        new_tokens=upper,
        gradients=len({w.key for w in wants.gradients}),
        windows=len(windows),
        windows_cached=len(windows) - waiting,
        denoise_tokens=denoised,
        passes=passes,
        canvas_cells=cells,
        depth=depth,
        seconds=compute_seconds(work, steps * answers.parameters * 4),
        forwards=answers.batches + sum(r.batches for r in references) + steps + passes,
        model=str(config.model_args["pretrained_model_name_or_path"]),
        unavailable={**prepared.unavailable, **_without_models(config)},
    )


def _decoding_steps(requests: Sequence[Request], together: int) -> int:
    """At most: batch after batch, each as long as the longest text."""
    return max((r.decoding.max_new_tokens for r in requests), default=0) * -(-len(requests) // together)


def passes_of(want: DenoiseWant, canvases: Canvases | None) -> int:
    """How often one window is looked at, at most; guidance looks twice."""
    if canvases is None:
        return want.denoising.passes * (2 if want.denoising.cfg_scale > 0 else 1)
    from vestige.models.samplers.gemma import canvases as shared

    count, passes = shared(want.denoising, canvases.length)
    return count * passes


def _cells(want: DenoiseWant, vocab: int, canvases: Canvases | None) -> int:
    """The logits that one pass over one window holds: what takes the memory beside the weights."""
    from vestige.collect.denoise import pass_cells

    return pass_cells(want.denoising, vocab, canvases.length if canvases else 0)


def pushed_by(want: DenoiseWant, canvases: Canvases | None) -> int:
    """Tokens that one window pushes through the model at most: a canvas may be finished early, and text end."""
    prompt, length = len(want.prompt.ids), want.denoising.max_new_tokens
    if canvases is None:  # every pass reads the prompt and the whole window
        return (prompt + length) * passes_of(want, None)
    from vestige.models.samplers.gemma import canvases as shared

    count, passes = shared(want.denoising, canvases.length)
    return prompt + count * canvases.length * passes + (count - 1) * canvases.length  # each earlier one is read again


def _references(wants: Wants, model: ModelHandle, packing: PackingEstimate) -> tuple[AnswersPlan, ...]:
    """Second models score some of the answers again. What was scored with the same weights before is not."""
    scored: dict[str, set[str]] = {_name(model): {t.key for t in wants.answers}}
    out = []
    for path in dict.fromkeys((*wants.reference, *wants.said)):
        targets = [*wants.reference.get(path, ()), *map(_longest, wants.said.get(path, ()))]
        second = second_model(model.args, path)
        known = scored.setdefault(_name(second), set())
        out.append(plan_answers(second, targets, packing, known))
        known |= {t.key for t in targets}
    return tuple(out)


def _longest(request: Request) -> Target:
    """What a model will say is not known yet: it is counted as long as it may become."""
    prompt = request.prompt
    return Target((*prompt.ids, *[0] * request.decoding.max_new_tokens), len(prompt.ids))


def _name(handle: ModelHandle) -> str:
    """A model by its weights, or by its path where they are not here."""
    assert handle.args is not None
    return handle.identity if weights_stored(handle.args) else handle.name


def compute_seconds(work: float, moved: float = 0.0) -> float:
    """Seconds at this machine's measured matrix speed: 2 operations for each parameter a token meets (`work`).

    Steps of generation are bound by the bytes they move.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 1024
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    (a @ b).sum().item()
    start = time.perf_counter()
    rounds = 5
    for _ in range(rounds):
        c = a @ b
    c.sum().item()
    flops = rounds * 2 * size**3 / (time.perf_counter() - start)
    bandwidth = 8e9 if device == "cpu" else 4e11
    return 2.0 * work / (0.6 * flops) + moved / bandwidth


def duration(seconds: float) -> str:
    """
    >>> duration(0.2), duration(95), duration(400), duration(9000)
    ('1 s', '95 s', '7 min', '2.5 h')
    """
    if seconds < 120:
        return f"{max(1, math.ceil(seconds))} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def human(n: float, unit: str = "") -> str:
    """A number people can read.

    >>> human(9696), human(1.5e9, "B"), human(12)
    ('9,696', '1.5 GB', '12')
    """
    if unit == "B":
        for power, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if n >= power:
                return f"{n / power:.1f} {prefix}B"
        return f"{n:.0f} B"
    return f"{n:,.0f}"


def _where(one: AnswersPlan) -> str:
    return "on disk" if one.stored else "by its config.json (the weights are not here)"


def _reference_words(one: AnswersPlan) -> str:
    return (
        f"{one.model}: {human(one.parameters)} parameters, {human(one.weight_bytes, 'B')} {_where(one)}; "
        f"{human(one.distinct)} answers, {human(one.cached)} cached, "
        f"{human(one.pushed)} tokens to push in {one.batches} batches"
    )


def _depth_words(depth: DepthPlan) -> str:
    also = f", with {' and '.join(depth.models)} loaded in turn" if depth.models else ""
    return (
        f"{human(depth.entities)} from two models, {human(depth.cached)} cached; {human(depth.tokens)} tokens to push, "
        f"and {human(depth.climbed)} above the patched layers{also}"
    )


def _without_models(config: RunConfig) -> dict[str, str]:
    """Depth scores that name no models to compare with, and the reason their score would give."""
    specs = {name: spec for name, spec in config.suite.metrics.items() if spec.handler == "uds"}
    return {name: NO_MODELS for name, spec in specs.items() if into(spec) is None}


def show(plan: CostPlan) -> str:
    """The plan for a terminal."""
    every = [(r.name, human(len(r)), human(sum(map(len, r.examples))), r.source) for r in plan.prepared.rows.values()]
    rows = list(map(list, dict.fromkeys(every)))  # a data set that two metrics read in different ways is one line
    lines = [table(rows, ["data set", "rows", "answers", "from"], right=(1, 2)), ""]
    mine = plan.answers
    saved = plan.sequence_tokens / plan.nodes if plan.nodes else 1.0
    facts = [
        ("model", f"{plan.model}: {human(mine.parameters)} parameters, "
                  f"{human(mine.weight_bytes, 'B')} {_where(mine)}"),
        ("answers to score", f"{human(plan.asked)} asked, {human(mine.distinct)} distinct, "
                             f"{human(mine.cached)} cached"),
        ("tokens", f"{human(plan.sequence_tokens)} in whole sequences, {human(plan.nodes)} distinct prefixes "
                   f"({saved:.1f}x shared), {human(mine.tokens)} to push in {mine.batches} batches"),
        *(("reference model", _reference_words(one)) for one in plan.references),
        ("texts to generate", f"{human(plan.prompts)} prompts, {human(plan.prompts_cached)} cached, "
                              f"at most {human(plan.new_tokens)} new tokens"),
        ("gradients", human(plan.gradients)),
        *([("windows to denoise", f"{human(plan.windows)} prompts, {human(plan.windows_cached)} cached, "
            f"{human(plan.denoise_tokens)} tokens to push in at most {human(plan.passes)} passes")]
          if plan.windows else []),
        *([("entities to patch", _depth_words(plan.depth))] if plan.depth.entities else []),
        ("memory", f"about {human(plan.memory, 'B')}"),
        ("time", f"{duration(plan.time_range[0])} to {duration(plan.time_range[1])} here "
                 "(texts may end early; a machine that is shared takes longer)"),
    ]  # fmt: skip
    width = max(len(k) for k, _ in facts)
    lines += [f"{k.ljust(width)}  {v}" for k, v in facts]
    if plan.unavailable:
        lines.append("\nnot computable from this data:")
        causes: dict[str, list[str]] = {}
        for name, why in plan.unavailable.items():
            causes.setdefault(why, []).append(name)
        lines += [f"  {', '.join(names)}: {why}" for why, names in causes.items()]
    return "\n".join(lines)
