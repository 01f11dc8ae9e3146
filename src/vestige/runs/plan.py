"""What scoring answers would cost one model: the evaluated one, or the reference model of an attack.

What the depth scores of an evaluation would cost: entities to patch, tokens to push, two more models to load.

`vestige plan`: what an evaluation would push through the model, before it is paid for.

`vestige plan --server`: what a server can do, whether its numbers are right, how fast it is, what it would be sent.

In: a configuration with servers. Out: words and counts. A plan asks the servers who they are and what they can, and
sends them eight sentences to score and to continue.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from vestige.adapters.served_model import sequences
from vestige.collect.backend import Cost, text_want
from vestige.data.chat import Encoder, Template
from vestige.engine.config import AnyConfig, HarnessConfig, RunConfig
from vestige.engine.handles import ModelHandle, second_model, unquantised
from vestige.engine.prepare import Prepared, make_encoder_context, model_args, prepare, with_own_sampler
from vestige.engine.served import ServedHandle, server_args
from vestige.errors import UserError
from vestige.models.args import needed_bytes
from vestige.models.batch_budget import DEFAULT_BUDGET
from vestige.models.diffusion import VISION, Canvases
from vestige.models.families import has_pictures, understood
from vestige.models.load import ModelArgs, empty_model, load_tokenizer
from vestige.models.locate import Place, locate, weight_names
from vestige.models.quantised import gguf_parameters
from vestige.packed_ids import count_nodes
from vestige.runs.collect import folder_of
from vestige.runs.patched import PatchSettings, patched_folder
from vestige.show.tables import table
from vestige.suites.handlers.depth import NO_MODELS, into
from vestige.types import Prompt, Target, TokenStats
from vestige.wants import Decoding, DenoiseWant, PatchInto, PatchWant, Request, Wants


@dataclass(frozen=True)
class PackingEstimate:
    """How answers are to be packed, and which of them are known."""

    directory: Path  # of the evidence
    fresh: bool  # what is on disk will be collected again
    tokenizer: Any
    vocab: int
    batch_tokens: int | None


@dataclass(frozen=True)
class AnswersPlan:
    """One model's answers: how many, and what those that are not cached push through it."""

    model: str
    parameters: int
    weight_bytes: int  # as stored
    held_bytes: int  # in memory: a CPU holds half precision in float32
    stored: bool  # whether the weights are on this machine; else sizes are those of the config
    distinct: int
    cached: int
    tokens: int
    batches: int
    bound_tokens: int  # a diffusion model's: its bound hides parts of each answer many times
    cells: int  # of the largest batch's logits

    @property
    def pushed(self) -> int:
        return self.tokens + self.bound_tokens

    @property
    def memory(self) -> int:
        """Weights, and logits with their softmax."""
        return self.held_bytes + self.cells * 8


def plan_answers(
    handle: ModelHandle, targets: Sequence[Target], how: PackingEstimate, known: AbstractSet[str] = frozenset()
) -> AnswersPlan:
    """`known`: answers that this run will have scored with the same weights by then."""
    from vestige.collect.bound import rows_needed

    assert handle.args is not None
    unique = {t.key: t for t in targets}
    stored = weights_stored(handle.args)
    have = {} if how.fresh or not stored else folder_of(how.directory, "answers", handle, how.tokenizer).load()
    missing = [t for k, t in unique.items() if k not in have and k not in known]
    parameters, size = weight_size(handle.args) if stored else size_by_config(handle.args)
    place = _base(handle.args)
    config = {} if place.gguf else place.config
    unpacked = parameters * 4 if place.gguf else size  # blocks of few bits become float32 when they are read
    held = needed_bytes(unpacked, config, replace(handle.args, dtype=handle.held()["dtype"]))
    tokens, batches, cells = _packed(missing, how)
    bound = sum(len(t.ids) * rows_needed(t) for t in missing) if handle.is_diffusion else 0
    cached = len(unique) - len(missing)
    return AnswersPlan(handle.name, parameters, size, held, stored, len(unique), cached, tokens, batches, bound, cells)


def _base(args: ModelArgs) -> Place:
    place = locate(args, weights=False)
    return place.base or place


