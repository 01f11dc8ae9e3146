"""Filling windows: of mask tokens (MDLM, BD3LM), of uniformly drawn ones (DiffusionGemma).

`sample` is the way in; `infill` fills masks inside a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from vestige.errors import UserError
from vestige.models.args import CANVAS
from vestige.models.diffusion import CanvasPredictor, MaskPredictor
from vestige.models.samplers.base import (
    Pass,
    Recorder,
    SamplerRow,
    SamplerWatch,
    Sampling,
    block_plan,
    block_size,
    infill_plan,
    sample_generator,
    window_plan,
)
from vestige.models.samplers.bd3lm import run_bd3lm
from vestige.models.samplers.gemma import canvases, run_gemma, with_checkpoint_settings
from vestige.models.samplers.mdlm import run_mdlm
from vestige.types import Prompt
from vestige.wants import Denoising

__all__ = ["Pass", "Recorder", "Sampled", "SamplerWatch", "canvas_width", "canvases", "infill", "sample"]


@dataclass(frozen=True)
class Sampled:
    """One filled window."""

    final: tuple[int, ...]  # the mask token where none was decided, or where an end token came blocks before
    fixed: tuple[int, ...]  # the pass that decided each token for good; -1: none did (or it was given, in infilling)
    passes: int  # how many forward passes this sample took
    where: tuple[int, int]  # the window's columns on the canvas


def canvas_width(prompt: int, denoising: Denoising, canvas: int = 0) -> int:
    """How many columns a prompt of so many tokens takes together with its window (or with whole canvases)."""
    if canvas:
        return prompt + canvases(denoising, canvas)[0] * canvas
    if denoising.sampler == "bd3lm":
        block = block_size(denoising)
        prompt = -(-prompt // block) * block
    return prompt + denoising.max_new_tokens


def visible(predictor: MaskPredictor, prompt: Prompt, denoising: Denoising) -> tuple[int, ...]:
    """The prompt's tokens as the model sees them. A hidden token is unseen and takes no position: it is not there."""
    hidden = set(prompt.hidden)
    ids = tuple(t for i, t in enumerate(prompt.ids) if i not in hidden)
    return ids or _beginning(predictor, denoising)


def _beginning(predictor: MaskPredictor, denoising: Denoising) -> tuple[int, ...]:
    """A shifted model needs something left of its first guess, an encoder something to read."""
    shift = predictor.shift if denoising.right_shift_logits is None else denoising.right_shift_logits
    if not shift and not isinstance(predictor, CanvasPredictor):
        return ()
    if predictor.bos_id is None:
        raise UserError("An empty prompt needs a beginning token for this model, and its tokenizer names none.")
    return (predictor.bos_id,)


@torch.inference_mode()
def sample(
    predictor: MaskPredictor,
    prompts: Sequence[Prompt],
    streams: Sequence[Sequence[Sequence[int]]],
    denoising: Denoising,
    recorder: Recorder | None = None,
    watch: SamplerWatch | None = None,
    together: bool = False,
) -> list[Sampled]:
    """Continues each prompt by denoising a window of `max_new_tokens` masks.

    `streams` lists for each prompt the answers asked about; guided modes write the first. `recorder` is called once a
    pass. A sample's result depends on its prompt, its first stream (guided) and the settings, not on its batch.
    `watch` and `together` are for comparing with dllm: they show the canvas, and keep ended rows going (bd3lm).
    """
    denoising.check()
    _check_tokens(predictor, denoising)
    if not prompts:
        return []
    if isinstance(predictor, CanvasPredictor):
        return _sample_canvases(predictor, prompts, denoising, recorder, watch)
    sampling = Sampling(predictor, denoising, recorder, watch)
    length = denoising.max_new_tokens
    rows = []
    for i, prompt in enumerate(prompts):
        ids = visible(predictor, prompt, denoising)
        target = _target(streams[i] if streams else (), denoising)
        rows.append(SamplerRow(i, ids, length, sample_generator(denoising.seed, ids), target))
    if denoising.sampler == "bd3lm":
        plans = [block_plan(denoising, row.generator) for row in rows]
        written = run_bd3lm(sampling, rows, plans, together)
        start = canvas_width(max(len(row.prompt) for row in rows), denoising) - length
        filled = [tokens + [predictor.mask_id] * (length - len(tokens)) for tokens in written]
        starts = [start] * len(rows)
    else:
        masks = [predictor.mask_id] * length
        moves = [window_plan(denoising, row.generator) for row in rows]
        sequences = [[*row.prompt, *masks] for row in rows]
        canvas = run_mdlm(sampling, rows, moves, sequences)
        starts = [len(row.prompt) for row in rows]
        filled = [canvas[i, start : start + length].tolist() for i, start in enumerate(starts)]
    return [
        Sampled(tuple(tokens), tuple(row.fixed), row.passes, (start, start + length))
        for row, tokens, start in zip(rows, filled, starts, strict=True)
    ]


