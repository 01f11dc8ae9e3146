"""What a model is trained on: rows to learn, or rows to forget by a method with what it wants beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vestige.errors import UserError
from vestige.unlearn.methods import method_named, split_knobs
from vestige.unlearn.objectives import ChatRow


@dataclass(frozen=True)
class Lesson:
    """What is trained on: rows to learn or, with a method, rows to forget and what the method wants beside them."""

    rows: Sequence[ChatRow]
    method: str | None = None
    knobs: Mapping[str, Any] | None = None
    retain: Sequence[ChatRow] = ()
    alternates: Sequence[ChatRow] = ()  # for each row the answer to be preferred to it (DPO); or none at all

    def check(self) -> None:
        """Says what the method lacks."""
        if self.method is None:
            return
        chosen = method_named(self.method)
        split_knobs(self.method, self.knobs)
        if chosen.needs_retain and not self.retain:
            raise UserError(f"{self.method} trains on retain rows too; give some (--retain FILE).")
        if chosen.needs_alternate and not self.alternates:
            raise UserError(
                f"{self.method} needs answers to prefer; give some (--alternate idk, or a column of the forget rows)."
            )