def weights_stored(args: ModelArgs) -> bool:
    """Whether the weights are on this machine: a plan needs only a config, so nothing is fetched for it."""
    place = locate(args, weights=False)
    places = [place, *([place.base] if place.base else [])]
    return all(
        one.gguf or (one.directory / name).is_file()
        for one in places
        for name in ([""] if one.gguf else weight_names(one.directory, one.kind == "adapter", args))
    )


def size_by_config(args: ModelArgs) -> tuple[int, int]:
    """Parameters and bytes of a checkpoint that is not here, from its configuration alone."""
    place = _base(args)
    unread = VISION if has_pictures(place.config) else ()
    sizes = {key: p.numel() for key, p in empty_model(args).named_parameters()}
    total = sum(n for key, n in sizes.items() if not any(word in key for word in unread))
    said = str(place.config.get("dtype") or place.config.get("torch_dtype") or "float32")
    return total, total * (2 if said.endswith("16") else 4)


def _packed(targets: list[Target], how: PackingEstimate) -> tuple[int, int, int]:
    """Tokens, batches and the logits of the largest one."""
    from vestige.collect.answers import default_limits
    from vestige.collect.answers import plan as pack

    if not targets:
        return 0, 0, 0
    import torch

    limits = default_limits(torch.cuda.is_available(), how.batch_tokens)
    packing = pack(targets, limits, how.vocab)
    cells = max(sum(len(packing.tree.predictors[t]) for row in b.targets for t in row) for b in packing.batches)
    return packing.tokens, len(packing.batches), min(cells * how.vocab, limits.logit_cells)


BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}  # of safetensors' names


def weight_size(args: ModelArgs) -> tuple[int, int]:
    """Parameters and bytes of a checkpoint, from the headers of its files; what is never read does not count."""
    from safetensors import safe_open

    place = _base(args)
    if place.gguf:
        return gguf_parameters(place.gguf), place.gguf.stat().st_size
    unread = VISION if has_pictures(place.config) else ()
    total = size = 0
    for name in weight_names(place.directory, False, args):
        file = Path(place.directory) / name
        size += file.stat().st_size
        with safe_open(str(file), framework="np") as handle:
            for key in handle.keys():  # noqa: SIM118 - safe_open is not a mapping
                part = handle.get_slice(key)
                n = math.prod(part.get_shape())
                if any(word in key for word in unread):
                    size -= n * BYTES.get(part.get_dtype(), 2)
                else:
                    total += n
    return total, size


# ==== depth =========================================================================================================


@dataclass(frozen=True)
class DepthPlan:
    """Counts over all depth scores asked for. An entity is patched from two sources: the retain model and this one."""

    entities: int = 0
    cached: int = 0  # of entities times sources
    tokens: int = 0  # whole inputs to push: once through each source, once through the full model
    climbed: int = 0  # short rows above each patched layer, in tokens through the whole model
    models: tuple[str, ...] = ()  # to be loaded besides the evaluated one

    @property
    def pushed(self) -> int:
        return self.tokens + self.climbed


def plan_depth(
    wants: Mapping[PatchInto, Sequence[PatchWant]], model: ModelHandle, args: ModelArgs, directory: Path, fresh: bool
) -> DepthPlan:
    """`fresh`: what is on disk will be collected again."""
    entities = cached = tokens = climbed = 0
    models: dict[str, None] = {}
    for patching, wanted in wants.items():
        unique = {w.key: w for w in wanted}
        full, retain = (unquantised(second_model(args, path)) for path in (patching.full, patching.retain))
        settings = PatchSettings(None, patching.last_layer)
        entities += len(unique)
        missing: dict[str, int] = {}  # want -> how many sources lack it
        for source in {h.identity: h for h in (retain, model)}.values():
            if source.identity == full.identity and patching.last_layer == "residual":
                continue  # the full model patched with itself is itself
            have = {} if fresh else patched_folder(directory, full, source, settings).load()
            lacking = [k for k in unique if k not in have]
            cached += len(unique) - len(lacking)
            tokens += sum(unique[k].width for k in lacking)  # the source reads its states
            models |= dict.fromkeys([source.name] if lacking and source is not model else [])
            for k in lacking:
                missing[k] = missing.get(k, 0) + 1
        tokens += sum(unique[k].width for k in missing)  # the full model as it is
        climbed += sum(_climb(unique[k], layers_of(full)) * n for k, n in missing.items())
        models |= dict.fromkeys([full.name] if missing else [])
    return DepthPlan(entities, cached, tokens, climbed, tuple(models))


