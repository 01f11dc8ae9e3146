"""Gradient norms: how hard one answer pulls at the weights. The only backward passes in evaluation.

In: Targets and a model. Out: one norm per target. Caller: engine/obtain.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from vestige.collect.backend import Cost
from vestige.collect.safety import check_fit, check_tokens
from vestige.errors import UserError
from vestige.models.attention import send
from vestige.types import Target

NORMS = {"1": 1.0, "2": 2.0, "inf": float("inf")}


def norm_order(p: Any) -> float:
    """The p of a p-norm from a config (1, 2, "inf").

    >>> norm_order("inf"), norm_order(2)
    (inf, 2.0)
    """
    try:
        return NORMS[str(p).removesuffix(".0")]
    except KeyError:
        raise UserError(f"mia_gradnorm: p must be 1, 2 or inf, it is {p!r}.") from None


@contextmanager
def _mode(model: Any, train: bool) -> Iterator[None]:
    """Train or eval mode, and gradients on every floating-point weight; all put back afterwards.

    A checkpoint loaded as an adapter has frozen base weights; the score is over all weights of the model.
    """
    modes = [(m, m.training) for m in model.modules()]  # each on its own: part of a model may be frozen in eval
    weights = [(p, p.requires_grad, p.grad) for p in model.parameters() if p.is_floating_point()]
    model.train(train)
    for p, _, _ in weights:
        p.requires_grad_(True)
        p.grad = None
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for p, wanted, grad in weights:  # a training step in progress finds its gradients as they were
            p.grad = grad
            p.requires_grad_(wanted)


def gradient_norms(
    model: Any, targets: Sequence[Target], p: float, drop_last: bool, train: bool, cost: Cost
) -> Iterator[tuple[str, float]]:
    """For each target: the mean over weight tensors of the p-norm of d(mean negative log-prob)/d(tensor).

    Yields (target key, score) one at a time; a target with no token left to score gives NaN.
    """
    if targets:
        check_fit(model, max(len(t.ids) for t in targets) - 1, "A prompt with its answer")
        check_tokens(model, (t.ids for t in targets))
    for target in targets:  # one at a time inside the modes, so that the caller never sees the model in them
        with _mode(model, train), _dropout_of(model, target):
            norm = _one(model, target, p, drop_last)
        cost.backwards += 1
        yield target.key, norm


@contextmanager
def _dropout_of(model: Any, target: Target) -> Iterator[None]:
    """Random numbers that depend on the target alone: live dropout gives the same score in a resumed run."""
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(target.key[:15], 16))
        yield


@torch.enable_grad()
def _one(model: Any, target: Target, p: float, drop_last: bool) -> float:
    end = len(target.ids) - (1 if drop_last else 0)
    if end <= target.start:
        return float("nan")
    given = torch.tensor([target.ids[: end - 1]])
    seen = torch.ones_like(given)
    seen[0, [h for h in target.hidden if h < end - 1]] = 0
    ids, mask = send(torch.stack([given, seen]), model.device)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[0, target.start - 1 :]
    labels = send(torch.tensor(target.ids[target.start : end]), logits.device)
    loss = torch.nn.functional.cross_entropy(logits.float(), labels)
    model.zero_grad(set_to_none=True)
    loss.backward()
    # One tensor at a time, not the global norm; a tied weight is one tensor.
    norms = [torch.linalg.vector_norm(w.grad.float(), ord=p) for w in model.parameters() if w.grad is not None]
    return float(_on_host(norms).mean())


def _on_host(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Numbers of several devices on the host, in their order: one copy per device, not one per number."""
    out = torch.zeros(len(numbers))
    for device in {n.device for n in numbers}:
        own = [i for i, n in enumerate(numbers) if n.device == device]
        out[own] = torch.stack([numbers[i] for i in own]).cpu()
    return out
