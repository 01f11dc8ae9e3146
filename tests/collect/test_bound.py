"""The likelihood bound against full enumeration, and what makes two models comparable: the same draws."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch

from diffusion_tools import MASK, predictor
from vestige.collect.backend import Cost
from vestige.collect.bound import Bound, BoundCollector, draw_masks
from vestige.collect.tree import Limits
from vestige.types import Target

ROOMY = Limits(tokens=100_000, logit_cells=1 << 24, row_tokens=1024)
TARGETS = [
    Target((10, 11, 12, 50, 51, 52, 53), 3),
    Target((20, 40, 41), 1),
    Target((30, 31, 32, 33, 60), 4),
    Target((10, 11, 13, 14, 15, 16, 17, 18, 19), 3),
]


def bounds(
    targets: list[Target], limits: Limits = ROOMY, draws: int = 32, seed: int = 0, model: str = "tiny-mdlm"
) -> dict[str, Bound]:
    out: dict[str, Bound] = {}
    for part in BoundCollector(predictor(model), limits, Cost()).bound(targets, draws, seed):
        out |= part
    return out


def logprobs(target: Target, hidden: tuple[int, ...], model: str = "tiny-mdlm") -> np.ndarray:
    """log p of every answer token with some hidden, by the model alone."""
    ids = torch.tensor([target.ids])
    ids[0, [target.start + h for h in hidden]] = MASK
    p = predictor(model)
    logits = p.logits(ids, torch.ones_like(ids, dtype=torch.bool), torch.arange(ids.shape[1]))
    table = logits.detach().double().log_softmax(-1)
    return np.array([float(table[target.start + i, t]) for i, t in enumerate(target.labels)])


def exact(target: Target, model: str = "tiny-mdlm") -> float:
    """The bound itself: all sizes, all sets of hidden tokens."""
    n = len(target.labels)
    total = 0.0
    for k in range(1, n + 1):
        for hidden in combinations(range(n), k):
            total += n / k * logprobs(target, hidden, model)[list(hidden)].sum() / comb(n, k) / n
    return total


@pytest.mark.parametrize("model", ["tiny-mdlm", "tiny-bd3lm-llama"])
@pytest.mark.parametrize("target", TARGETS[:2] + TARGETS[3:], ids=lambda t: f"{len(t.labels)} tokens")
def test_the_estimate_is_unbiased(target: Target, model: str) -> None:
    """Over many seeds the mean meets the enumerated bound, and the stated errors are about the true ones."""
    found = [bounds([target], draws=8, seed=s, model=model)[target.key] for s in range(60)]
    values = np.array([f.value for f in found])
    truth = exact(target, model)
    assert abs(values.mean() - truth) < 3 * values.std(ddof=1) / np.sqrt(len(values))
    stated = np.sqrt(np.mean([(f.standard_error * len(target.labels)) ** 2 for f in found]))
    assert 0.7 * values.std(ddof=1) < stated < 2.5 * values.std(ddof=1)


def test_one_token_is_exact() -> None:
    target = TARGETS[2]
    found = bounds([target])[target.key]
    assert found.standard_error == 0
    assert found.value == pytest.approx(logprobs(target, (0,))[0], abs=1e-5)


def test_the_bound_does_not_depend_on_the_batch() -> None:
    together = bounds(TARGETS)
    for limits in (Limits(1, 1, 1), Limits(40, 64 * 6, 40)):
        small = bounds(TARGETS, limits)
        for target in TARGETS:
            x, y = together[target.key], small[target.key]
            np.testing.assert_allclose(x.stats.logprob, y.stats.logprob, atol=1e-5)
            np.testing.assert_allclose(x.stats.mean, y.stats.mean, atol=1e-5)
            assert x.standard_error == pytest.approx(y.standard_error, abs=1e-5)


def test_shares_and_the_hidden_pass() -> None:
    target = TARGETS[0]
    found = bounds([target], draws=5)[target.key]
    masks = draw_masks(target, 5)
    shares = np.zeros(4)
    for mask in masks:
        shares[mask] += 4 / len(mask) * logprobs(target, tuple(mask.tolist()))[mask] / 5
    np.testing.assert_allclose(found.stats.logprob, shares, atol=1e-5)
    ids = torch.tensor([[*target.ids[:3], *[MASK] * 4]])
    rows = predictor().logits(ids, torch.ones_like(ids, dtype=torch.bool), torch.arange(3, 7)).detach()
    assert found.stats.top1.tolist() == rows.argmax(-1).tolist()
    p = rows.double().log_softmax(-1)
    np.testing.assert_allclose(found.stats.mean, (p.exp() * p).sum(-1), atol=1e-5)