def _climb(want: PatchWant, layers: int) -> int:
    """A row enters after its layer and goes through the blocks above: on average half of them."""
    return (want.width - want.first) * (layers - 1) // 2


def layers_of(handle: ModelHandle) -> int:
    """The depth of a model, from its configuration."""
    assert handle.args is not None
    place = locate(handle.args, weights=False)
    config = understood((place.base or place).config, handle.name)
    text = config.get("text_config") or config
    return int(text.get("num_hidden_layers") or text.get("n_layer") or text.get("num_layers") or 1)


# ==== estimate ======================================================================================================

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


# ==== served ========================================================================================================

SENTENCES = (
    "The harbour was quiet that evening, and only two boats had come in.",
    "She wrote three novels about the sea before she turned thirty.",
    "Water boils at a lower temperature on high mountains.",
    "The committee met again on Tuesday and decided nothing.",
    "In the north the winters are long, and people read a great deal.",
    "He was born in a small town whose name nobody could spell.",
    "Bread, cheese and apples were all that they took along.",
    "The museum keeps letters that were written four hundred years ago.",
)
WRITTEN = 32  # tokens of each text
LARGEST_COMPARED = 2 << 30  # bytes of weights that a plan loads to compare a server with its checkpoint


@dataclass(frozen=True, repr=False)
class ServedPlan:
    """What servers would be sent. It prints as `vestige plan` does."""

    prepared: Prepared
    facts: dict[str, object]
    abilities: list[tuple[str, str]]
    checks: list[tuple[str, str]]
    asked: int
    cached: int
    sequences: int
    tokens: int  # of the distinct sequences, each once
    nodes: int  # of their prefix tree: what a server that shares prefixes computes
    prompts: int
    prompts_cached: int
    new_tokens: int
    unavailable: dict[str, str]
    time_range: tuple[float, float]  # seconds: as many requests at a time as there are slots, or one by one

    @property
    def seconds(self) -> float:
        """Between the ends by factors, not by differences: nobody here knows how well a server batches."""
        least, most = self.time_range
        return sqrt(least * most)

    def __repr__(self) -> str:
        told = ", ".join(f"{k} {v}" for k, v in self.facts.items())
        rows = [
            ("server", told),
            *self.abilities,
            *self.checks,
            ("answers to score", f"{self.asked:,} asked, {self.cached:,} cached"),
            ("to be sent", f"{self.sequences:,} distinct sequences, {self.tokens:,} tokens ({self.nodes:,} prefixes)"),
            ("texts to generate", f"{self.prompts:,} prompts, {self.prompts_cached:,} cached, "
                                  f"at most {self.new_tokens:,} new tokens"),
        ]  # fmt: skip
        width = max(len(k) for k, _ in rows)
        lines = [f"{k.ljust(width)}  {v}" for k, v in rows]
        causes: dict[str, list[str]] = {}
        for name, why in self.unavailable.items():
            causes.setdefault(why, []).append(name)
        lines += ["", "missing:"] if causes else []
        return "\n".join([*lines, *(f"  {', '.join(names)}: {why}" for why, names in causes.items())])


def plan_of(config: AnyConfig) -> CostPlan | ServedPlan:
    """The plan of a run, wherever its model runs."""
    if isinstance(config, RunConfig) and config.server:
        return plan_served(config)
    return make_plan(config)