def _sample_canvases(
    predictor: CanvasPredictor,
    prompts: Sequence[Prompt],
    denoising: Denoising,
    recorder: Recorder | None,
    watch: SamplerWatch | None,
) -> list[Sampled]:
    """DiffusionGemma: canvases are denoised whole, as its `generate` does; the window may end inside the last one."""
    denoising = with_checkpoint_settings(predictor, denoising)
    length = denoising.max_new_tokens
    rows = []
    for i, prompt in enumerate(prompts):
        ids = visible(predictor, prompt, denoising)
        rows.append(SamplerRow(i, ids, length, sample_generator(denoising.seed, ids)))
    with _seeded(denoising, predictor.device):
        written = run_gemma(predictor, Sampling(predictor, denoising, recorder, watch), rows)
    filler = predictor.pad_id if predictor.after_end is None else predictor.after_end
    start = max(len(row.prompt) for row in rows)
    out = []
    for row, tokens in zip(rows, written, strict=True):
        final = (tokens + [filler] * (length - len(tokens)))[:length]
        out.append(Sampled(tuple(final), tuple(row.fixed), row.passes, (start, start + length)))
    return out


@contextmanager
def _seeded(denoising: Denoising, device: torch.device) -> Iterator[None]:
    """The global generator, seeded for `generate`'s noise and given back as it was."""
    if denoising.noise != "generate":
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(denoising.seed)
        yield


@torch.inference_mode()
def infill(
    predictor: MaskPredictor,
    sequences: Sequence[Sequence[int]],
    denoising: Denoising,
    recorder: Recorder | None = None,
    watch: SamplerWatch | None = None,
) -> list[Sampled]:
    """Fills the mask tokens inside each sequence; everything else stays. The window is the whole sequence."""
    denoising.check()
    _check_tokens(predictor, denoising)
    if denoising.sampler != "mdlm":
        raise UserError(f"sampler={denoising.sampler} cannot fill gaps inside a text; use sampler=mdlm.")
    if denoising.mode != "unguided":
        raise UserError(f"mode={denoising.mode} has no target when filling gaps; use mode=unguided.")
    texts = [tuple(s) or _beginning(predictor, denoising) for s in sequences]
    if not texts or not max(len(s) for s in texts):
        return [Sampled((), (), 0, (0, 0)) for _ in texts]
    rows = [SamplerRow(i, s, len(s), sample_generator(denoising.seed, s)) for i, s in enumerate(texts)]
    masked = [[t == predictor.mask_id for t in s] for s in texts]
    plans = [infill_plan(m, denoising, row.generator) for m, row in zip(masked, rows, strict=True)]
    canvas = run_mdlm(Sampling(predictor, denoising, recorder, watch), rows, plans, texts)
    return [
        Sampled(tuple(canvas[i, : row.length].tolist()), tuple(row.fixed), row.passes, (0, row.length))
        for i, row in enumerate(rows)
    ]


def _target(streams: Sequence[Sequence[int]], denoising: Denoising) -> tuple[int, ...]:
    if denoising.mode == "unguided":
        return ()
    if not streams:
        raise UserError(f"mode={denoising.mode} writes the first label stream, and there is none; give labels.")
    if len(streams[0]) > denoising.max_new_tokens:
        raise UserError(
            f"mode={denoising.mode}: the first label stream has {len(streams[0])} tokens, the window only "
            f"{denoising.max_new_tokens}; cut the labels or raise max_new_tokens."
        )
    return tuple(streams[0])


def _check_tokens(predictor: MaskPredictor, denoising: Denoising) -> None:
    canvas = isinstance(predictor, CanvasPredictor)
    if canvas != (denoising.sampler == CANVAS):
        why = "this model has no mask token to fill" if canvas else "this model fills masks, it has no canvas"
        raise UserError(f"sampler={denoising.sampler} does not fit: {why}; leave sampler_kwargs.sampler out.")
    vocab = predictor.vocab
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        beyond = [t for t in getattr(denoising, name) if not 0 <= t < vocab]
        if beyond:
            raise UserError(f"sampler_kwargs.{name}: token {beyond[0]} is not among the model's {vocab}.")
