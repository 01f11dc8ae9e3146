"""What scoring answers would cost one model: the evaluated one, or the reference model of an attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.engine.handles import ModelHandle
from vestige.models.args import needed_bytes
from vestige.models.diffusion import VISION
from vestige.models.families import has_pictures
from vestige.models.load import ModelArgs, empty_model
from vestige.models.locate import Place, locate, weight_names
from vestige.models.quantised import gguf_parameters
from vestige.runs.collect import folder_of
from vestige.types import Target


@dataclass(frozen=True)
class PackingEstimate:
    """How answers are to be packed, and which of them are known."""

    directory: Path  # of the evidence
    fresh: bool  # what is on disk will be collected again
    tokenizer: Any
    vocab: int
    batch_tokens: int | None


@dataclass(frozen=True)
class AnswersPlan:
    """One model's answers: how many, and what those that are not cached push through it."""

    model: str
    parameters: int
    weight_bytes: int  # as stored
    held_bytes: int  # in memory: a CPU holds half precision in float32
    stored: bool  # whether the weights are on this machine; else sizes are those of the config
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
        return self.held_bytes + self.cells * 8


def plan_answers(
    handle: ModelHandle, targets: Sequence[Target], how: PackingEstimate, known: AbstractSet[str] = frozenset()
) -> AnswersPlan:
    """`known`: answers that this run will have scored with the same weights by then."""
    from vestige.collect.bound import rows_needed

    assert handle.args is not None
    unique = {t.key: t for t in targets}
    stored = weights_stored(handle.args)
    have = {} if how.fresh or not stored else folder_of(how.directory, "answers", handle, how.tokenizer).load()
    missing = [t for k, t in unique.items() if k not in have and k not in known]
    parameters, size = weight_size(handle.args) if stored else size_by_config(handle.args)
    place = _base(handle.args)
    config = {} if place.gguf else place.config
    unpacked = parameters * 4 if place.gguf else size  # blocks of few bits become float32 when they are read
    held = needed_bytes(unpacked, config, replace(handle.args, dtype=handle.held()["dtype"]))
    tokens, batches, cells = _packed(missing, how)
    bound = sum(len(t.ids) * rows_needed(t) for t in missing) if handle.is_diffusion else 0
    cached = len(unique) - len(missing)
    return AnswersPlan(handle.name, parameters, size, held, stored, len(unique), cached, tokens, batches, bound, cells)


def _base(args: ModelArgs) -> Place:
    place = locate(args, weights=False)
    return place.base or place


def weights_stored(args: ModelArgs) -> bool:
    """Whether the weights are on this machine: a plan needs only a config, so nothing is fetched for it."""
    place = locate(args, weights=False)
    places = [place, *([place.base] if place.base else [])]
    return all(
        one.gguf or (one.directory / name).is_file()
        for one in places
        for name in ([""] if one.gguf else weight_names(one.directory, one.kind == "adapter", args))
    )


def size_by_config(args: ModelArgs) -> tuple[int, int]:
    """Parameters and bytes of a checkpoint that is not here, from its configuration alone."""
    place = _base(args)
    unread = VISION if has_pictures(place.config) else ()
    sizes = {key: p.numel() for key, p in empty_model(args).named_parameters()}
    total = sum(n for key, n in sizes.items() if not any(word in key for word in unread))
    said = str(place.config.get("dtype") or place.config.get("torch_dtype") or "float32")
    return total, total * (2 if said.endswith("16") else 4)


def _packed(targets: list[Target], how: PackingEstimate) -> tuple[int, int, int]:
    """Tokens, batches and the logits of the largest one."""
    from vestige.collect.answers import default_limits
    from vestige.collect.answers import plan as pack

    if not targets:
        return 0, 0, 0
    import torch

    limits = default_limits(torch.cuda.is_available(), how.batch_tokens)
    packing = pack(targets, limits, how.vocab)
    cells = max(sum(len(packing.tree.predictors[t]) for row in b.targets for t in row) for b in packing.batches)
    return packing.tokens, len(packing.batches), min(cells * how.vocab, limits.logit_cells)


BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}  # of safetensors' names


def weight_size(args: ModelArgs) -> tuple[int, int]:
    """Parameters and bytes of a checkpoint, from the headers of its files; what is never read does not count."""
    from safetensors import safe_open

    place = _base(args)
    if place.gguf:
        return gguf_parameters(place.gguf), place.gguf.stat().st_size
    unread = VISION if has_pictures(place.config) else ()
    total = size = 0
    for name in weight_names(place.directory, False, args):
        file = Path(place.directory) / name
        size += file.stat().st_size
        with safe_open(str(file), framework="np") as handle:
            for key in handle.keys():  # noqa: SIM118 - safe_open is not a mapping
                part = handle.get_slice(key)
                n = math.prod(part.get_shape())
                if any(word in key for word in unread):
                    size -= n * BYTES.get(part.get_dtype(), 2)
                else:
                    total += n
    return total, size
