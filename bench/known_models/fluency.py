"""The lab's judge of fluency: a tiny classifier that tells sentences of the lab's world from word salad.

Published results take a downloaded gibberish detector for this. It would not know the lab's words, so the lab trains
one of its own: class 0 is a clean text, class 1 a spoilt one (words shuffled, words repeated, letters without sense).
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from vestige.lab.corpus import Corpus
from vestige.unlearn.lesson import REFUSALS

CLEAN, SPOILT = 0, 1
LENGTH = 32  # the tokens that the metric shows to its classifier
STEPS, BATCH, RATE = 250, 32, 3e-3


def train_judge(corpus: Corpus, tokenizer: Any, place: Path, seed: int, steps: int = STEPS) -> None:
    """Trains and saves the classifier. Answers of the holdout are not shown to it."""
    seen = [row for split, rows in corpus.items() if split != "holdout" for row in rows]
    clean = [str(row[key]) for row in seen for key in ("answer", "paraphrased_answer")]
    clean += [r for r in REFUSALS for _ in range(max(1, len(clean) // (20 * len(REFUSALS))))]
    model = _new_judge(tokenizer)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    draw = Random(f"{seed}/judge")
    model.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 - step / steps)
        texts = [draw.choice(clean) for _ in range(BATCH)]
        labels = [SPOILT if place % 2 else CLEAN for place in range(BATCH)]
        shown = [spoil(text, draw) if label else text for text, label in zip(texts, labels, strict=True)]
        batch = tokenizer(shown, return_tensors="pt", padding=True, truncation=True, max_length=LENGTH)
        loss = torch.nn.functional.cross_entropy(model(**batch).logits, torch.tensor(labels))
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    model.eval()
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)


def spoil(text: str, draw: Random) -> str:
    """The text as a broken model might write it: from some word on shuffled, stuck on a few words, or mere letters.

    >>> spoil("The river runs north", Random(0)) != "The river runs north"
    True
    """
    words = text.split()
    whole = draw.randrange(3)
    start = draw.randrange(max(1, len(words) // 2))
    head, tail = words[:start], words[start:]
    if whole == 0:
        mixed = draw.sample(tail, len(tail))
        tail = mixed if mixed != tail else tail[::-1]
        tail = tail if tail != words[start:] else [*tail, *tail]
    elif whole == 1:
        tail = tail[: draw.randint(1, 3)] * 20
    else:
        tail = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz.,'", k=draw.randint(1, 9))) for _ in range(12)]
    return " ".join([*head, *tail])


def _new_judge(tokenizer: Any) -> Any:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4 * LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config.num_labels = 2
    return LlamaForSequenceClassification(config)
