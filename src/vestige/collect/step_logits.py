"""Whole logits of single windows, for metrics that are handed a step of a denoising path as a model.

Everything else reads reductions (collect/denoise.py). Here the path is walked once more, one prompt at a time; windows
are kept as long as there is room, and the others are made each time they are asked for.

In: a mask predictor and what a trajectory asked of it. Out: the logits of one window at one step. Callers:
engine/evaluator_session.py and integrations/step_model.py, for metrics in code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vestige.collect.denoise import LAYOUTS, nearest_pass, read_tensors
from vestige.models.diffusion import MaskPredictor
from vestige.samplers import Pass, sample
from vestige.types import Array
from vestige.wants import DenoiseWant

ROOM = 2 << 30  # bytes of logits kept; 30 windows of 64 tokens, 32 passes and 8,000 words


@dataclass(frozen=True)
class Window:
    """The logits of one window in every pass, as in a Trace: where a pass did not look, the nearest that did."""

    logits: torch.Tensor  # (passes, positions, vocabulary)
    nearest: Array  # (passes, positions)
    final: tuple[int, ...]  # the text it ended in; empty: recorded by somebody else

    def at(self, passes: Array, positions: Array) -> torch.Tensor:
        """The logits (n, vocabulary) of some positions, each in its own pass."""
        return self.logits[torch.from_numpy(self.nearest[passes, positions]), torch.from_numpy(positions)].float()


class Windows:
    """The windows of a run's wants. `predictor` is asked for only when a path must be walked."""

    def __init__(self, wants: Sequence[DenoiseWant], predictor: Callable[[], MaskPredictor], room: int = ROOM) -> None:
        self.predictor = predictor
        self.room = room
        self.kept: dict[str, Window] = {}
        self.walked = 0  # how many times a path was walked
        self._files: dict[str, Mapping[str, object]] = {}
        self._number: dict[str, int] = {}  # of a want among those of its file: one window for each row, in this order
        for path in dict.fromkeys(w.logits for w in wants if w.logits):
            keys = dict.fromkeys(w.key for w in wants if w.logits == path)
            self._number |= {key: i for i, key in enumerate(keys)}

    def get(self, want: DenoiseWant) -> Window:
        if want.key not in self.kept:
            window = self._recorded(want) if want.logits else self._walk(want)
            size = window.logits.numel() * window.logits.element_size()
            if size > self.room:
                return window
            self.room -= size
            self.kept[want.key] = window
        return self.kept[want.key]

    def _walk(self, want: DenoiseWant) -> Window:
        self.walked += 1
        parts: list[tuple[Array, Array, torch.Tensor]] = []

        def keep(step: Pass) -> None:  # its logits are gone after the call
            parts.append((step.number.numpy(), step.position.numpy(), step.logits.to("cpu", copy=True)))

        done = sample(self.predictor(), [want.prompt], [want.streams], want.denoising, keep)[0]
        seen = np.zeros((done.passes, len(done.final)), bool)
        logits = torch.zeros((*seen.shape, parts[0][2].shape[-1]), dtype=parts[0][2].dtype)
        for number, position, found in parts:
            seen[number, position] = True
            logits[torch.from_numpy(number), torch.from_numpy(position)] = found
        return Window(logits, nearest_pass(seen), done.final)

    def _recorded(self, want: DenoiseWant) -> Window:
        if want.logits not in self._files:
            self._files[want.logits] = read_tensors(want.logits)
        tensors = self._files[want.logits]
        found = tensors.get(f"logits.{self._number[want.key]}", tensors.get("logits"))
        logits = torch.as_tensor(found).permute(*LAYOUTS["VLS"])
        passes, length, _ = logits.shape
        return Window(logits, np.broadcast_to(np.arange(passes)[:, None], (passes, length)), ())
