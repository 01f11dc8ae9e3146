"""What keeps a forward from going wrong: sequences that fit, memory that runs out, fast ways that are checked.

**Tables.** Models cannot read past the end of their tables: of tokens, and where they have one, of positions. Every
collector asks before its first forward, because an index error inside a model says nothing, and on a GPU it ends the
process.

**Memory.** How running out of it shows, what frees some, and the one loop that tries again with less.

**Noise.** How far two ways to the same log-probabilities may differ before one of them is wrong. In float32 that is a
constant: rounding is far below what a wrong mask or position does. In bfloat16 it is not: a logit of 20 is rounded to
steps of 0.125, and the plain way itself moves when rows share a batch. So the fast way is judged against that: the same
rows, plain, alone and together. The mean over all labels is used, because few labels (a short answer) say little.

In: a model, and what it is about to be asked. Out: nothing, a UserError, smaller pieces, or a tolerance. Callers: all
collectors of this room; engine/handles.py frees memory when a model goes.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch

from vestige.collect.forward import score_plain
from vestige.errors import UserError, out_of_memory
from vestige.models.args import precision
from vestige.numeric import distances
from vestige.types import Array, Target

TABLES = {"wpe", "embed_positions", "position_embeddings"}  # what Hugging Face models call the table


def learned_positions(model: Any) -> int | None:
    """How many positions the table has; None for models that compute positions (rotary, ALiBi) and just degrade."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) and name.rsplit(".", 1)[-1] in TABLES:
            return int(module.num_embeddings) - int(getattr(module, "offset", 0))
    return None


SHORTER = "shorten those rows (max_length, fewer few-shot turns) or leave their data set out"


def check_fit(model: Any, tokens: int, what: str, advice: str = SHORTER) -> None:
    """Says what an index error deep in the model would not: the sequence is longer than the model can read."""
    positions = learned_positions(model)
    if positions is not None and tokens > positions:
        raise UserError(f"{what} is {tokens} tokens long, but this model has only {positions} positions; {advice}.")


def check_tokens(model: Any, sequences: Iterable[Sequence[int]]) -> None:
    """A tokenizer with more tokens than the model has rows: said before the model is asked for a row it lacks."""
    try:
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except (AttributeError, NotImplementedError):  # models with code of their own need not say where their table is
        return
    highest = max(map(max, filter(len, sequences)), default=0)
    if rows is not None and highest >= rows:
        name = f"'{model.name_or_path}'" if getattr(model, "name_or_path", "") else "it"
        raise UserError(
            f"The tokenizer gives token {highest}, but this model knows only tokens 0 to {rows - 1}; give the "
            f"tokenizer that belongs to {name} (--tokenizer PATH), or resize the model's embeddings."
        )


# ---- memory ------------------------------------------------------------------------------------------------------


@dataclass
class Halving:
    """Tries until the work fits into memory. Each time it does not, memory is freed and the caller asks for less:

        for attempt in Halving():
            if attempt.again:
                size //= 2
            with attempt:
                attempt.size = size
                ...

    `size` is that of the piece in work: at 1 there is nothing to halve, and the error is the caller's. Memory is freed
    between two attempts and not where the error is caught: as long as the error lives, its traceback holds the tensors.
    """

    size: int = 1
    again: bool = False
    _failed: bool = False

    def __iter__(self) -> Iterator[Halving]:
        yield self
        while self._failed:
            free_memory()
            self.again, self._failed = True, False
            yield self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        self._failed = error is not None and self.size > 1 and out_of_memory(error)
        return self._failed


def free_memory(gone: bool = False) -> None:
    """Gives back what nothing refers to. `gone`: the caller has seen its object go, so that on a CPU nothing is left
    to look for (looking through all that torch and transformers made takes a quarter of a second)."""
    gpu = torch.cuda.is_available()
    if gpu or not gone:
        gc.collect()
    if gpu:
        torch.cuda.empty_cache()


# ---- noise -------------------------------------------------------------------------------------------------------

# A mean over labels; a wrong mask or position is off by far more.
TOLERANCE = {"float32": 1e-4, "float64": 1e-6}
LOW_PRECISION_TOLERANCE = 0.05
# Beyond this the plain way is too far from itself to judge anything by.
CEILING = 0.5


def exact(model: Any) -> bool:
    """Whether rounding is small enough for a constant."""
    return precision(model) in TOLERANCE


def tolerance(model: Any) -> float:
    return TOLERANCE.get(precision(model), LOW_PRECISION_TOLERANCE)


def allowed(model: Any, noise: float, labels: int) -> float:
    """How far the mean over `labels` may be off, where the plain way moves by `noise` on average.

    Twice the noise, because both ways have it, and more where the mean is one of few.
    """
    if exact(model):
        return tolerance(model)
    few = 4 / math.sqrt(max(1, labels))
    bound = noise * (2 + few) if math.isfinite(noise) else 0.0
    return max(LOW_PRECISION_TOLERANCE * max(1.0, few), min(bound, CEILING))


def apart(model: Any, gaps: Sequence[Array], noise: float) -> str:
    """Whether two ways to score the same answers disagree, in words; nothing where they do not.

    In full precision every answer by itself. Where rounding is coarse all labels together, because the mean of an
    answer of four tokens is mostly noise; one answer by itself only if it is far off.
    """
    limit = tolerance(model) if exact(model) else CEILING
    off = [mean for gap in gaps if not (mean := float(np.mean(gap))) <= limit]
    if not off and not exact(model):
        every = np.concatenate(gaps)
        off = [mean for mean in [float(np.mean(every))] if not mean <= allowed(model, noise, len(every))]
    return f"log-probabilities differ by {max(off):.2g} on average" if off else ""


def batch_noise(model: Any, targets: Sequence[Target], alone: Sequence[Array]) -> float:
    """The mean change of plain log-probabilities when the targets share one padded batch; 0 where it is not needed."""
    if exact(model) or not targets:
        return 0.0
    together = score_plain(model, targets)
    return float(np.mean(np.concatenate([distances(together[i].logprob, a) for i, a in enumerate(alone)])))
