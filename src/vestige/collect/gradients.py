"""The only backward passes in evaluation: gradient norms (how hard one answer pulls at the weights), and the Fisher
information of each block.

In: Targets or PatchWants, and a model. Out: one norm per target, or squared gradients per block. Callers:
runs/collect.py and depth/baselines.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from vestige.collect.backend import Cost
from vestige.collect.safety import check_fit, check_tokens
from vestige.errors import UserError
from vestige.models.attention import send
from vestige.models.layers import find_blocks
from vestige.types import Array, Target
from vestige.wants import PatchWant

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
def gradients_of(model: Any, weights: Sequence[Any] | None = None) -> Iterator[None]:
    """Gradients of these weights alone (None: of every floating-point one); all is put back afterwards.

    A checkpoint loaded as an adapter has frozen base weights; gradient norms are over all weights of the model.
    """
    before = [(w, w.requires_grad, w.grad) for w in model.parameters() if w.is_floating_point()]
    chosen = None if weights is None else {id(w) for w in weights}
    for weight, _, _ in before:
        weight.requires_grad_(chosen is None or id(weight) in chosen)
        weight.grad = None
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight, required, grad in before:  # a training step in progress finds its gradients as they were
            weight.grad = grad
            weight.requires_grad_(required)


def gradient_norms(
    model: Any, targets: Sequence[Target], p: float, drop_last: bool, train: bool, cost: Cost
) -> Iterator[tuple[str, float]]:
    """For each target: the mean over weight tensors of the p-norm of d(mean negative log-prob)/d(tensor).

    Yields (target key, score) one at a time; a target with no token left to score gives NaN. `train`: with dropout.
    """
    if targets:
        check_fit(model, max(len(t.ids) for t in targets) - 1, "A prompt with its answer")
        check_tokens(model, (t.ids for t in targets))
    for target in targets:  # one at a time inside the modes, so that the caller never sees the model in them
        modes = [(m, m.training) for m in model.modules()]  # each on its own: part of a model may be frozen in eval
        model.train(train)
        try:
            with gradients_of(model):
                norm = _gradient_norm(model, target, p, drop_last)
        finally:
            for module, mode in modes:
                module.training = mode
        cost.backwards += 1
        yield target.key, norm


def _gradient_norm(model: Any, target: Target, p: float, drop_last: bool) -> float:
    end = len(target.ids) - (1 if drop_last else 0)
    if end <= target.start:
        return float("nan")
    tokens = torch.tensor([target.ids[: end - 1]])
    seen = torch.ones_like(tokens)
    seen[0, [h for h in target.hidden if h < end - 1]] = 0
    ids, mask = send(torch.stack([tokens, seen]), model.device)
    # Random numbers that depend on the target alone: live dropout gives the same score in a resumed run.
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(int(target.key[:15], 16))
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[0, target.start - 1 :]
        labels = send(torch.tensor(target.ids[target.start : end]), logits.device)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        model.zero_grad(set_to_none=True)
        loss.backward()
    # One tensor at a time, not the global norm; a tied weight is one tensor.
    norms = [torch.linalg.vector_norm(w.grad.float(), ord=p) for w in model.parameters() if w.grad is not None]
    # In their order on the host: one copy for each device, not one for each number.
    on_host = torch.zeros(len(norms))
    for device in {n.device for n in norms}:
        own = [i for i, n in enumerate(norms) if n.device == device]
        on_host[own] = torch.stack([norms[i] for i in own]).cpu()
    return float(on_host.mean())


def fisher(model: Any, wants: Sequence[PatchWant]) -> Iterator[list[Array]]:
    """The squared gradient of each example's mean entity loss, averaged over examples, block by block (flat arrays).

    Yields the running sums after each example, so that a caller can show progress; the last divided by the number of
    examples is the result.
    """
    weights = [list(block.parameters()) for block in find_blocks(model)]
    if not all(p.is_floating_point() for block in weights for p in block):
        raise UserError("Fisher information needs gradients, which quantised weights do not have.")
    sums = [np.zeros(sum(p.numel() for p in block), np.float32) for block in weights]
    for want in wants:
        with gradients_of(model, [w for block in weights for w in block]):
            ids = send(torch.tensor([want.target.ids[:-1]]), model.device)
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
            labels = send(torch.tensor(want.target.labels), logits.device)
            loss = torch.nn.functional.cross_entropy(logits[0, want.target.start - 1 :].float(), labels)
            loss.backward()
            for total, block in zip(sums, weights, strict=True):
                parts = [torch.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1) for p in block]
                total += torch.cat(parts).float().square().cpu().numpy()
        yield sums
