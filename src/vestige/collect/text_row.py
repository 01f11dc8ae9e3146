"""One text in the making.

In: a Request, what scoring has shown of its text, and what scoring lets one guess of it. Out: the tokens so far, and
what the model must be given next. Callers: collect/texts.py and collect/prefill.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vestige.types import BROKEN, Target, content_key
from vestige.wants import Request


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a text: the generation config's, else the tokenizer's.

    Chat models name several there (end of turn, end of text), of which their tokenizer knows one.
    """
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = tokenizer.eos_token_id if ids is None else ids
    return frozenset() if ids is None else frozenset(ids if isinstance(ids, (list, tuple)) else [ids])


class TextRow:
    """It owns all that must not depend on the batch: its tokens, positions and noise."""

    def __init__(self, request: Request, known: Sequence[int], draft: Sequence[int] = ()) -> None:
        self.request = request
        self.known, self.draft = tuple(known), tuple(draft)
        self.made = list(known)
        self.proven = len(self.made)  # and what the prefill confirms of the draft
        self.logprobs: list[torch.Tensor] = []  # of the tokens behind `known`, kept until the cached way is trusted
        decoding = request.decoding
        self.noise: torch.Generator | None = None
        if not decoding.greedy:  # seeded by sample, not by batch: the same text at any batch size
            seed = int(content_key(request.prompt.key.encode(), str(decoding.seed).encode())[:15], 16)
            self.noise = torch.Generator().manual_seed(seed)

    def fresh(self) -> TextRow:
        """The same text from its start, generator included: a half-made one would draw other numbers."""
        return TextRow(self.request, self.known, self.draft)

    @property
    def broken(self) -> bool:
        return bool(self.made) and self.made[-1] == BROKEN

    @property
    def begin(self) -> int:
        """How many tokens stand before the first one decoded."""
        return len(self.request.prompt.ids) + self.proven

    @property
    def inputs(self) -> list[int]:
        return [*self.request.prompt.ids, *self.made]

    @property
    def positions(self) -> list[int]:
        """HF's generate numbers attended tokens only; a hidden token sits at position 1."""
        hidden, out, at = set(self.request.prompt.hidden), [], -1
        for i in range(len(self.request.prompt.ids) + len(self.made) + len(self.draft)):
            at += i not in hidden
            out.append(1 if i in hidden else at)
        return out

    @property
    def target(self) -> Target:
        """What the prefill pushes and where its logits are read, as an answer to score: the draft, and what follows."""
        return Target(
            (*self.inputs, *self.draft, 0), len(self.request.prompt.ids) + len(self.made), self.request.prompt.hidden
        )
