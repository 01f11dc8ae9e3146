"""Metrics written for open-unlearning, unchanged: `@unlearning_metric(name=...) def f(model, **kwargs)`.

Such a metric owns its forward pass. It gets what that framework would hand it (tokenizer, data, collators,
batch_size, generation_args, pre_compute, reference_logs and its own settings) and its result stands beside ours.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vestige.errors import UserError, reraise_ours
from vestige.models.load import LoadedModel
from vestige.suites.registry import HANDLERS, Handler, Inputs
from vestige.suites.spec import MetricSpec
from vestige.types import Example, Rows, Score

IGNORE = -100


def unlearning_metric(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of (model, **kwargs) under a handler name."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        doc = (function.__doc__ or "").strip().splitlines()
        HANDLERS[name] = Handler(name, _never, doc=doc[0] if doc else "a plug-in", live=function)
        return function

    return register


def _never(inputs: Inputs) -> Score:
    raise AssertionError("a live metric is run with its model, not scored from evidence")


def install_import_names() -> None:
    """Lets plug-in files say `from evals.metrics.base import unlearning_metric`, as they do at home."""
    if "evals" in sys.modules:
        return
    for name in ("evals", "evals.metrics", "evals.metrics.base", "evals.metrics.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["evals.metrics.base"].unlearning_metric = unlearning_metric  # type: ignore[attr-defined]
    sys.modules["evals.metrics"].unlearning_metric = unlearning_metric  # type: ignore[attr-defined]
    utils = sys.modules["evals.metrics.utils"]
    for helper in (aggregate_to_1D, evaluate_probability, run_batchwise_evals):
        setattr(utils, helper.__name__, helper)
    utils.IGNORE_INDEX = IGNORE  # type: ignore[attr-defined]


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
    assert handler.live is not None
    model, notes = _aligned(loaded, spec)
    generating = {d.access_key: _generates(d.config) for d in spec.datasets}
    sets = {key: TorchRows(rows, generating.get(key, False)) for key, rows in data.items()}
    kwargs: dict[str, Any] = {
        **spec.params,
        "tokenizer": loaded.tokenizer,
        "data": next(iter(sets.values())) if len(sets) == 1 else sets,
        "collators": Collator(loaded.tokenizer, _padding_side(spec.collators)),
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
    score = Score.from_json(_plain(result))
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


def _aligned(loaded: LoadedModel, spec: MetricSpec) -> tuple[Any, tuple[str, ...]]:
    """The model a metric is handed, and what its reader must know. `logit_alignment: same_position` turns it off."""
    wanted = str(spec.params.get("logit_alignment", "causal"))
    if wanted not in ("causal", "same_position"):
        raise UserError(f"Metric '{spec.name}': logit_alignment must be 'causal' or 'same_position', got '{wanted}'.")
    if loaded.diffusion is None:
        return loaded.model, ()
    note = "a diffusion model, run by the metric itself: it sees every token it is asked about"
    if getattr(loaded.diffusion, "shift", False) or wanted == "same_position":
        return loaded.model, (note,)
    return CausalRows(loaded.model), (f"{note}; its logits were moved by one place, to where causal metrics look",)


def _generates(config: Mapping[str, Any]) -> bool:
    """Whether a data set is to hand out prompts only, with the whole conversation as labels."""
    return bool((config.get("args") or {}).get("predict_with_generate"))


def _padding_side(collators: Mapping[str, Any]) -> str:
    sides = [((c or {}).get("args") or {}).get("padding_side") for c in collators.values()]
    return str(next((s for s in sides if s), "right"))


def _plain(x: Any) -> Any:
    """Numpy and torch scalars and arrays as plain numbers and lists; keys as text."""
    if isinstance(x, Mapping):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
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


def aggregate_to_1D(x: Any) -> Any:  # noqa: N802 - the name plug-ins import
    """The mean over all axes but the first."""
    return x.mean(axis=tuple(range(1, x.ndim)))


def evaluate_probability(model: Any, batch: Mapping[str, Any]) -> list[dict[str, float]]:
    """Per row of a batch: the mean loss over its labels and the length-normalised probability."""
    import torch

    inputs = {k: v.to(model.device) for k, v in batch.items() if k in ("input_ids", "attention_mask")}
    labels = batch["labels"].to(model.device)
    with torch.inference_mode():
        logits = model(**inputs).logits.float()[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORE, reduction="none"
    ).sum(dim=1)
    means = losses / labels.ne(IGNORE).sum(dim=1)
    return [{"prob": float(torch.exp(-m)), "avg_loss": float(m)} for m in means]


def run_batchwise_evals(
    model: Any, dataloader: Any, batch_eval_fn: Callable[..., Any], batch_eval_fn_args: Mapping[str, Any], message: str
) -> dict[Any, Any]:
    """Applies a per-batch function over a loader and gathers its values by row index."""
    out: dict[Any, Any] = {}
    for batch in dataloader:
        if "input_ids" not in batch:  # several answers per row: lists of values
            parts = {
                k: run_batchwise_evals(model, [b], batch_eval_fn, batch_eval_fn_args, message) for k, b in batch.items()
            }
            for index in next(iter(parts.values())):
                fields = parts[next(iter(parts))][index]
                out[index] = {f: [parts[k][index][f] for k in parts] for f in fields}
            continue
        index = [int(i) for i in batch["index"]]
        rest = {k: v for k, v in batch.items() if k != "index"}
        out.update(zip(index, batch_eval_fn(model=model, batch=rest, **dict(batch_eval_fn_args)), strict=True))
    return out
