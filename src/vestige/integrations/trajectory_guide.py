"""The trajectory guide's Python names, with its shapes, for code that was written by it: R [V, L, S], F [L].

Whole tensors, one sample at a time, for small experiments; an evaluation keeps statistics instead (metrics/trajectory).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from vestige.errors import UserError
from vestige.integrations import offline
from vestige.integrations.offline import extract_logits_at_step, trajectories_from_logits
from vestige.types import IGNORE, Array

__all__ = [
    "LogitModelWrapper", "SamplerOutput", "compute_logit_metric_at_step", "compute_text_metric_at_step",
    "compute_trajectories", "extract_logits_at_step", "stack_logits_history", "trajectories_from_logits",
]  # fmt: skip


@dataclass
class SamplerOutput:
    """What a sampler hands over: the finished canvas, the canvases on the way, and what trajectories are made of."""

    sequences: Any  # [B, T]
    histories: list[Any] | None = None
    logits_history: list[Any] | None = None  # a pass each: [B, T, V]
    fixation_steps: Any = None  # [B, T]


def stack_logits_history(logits_history: Sequence[torch.Tensor]) -> torch.Tensor:
    """Passes [1, T, V] (or [T, V]) as R [V, T, S]; a batch of several as [B, V, T, S].

    >>> stack_logits_history([torch.zeros(1, 5, 11)] * 3).shape
    torch.Size([11, 5, 3])
    """
    stacked = offline.stack_logits_history(logits_history)
    return stacked[0] if stacked.ndim == 4 and len(stacked) == 1 else stacked


def compute_trajectories(
    R: torch.Tensor,  # noqa: N803 - the guide's names
    F: torch.Tensor | Sequence[int] | Array,  # noqa: N803
    S: int | None = None,  # noqa: N803
) -> dict[str, torch.Tensor]:
    """The four trajectory tensors [V, L, S] of R [V, L, S] and F [L]."""
    if S is not None and R.shape[-1] != S:
        raise UserError(f"R has {R.shape[-1]} steps, S says {S}; give the number of passes that R holds.")
    return offline.compute_trajectories(R, F)


class LogitModelWrapper:
    """Logits [1, L, V] to be called as a model, whatever it is asked."""

    def __init__(self, logits: torch.Tensor, device: Any = "cpu") -> None:
        self.logits = logits.to(device)
        self.device = torch.device(device)

    def __call__(self, **batch: Any) -> Any:
        return SimpleNamespace(logits=self.logits)


def compute_logit_metric_at_step(
    metric_fn: Callable[..., Any],
    logits: torch.Tensor,
    labels: torch.Tensor | Sequence[int],
    device: Any = "cpu",
    **kwargs: Any,
) -> Any:
    """A metric of (model, batch) on the logits [V, L] of one step.

    The guide's metrics shift: row l is compared with label l + 1. For a sampler's own rows, which are about their own
    token, put one row in front of the logits and IGNORE in front of the labels.
    """
    wanted = torch.as_tensor(labels, device=device)
    if logits.ndim != 2 or logits.shape[1] != len(wanted):
        raise UserError(
            f"logits have shape {tuple(logits.shape)}, labels cover {len(wanted)} positions; give [V, L] and [L] of "
            "the generated window."
        )
    batch = {
        "input_ids": torch.zeros(1, len(wanted), dtype=torch.long, device=device),
        "labels": wanted[None],
        "attention_mask": torch.ones(1, len(wanted), dtype=torch.long, device=device),
    }
    return metric_fn(model=LogitModelWrapper(logits.T[None], device), batch=batch, **kwargs)


def compute_text_metric_at_step(
    metric_fn: Callable[..., Any],
    logits: torch.Tensor,
    labels: torch.Tensor | Sequence[int],
    tokenizer: Any,
    **kwargs: Any,
) -> Any:
    """A metric of (texts, ground_truths) on the first choices of one step's logits [V, L]."""
    said = tokenizer.decode(logits.argmax(dim=0).tolist(), skip_special_tokens=True)
    true = tokenizer.decode([t for t in torch.as_tensor(labels).tolist() if t != IGNORE], skip_special_tokens=True)
    return metric_fn(texts=[said], ground_truths=[true], **kwargs)
