"""Trajectories of saved logits as whole tensors R [V, L, S] and F [L], under the names of the trajectory guide.

For small experiments and for checking; no model and no sampler is needed. An evaluation never builds these tensors: it
keeps statistics while the logits stream by (collect) and re-indexes those (metrics/trajectory).

    trajectories_from_logits    a saved batch as trajectory tensors
    generated_windows, save_windows    its generated parts, and the file of them that `logits_source: external` reads
    stack_logits_history, compute_trajectories, extract_logits_at_step, SamplerOutput, LogitModelWrapper,
    compute_logit_metric_at_step, compute_text_metric_at_step    for code that was written by the guide
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vestige.errors import UserError
from vestige.metrics.trajectory import DEFAULT_TRAJECTORIES, fixation, sigma
from vestige.runs.named_files import written_by
from vestige.types import IGNORE, Array


@dataclass
class SamplerOutput:
    """What a sampler returns: the finished canvas, the canvases on the way, and what trajectories are made of."""

    sequences: Any  # [B, T]
    histories: list[Any] | None = None
    logits_history: list[Any] | None = None  # one per pass: [B, T, V]
    fixation_steps: Any = None  # [B, T]


def stack_logits_history(logits_history: Sequence[torch.Tensor]) -> torch.Tensor:
    """Passes [1, T, V] (or [T, V]) as R [V, T, S]; a batch of several as [B, V, T, S].

    >>> stack_logits_history([torch.zeros(1, 5, 11)] * 3).shape
    torch.Size([11, 5, 3])
    """
    if not len(logits_history):
        raise UserError("logits_history cannot be empty")
    stacked = torch.stack([step.transpose(-1, -2) for step in logits_history], dim=-1)
    return stacked[0] if stacked.ndim == 4 and len(stacked) == 1 else stacked


def extract_logits_at_step(trajectory: torch.Tensor, step: int) -> torch.Tensor:
    """One step of a trajectory tensor: (..., vocabulary, positions)."""
    steps = trajectory.shape[-1]
    if not 0 <= step < steps:
        raise UserError(f"step_index {step} out of range [0, {steps - 1}]")
    return trajectory[..., step]


def compute_trajectories(
    R: torch.Tensor,  # noqa: N803 - the guide's names
    F: torch.Tensor | Sequence[int] | Array,  # noqa: N803
    S: int | None = None,  # noqa: N803
    names: Sequence[str] = DEFAULT_TRAJECTORIES,
) -> dict[str, torch.Tensor]:
    """The trajectory tensors [V, L, S] of R [V, L, S] and F [L], the step at which each position was decided."""
    vocabulary, _, steps = R.shape
    if S is not None and steps != S:
        raise UserError(f"R has {steps} steps, S says {S}; give the number of passes that R holds.")
    trajectories = {}
    for name in names:
        source = torch.as_tensor(sigma(name, np.asarray(F), steps).T.copy(), device=R.device)
        trajectories[name] = R.gather(2, source.expand(vocabulary, -1, -1))
    return trajectories


def trajectories_from_logits(
    logits_history: Sequence[torch.Tensor],
    fixation_steps: torch.Tensor,
    prompt_lens: Sequence[int] | torch.Tensor,
    padding: str = "right",
    names: Sequence[str] = DEFAULT_TRAJECTORIES,
) -> dict[str, torch.Tensor | int]:
    """A saved batch as trajectory tensors by name [B, V, L, S], together with R, F, S and L.

    Each pass is [B, T, V] over the whole canvas, or [B, L, V] over generated positions only (fewer than
    `fixation_steps` has). With `padding="right"` a row's own prompt length says where its generated part begins (MDLM).
    With "left" all rows begin after the longest prompt (BD3LM, Dream); published code does so for every sampler, which
    shifts the shorter prompts' rows of a right-padded batch.
    """
    windows = generated_windows(logits_history, fixation_steps, prompt_lens, padding)
    steps, length = len(logits_history), windows[0][0].shape[1]
    fixed = [fixation(when, steps) for _, when in windows]
    rows = [logits for logits, _ in windows]
    by_row = [compute_trajectories(r, f, names=names) for r, f in zip(rows, fixed, strict=True)]
    tensors = {name: torch.stack([row[name] for row in by_row]) for name in names}
    return {**tensors, "R": torch.stack(rows), "F": torch.as_tensor(np.stack(fixed)), "S": steps, "L": length}


def generated_windows(
    logits_history: Sequence[torch.Tensor],
    fixation_steps: torch.Tensor,
    prompt_lens: Sequence[int] | torch.Tensor,
    padding: str = "right",
) -> list[tuple[torch.Tensor, Array]]:
    """The generated part of each row of a batch: R [V, L, S] and F [L]. -1 in F (never decided) stays.

    The arguments are those of `trajectories_from_logits`.
    """
    lens = [int(n) for n in prompt_lens]
    if not len(logits_history):
        raise UserError("logits_history cannot be empty")
    if fixation_steps.ndim != 2:
        raise UserError(f"fixation_steps must be 2-d [B, T_full], got shape {fixation_steps.shape}")
    batch, width = logits_history[0].shape[:2]
    if len(lens) != batch:
        raise UserError(f"prompt_lens length {len(lens)} must match batch size B={batch}")
    if padding not in ("left", "right"):
        raise UserError(f"padding must be 'left' or 'right', got '{padding}'")
    longest = max(lens)
    if longest >= fixation_steps.shape[1]:
        raise UserError(
            f"The longest prompt ({longest}) fills the canvas ({fixation_steps.shape[1]} positions): nothing was "
            "generated there."
        )
    generated_only = width < fixation_steps.shape[1]
    length = width if generated_only else width - longest
    windows = []
    for b, start in enumerate(lens if padding == "right" else [longest] * len(lens)):
        begin = 0 if generated_only else start
        rows = stack_logits_history([step[b, begin : begin + length] for step in logits_history])
        known = fixation_steps[b, start : start + length].cpu().numpy().astype(np.int64)
        # Positions without a recorded step were decided at the very end.
        rest = np.full(length - len(known), len(logits_history) - 1, dtype=np.int64)
        windows.append((rows, np.concatenate([known, rest])))
    return windows


def save_windows(path: str | Path, windows: Iterable[tuple[torch.Tensor, Sequence[int] | Array]]) -> int:
    """Writes the file that `logits_source: external` reads: one window (R, F) for each row, in the rows' order.

    `windows` are those of `generated_windows`, batch after batch. Returns how many were written.
    """
    from safetensors.torch import save_file

    if Path(path).suffix != ".safetensors":
        raise UserError(f"Recorded logits are written as .safetensors, not as '{Path(path).name}'; change the name.")
    tensors: dict[str, torch.Tensor] = {}
    count = 0
    for logits, fixed in windows:
        if logits.ndim != 3 or len(fixed) != logits.shape[1]:
            raise UserError(
                f"Window {count} has logits of shape {tuple(logits.shape)} and {len(fixed)} fixation steps; give R "
                "[V, L, S] and F [L] (generated_windows makes them)."
            )
        # Copies: the format refuses tensors that share memory, as views of one history do.
        tensors[f"logits.{count}"] = logits.detach().cpu().clone(memory_format=torch.contiguous_format)
        tensors[f"fixation_steps.{count}"] = torch.from_numpy(np.array(fixed, dtype=np.int64))
        count += 1
    if not count:
        raise UserError("No window to write; give one for each row.")
    written_by(Path(path), partial(save_file, tensors), named=True)
    return count


class LogitModelWrapper:
    """Logits [1, L, V] that can be called as a model; what it is called with does not matter."""

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
    text = tokenizer.decode(logits.argmax(dim=0).tolist(), skip_special_tokens=True)
    true = tokenizer.decode([t for t in torch.as_tensor(labels).tolist() if t != IGNORE], skip_special_tokens=True)
    return metric_fn(texts=[text], ground_truths=[true], **kwargs)
