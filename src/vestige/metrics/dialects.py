"""A dialect is a named, versioned set of definitions. One small table, not flags threaded through functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from vestige.errors import unknown_name

NOTHING: Mapping[str, float | None] = MappingProxyType({})


@dataclass(frozen=True)
class Dialect:
    name: str
    version: int
    doc: str
    drop_last: frozenset[str] = frozenset()  # handlers that leave out the last label (the end token)
    float32_shares: bool = False  # shares of tokens are float32 means: 11/13 is 0.84615386
    extraction_floor: bool = False  # no matching suffix counts 1/n instead of 0
    empty: Mapping[str, float | None] = field(default_factory=lambda: NOTHING)  # value of an answer with no tokens
    mask: str = "length"  # "pad-id": attention mask is ids != pad, so that eos is hidden when pad = eos
    boundary: str = "offsets"  # how labels begin when prompt and full text are tokenised differently: or "count"
    written_answer: bool = True  # ROUGE and zlib use the answer as written; else as decoded from the labels
    gradnorm_train_mode: bool = False
    rouge_stemmer: bool = True
    published_references: bool = False  # without retain logs, privleak compares with the benchmark's own retrain AUCs
    rows: int | None = None  # how many rows of each data set are read unless a limit is given


# Handlers for which open-unlearning drops the last label. It is meant to be the end token of chat data; of plain text
# it is a real token, which is dropped all the same. Probability, loss, zlib and truth ratio count it.
_NO_EOS = frozenset({"exact_memorization", "extraction_strength", "mia_min_k", "mia_min_k_plus_plus", "mia_gradnorm"})

DIALECTS: dict[str, Dialect] = {
    "open-unlearning": Dialect(
        name="open-unlearning",
        version=1,
        doc="Reproduces open-unlearning's numbers to float rounding, quirks included.",
        drop_last=_NO_EOS,
        float32_shares=True,
        extraction_floor=True,
        empty=MappingProxyType(
            {"extraction_strength": 0.0, "mia_min_k": 0.0, "mia_min_k_plus_plus": 0.0, "mia_gradnorm": 0.0}
        ),
        mask="pad-id",
        boundary="count",
        written_answer=False,
        gradnorm_train_mode=True,
    ),
    "strict": Dialect(
        name="strict",
        version=1,
        doc="What the definitions say: every real token attended and counted, nothing missing turned into a number.",
    ),
    "tofu": Dialect(
        name="tofu",
        version=1,
        doc="locuslab/tofu's code and published logs: 300 rows a set, masks by length (paper: true for its text).",
        boundary="count",
        rows=300,
    ),
    "muse": Dialect(
        name="muse",
        version=1,
        doc="MUSE's code: ROUGE without a stemmer, privleak against the published retrain models.",
        rouge_stemmer=False,
        published_references=True,
    ),
}
DIALECTS["depth-score"] = replace(
    DIALECTS["open-unlearning"],
    name="depth-score",
    doc="unlearning-depth-score's output metrics (em, es, ...): open-unlearning's tokens, but masks by length.",
    mask="length",
)


# AUC of forget against holdout for MUSE's retrained models, as published, in MUSE's convention: higher = forget rows
# look *less* familiar than holdout rows. Ours is one minus that.
MUSE_RETRAIN_AUC: dict[str, dict[str, float]] = {
    "News": {"mia_loss": 0.4652, "mia_zlib": 0.4328, "mia_min_k 0.2": 0.4931, "mia_min_k 0.4": 0.4772},
    "Books": {"mia_loss": 0.4746, "mia_zlib": 0.2773, "mia_min_k 0.2": 0.5582, "mia_min_k 0.4": 0.5393},
}


def published_auc(data_split: str, attack: str, k: float | None = None) -> float | None:
    """The published retrain model's AUC in our convention, or None where none was published.

    >>> round(published_auc("News", "mia_min_k", 0.4), 4)
    0.5228
    """
    name = attack if k is None else f"{attack} {k:g}"
    found = MUSE_RETRAIN_AUC.get(data_split, {}).get(name)
    return None if found is None else 1 - found


def get_dialect(name: str) -> Dialect:
    if name not in DIALECTS:
        raise unknown_name("dialect", name, DIALECTS)
    return DIALECTS[name]
