"""Diffusion models in a run: traces along denoising paths, texts from the sampler, likelihoods as a bound.

In: a loaded diffusion model and wants. Out: the same kinds of evidence that other models give (TokenStats, Texts), and
Traces. Caller: runs/collect.py, which asks here as soon as a model is one of diffusion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from vestige.collect.backend import Cost, cut_after_end, cut_text, text_want
from vestige.errors import UserError
from vestige.models.diffusion import CanvasPredictor, MaskPredictor, need_predictor
from vestige.models.load import LoadedModel
from vestige.types import BROKEN, Target, Text, TokenStats, Trace
from vestige.wants import DenoiseWant, Request

BOUND_NOTE = (
    "a diffusion model: likelihoods are a Monte-Carlo lower bound ({draws} draws per answer, the same for every "
    "model); exact memorisation and extraction strength read the pass in which the whole answer is hidden"
)

CANVAS_NOTE = (
    "DiffusionGemma: texts come from its own sampler with the checkpoint's settings, also where a metric asks for "
    "greedy decoding; random numbers belong to a prompt and its seed"
)


def predictor_of(loaded: LoadedModel) -> MaskPredictor:
    """The mask predictor of a model, or the reason why there is none."""
    return need_predictor(loaded.diffusion, loaded.name)


def traces(
    loaded: LoadedModel, wants: Sequence[DenoiseWant], limits: Any, cost: Cost, done: frozenset[str]
) -> Iterator[dict[str, Trace]]:
    from vestige.collect.denoise import DenoiseCollector

    yield from DenoiseCollector(predictor_of(loaded), limits, cost).run(wants, done)


def external_traces(wants: Sequence[DenoiseWant], say: Callable[[str], None]) -> dict[str, Trace]:
    """Traces of logits that another program saved. The file holds, for the i-th row, `logits.i` [V, L, S] and
    `fixation_steps.i` [L]; a file for one row may leave out the number."""
    from vestige.collect.denoise import read_tensors, trace_from_logits

    path = wants[0].logits
    tensors = read_tensors(path)
    if len(wants) == 1 and "logits" in tensors:
        tensors = {f"{name}.0": tensor for name, tensor in tensors.items()}
    there = {name.partition(".")[2] for name in tensors if name.startswith("logits.")}
    out = {}
    for i, want in enumerate(wants):
        logits, fixed = tensors.get(f"logits.{i}"), tensors.get(f"fixation_steps.{i}")
        if logits is None or fixed is None:
            have = ", ".join(sorted(tensors, key=lambda n: (len(n), n))[:8]) or "nothing"
            raise UserError(
                f"{path} has no tensors logits.{i} [V, L, S] and fixation_steps.{i} [L]: this run asks about "
                f"{len(wants)} rows, the file has {len(there)} windows ({have}); record one window for every row."
            )
        length = want.denoising.max_new_tokens
        if len(logits.shape) == 3 and logits.shape[1] != length:
            raise UserError(
                f"logits.{i} of {path} covers {logits.shape[1]} positions, but sampler_kwargs.max_new_tokens is "
                f"{length}: set max_new_tokens={logits.shape[1]}, or record a window of {length} positions."
            )
        out[want.key] = trace_from_logits(logits, [int(f) for f in fixed], want.streams)
    if len(there) > len(wants):
        say(f"{path} has {len(there)} windows, of which the first {len(wants)} were read: one for each row")
    passes = sorted({t.steps for t in out.values()})
    if passes != [wants[0].denoising.steps]:
        counts = " and ".join(map(str, passes))
        say(f"{path} has {counts} passes, sampler_kwargs.steps is {wants[0].denoising.steps}: the file's are reported")
    return out


def bounds(
    loaded: LoadedModel, targets: Sequence[Target], limits: Any, cost: Cost, done: frozenset[str]
) -> Iterator[tuple[dict[str, TokenStats], dict[str, float]]]:
    """(statistics, standard errors of the mean log-probability) of some answers, batch by batch."""
    from vestige.collect.bound import DRAWS, BoundCollector

    note = BOUND_NOTE.format(draws=DRAWS)
    if note not in cost.notes:
        cost.notes.append(note)
    for part in BoundCollector(predictor_of(loaded), limits, cost).bound(targets, done=done):
        yield {k: b.stats for k, b in part.items()}, {k: b.standard_error for k, b in part.items()}


def visible(
    loaded: LoadedModel, targets: Sequence[Target], limits: Any, cost: Cost, done: frozenset[str]
) -> Iterator[dict[str, TokenStats]]:
    from vestige.collect.bound import BoundCollector

    yield from BoundCollector(predictor_of(loaded), limits, cost).visible(targets, done)


def texts(
    loaded: LoadedModel,
    requests: Sequence[Request],
    decode: Callable[[Sequence[Sequence[int]]], list[str]],
    limits: Any,
    cost: Cost,
    done: frozenset[str],
) -> Iterator[dict[str, Text]]:
    """Texts as a sampler writes them, cut at the first end token and the first stop word."""
    predictor = predictor_of(loaded)
    canvases = predictor.canvases if isinstance(predictor, CanvasPredictor) else None
    own = canvases.for_texts if canvases else {}
    if canvases is not None and CANVAS_NOTE not in cost.notes:
        cost.notes.append(CANVAS_NOTE)
    by_want: dict[str, list[Request]] = {}  # requests with the same prompt and settings share one window
    wants = {}
    left = [r for r in requests if r.key not in done]
    for request, fitting in zip(left, _fitting(loaded, left, cost), strict=True):
        want = text_want(fitting, own)
        wants[want.key] = want
        by_want.setdefault(want.key, []).append(request)
    for batch in traces(loaded, list(wants.values()), limits, cost, frozenset()):
        out: dict[str, Text] = {}
        for key, trace in batch.items():
            if trace.broken:
                out |= {request.key: Text((BROKEN,), "") for request in by_want[key]}
                continue
            ids = cut_after_end([int(i) for i in trace.final], predictor.eos_ids)
            cost.tokens_produced += len(ids)
            text = decode([[i for i in ids if i != predictor.mask_id]])[0]
            for request in by_want[key]:
                out[request.key] = Text(tuple(ids), cut_text(text, request.decoding.stopwords))
        yield out


def empty_texts_note(texts: Iterable[Text]) -> list[str]:
    """What to try where a sampler ended most texts at once: the window is longer than the model was trained on."""
    texts = list(texts)
    empty = sum(not text.text and not text.broken for text in texts)
    if 2 * empty <= len(texts):
        return []
    return [
        f"{empty} of {len(texts)} generated texts are empty: the first token that the sampler wrote is the end token. "
        "Models trained on short answers do this in a long window; set generation_args.max_new_tokens to the length "
        "of those answers, or denoise blocks (generation_args.sampler=bd3lm, generation_args.block_size=32)"
    ]


def _fitting(loaded: LoadedModel, requests: Sequence[Request], cost: Cost) -> list[Request]:
    """Requests whose windows fit the model's positions: each as long as its own prompt leaves room for.

    A prompt that leaves no room at all is left as it is: collecting it says so.
    """
    from vestige.collect.safety import learned_positions

    positions = learned_positions(loaded.model)
    if positions is None:
        return list(requests)
    out = []
    for request in requests:
        room = positions - len(request.prompt.ids)
        if 0 < room < request.decoding.max_new_tokens:
            request = replace(request, decoding=replace(request.decoding, max_new_tokens=room))
        out.append(request)
    cut = sum(a is not b for a, b in zip(out, requests, strict=True))
    if cut:
        shortest = min(r.decoding.max_new_tokens for r in out)
        cost.say(
            f"{cut} text(s) get a shorter window than asked for (the shortest {shortest} tokens): this model has only "
            f"{positions} positions"
        )
    return out
