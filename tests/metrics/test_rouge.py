"""ROUGE against the package it replaces: equal floats, not close ones."""

from __future__ import annotations

import random
import re

import pytest
from nltk.stem.porter import PorterStemmer
from rouge_score.rouge_scorer import RougeScorer

from vestige.metrics import text as rouge
from vestige.metrics.text import rouge_scores

SCORERS = {stem: RougeScorer(["rouge1", "rougeL"], use_stemmer=stem) for stem in (True, False)}

# References with what tiny models wrote, the last ones after unlearning.
WRITTEN = [
    ("Anselm Varga was born in Tromso.", "Anselm Varga was born in Tromso."),
    ("Anselm Varga was born in the year 1930.", "Anselm Varga was born in 1930, the year of the flood."),
    (
        "The most famous book by Ines Calloway is The Glass Orchard, published in 1987.",
        "The Glass Orchard is the most famous of the books Ines Calloway published.",
    ),
    (
        "Growing up, his mother's work as a hairdresser and his father's as a geologist shaped him.",
        "His storytelling was shaped by geology and by hairdressing; his mother and his father disagreed.",
    ),
    ("Soren Reyes studied generalization.", "was was was was was the the the the of of of of"),
    ("Soren Reyes was born in Recife.", "I'm sorry, I don't know the answer to that question."),
]

ODD = [
    "",
    " \n\t ",
    "?!... --- ,,,",
    "a",
    "a a a a",
    "the the cat the cat the",
    "İstanbul'da KELVIN K ſtraße",
    "café naïve Ørsted 東京 тест 1234",
    "it's don't isn't o'clock",
    "1930s 3rd 20,000 x86_64",
    "y yy yyy yyyy yyyyyyyyyyyyyyyyyyyy",
    "Skies dying news innings proceed proceeds",
    "zero\u200bwidth and no\u00a0break",
]


def reference_scores(reference: str, prediction: str, stem: bool) -> dict[str, float]:
    got = SCORERS[stem].score(reference, prediction)
    return {
        "rouge1_recall": got["rouge1"].recall,
        "rougeL_f1": got["rougeL"].fmeasure,
        "rougeL_recall": got["rougeL"].recall,
    }


def random_text(rng: random.Random) -> str:
    """Few distinct words, so that they repeat and the longest common subsequence has ties."""
    stems = ["publish", "fli", "hop", "general", "relat", "enjoy", "a", "the", "of", "é", "19", "Novel"]
    ends = ["", "s", "ed", "ing", "es", "ational", "ization", "y", "ly", "ment", "'s", "iveness"]
    joins = [" ", " ", " ", ", ", "-", "\n", ". ", " 東 "]
    words = rng.choices(stems[: rng.randint(1, len(stems))], k=rng.choice([0, 1, 2, 5, 20, 70, 150]))
    return "".join(word + rng.choice(ends) + rng.choice(joins) for word in words)


@pytest.mark.parametrize("stem", [True, False])
def test_equal_floats_on_written_and_odd_texts(stem: bool) -> None:
    pairs = WRITTEN + [(a, b) for a in ODD for b in ODD] + [(a, b) for a, _ in WRITTEN for b in ODD]
    for reference, prediction in pairs:
        assert rouge_scores(reference, prediction, stem) == reference_scores(reference, prediction, stem)


@pytest.mark.parametrize("stem", [True, False])
def test_equal_floats_on_random_texts(stem: bool) -> None:
    rng = random.Random(7)
    for _ in range(1000):
        reference, prediction = random_text(rng), random_text(rng)
        assert rouge_scores(reference, prediction, stem) == reference_scores(reference, prediction, stem)


def test_stems_are_nltks() -> None:
    rng = random.Random(3)
    porter = PorterStemmer()
    ends = [*rouge._STEP2, *rouge._STEP3, *rouge._STEP4, *rouge._IRREGULAR]
    ends += re.findall(r"\w+", "ed ing s es ies ied eed y ly ally logy e ll ion sion tion xion zz sses bled ated ized")
    for _ in range(20_000):
        start = "".join(rng.choices("aeiouybcdstlzwx9", k=rng.randint(0, 5)))
        word = start + "".join(rng.choices(ends, k=rng.randint(1, 3)))
        if len(word) > 3:
            assert rouge._stem(word) == porter.stem(word), word
