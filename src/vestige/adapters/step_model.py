"""A step of a denoising path as a model: `@unlearning_metric` functions inside `trajectory_metrics`.

Such a metric asks a model about batches of rows. Here the model answers with what the diffusion model thought of each
row at one step of one trajectory, in the place where the metric looks (causal metrics: one row before the token).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from vestige.adapters.open_unlearning import (
    Collator,
    TorchRows,
    call_live,
    generated_sets,
    padding_side,
    wanted_alignment,
)
from vestige.collect.denoise import Windows
from vestige.suites.handlers.trajectory_reading import Moment, prompt_of
from vestige.suites.registry import HANDLERS
from vestige.suites.spec import MetricSpec
from vestige.types import IGNORE, Example, Rows, Score

PLACED = "run by the metric itself on the logits of each step: a row of logits is "
REMEMBERED = 64  # batches: a row with several answers is collated answer by answer


def run_at_step(
    child: MetricSpec,
    moment: Moment,
    windows: Windows,
    model: Any,
    tokenizer: Any,
    parents: Mapping[str, Score],
    references: Mapping[str, Mapping[str, Score | None]],
    batch_size: int,
) -> Score:
    """Calls a metric with one step of a denoising path in the place of its model. `model` is asked for all else."""
    data, notes = _scored(moment, windows)
    if not any(len(rows) for rows in data.values()):
        return Score(None, reason=notes[0] if notes else "its data sets hold no rows")
    collator = Remembering(tokenizer, padding_side(child.collators))
    generating = generated_sets(child)
    sets = {key: StepRows(rows, moment, key in generating) for key, rows in data.items()}
    causal = wanted_alignment(child) == "causal"
    notes.append(PLACED + ("one row before its token, where causal metrics look" if causal else "at its token"))
    step = StepModel(model, moment, windows, collator, sets, causal)
    given = {"tokenizer": tokenizer, "collators": collator}
    return call_live(HANDLERS[child.handler], child, step, sets, given, parents, references, batch_size, notes)


def _scored(moment: Moment, windows: Windows) -> tuple[dict[str, Rows], list[str]]:
    """The rows that have something to score at this step, and how many have not."""
    out, empty, lost = {}, 0, 0
    for key, rows in moment.data.items():
        some = [row for row in rows.examples if all(e.target and len(_places(moment, e)[0]) for e in row)]
        same = [row for row in some if all(_repeated(moment, windows, e) for e in row)]
        empty, lost = empty + len(rows.examples) - len(some), lost + len(some) - len(same)
        out[key] = replace(rows, examples=tuple(same))
    notes = [f"{empty} row(s) without a token in this view were left out"] if empty else []
    if lost:
        notes.append(f"{lost} row(s) were left out: the sampler ended in another text when their path was walked again")
    return out, notes


def _repeated(moment: Moment, windows: Windows, example: Example) -> bool:
    """Whether the path walked for its logits is the one that was kept: rounding can tip a choice."""
    assert example.target is not None
    prompt = prompt_of(example.target)
    final = windows.get(moment.want(prompt)).final
    return not final or list(final) == moment.trace(prompt).final.tolist()


def _places(moment: Moment, example: Example) -> Any:
    assert example.target is not None
    return moment.reading.places(example.target, moment.step)


class StepRows(TorchRows):
    """Rows whose labels are the tokens scored at this step: those in the view that the sampler looked at."""

    def __init__(self, rows: Rows, moment: Moment, for_generation: bool) -> None:
        super().__init__(rows, for_generation)
        self.moment = moment

    def _item(self, e: Example) -> dict[str, Any]:
        item = super()._item(e)
        if not self.for_generation and e.target is not None:
            tokens = torch.from_numpy(_places(self.moment, e)[0]) + e.target.start
            labels = torch.full_like(item["labels"], IGNORE)
            labels[tokens] = item["labels"][tokens]
            item["labels"] = labels
        return Item(item, e)


class Item(dict[str, Any]):
    """A row's tensors, and which row it is."""

    def __init__(self, tensors: Mapping[str, Any], example: Example) -> None:
        super().__init__(tensors)
        self.example = example


