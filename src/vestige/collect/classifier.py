"""Other people's models that judge texts: a sequence classifier (gibberish or not).

In: texts and the path of a classifier. Out: one probability per text. Caller: runs/collect.py, after texts are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from vestige.errors import UserError, first_line
from vestige.models.args import ModelArgs
from vestige.models.fingerprint import fingerprint, library
from vestige.models.tokenizer import tokenizer_files
from vestige.types import content_key
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
            raise _unreadable(path, first_line(error)) from None
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
        while order:
            # Texts cut at different lengths never share a batch.
            batch = [w for w in order[:BATCH] if w.max_length == order[0].max_length]
            order = order[len(batch) :]
            inputs = self.tokenizer(
                [w.text for w in batch], return_tensors="pt", padding=True, truncation=True,
                max_length=batch[0].max_length,
            ).to(self.model.device)  # fmt: skip
            probabilities = self.model(**inputs).logits.float().softmax(dim=-1).cpu()
            classes = probabilities.shape[-1]
            if any(not 0 <= w.class_id < classes for w in batch):
                raise UserError(f"class_id must lie in 0..{classes - 1} for this classifier.")
            yield {w.key: float(probabilities[i, w.class_id]) for i, w in enumerate(batch)}


def _unreadable(path: str, why: str) -> UserError:
    return UserError(
        f"The text classifier '{path}' could not be loaded ({why}); give a local directory or leave it out."
    )


def classifier_identity(path: str) -> str:
    """Local classifiers are named by their weights and their tokenizer's files, hub ids by their name (their content is
    the hub's matter); all by the libraries that run them."""
    parts = [f"{name}={library(name)}" for name in ("torch", "transformers", "tokenizers")]
    if Path(path).is_dir():
        args = ModelArgs(path=path)
        try:
            parts += [fingerprint(args), *tokenizer_files(args)]
        except UserError as error:
            raise _unreadable(path, str(error)) from None
        return content_key(*(p.encode() for p in parts))[:16]
    return f"{path.replace('/', '--')}-{content_key(*(p.encode() for p in parts))[:8]}"
