"""Trajectories of saved logits: no model, no sampler, whole [vocabulary, positions, steps] tensors.

For small experiments and for checking. An evaluation never builds these tensors: it keeps statistics while the logits
stream by (collect) and re-indexes those (metrics/trajectory).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from vestige.errors import UserError
from vestige.metrics.trajectory import DEFAULT_TRAJECTORIES, fixation, sigma
from vestige.runs.named_files import written_by
from vestige.types import Array


def stack_logits_history(logits_history: Sequence[torch.Tensor]) -> torch.Tensor:
    """Logits of each pass, (..., positions, vocabulary), as one tensor R (..., vocabulary, positions, passes).

    >>> stack_logits_history([torch.zeros(5, 11)] * 3).shape
    torch.Size([11, 5, 3])
    """
    if not len(logits_history):
        raise UserError("logits_history cannot be empty")
    return torch.stack([step.transpose(-1, -2) for step in logits_history], dim=-1)


def extract_logits_at_step(trajectory: torch.Tensor, step: int) -> torch.Tensor:
    """One step of a trajectory tensor: (..., vocabulary, positions)."""
    steps = trajectory.shape[-1]
    if not 0 <= step < steps:
        raise UserError(f"step_index {step} out of range [0, {steps - 1}]")
    return trajectory[..., step]


def compute_trajectories(
    logits: torch.Tensor, fixed: Sequence[int] | torch.Tensor | Array, names: Sequence[str] = DEFAULT_TRAJECTORIES
) -> dict[str, torch.Tensor]:
    """R [vocabulary, positions, steps] along each trajectory, given each position's fixation step. One step will do."""
    vocabulary, _, steps = logits.shape
    out = {}
    for name in names:
        source = torch.as_tensor(sigma(name, np.asarray(fixed), steps).T.copy(), device=logits.device)
        out[name] = logits.gather(2, source.expand(vocabulary, -1, -1))
    return out


def trajectories_from_logits(
    logits_history: Sequence[torch.Tensor],
    fixation_steps: torch.Tensor,
    prompt_lens: Sequence[int] | torch.Tensor,
    padding: str = "right",
    names: Sequence[str] = DEFAULT_TRAJECTORIES,
) -> dict[str, torch.Tensor | int]:
    """A saved batch as trajectory tensors by name [B, V, L, S], with R, F, S and L beside them.

    Each pass is [B, T, V] over the whole canvas, or [B, L, V] over generated positions only (fewer than
    `fixation_steps` has). With `padding="right"` a row's own prompt length says where its generated part begins (MDLM).
    With "left" all rows begin behind the longest prompt (BD3LM, Dream); published code does so for every sampler, which
    shifts the shorter prompts' rows of a right-padded batch.
    """
    found = generated_windows(logits_history, fixation_steps, prompt_lens, padding)
    rows, steps, length = [r for r, _ in found], len(logits_history), found[0][0].shape[1]
    fixed = [fixation(when, steps) for _, when in found]
    along = [compute_trajectories(r, f, names=names) for r, f in zip(rows, fixed, strict=True)]
    tensors = {name: torch.stack([row[name] for row in along]) for name in names}
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
    _check(logits_history, fixation_steps, lens, padding)
    longest, width = max(lens), logits_history[0].shape[1]
    generated_only = width < fixation_steps.shape[1]
    length = width if generated_only else width - longest
    out = []
    for b, start in enumerate(lens if padding == "right" else [longest] * len(lens)):
        begin = 0 if generated_only else start
        rows = stack_logits_history([step[b, begin : begin + length] for step in logits_history])
        known = fixation_steps[b, start : start + length].cpu().numpy().astype(np.int64)
        # positions nobody said anything about were decided at the very end
        rest = np.full(length - len(known), len(logits_history) - 1, dtype=np.int64)
        out.append((rows, np.concatenate([known, rest])))
    return out


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


def _check(history: Sequence[torch.Tensor], fixation_steps: torch.Tensor, lens: list[int], padding: str) -> None:
    if not len(history):
        raise UserError("logits_history cannot be empty")
    if fixation_steps.ndim != 2:
        raise UserError(f"fixation_steps must be 2-d [B, T_full], got shape {fixation_steps.shape}")
    batch = history[0].shape[0]
    if len(lens) != batch:
        raise UserError(f"prompt_lens length {len(lens)} must match batch size B={batch}")
    if padding not in ("left", "right"):
        raise UserError(f"padding must be 'left' or 'right', got '{padding}'")
    if max(lens) >= fixation_steps.shape[1]:
        raise UserError(
            f"The longest prompt ({max(lens)}) fills the canvas ({fixation_steps.shape[1]} positions): nothing was "
            "generated there."
        )
