"""The formulas behind depth runs and their baselines, on numbers small enough to work out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vestige.metrics import depth


def test_uds_against_the_published_formula() -> None:
    """Sum over layers of weight times clipped ratio, written out."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        d1, d2, tau = draw.normal(0.3, 1, 7), draw.normal(0.3, 1, 7), float(draw.uniform(0, 0.5))
        above = [(a, b) for a, b in zip(d1, d2, strict=True) if a > tau]
        expected = sum(a * min(max(b / a, 0), 1) for a, b in above) / sum(a for a, _ in above) if above else np.nan
        assert float(depth.uds(d1, d2, tau)) == pytest.approx(expected, nan_ok=True)


def test_cka_properties() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(30, 5)), draw.normal(size=(30, 9))
    turn = np.linalg.qr(draw.normal(size=(5, 5)))[0]
    assert depth.cka(x, 3 * x @ turn + 7) == pytest.approx(1)
    assert depth.cka(x, y) == pytest.approx(depth.cka(y, x)) and 0 < depth.cka(x, y) < 0.5
    wide = draw.normal(size=(4, 9))  # fewer positions than width: the other Gram form
    a, b = (m - m.mean(axis=0) for m in (wide, wide**2))
    by_hand = np.square(a.T @ b).sum() / np.sqrt(np.square(a.T @ a).sum() * np.square(b.T @ b).sum())
    assert depth.cka(wide, wide**2) == pytest.approx(by_hand)
    assert depth.cka(np.ones((4, 3)), x[:4]) == 0


@pytest.mark.parametrize(("p", "q"), [(9, 2), (2, 9), (9, 7), (2, 3)])
def test_cka_by_gram_matrices(p: int, q: int) -> None:
    """tr(KL) / sqrt(tr(KK) tr(LL)) of centred Gram matrices, for states wider and narrower than positions are many."""
    draw = np.random.default_rng(p)
    x, y = draw.normal(size=(4, p)), draw.normal(size=(4, q))
    centre = np.eye(4) - 1 / 4
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    assert depth.cka(x, y) == pytest.approx(np.trace(k @ m) / math.sqrt(np.trace(k @ k) * np.trace(m @ m)))
