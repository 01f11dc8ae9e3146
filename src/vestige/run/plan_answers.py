"""What scoring answers would cost one model: the evaluated one, or the reference model of an attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vestige.models.canvas import VISION, has_pictures
from vestige.models.load import ModelArgs
from vestige.models.locate import locate, weight_names
from vestige.run.handles import ModelHandle
from vestige.store.evidence import Bank
from vestige.types import Target


@dataclass(frozen=True)
class Packing:
    """How answers are to be packed, and which of them are known."""

    directory: Path  # of the evidence
    fresh: bool  # what is on disk will be collected again
    vocab: int
    batch_tokens: int | None


@dataclass(frozen=True)
class AnswersPlan:
    """One model's answers: how many, and what those that are not cached push through it."""

    model: str
    parameters: int
    weight_bytes: int
    distinct: int
    cached: int
    tokens: int
    batches: int
    bound_tokens: int  # a diffusion model's: its bound hides parts of each answer many times
    cells: int  # of the largest batch's logits

    @property
    def pushed(self) -> int:
        return self.tokens + self.bound_tokens

    @property
    def memory(self) -> int:
        """Weights, and logits with their softmax."""
        return self.weight_bytes + self.cells * 8


def plan_answers(
    handle: ModelHandle, targets: Sequence[Target], how: Packing, known: AbstractSet[str] = frozenset()
) -> AnswersPlan:
    """`known`: answers that this run will have scored with the same weights by then."""
    from vestige.collect.bound import rows_needed

    assert handle.args is not None
    unique = {t.key: t for t in targets}
    have = {} if how.fresh else Bank[Any](how.directory, "answers", handle.identity).load()
    missing = [t for k, t in unique.items() if k not in have and k not in known]
    parameters, size = weight_size(handle.args)
    tokens, batches, cells = _packed(missing, how)
    bound = sum(len(t.ids) * rows_needed(t) for t in missing) if handle.is_diffusion else 0
    cached = len(unique) - len(missing)
    return AnswersPlan(handle.name, parameters, size, len(unique), cached, tokens, batches, bound, cells)


def _packed(targets: list[Target], how: Packing) -> tuple[int, int, int]:
    """Tokens, batches and the logits of the largest one."""
    from vestige.collect.answers import default_limits
    from vestige.collect.answers import plan as pack

    if not targets:
        return 0, 0, 0
    import torch

    limits = default_limits(how.vocab, torch.cuda.is_available(), how.batch_tokens)
    packing = pack(targets, limits, how.vocab)
    cells = max(sum(len(packing.tree.predictors[t]) for row in b.targets for t in row) for b in packing.batches)
    return packing.tokens, len(packing.batches), min(cells * how.vocab, limits.logit_cells)


BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}  # of safetensors' names


def weight_size(args: ModelArgs) -> tuple[int, int]:
    """Parameters and bytes of a checkpoint, from the headers of its files; what is never read does not count."""
    from safetensors import safe_open

    place = locate(args)
    place = place.base or place
    if place.gguf:
        size = place.gguf.stat().st_size
        return size, size * 4  # near one byte a parameter in the common formats; unpacked to float32
    unread = VISION if has_pictures(place.config) else ()
    total = size = 0
    for name in weight_names(place.directory, False, args):
        file = Path(place.directory) / name
        size += file.stat().st_size
        with safe_open(str(file), framework="np") as handle:
            for key in handle.keys():  # noqa: SIM118 - safe_open is no mapping
                part = handle.get_slice(key)
                n = math.prod(part.get_shape())
                if any(word in key for word in unread):
                    size -= n * BYTES.get(part.get_dtype(), 2)
                else:
                    total += n
    return total, size
