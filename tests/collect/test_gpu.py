"""Ready for a GPU without having one: every way through a model on pretend-CUDA tensors (tests/pretend_gpu.py).

Each path gives the numbers it gives on a CPU, mixes no devices, and keeps to its budget of synchronisations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from collect_tools import VOCAB, family
from gpu_paths import PATHS, GpuPath, Outcome, flat, llama
from pretend_gpu import OtherDevice, on_gpu, pretending
from vestige.collect.answers import AnswerCollector
from vestige.collect.backend import Cost
from vestige.collect.tree import Limits

TWO = {"": "cuda:0", "model.layers.1": "cuda:1", "model.norm": "cuda:1", "lm_head": "cuda:1"}
CAUSAL = [p for p in PATHS if not p.diffusion]


def stay(model: Any) -> Any:
    return model


def same(a: Outcome, b: Outcome) -> None:
    mine, theirs = flat(a.found), flat(b.found)
    assert a.units == b.units and len(mine) == len(theirs) > 0
    for x, y in zip(mine, theirs, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        # Sums over a long answer exceed 100, where neighbouring float32 numbers are 7.6e-6 apart.
        np.testing.assert_allclose(x.astype(float), y.astype(float), rtol=1.2e-7, atol=2e-6, equal_nan=True)


# ---- the harness itself --------------------------------------------------------------------------------------------


def test_devices_do_not_mix_and_numbers_are_real() -> None:
    with pretending() as ledger:
        here, there = torch.arange(6.0), torch.arange(6.0, device="cuda")
        assert there.device == torch.device("cuda:0") and there.is_cuda and torch.equal((there + 1).cpu(), here + 1)
        with pytest.raises(OtherDevice, match="add"):
            there + here
        with pytest.raises(OtherDevice):
            there + torch.ones(6, device="cuda:1")
        with pytest.raises(OtherDevice, match="index"):
            here[torch.tensor([1], device="cuda")]
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there + torch.tensor(2.0)).cpu()[0] == 2  # numbers of the host are taken, as by CUDA
    assert ledger.copies("to_host") == 2


@pytest.mark.parametrize(
    ("kind", "count", "work"),
    [
        ("wait", 1, lambda t: t.sum().item()),
        ("wait", 1, lambda t: bool((t > 0).any())),
        ("wait", 1, lambda t: float(t[0])),
        ("wait", 1, lambda t: t.nonzero()),
        ("wait", 1, lambda t: t[t > 2]),
        ("wait", 1, lambda t: t.unique()),
        ("wait", 1, lambda t: torch.repeat_interleave(t, t.long())),
        ("to_host", 1, lambda t: t.tolist()),
        ("to_host", 1, lambda t: t.cpu()),
        ("to_host", 1, lambda t: torch.zeros(6).copy_(t)),
        ("to_device", 1, lambda t: t[[1, 2]]),
        ("to_device", 1, lambda t: t[torch.tensor([1, 2])]),
        ("to_device", 1, lambda t: torch.tensor([1.0], device=t.device)),
        ("to_device", 1, lambda t: torch.ones(6).to(t.device)),
        ("to_device", 1, lambda t: t.copy_(torch.ones(6))),
        ("sent", 1, lambda t: torch.ones(6).to(t.device, non_blocking=True)),
        ("between", 1, lambda t: t.to("cuda:1")),
        ("wait", 0, lambda t: (t.masked_fill(t > 2, 0), t.argmax(), t.topk(2), t[1:3], torch.where(t > 1, t, 0))),
        ("to_device", 0, lambda t: (torch.zeros(3, device=t.device), torch.arange(3, device=t.device), t.new_ones(2))),
    ],
)  # fmt: skip
def test_what_makes_a_gpu_wait_is_counted(kind: str, count: int, work: Any) -> None:
    with pretending() as ledger:
        work(torch.arange(6.0, device="cuda"))
    assert ledger.copies(kind) == count, ledger.table()
    assert sum(n for (k, _), n in ledger.counts.items() if k != kind) == 0, ledger.table()


# ---- every path ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.name)
def test_a_gpu_gives_the_same_and_is_waited_for_within_the_budget(path: GpuPath) -> None:
    on_cpu = path.run(stay)
    with pretending() as ledger:
        outcome = path.run(on_gpu)
    same(on_cpu, outcome)
    allowed = path.waits * outcome.units + path.fixed
    assert ledger.waits <= allowed, f"{ledger.waits} waits, {allowed} allowed:\n{ledger.table()}"
    copies = path.to_host * outcome.units + path.fixed
    assert ledger.copies("to_host") <= copies, ledger.table()
    assert ledger.copies("to_device", ours=True) == 0, f"copies that wait:\n{ledger.table()}"


@pytest.mark.parametrize("path", CAUSAL, ids=lambda p: p.name)
def test_a_model_over_two_devices_gives_the_same(path: GpuPath) -> None:
    """An explicit device_map, by accelerate's own hooks: blocks on two devices, the head on the second."""
    from accelerate import dispatch_model

    def spread(model: Any) -> Any:
        whole = {"model.embed_tokens": "cuda:0", "model.rotary_emb": "cuda:0", "model.layers.0": "cuda:0",
                 "model.layers.1": "cuda:1", "model.norm": "cuda:1", "lm_head": "cuda:1"}  # fmt: skip
        return dispatch_model(on_gpu(model, TWO), whole, main_device="cuda:0", skip_keys="past_key_values")

    on_cpu = path.run(stay)
    with pretending() as ledger:
        outcome = path.run(spread)
    same(on_cpu, outcome)
    assert ledger.copies("between") > 0


def test_masks_are_made_on_the_device() -> None:
    """What is sent grows with the tokens, not with their square."""
    bytes_per_token = []
    for width in (64, 512):
        cost = Cost()
        with pretending() as ledger:
            limits = Limits(tokens=width, logit_cells=1 << 24, row_tokens=width)
            collector = AnswerCollector(on_gpu(llama()), VOCAB, limits, cost)
            list(collector.run(family(questions=12)))
        assert not collector.plain
        bytes_per_token.append(ledger.bytes["sent"] / cost.score_tokens)
    assert bytes_per_token[1] < 1.3 * bytes_per_token[0] < 130, bytes_per_token
