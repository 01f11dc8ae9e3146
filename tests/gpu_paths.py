"""Every way of `collect` through a model, small enough to run on pretend tensors. For tests/collect/test_gpu.py.

A path takes a function that moves a model to where it is to run, and gives what was measured (any arrays) and over how
many units (batches, steps, passes, rows) the counts are spread.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from collect_tools import VOCAB, family, model_of, numbers
from diffusion_tools import predictor as golden_predictor
from vestige.collect.answers import AnswerCollector
from vestige.collect.backend import Cost
from vestige.collect.bound import BoundCollector
from vestige.collect.cross import CrossScorer
from vestige.collect.denoise import DenoiseCollector, Windows
from vestige.collect.gradients import fisher as fisher_sums
from vestige.collect.gradients import gradient_norms
from vestige.collect.layered_patching import Patcher
from vestige.collect.patch import collect_states, lens_scores, make_plan, patched_plain
from vestige.collect.texts import TextCollector
from vestige.collect.tree import Limits
from vestige.types import IGNORE, Prompt, Target
from vestige.wants import Decoding, DenoiseWant, Denoising, PatchWant, Request

Move = Callable[[Any], Any]  # a model -> the same where it is to run
FEW = Limits(tokens=64, logit_cells=1 << 22, row_tokens=64)  # several batches


@dataclass(frozen=True)
class Outcome:
    """What a path gave, and how many units of work it was."""

    found: Any
    units: int


@dataclass(frozen=True)
class GpuPath:
    """A way through a model: what runs, what a unit is, and the budgets of each unit and of the whole.

    `waits` (synchronisations, copies to the host among them) and `to_host` are what one unit may cost; `fixed` is what
    a run may cost beside its units (self checks).
    """

    name: str
    run: Callable[[Move], Outcome]
    unit: str
    waits: int
    to_host: int = 1
    fixed: int = 0
    diffusion: bool = False


@cache
def _llama(seed: int = 0) -> Any:
    model = model_of("llama", seed=seed)
    model.generation_config.eos_token_id = None
    return model


def llama(seed: int = 0) -> Any:
    return copy.deepcopy(_llama(seed))


def score(move: Move) -> Outcome:
    cost = Cost()
    collector = AnswerCollector(move(llama()), VOCAB, FEW, cost)
    found = {k: v for part in collector.run(family()) for k, v in part.items()}
    assert not collector.plain, cost.notes
    return Outcome(found, cost.score_forwards)


def score_plain(move: Move) -> Outcome:
    cost = Cost()
    collector = AnswerCollector(move(llama()), VOCAB, FEW, cost, plain=True)
    return Outcome({k: v for part in collector.run(family()) for k, v in part.items()}, cost.score_forwards)


def _letters(batch: Sequence[Sequence[int]]) -> list[str]:
    return ["".join(chr(0x100 + i) for i in ids) for ids in batch]


def _decoded(move: Move, **decoding: Any) -> Outcome:
    cost = Cost()
    rng = np.random.default_rng(0)
    settings = Decoding(**{"max_new_tokens": 24, **decoding})
    requests = [Request(Prompt(numbers(rng, n)), settings) for n in (5, 17, 9, 9)]
    collector = TextCollector(move(llama()), _letters, frozenset({7}), "", cost)
    found = {k: v.ids for part in collector.run(requests, {}) for k, v in part.items()}
    assert not collector.plain, cost.notes
    return Outcome(found, cost.decode_forwards)


def decode(move: Move) -> Outcome:
    return _decoded(move)


def sample(move: Move) -> Outcome:
    return _decoded(move, do_sample=True, temperature=0.8, top_k=20, top_p=0.9, seed=3)


def penalised(move: Move) -> Outcome:
    return _decoded(move, repetition_penalty=1.3)


def _patch_wants() -> list[PatchWant]:
    rng = np.random.default_rng(0)
    return [
        PatchWant(Target(numbers(rng, 22), 18), 17, 21),
        PatchWant(Target(numbers(rng, 15), 12), 11, 14),
        PatchWant(Target(numbers(rng, 19), 13), 11, 12),  # the boundary alone: rows carry states of the target
    ]


def layered_patching(move: Move) -> Outcome:
    full, source = move(llama()), move(llama(1))
    wants, plan, cost = _patch_wants(), make_plan(full), Cost()
    states = {k: v for part in collect_states(source, wants, plan, 2) for k, v in part.items()}
    patcher = Patcher(full, plan, cost, 2)
    found = {k: v for part in patcher.run(wants, [states, states]) for k, v in part.items()}
    assert not patcher.plain, cost.notes
    return Outcome(found, cost.score_forwards + 2)  # two batches of source states


def patch(move: Move) -> Outcome:
    full, source = move(llama()), move(llama(1))
    wants, plan = _patch_wants(), make_plan(full)
    states = {k: v for part in collect_states(source, wants, plan, 4) for k, v in part.items()}
    return Outcome([patched_plain(full, w, states[w.key], plan) for w in wants], len(wants) + 1)


def lens(move: Move) -> Outcome:
    model = move(llama())
    wants, plan = _patch_wants()[:2], make_plan(model)
    states = {k: v for part in collect_states(model, wants, plan, 4) for k, v in part.items()}
    return Outcome(lens_scores(model, wants, states), len(wants) + 1)


def fisher(move: Move) -> Outcome:
    wants = _patch_wants()[:2]
    *_, sums = fisher_sums(move(llama()), wants)
    return Outcome([total / len(wants) for total in sums], len(wants))


def cross(move: Move) -> Outcome:
    rng = np.random.default_rng(0)
    stem, opening = numbers(rng, 6), numbers(rng, 5)
    prompts = [stem + numbers(rng, n) for n in (3, 5, 4)]
    reasonings = [opening + numbers(rng, n) for n in (4, 7, 9, 20)]
    cost = Cost()
    scorer = CrossScorer(move(llama()), row_tokens=24, cost=cost)
    found = scorer(prompts, reasonings).sums
    assert not scorer.plain, cost.notes
    return Outcome(found, cost.score_forwards)


def gradients(move: Move) -> Outcome:
    targets, cost = family()[:3], Cost()
    return Outcome(dict(gradient_norms(move(llama()), targets, 2.0, False, True, cost)), cost.backwards)


# ---- diffusion -----------------------------------------------------------------------------------------------------


def _moved_predictor(move: Move, name: str) -> Any:
    made = golden_predictor(name)
    return replace(made, model=move(copy.deepcopy(made.model)))


def _denoise_wants(denoising: Denoising) -> list[DenoiseWant]:
    full, short = tuple(range(50, 58)), (40, 41, IGNORE, 43, *[IGNORE] * 4)
    prompts = ((10, 11, 12), (20,), (13, 14, 15, 16, 17, 18, 19))
    return [DenoiseWant(Prompt(p), s, denoising) for p, s in zip(prompts, ((full, short), (short,), ()), strict=True)]


def _denoised(move: Move, denoising: Denoising, name: str = "tiny-mdlm") -> Outcome:
    predictor, cost = _moved_predictor(move, name), Cost()
    predictor.checked = True
    roomy = Limits(tokens=100_000, logit_cells=1 << 24, row_tokens=1024)
    parts = DenoiseCollector(predictor, roomy, cost).run(_denoise_wants(denoising))
    return Outcome({k: v for part in parts for k, v in part.items()}, cost.denoise_forwards)


def mdlm(move: Move) -> Outcome:
    return _denoised(move, Denoising(steps=6, max_new_tokens=8, block_size=4))


def mdlm_drawn(move: Move) -> Outcome:
    drawn = Denoising(steps=5, max_new_tokens=8, temperature=0.7, stochastic_transfer=True, remasking="random")
    return _denoised(move, drawn)


def bd3lm(move: Move) -> Outcome:
    return _denoised(move, Denoising("bd3lm", steps=8, max_new_tokens=8, block_size=4))


def bd3lm_cached(move: Move) -> Outcome:
    return _denoised(move, Denoising("bd3lm", steps=8, max_new_tokens=8, block_size=4), "tiny-bd3lm-llama")


def gemma(move: Move) -> Outcome:
    from gemma_tools import shared_gemma
    from vestige.models.diffusion import canvas_predictor

    predictor, cost = canvas_predictor(move(copy.deepcopy(shared_gemma())), None), Cost()
    denoising = Denoising("diffusion_gemma", steps_per_block=6, max_new_tokens=16, t_max=0.3, t_min=0.1)
    rng = np.random.default_rng(0)
    wants = [DenoiseWant(Prompt(numbers(rng, n)), (numbers(rng, 5),), denoising) for n in (5, 11)]
    roomy = Limits(tokens=100_000, logit_cells=1 << 24, row_tokens=1024)
    found = {k: v for part in DenoiseCollector(predictor, roomy, cost).run(wants) for k, v in part.items()}
    return Outcome(found, cost.denoise_forwards)


def windows(move: Move) -> Outcome:
    want = _denoise_wants(Denoising(steps=6, max_new_tokens=8, block_size=4))[0]
    held = Windows([want], lambda: _moved_predictor(move, "tiny-mdlm"))
    return Outcome(held.get(want).logits, 6)


def bound(move: Move) -> Outcome:
    cost = Cost()
    collector = BoundCollector(_moved_predictor(move, "tiny-mdlm"), FEW, cost)
    collector.predictor.checked = True
    targets = [Target((10, 11, 12, 30, 31, 32), 3), Target((20, 40, 41, 42, 43), 1)]
    found = {k: v for part in collector.bound(targets, draws=4) for k, v in part.items()}
    return Outcome({k: (b.stats, b.standard_error) for k, b in found.items()}, cost.score_forwards)


DIFFUSION = {"diffusion": True, "to_host": 2}
PATHS = (
    GpuPath("scoring, packed", score, "batch", waits=1, fixed=7),
    GpuPath("scoring, padded rows", score_plain, "batch", waits=3),
    GpuPath("greedy decoding", decode, "step", waits=1, fixed=9),
    GpuPath("sampling", sample, "step", waits=1, fixed=9),
    GpuPath("greedy with a penalty", penalised, "step", waits=1, fixed=9),
    GpuPath("depth, layered", layered_patching, "forward", waits=1, fixed=4),
    GpuPath("depth, plain", patch, "example", waits=2),
    GpuPath("logit lens", lens, "example", waits=3),
    GpuPath("Fisher information", fisher, "example", waits=3, to_host=2),
    GpuPath("cross matrix", cross, "forward", waits=1, fixed=3),
    GpuPath("gradients", gradients, "row", waits=2, to_host=2),
    GpuPath("MDLM", mdlm, "pass", waits=2, **DIFFUSION),
    GpuPath("MDLM, drawn", mdlm_drawn, "pass", waits=2, **DIFFUSION),
    GpuPath("BD3LM", bd3lm, "pass", waits=2, **DIFFUSION),
    GpuPath("BD3LM, cached", bd3lm_cached, "pass", waits=2, **DIFFUSION),
    GpuPath("DiffusionGemma", gemma, "pass", waits=2, fixed=7, **DIFFUSION),
    GpuPath("whole logits of a window", windows, "pass", waits=2, **DIFFUSION),
    GpuPath("likelihood bound", bound, "batch", waits=1, diffusion=True),
)


def flat(found: Any) -> list[np.ndarray]:
    """All numbers of an outcome, in order."""
    if isinstance(found, dict):
        return [a for key in sorted(found) for a in flat(found[key])]
    if isinstance(found, (list, tuple)):
        return [a for one in found for a in flat(one)]
    if hasattr(found, "__dataclass_fields__"):
        return [a for f in fields(found) for a in flat(getattr(found, f.name))]
    return [] if found is None else [np.asarray(found)]