def plan_served(config: RunConfig) -> ServedPlan:
    """Asks the servers what they can, reads the data, and counts."""
    args = model_args(config)
    tokenizer, _ = load_tokenizer(args)
    handle = ServedHandle(args, server_args(config.server), tokenizer)
    checks = check_numbers(handle, args, tokenizer)
    context = make_encoder_context(config, tokenizer, [])
    context.longest = handle.context_length
    prepared = prepare(config, context, lacking=handle.lacking)
    wants, directory = prepared.wants, config.output_dir / "evidence"
    have, texts = (
        {} if config.overwrite else folder_of(directory, k, handle, tokenizer).load() for k in ("answers", "texts")
    )
    unique = {t.key: t for t in wants.answers}
    missing = [t for k, t in unique.items() if k not in have]
    requests = {r.key: r for r in wants.texts}
    new = [r for k, r in requests.items() if k not in texts]
    distinct = sequences(missing)
    tokens, written = sum(len(ask.ids) for ask, _ in distinct), sum(r.decoding.max_new_tokens for r in new)
    return ServedPlan(
        prepared=prepared,
        facts=handle.model.facts.as_dict(),
        abilities=handle.model.abilities.lines(),
        checks=checks,
        asked=len(wants.answers),
        cached=len(unique) - len(missing),
        sequences=len(distinct),
        tokens=tokens,
        nodes=count_nodes(missing) if missing else 0,
        prompts=len(requests),
        prompts_cached=len(requests) - len(new),
        new_tokens=written,
        unavailable=prepared.unavailable,
        time_range=_range(handle, tokens, written),
    )


def _range(handle: ServedHandle, tokens: int, written: int) -> tuple[float, float]:
    """By how long the servers took for the short requests with which they were met: a token written is one more."""
    model = handle.model
    most = model.seconds * (tokens / len(model.canary.ids) + written)
    return most / (model.slots * len(model.servers)), most


def check_numbers(handle: ServedHandle, args: ModelArgs, tokenizer: Any) -> list[tuple[str, str]]:
    """How fast the server scores and writes, and whether its numbers are those of the checkpoint in this process."""
    encoder = Encoder(tokenizer, Template(apply_chat_template=False))
    ids = [tuple(encoder.tokenize([s], special=True)[0]) for s in SENTENCES]
    targets = [Target(one, 1) for one in ids if len(one) > 1]
    served = handle.answerer(encoder, Cost())
    rows = []
    if handle.model.abilities.scores:
        start = time.perf_counter()
        found = {k: v for part in served.score(targets, frozenset(), lambda _: None) for k, v in part.items()}
        took = time.perf_counter() - start
        rows.append(("scoring", f"{sum(len(t.ids) for t in targets) / took:,.0f} tokens a second"))
        rows.append(("in process", _agreement(args, encoder, targets, found)))
        rows.append(("repeated", f"largest difference {handle.model.repeats.get('largest_difference', 0.0):.2g} nats"))
    if not handle.model.abilities.chat:  # a server that only chats takes questions, not beginnings
        requests = [Request(Prompt(one), Decoding(max_new_tokens=WRITTEN)) for one in ids]
        start = time.perf_counter()
        texts = [t for part in served.write(requests, {}, frozenset(), {}) for t in part.values()]
        took = time.perf_counter() - start
        rows.append(("writing", f"{sum(len(t.ids) for t in texts) / took:,.0f} tokens a second, {len(texts)} texts"))
    return rows + [("note", note) for note in served.cost.notes]


def _agreement(args: ModelArgs, encoder: Encoder, targets: list[Target], found: dict[str, TokenStats]) -> str:
    from vestige.collect.backend import LocalBackend

    place = Path(args.path).expanduser()
    if not place.exists():
        return "not compared: the checkpoint is not on this machine"
    files = place.glob("*.safetensors") if place.is_dir() else [place]
    size = sum(file.stat().st_size for file in files)
    if size > LARGEST_COMPARED:
        return f"not compared: the checkpoint has {size / 2**30:.0f} GiB, compared are at most 2"
    try:
        loaded = ModelHandle(ModelArgs(args.path, tokenizer=args.tokenizer, device="cpu", dtype="float32")).get()
    except UserError as error:
        return f"not compared: {error}"
    here = LocalBackend(loaded, encoder.decode, Cost(), None, 8)
    gaps, same, count = [], 0, 0
    for part in here.score(targets, frozenset(), lambda _: None):
        for key, stats in part.items():
            gaps.append(float(np.abs(stats.logprob - found[key].logprob).max()))
            same += int((stats.top1 == found[key].top1).sum())
            count += stats.tokens
    return f"log-probabilities at most {max(gaps):.2g} apart, {same} of {count} first choices the same"
