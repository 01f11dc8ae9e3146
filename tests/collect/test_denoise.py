"""Traces: the planes against logits kept whole, at any batch size, and from tensors somebody else saved."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from diffusion_tools import EOS, MASK, predictor
from vestige.collect import denoise
from vestige.collect.backend import Cost
from vestige.collect.denoise import DenoiseCollector, batches, trace_from_logits
from vestige.collect.tree import Limits
from vestige.models.samplers import Pass, sample
from vestige.types import IGNORE, Prompt, Trace
from vestige.wants import DenoiseWant, Denoising

ROOMY = Limits(tokens=100_000, logit_cells=1 << 24, row_tokens=1024)
ONE = Limits(tokens=1, logit_cells=1, row_tokens=1024)
MDLM = Denoising(steps=4, max_new_tokens=8, block_size=4)
BD3LM = Denoising("bd3lm", steps=8, max_new_tokens=8, block_size=4)
DRAWN = Denoising(steps=5, max_new_tokens=8, temperature=0.7, stochastic_transfer=True)  # rows end at different passes


def wants(denoising: Denoising = MDLM) -> list[DenoiseWant]:
    full = (50, 51, 52, 53, 54, 55, 56, 57)
    short = (40, 41, IGNORE, 43, *[IGNORE] * 4)
    return [
        DenoiseWant(Prompt((10, 11, 12)), (full, short), denoising),
        DenoiseWant(Prompt((20,)), (short,), denoising),
        DenoiseWant(Prompt((13, 14, 15, 16, 17, 18, 19)), (), denoising),
    ]


def collect(items: list[DenoiseWant], limits: Limits = ROOMY, model: str = "tiny-mdlm") -> dict[str, Trace]:
    out: dict[str, Trace] = {}
    for part in DenoiseCollector(predictor(model), limits, Cost()).run(items):
        out |= part
    return out


def assert_same(a: Trace, b: Trace) -> None:
    for f in fields(Trace):
        x, y = getattr(a, f.name), getattr(b, f.name)
        assert x.shape == y.shape, f.name
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, atol=1e-5, err_msg=f.name)
        else:
            np.testing.assert_array_equal(x, y, err_msg=f.name)


def test_the_planes_are_the_logits_reduced() -> None:
    want = wants()[0]
    trace = collect([want])[want.key]
    kept: list[Pass] = []
    one = sample(predictor(), [want.prompt], (), MDLM, kept.append)[0]
    assert trace.steps == one.passes == len(kept)
    assert trace.final.tolist() == list(one.final) and trace.fixed.tolist() == list(one.fixed)
    for s, seen in enumerate(kept):
        p = seen.logits.double().log_softmax(-1)
        assert trace.canvas[s].tolist() == seen.canvas.tolist()
        assert trace.proposal[s].tolist() == seen.proposal.tolist()
        assert trace.top1[s].tolist() == p.argmax(-1).tolist()
        assert trace.committed[s] == (seen.canvas != MASK).sum()
        mean = (p.exp() * p).sum(-1)
        np.testing.assert_allclose(trace.mean[s], mean, atol=1e-5)
        np.testing.assert_allclose(trace.std[s], ((p.exp() * p * p).sum(-1) - mean**2).sqrt(), atol=1e-5)
        for k, stream in enumerate(want.streams):
            for x, label in enumerate(stream):
                if label == IGNORE:
                    assert np.isnan(trace.logprob[k, s, x])
                else:
                    assert abs(trace.logprob[k, s, x] - float(p[x, label])) < 1e-5


@pytest.mark.parametrize("denoising", [MDLM, BD3LM, DRAWN], ids=["mdlm", "bd3lm", "drawn"])
@pytest.mark.parametrize("model", ["tiny-mdlm", "tiny-mdlm-eosprone", "tiny-bd3lm-llama"])
def test_traces_do_not_depend_on_the_batch(model: str, denoising: Denoising) -> None:
    items = wants(denoising)
    assert len(list(batches(items, ROOMY, 64))) == 1 and len(list(batches(items, ONE, 64))) == 3
    together, alone = collect(items, ROOMY, model), collect(items, ONE, model)
    assert set(together) == set(alone) == {w.key for w in items}
    for want in items:
        assert_same(together[want.key], alone[want.key])
        assert together[want.key].labels.shape == (len(want.streams), 8)


def test_a_block_not_looked_at_repeats_the_nearest_look() -> None:
    want = wants(BD3LM)[0]
    trace = collect([want])[want.key]
    assert trace.steps == 8
    for plane in (trace.mean, trace.top1, trace.logprob[0]):
        assert (plane[:4, 4:] == plane[4, 4:]).all()  # the second block before its first pass
        assert (plane[4:, :4] == plane[3, :4]).all()  # the first block after its last
    assert len(np.unique(trace.mean[:4, 0])) == 4  # and a pass of its own while it is denoised
    assert (trace.canvas[4:, :4] == trace.final[:4]).all() and (trace.canvas[:4, 4:] == MASK).all()


def test_blocks_after_the_end_token_were_never_looked_at() -> None:
    denoising = Denoising("bd3lm", steps=16, max_new_tokens=16, block_size=4)
    want = DenoiseWant(Prompt((20,)), (tuple(range(40, 56)),), denoising)
    trace = collect([want], model="tiny-mdlm-eosprone")[want.key]
    assert trace.steps == 8
    assert np.isnan(trace.logprob[0, :, 8:]).all() and not np.isnan(trace.logprob[0, :, :8]).any()
    assert (trace.top1[:, 8:] == -1).all() and (trace.final[8:] == MASK).all() and (trace.fixed[8:] == -1).all()


def test_never_decided_positions_and_one_pass() -> None:
    denoising = Denoising(steps=6, max_new_tokens=10, block_size=5)
    want = DenoiseWant(Prompt((20,)), (), denoising)
    trace = collect([want], model="tiny-mdlm-maskprone")[want.key]
    assert ((trace.fixed == -1) == (trace.final == MASK)).all() and (trace.fixed == -1).any()
    assert trace.committed[-1] < 10
    one = DenoiseWant(Prompt((10, 11, 12)), (), Denoising(steps=1, max_new_tokens=6))
    short = collect([one])[one.key]
    assert short.steps == 1 and short.committed.tolist() == [0] and (short.fixed == 0).all()
    assert short.logprob.shape == (0, 1, 6)


def test_out_of_memory_halves_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = sample, []

    def small(model: Any, prompts: Any, *rest: Any) -> Any:
        sizes.append(len(prompts))
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("no")
        return real(model, prompts, *rest)

    monkeypatch.setattr(denoise, "sample", small)
    items = wants()
    cost = Cost()
    out: dict[str, Trace] = {}
    for part in DenoiseCollector(predictor(), Limits(64, 1 << 20, 64), cost).run(items):
        out |= part
    assert set(out) == {w.key for w in items} and sizes[0] > 1 and sizes[-1] == 1
    assert "halved" in cost.notes[0]


def recorded() -> tuple[DenoiseWant, torch.Tensor]:
    """The logits of a run, whole: (passes, positions, vocabulary)."""
    want, kept = wants()[0], []
    sample(predictor(), [want.prompt], (), MDLM, lambda seen: kept.append(seen.logits.clone()))
    return want, torch.stack(kept)


@pytest.mark.parametrize("layout", ["SLV", "VLS"])
def test_saved_logits_give_the_same_trace(layout: str) -> None:
    want, cube = recorded()
    ours = collect([want])[want.key]
    given = cube if layout == "SLV" else cube.permute(2, 1, 0)
    trace = trace_from_logits(given, ours.fixed, want.streams, layout, mask_id=MASK)
    # What a saved tensor does not tell is the standing token: the proposal is then the first choice.
    proposal = np.where(ours.canvas == MASK, trace.proposal, ours.canvas)
    assert (proposal == ours.proposal).all()
    for name in ("final", "fixed", "committed", "canvas", "top1", "mean", "std", "labels", "logprob"):
        np.testing.assert_allclose(getattr(trace, name), getattr(ours, name), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("denoising", [MDLM, BD3LM], ids=["mdlm", "bd3lm"])
def test_no_logits_are_kept(denoising: Denoising, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a pass is reduced, the logits of the pass before are gone."""
    import weakref

    real, seen = denoise.reduce_logits, []

    def watched(logits: torch.Tensor, *rest: Any) -> Any:
        assert all(old() is None for old in seen)
        seen.append(weakref.ref(logits))
        return real(logits, *rest)

    monkeypatch.setattr(denoise, "reduce_logits", watched)
    collect(wants(denoising))
    assert len(seen) == denoising.steps


def test_an_end_token_first_ends_a_row_after_its_block() -> None:
    from dataclasses import replace

    first = (EOS, *[IGNORE] * 7)
    for base, steps in ((MDLM, 4), (BD3LM, 4)):
        want = DenoiseWant(Prompt((10, 11, 12)), (first,), replace(base, mode="guided_native"))
        trace = collect([want])[want.key]
        assert trace.final[0] == EOS and trace.steps == steps
        assert (trace.final[4:] == MASK).all() == (base is BD3LM)  # MDLM fills its window whatever stands in it


def test_guided_traces_score_the_answer_that_is_written() -> None:
    answer = (50, 51, 52, 53, 54, 55, 56, 57)
    skew = Denoising(steps=8, max_new_tokens=8, mode="guided_skew")
    want = DenoiseWant(Prompt((10, 11, 12)), (answer,), skew)
    trace = collect([want])[want.key]
    assert trace.final.tolist() == list(answer)
    for s in range(8):  # each pass decides the masked token it finds likeliest
        masked = trace.canvas[s] == MASK
        assert trace.fixed[np.where(masked, trace.logprob[0, s], -np.inf).argmax()] == s
