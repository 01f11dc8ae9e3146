"""BLEU of one text: how many of its word sequences stand in a reference.

Precisions of one to four words, their geometric mean, times a penalty for texts shorter than the reference (Papineni et
al. 2002). For single sentences counts of two and more words are smoothed by one (Lin and Och 2004), because a short
answer rarely has four words in a row right, and one zero would hide the rest. Words are ROUGE's, unstemmed.
"""

from __future__ import annotations

import math
from collections import Counter

from vestige.metrics.rouge import rouge_tokens

ORDERS = 4


def bleu(reference: str, prediction: str) -> float:
    """BLEU-4 with smoothing; 0 when no word is shared or a text is empty.

    >>> round(bleu("Anna wrote two novels.", "Anna wrote two novels"), 6), bleu("Anna", "Two novels")
    (1.0, 0.0)
    >>> round(bleu("Anna wrote two novels", "Anna wrote three novels"), 4)  # (3/4 * 2/4 * 1/3 * 1/2) ** (1/4)
    0.5
    """
    wanted, given = rouge_tokens(reference, False), rouge_tokens(prediction, False)
    if not set(wanted) & set(given):
        return 0.0
    logs = 0.0
    for n in range(1, ORDERS + 1):
        mine, theirs = _grams(given, n), _grams(wanted, n)
        hits, total = sum((mine & theirs).values()), sum(mine.values())
        smooth = int(n > 1)
        logs += math.log((hits + smooth) / (total + smooth))
    brevity = min(0.0, 1 - len(wanted) / len(given))
    return math.exp(logs / ORDERS + brevity)


def _grams(words: tuple[str, ...], n: int) -> Counter[tuple[str, ...]]:
    return Counter(words[i : i + n] for i in range(len(words) - n + 1))