@dataclass(frozen=True)
class StepBatch:
    ids: torch.Tensor
    examples: tuple[Example, ...]


class Remembering(Collator):
    """A collator that remembers which rows it laid side by side: equal tokens may belong to different rows."""

    def __init__(self, tokenizer: Any, padding_side: str) -> None:
        super().__init__(tokenizer, padding_side)
        self.batches: deque[StepBatch] = deque(maxlen=REMEMBERED)

    def __call__(self, items: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
        out = super().__call__(items)
        if all(isinstance(i, Item) for i in items):
            self.batches.append(StepBatch(out["input_ids"].clone(), tuple(i.example for i in items)))  # type: ignore[attr-defined]
        return out


class StepModel:
    """What one step of a denoising path thought, to be called as a model; the rest is the diffusion model's own."""

    def __init__(
        self,
        model: Any,
        moment: Moment,
        windows: Windows,
        collator: Remembering,
        sets: Mapping[str, StepRows],
        causal: bool,
    ) -> None:
        self.model, self.moment, self.windows, self.causal = model, moment, windows, causal
        self.collator = collator
        self.device = torch.device("cpu")
        self._sets = sets

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def eval(self) -> StepModel:
        return self

    def to(self, *args: Any, **kwargs: Any) -> StepModel:
        return self

    def __call__(self, input_ids: torch.Tensor, **batch: Any) -> Any:
        rows = [self._logits(row, e) for row, e in zip(input_ids, self._examples(input_ids), strict=True)]
        return SimpleNamespace(logits=torch.stack(rows))

    def _logits(self, ids: torch.Tensor, example: Example) -> torch.Tensor:
        """(length of the row, vocabulary): zeros where nothing is scored."""
        assert example.target is not None
        tokens, positions, passes = _places(self.moment, example)
        found = self.windows.get(self.moment.want(prompt_of(example.target))).at(passes, positions)
        before = _offset(ids.tolist(), list(example.target.ids))
        out = torch.zeros(len(ids), found.shape[-1])
        out[torch.from_numpy(tokens) + before + example.target.start - int(self.causal)] = found
        return out

    def generate(self, input_ids: torch.Tensor, **settings: Any) -> torch.Tensor:
        """The prompts with the text that stands at this step."""
        texts = []
        for example in self._examples(input_ids):
            prompt = prompt_of(example.target) if example.target else example.prompt
            texts.append(torch.tensor(self.moment.reading.text_ids(prompt, self.moment.step), dtype=torch.long))
        end = self.collator.pad
        new = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=end)
        return torch.cat([input_ids, new], dim=1)

    def _examples(self, input_ids: torch.Tensor) -> list[Example]:
        """Which rows a batch is about: the last one collated with these tokens, else by the tokens alone."""
        for batch in reversed(self.collator.batches):
            if batch.ids.shape == input_ids.shape and torch.equal(batch.ids, input_ids):
                return list(batch.examples)
        return [self._by_tokens(row.tolist()) for row in input_ids]

    def _by_tokens(self, ids: list[int]) -> Example:
        found = {}
        for rows in self._sets.values():
            for e in (e for row in rows.rows.examples for e in row):
                asked = e.prompt.ids if rows.for_generation or e.target is None else e.target.ids
                if list(asked) in (ids, [i for i in ids if i != self.collator.pad]):
                    found[self.moment.want(prompt_of(e.target or e.prompt)).key] = e
        if len(found) != 1:
            raise ValueError(
                "inside a trajectory the model knows only the rows of its data, collated by kwargs['collators']; "
                f"{'no row has' if not found else 'several rows have'} the tokens it was asked about"
            )
        return next(iter(found.values()))


def _offset(ids: list[int], own: list[int]) -> int:
    """How much padding is left of a row's own tokens.

    >>> _offset([0, 0, 5, 6], [5, 6]), _offset([5, 6, 0], [5, 6])
    (2, 0)
    """
    return 0 if ids[: len(own)] == own else len(ids) - len(own)
