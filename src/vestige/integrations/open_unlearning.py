"""Metrics written for open-unlearning, unchanged: `@unlearning_metric(name=...) def f(model, **kwargs)`.

Such a metric owns its forward pass. It gets what that framework would hand it (tokenizer, data, collators,
batch_size, generation_args, pre_compute, reference_logs and its own settings) and its result stands beside ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vestige.errors import UserError, reraise_ours
from vestige.models.load import LoadedModel
from vestige.suites.registry import Handler
from vestige.suites.spec import MetricSpec
from vestige.types import IGNORE, Example, Rows, Score


def run_live(
    handler: Handler,
    spec: MetricSpec,
    loaded: LoadedModel,
    data: Mapping[str, Rows],
    parents: Mapping[str, Score],
    references: Mapping[str, Mapping[str, Score | None]],
    batch_size: int,
) -> Score:
    """Calls a live metric with what it expects and turns its dictionary into a Score."""
    model, notes = _aligned(loaded, spec)
    generating = generated_sets(spec)
    sets = {key: TorchRows(rows, key in generating) for key, rows in data.items()}
    given = {"tokenizer": loaded.tokenizer, "collators": Collator(loaded.tokenizer, padding_side(spec.collators))}
    return call_live(handler, spec, model, sets, given, parents, references, batch_size, notes)


def call_live(
    handler: Handler,
    spec: MetricSpec,
    model: Any,
    sets: Mapping[str, Any],
    given: Mapping[str, Any],
    parents: Mapping[str, Score],
    references: Mapping[str, Mapping[str, Score | None]],
    batch_size: int,
    notes: Sequence[str],
) -> Score:
    """`given`: the tokenizer and the collators."""
    assert handler.live is not None
    kwargs: dict[str, Any] = {
        **spec.params,
        **given,
        "data": next(iter(sets.values())) if len(sets) == 1 else sets,
        "batch_size": int(spec.params.get("batch_size", batch_size)),
        "generation_args": dict(spec.generation),
        "pre_compute": {key: score.to_json() for key, score in parents.items()},
        "reference_logs": {
            name: {key: None if s is None else s.to_json() for key, s in found.items()}
            for name, found in references.items()
        },
    }
    try:
        result = handler.live(model, **kwargs)
    except Exception as error:
        # The plug-in is the user's code: its failure is one metric's, and what is computed stays.
        reraise_ours(error, str(handler.live.__module__))
        return Score(None, reason=f"plug-in metric '{spec.name}' failed: {type(error).__name__}: {error}")
    if not isinstance(result, Mapping) or "agg_value" not in result:
        raise UserError(f"Plug-in metric '{spec.name}' must return a dict with 'agg_value'.")
    score = Score.from_json(plain(result))
    return replace(score, notes=(*score.notes, *notes))


class CausalRows:
    """A mask predictor as metrics for causal models read one: row t of its logits is about token t + 1.

    Everything else is the model's own. The last row has nothing after it; such metrics drop it.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = self.model(*args, **kwargs)
        out.logits = out.logits.roll(-1, dims=-2)
        return out


def wanted_alignment(spec: MetricSpec) -> str:
    """Which token a metric takes a row of logits to be about: the next (causal), or the row's own."""
    wanted = str(spec.params.get("logit_alignment", "causal"))
    if wanted not in ("causal", "same_position"):
        raise UserError(f"Metric '{spec.name}': logit_alignment must be 'causal' or 'same_position', got '{wanted}'.")
    return wanted


def _aligned(loaded: LoadedModel, spec: MetricSpec) -> tuple[Any, tuple[str, ...]]:
    """The model a metric is handed, and what its reader must know. `logit_alignment: same_position` turns it off."""
    wanted = wanted_alignment(spec)
    if loaded.diffusion is None:
        return loaded.model, ()
    note = "a diffusion model, run by the metric itself: it sees every token it is asked about"
    if getattr(loaded.diffusion, "shift", False) or wanted == "same_position":
        return loaded.model, (note,)
    return CausalRows(loaded.model), (f"{note}; its logits were moved by one place, to where causal metrics look",)


def generated_sets(spec: MetricSpec) -> set[str]:
    """The data sets (by access key) that hand out prompts only, with the whole conversation as labels."""
    return {d.access_key for d in spec.datasets if (d.config.get("args") or {}).get("predict_with_generate")}


def padding_side(collators: Mapping[str, Any]) -> str:
    sides = [((c or {}).get("args") or {}).get("padding_side") for c in collators.values()]
    return str(next((s for s in sides if s), "right"))


def plain(x: Any) -> Any:
    """Numpy and torch scalars and arrays as plain numbers and lists; keys as text."""
    if isinstance(x, Mapping):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    return x.tolist() if hasattr(x, "tolist") else x


class TorchRows(Sequence[Any]):
    """A tokenised data set as that framework's torch data sets look: items of tensors, or of such items by answer."""

    def __init__(self, rows: Rows, for_generation: bool = False) -> None:
        self.rows = rows
        self.for_generation = for_generation

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        items = [self._item(e) for e in self.rows.examples[i]]
        return dict(enumerate(items)) if self.rows.many else items[0]

    def _item(self, e: Example) -> dict[str, Any]:
        import torch

        full = list(e.target.ids) if e.target else list(e.prompt.ids)
        start = e.target.start if e.target else len(full)
        labels = [IGNORE] * start + full[start:]
        ids = list(e.prompt.ids) if self.for_generation else full
        return {
            "input_ids": torch.tensor(ids),
            "labels": torch.tensor(full if self.for_generation else labels),
            "attention_mask": torch.ones(len(ids), dtype=torch.long),
            "index": int(e.index),
        }


class Collator:
    """Pads a list of items to tensors, right for scoring or left for generation; nested items are padded by key."""

    def __init__(self, tokenizer: Any, padding_side: str = "right") -> None:
        pad = tokenizer.pad_token_id
        self.pad = tokenizer.eos_token_id if pad is None else pad
        self.padding_side = padding_side

    def __call__(self, items: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
        import torch

        if "input_ids" not in items[0]:
            return {key: self([item[key] for item in items]) for key in items[0]}
        ids = self._pad([i["input_ids"] for i in items], self.pad)
        return {
            "input_ids": ids,
            "labels": self._pad([i["labels"] for i in items], IGNORE),
            "attention_mask": ids.ne(self.pad),
            "index": torch.tensor([i["index"] for i in items]),
        }

    def _pad(self, tensors: Sequence[Any], value: int) -> Any:
        import torch

        side = self.padding_side
        return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True, padding_value=value, padding_side=side)
