"""Traces: the planes against logits kept whole, at any batch size, and from tensors somebody else saved."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from diffusion_tools import MASK, predictor
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


def test_guided_traces_score_the_answer_that_is_written() -> None:
    answer = (50, 51, 52, 53, 54, 55, 56, 57)
    skew = Denoising(steps=8, max_new_tokens=8, mode="guided_skew")
    want = DenoiseWant(Prompt((10, 11, 12)), (answer,), skew)
    trace = collect([want])[want.key]
    assert trace.final.tolist() == list(answer)
    for s in range(8):  # each pass decides the masked token it finds likeliest
        masked = trace.canvas[s] == MASK
        assert trace.fixed[np.where(masked, trace.logprob[0, s], -np.inf).argmax()] == s
