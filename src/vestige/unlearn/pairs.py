"""Which rows a training step sees: a forget row, a random retain row beside it, and an answer to be preferred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from vestige.errors import UserError
from vestige.unlearn.objectives import ChatRow


@dataclass(frozen=True)
class Pair:
    """What one place of a batch holds. Fine-tuning has only the first."""

    row: ChatRow
    retain: ChatRow | None = None
    alternate: ChatRow | None = None


class Pairs:
    """A map-style data set over the forget rows. Each time a row is read, another retain row comes with it.

    The draw depends on the seed, the row, and how often the row was read: not on the order of reading. So a run can be
    repeated, whatever the batch size.
    """

    def __init__(
        self,
        rows: Sequence[ChatRow],
        retain: Sequence[ChatRow] = (),
        alternates: Sequence[ChatRow] = (),
        seed: int = 0,
    ) -> None:
        if alternates and len(alternates) != len(rows):
            raise UserError(
                f"There are {len(rows)} forget rows but {len(alternates)} alternate answers; give one each."
            )
        self.rows, self.retain, self.alternates, self.seed = rows, retain, alternates, seed
        self._reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.rows)

    def begin(self, epoch: int) -> None:
        """Every row was read once per epoch before this one: a run that is resumed draws as if it had read them."""
        self._reads = Counter(dict.fromkeys(range(len(self.rows)), epoch))

    def __getitem__(self, index: int) -> Pair:
        draw = Random(f"{self.seed}/{index}/{self._reads[index]}")
        self._reads[index] += 1
        beside = draw.choice(self.retain) if self.retain else None
        return Pair(self.rows[index], beside, self.alternates[index] if self.alternates else None)
