"""Other people's models that judge texts: a sequence classifier (gibberish or not)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from vestige.errors import UserError, first_line
from vestige.models.fingerprint import fingerprint_module
from vestige.wants import ClassifierWant

BATCH = 64


class Classifier:
    """A Hugging Face sequence classifier by hub id or path."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
            self.model: Any = AutoModelForSequenceClassification.from_pretrained(path, use_safetensors=True).eval()
        except (OSError, ValueError) as error:
            raise UserError(
                f"The text classifier '{path}' could not be loaded ({first_line(error)}); give a local directory or "
                "leave it out."
            ) from None
        if torch.cuda.is_available():
            self.model.cuda()
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if self.model.config.pad_token_id is None:  # a decoder finds each text's last token by it
            self.model.config.pad_token_id = self.tokenizer.pad_token_id

    @torch.inference_mode()
    def run(self, wants: Sequence[ClassifierWant]) -> Iterator[dict[str, float]]:
        """Yields {want key: class probability}, batches of like length together."""
        order = sorted(wants, key=lambda w: (w.max_length, len(w.text)))
        for batch in _batches(order):
            inputs = self.tokenizer(
                [w.text for w in batch], return_tensors="pt", padding=True, truncation=True,
                max_length=batch[0].max_length,
            ).to(self.model.device)  # fmt: skip
            probabilities = self.model(**inputs).logits.float().softmax(dim=-1).cpu()
            classes = probabilities.shape[-1]
            if any(not 0 <= w.class_id < classes for w in batch):
                raise UserError(f"class_id must lie in 0..{classes - 1} for this classifier.")
            yield {w.key: float(probabilities[i, w.class_id]) for i, w in enumerate(batch)}


def _batches(order: Sequence[ClassifierWant]) -> Iterator[list[ClassifierWant]]:
    for _, group in groupby(order, key=lambda w: w.max_length):  # texts cut at different lengths never share a batch
        same = list(group)
        yield from (same[i : i + BATCH] for i in range(0, len(same), BATCH))


def classifier_identity(path: str) -> str:
    """Local classifiers are named by their weights, hub ids by their name (their content is the hub's matter)."""
    if not Path(path).is_dir():
        return path.replace("/", "--")
    return fingerprint_module(Classifier(path).model)[:16]
