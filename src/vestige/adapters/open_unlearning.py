"""Metrics written for open-unlearning, unchanged: `@unlearning_metric(name=...) def f(model, **kwargs)`.

Such a metric runs the model itself. It is called with what open-unlearning would give it (tokenizer, data, collators,
batch_size, generation_args, pre_compute, reference_logs and its own settings), and its result is reported with ours.

    run_live, call_live    call such a metric with its model and turn its dictionary into a Score
    TorchRows, Collator    data sets and batches as open-unlearning's torch data sets have them
    CausalRows             a mask predictor whose logits are placed as those of a causal model
    aggregate_to_1D ... eval_text_similarity    the helpers that such metrics import from `evals.metrics.utils`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vestige.errors import UserError, reraise_ours
from vestige.metrics.text import rouge_scores
from vestige.suites.registry import Handler
from vestige.suites.spec import MetricSpec
from vestige.types import IGNORE, Example, Rows, Score

if TYPE_CHECKING:
    from vestige.models.load import LoadedModel


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
    collator = Collator(loaded.tokenizer, padding_side(spec.collators))
    inputs = {"tokenizer": loaded.tokenizer, "collators": collator}
    return call_live(handler, spec, model, sets, inputs, parents, references, batch_size, notes)


def call_live(
    handler: Handler,
    spec: MetricSpec,
    model: Any,
    sets: Mapping[str, Any],
    inputs: Mapping[str, Any],
    parents: Mapping[str, Score],
    references: Mapping[str, Mapping[str, Score | None]],
    batch_size: int,
    notes: Sequence[str],
) -> Score:
    """The metric's result. `inputs`: the tokenizer and the collators."""
    assert handler.live is not None
    reference_logs: dict[str, dict[str, Any]] = {}
    for name, scores in references.items():
        reference_logs[name] = {key: None if s is None else s.to_json() for key, s in scores.items()}
    kwargs: dict[str, Any] = {
        **spec.params,
        **inputs,
        "data": next(iter(sets.values())) if len(sets) == 1 else sets,
        "batch_size": int(spec.params.get("batch_size", batch_size)),
        "generation_args": dict(spec.generation),
        "pre_compute": {key: score.to_json() for key, score in parents.items()},
        "reference_logs": reference_logs,
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
    for collator in collators.values():
        side = ((collator or {}).get("args") or {}).get("padding_side")
        if side:
            return str(side)
    return "right"


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

        # For scoring: the whole conversation, with labels on the answer alone. For generation: the prompt, and the
        # whole conversation as labels.
        conversation = list(e.target.ids) if e.target else list(e.prompt.ids)
        if self.for_generation:
            ids, labels = list(e.prompt.ids), conversation
        else:
            start = e.target.start if e.target else len(conversation)
            ids, labels = conversation, [IGNORE] * start + conversation[start:]
        return {
            "input_ids": torch.tensor(ids),
            "labels": torch.tensor(labels),
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


# ---- helpers, under the names of `evals.metrics.utils` --------------------------------------------------------------


def aggregate_to_1D(x: Any) -> Any:  # noqa: N802 - the name plug-ins import
    """The mean over all axes but the first."""
    return x.mean(axis=tuple(range(1, x.ndim)))


def _logits(model: Any, batch: Mapping[str, Any]) -> Any:
    """Logits of a batch in single precision, (rows, positions, vocabulary)."""
    inputs = {k: v.to(model.device) for k, v in batch.items() if k in ("input_ids", "attention_mask")}
    return model(**inputs).logits.float()


def evaluate_probability(model: Any, batch: Mapping[str, Any]) -> list[dict[str, float]]:
    """Per row of a batch: the mean loss over its labels and the length-normalised probability."""
    import torch

    with torch.inference_mode():
        logits = _logits(model, batch)[:, :-1]  # position t is about token t + 1
    labels = batch["labels"].to(logits.device)
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORE, reduction="none"
    )
    # Over all labels, as open-unlearning does: a label at position 0, which nothing predicts, counts in the mean.
    means = losses.sum(dim=1) / labels.ne(IGNORE).sum(dim=1)
    return [{"prob": float(torch.exp(-m)), "avg_loss": float(m)} for m in means]


def run_batchwise_evals(
    model: Any, dataloader: Any, batch_eval_fn: Callable[..., Any], batch_eval_fn_args: Mapping[str, Any], message: str
) -> dict[Any, Any]:
    """Applies a per-batch function over a loader and gathers its values by row index."""
    values: dict[Any, Any] = {}
    for batch in dataloader:
        if "input_ids" in batch:
            rows = [int(i) for i in batch["index"]]
            rest = {k: v for k, v in batch.items() if k != "index"}
            found = batch_eval_fn(model=model, batch=rest, **dict(batch_eval_fn_args))
            values.update(zip(rows, found, strict=True))
        else:  # several answers per row: a batch for each, and lists of values
            answers = {}
            for key, answer in batch.items():
                answers[key] = run_batchwise_evals(model, [answer], batch_eval_fn, batch_eval_fn_args, message)
            values.update(dict_transpose(answers))
    return values


def dict_transpose(evals: Mapping[Any, Mapping[Any, Mapping[str, Any]]]) -> dict[Any, dict[str, list[Any]]]:
    """{answer: {row: {field: value}}} as {row: {field: [a value for each answer]}}.

    >>> dict_transpose({0: {7: {"prob": 0.1}}, 1: {7: {"prob": 0.2}}})
    {7: {'prob': [0.1, 0.2]}}
    """
    answers = list(evals.values())
    rows: dict[Any, dict[str, list[Any]]] = {}
    for row, fields in answers[0].items():
        rows[row] = {f: [answer[row][f] for answer in answers] for f in fields}
    return rows


def tokenwise_vocab_logprobs(
    model: Any, batch: Mapping[str, Any], grad: bool = False, return_labels: bool = False
) -> Any:
    """Per row of a batch: log-probabilities (labelled tokens, vocabulary), and with `return_labels` those tokens.

    The last labelled token, which ends the answer, is left out, as that framework does.
    """
    import torch

    with torch.set_grad_enabled(grad):
        logprobs = torch.log_softmax(_logits(model, batch)[:, :-1], dim=-1)
    labels = batch["labels"].to(logprobs.device)[:, 1:]
    scores, tokens = [], []
    for row_scores, row_labels in zip(logprobs, labels, strict=True):
        counted = row_labels.ne(IGNORE).nonzero()[:-1, 0]
        scores.append(row_scores[counted])
        tokens.append(row_labels[counted])
    return (scores, tokens) if return_labels else scores


def tokenwise_logprobs(model: Any, batch: Mapping[str, Any], grad: bool = False, return_labels: bool = False) -> Any:
    """Per row of a batch: the log-probability of each labelled token, and with `return_labels` the tokens."""
    scores, labels = tokenwise_vocab_logprobs(model, batch, grad, return_labels=True)
    chosen = [s.gather(-1, row[:, None])[:, 0] for s, row in zip(scores, labels, strict=True)]
    return (chosen, labels) if return_labels else chosen


def eval_text_similarity(
    model: Any, tokenizer: Any, batch: Mapping[str, Any], generation_args: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Per prompt of a left-padded batch: what the model writes, the true answer, and the ROUGE scores between them."""
    settings = {k: v for k, v in dict(generation_args).items() if v is not None}
    stopwords = [tokenizer.decode([tokenizer.eos_token_id]), *(settings.pop("stopwords", None) or [])]
    ids, mask = batch["input_ids"].to(model.device), batch["attention_mask"].to(model.device)
    out = model.generate(ids, attention_mask=mask.long(), pad_token_id=tokenizer.eos_token_id, **settings)
    how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": True}
    prompts = tokenizer.batch_decode(ids, **how)
    conversations = tokenizer.batch_decode([row[row.ne(IGNORE)] for row in batch["labels"]], **how)
    texts = tokenizer.batch_decode(out[:, ids.shape[1] :], **how)
    rows = []
    for prompt, conversation, text in zip(prompts, conversations, texts, strict=True):
        for word in stopwords:
            text = text.split(word)[0] if word else text
        truth, text = conversation.replace(prompt, "").strip(), text.strip()
        rows.append({**rouge_scores(truth, text), "input": prompt, "ground_truth": truth, "generation": text})
    return rows
