"""reduce_logits against float64 numpy: the one function that sees the vocabulary axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vestige.collect import reduce
from vestige.collect.reduce import reduce_logits

MINUS = float("-inf")


def reference(logits: torch.Tensor, where: torch.Tensor, label: torch.Tensor) -> dict[str, Any]:
    x = logits.double().numpy()
    top = x.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(x - top).sum(axis=-1, keepdims=True))
    logp = x - lse
    p = np.exp(logp)
    safe = np.where(p > 0, logp, 0.0)
    mean = (p * safe).sum(axis=-1)
    var = (p * (safe - mean[:, None]) ** 2).sum(axis=-1)
    w = where.numpy()
    return {
        "logprob": logp[w, label.numpy()],
        "top1": x.argmax(axis=-1)[w],
        "mean": mean[w],
        "std": np.sqrt(var)[w],
    }


def check(logits: torch.Tensor, where: list[int], label: list[int], atol: float = 2e-6) -> None:
    w, y = torch.tensor(where), torch.tensor(label)
    got, want = reduce_logits(logits, w, y), reference(logits, w, y)
    assert got["label"].tolist() == label
    assert got["top1"].tolist() == want["top1"].tolist()
    for name in ("logprob", "mean", "std"):
        assert got[name].dtype == np.float32
        np.testing.assert_allclose(got[name], want[name], rtol=2e-6, atol=atol, err_msg=name)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_matches_float64(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(9, 300) * scale + 5).to(dtype)
    check(logits, [*range(9)], [(37 * i) % 300 for i in range(9)], atol=1e-5)


@pytest.mark.parametrize("cells", [1, 7, 40, 41, 1 << 20])
def test_chunks_do_not_show(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    logits, where = torch.randn(11, 20), [10, 0, 3, 9, 1, 2]
    monkeypatch.setitem(reduce.CHUNK_CELLS, "cpu", cells)
    check(logits, where, [1, 2, 3, 4, 5, 19])


@pytest.mark.parametrize("pad", [MINUS, -1e9, -1e30, torch.finfo(torch.float32).min])
def test_a_padded_vocabulary(pad: float) -> None:
    """Impossible tokens add nothing to mean and std, whether they are -inf or just as far down as floats go."""
    torch.manual_seed(4)
    logits = torch.randn(5, 40)
    short = reduce_logits(logits[:, :30].contiguous(), torch.arange(5), torch.arange(5))
    logits[:, 30:] = pad
    got = reduce_logits(logits, torch.arange(5), torch.arange(5))
    for name in ("logprob", "mean", "std", "top1"):
        np.testing.assert_allclose(got[name], short[name], atol=1e-6, err_msg=name)


def test_an_impossible_label_has_log_probability_minus_infinity() -> None:
    logits = torch.tensor([[0.0, 1.0, MINUS]])
    got = reduce_logits(logits, torch.tensor([0]), torch.tensor([2]))
    assert got["logprob"][0] == MINUS
    assert np.isfinite(got["mean"][0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_no_distribution_is_nan_and_leaves_its_neighbours_alone(bad: float) -> None:
    torch.manual_seed(5)
    logits = torch.randn(4, 20)
    fine = reduce_logits(logits, torch.arange(4), torch.arange(4))
    logits[2, 7] = bad
    got = reduce_logits(logits, torch.arange(4), torch.arange(4))
    for name in ("logprob", "mean", "std"):
        assert np.isnan(got[name][2])
        np.testing.assert_array_equal(np.delete(got[name], 2), np.delete(fine[name], 2))
    assert got["top1"].tolist() == [fine["top1"][0], fine["top1"][1], -1, fine["top1"][3]]
