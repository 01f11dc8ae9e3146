"""The helpers that metrics for open-unlearning import from `evals.metrics.utils`, under their names there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vestige.metrics.text import rouge_scores
from vestige.types import IGNORE


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


def dict_transpose(evals: Mapping[Any, Mapping[Any, Mapping[str, Any]]]) -> dict[Any, dict[str, list[Any]]]:
    """{answer: {row: {field: value}}} as {row: {field: [a value for each answer]}}.

    >>> dict_transpose({0: {7: {"prob": 0.1}}, 1: {7: {"prob": 0.2}}})
    {7: {'prob': [0.1, 0.2]}}
    """
    answers = list(evals.values())
    return {row: {f: [a[row][f] for a in answers] for f in fields} for row, fields in answers[0].items()}


def tokenwise_vocab_logprobs(
    model: Any, batch: Mapping[str, Any], grad: bool = False, return_labels: bool = False
) -> Any:
    """Per row of a batch: log-probabilities (labelled tokens, vocabulary), and with `return_labels` those tokens.

    The last labelled token, which ends the answer, is left out, as that framework does.
    """
    import torch

    inputs = {k: v.to(model.device) for k, v in batch.items() if k in ("input_ids", "attention_mask")}
    labels = batch["labels"].to(model.device)[:, 1:]
    with torch.set_grad_enabled(grad):
        found = torch.log_softmax(model(**inputs).logits[:, :-1].float(), dim=-1)
    counted = [row.ne(IGNORE).nonzero()[:-1, 0] for row in labels]
    scores = [row[at] for row, at in zip(found, counted, strict=True)]
    return (scores, [row[at] for row, at in zip(labels, counted, strict=True)]) if return_labels else scores


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
    asked = tokenizer.batch_decode(ids, **how)
    whole = tokenizer.batch_decode([row[row.ne(IGNORE)] for row in batch["labels"]], **how)
    written = tokenizer.batch_decode(out[:, ids.shape[1] :], **how)
    found = []
    for prompt, conversation, text in zip(asked, whole, written, strict=True):
        for word in stopwords:
            text = text.split(word)[0] if word else text
        true, text = conversation.replace(prompt, "").strip(), text.strip()
        scores = rouge_scores(true, text)
        found.append({**scores, "input": prompt, "ground_truth": true, "generation": text})
    return found
