"""ROUGE: how much of a reference text a prediction says again, and in the same order.

The numbers are those of the `rouge-score` package (0.1.2), float for float: lower-case runs of a-z and 0-9,
words of more than three characters stemmed by Porter's algorithm as NLTK extends it. Only the cost differs:

- Stems and token lists are remembered, for references come back with every model and words with every text.
- The longest common subsequence is found with one big integer per reference instead of a table: bit i stands
  for reference token i, so a row of the table is a few machine words and a step is one addition (Hyyrö 2004).
- The stemmer is here, because importing any part of NLTK imports all of it (over a second, more than the
  scoring of a whole benchmark takes).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

_WORD = re.compile("[a-z0-9]+")

# Room for a benchmark and its generations: a few thousand texts, some ten thousand words, at most 20 MB.
_TEXTS = 4096
_WORDS = 65536


def rouge_scores(reference: str, prediction: str, stem: bool = True) -> dict[str, float]:
    """The three numbers open-unlearning keeps per row. The recalls divide by the reference's tokens.

    >>> rouge_scores("Anna wrote two novels.", "Two novels by Anna")
    {'rouge1_recall': 0.75, 'rougeL_f1': 0.5, 'rougeL_recall': 0.5}
    """
    wanted, places = _reference(reference, stem)
    given = rouge_tokens(prediction, stem)
    if not wanted or not given:
        return {"rouge1_recall": 0.0, "rougeL_f1": 0.0, "rougeL_recall": 0.0}
    shared = [token for token in given if token in places]
    common = _lcs_length(shared, places, wanted)
    return {
        "rouge1_recall": _overlap(shared, places) / wanted,
        "rougeL_f1": _f1(common / len(given), common / wanted),
        "rougeL_recall": common / wanted,
    }


@lru_cache(_TEXTS)
def rouge_tokens(text: str, stem: bool = True) -> tuple[str, ...]:
    """The words ROUGE compares. Anything outside a-z and 0-9 separates them, accented letters too.

    >>> rouge_tokens("Books, cafés & flying!")
    ('book', 'caf', 's', 'fli')
    >>> rouge_tokens("Books, cafés & flying!", stem=False)
    ('books', 'caf', 's', 'flying')
    """
    words = _WORD.findall(text.lower())
    return tuple([_stem(word) if len(word) > 3 else word for word in words] if stem else words)


@lru_cache(_TEXTS)
def _reference(text: str, stem: bool) -> tuple[int, dict[str, int]]:
    """A reference as its length and, for each token, the set of its positions (as bits)."""
    tokens = rouge_tokens(text, stem)
    places: dict[str, int] = {}
    for position, token in enumerate(tokens):
        places[token] = places.get(token, 0) | 1 << position
    return len(tokens), places


def _overlap(shared: Iterable[str], places: Mapping[str, int]) -> int:
    """Tokens in common, each counted as often as it occurs on both sides."""
    return sum(min(count, places[token].bit_count()) for token, count in Counter(shared).items())


def _lcs_length(shared: Iterable[str], places: Mapping[str, int], wanted: int) -> int:
    """The length of the longest common subsequence.

    A zero at bit i of `row` says: the best match so far grows by one at reference token i. Each token of the
    prediction moves zeros down to its own positions; the carries of one addition do it for the whole row.

    >>> _lcs_length("acb", {"a": 0b001, "b": 0b010, "c": 0b100}, 3)
    2
    """
    full = (1 << wanted) - 1
    row = full
    for token in shared:
        met = row & places[token]
        row = (row + met | row - met) & full
    return wanted - row.bit_count()


def _f1(precision: float, recall: float) -> float:
    # In this order of operations, for equal floats.
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


# --- Porter's stemmer, with NLTK's changes to it


def _rules(text: str) -> dict[str, str]:
    """`ator:ate` says that a word's ending -ator becomes -ate."""
    return {old: new for old, _, new in (rule.partition(":") for rule in text.split())}


_IRREGULAR = _rules(
    "skies:sky sky:sky dying:die lying:lie tying:tie news:news innings:inning inning:inning outings:outing "
    "outing:outing cannings:canning canning:canning howe:howe proceed:proceed exceed:exceed succeed:succeed"
)
_STEP2 = _rules(
    "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous "
    "ization:ize ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive "
    "biliti:ble fulli:ful"
)
_STEP3 = _rules("icate:ic ative: alize:al iciti:ic ical:ic ful: ness:")
_STEP4 = _rules("al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ou: ism: ate: iti: ous: ive: ize:")

_KINDS = str.maketrans({c: "v" if c in "aeiou" else "c" for c in "abcdefghijklmnopqrstuvwxz0123456789"})


@lru_cache(_WORDS)
def _stem(word: str) -> str:
    """The word without its endings.

    >>> [_stem(w) for w in ("relational", "hopping", "dies", "enjoyment", "generalizations")]
    ['relat', 'hop', 'die', 'enjoy', 'gener']
    """
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    word = _y_to_i(_past_and_ing(_plural(word)))
    word = _step2(word)
    word = _swap(word, _STEP3, 0)
    word = _step4(word)
    return _final_letter(word)


def _kinds(word: str) -> str:
    """Each letter as consonant or vowel; y is a vowel after a consonant.

    >>> _kinds("syzygy"), _kinds("toy")
    ('cvcvcv', 'cvc')
    """
    kinds = word.translate(_KINDS)
    if "y" not in kinds:
        return kinds
    settled = [""]
    for kind in kinds:
        settled.append(kind if kind != "y" else "v" if settled[-1] == "c" else "c")
    return "".join(settled)


def _measure(stem: str) -> int:
    """Porter's m: how many times a vowel is followed by a consonant."""
    return _kinds(stem).count("vc")


def _short(stem: str) -> bool:
    """Ends consonant, vowel, consonant (not w, x, y), as `hop` does; or is a vowel and a consonant (NLTK)."""
    kinds = _kinds(stem)
    return kinds == "vc" or (kinds.endswith("cvc") and stem[-1] not in "wxy")


def _swap(word: str, rules: Mapping[str, str], above: int) -> str:
    """Replaces the longest suffix that has a rule, if what stands before it has a measure `above` this."""
    for start in range(max(len(word) - 7, 0), len(word) - 1):  # suffixes have two to seven letters
        if (new := rules.get(word[start:])) is not None:
            return word[:start] + new if _measure(word[:start]) > above else word
    return word


def _plural(word: str) -> str:
    if word.endswith("ies"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_ing(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        stem = word.removesuffix(suffix)
        if stem != word and "v" in _kinds(stem):
            return _mend(stem)
    return word


def _mend(stem: str) -> str:
    """Gives back what -ed or -ing took (`hop(p)ing`, `fil(e)ing`)."""
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if len(stem) > 1 and stem[-1] == stem[-2] and _kinds(stem)[-1] == "c":
        return stem if stem[-1] in "lsz" else stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _short(stem) else stem


def _y_to_i(word: str) -> str:
    if word.endswith("y") and len(word) > 2 and _kinds(word)[-2] == "c":
        return word[:-1] + "i"
    return word


def _step2(word: str) -> str:
    if word.endswith("alli") and _measure(word[:-4]) > 0:
        return _step2(word[:-2])
    if word.endswith("logi"):  # the l counts with the stem, so that `geologi` is treated as `archaeologi` is
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _swap(word, _STEP2, 0)


def _step4(word: str) -> str:
    if word.endswith("ion"):  # only after s or t, which stay and count with the stem
        return word[:-3] if word[-4:-3] in ("s", "t") and _measure(word[:-3]) > 1 else word
    return _swap(word, _STEP4, 1)


def _final_letter(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


# ---- BLEU of one text: how many of its word sequences stand in a reference ----------------------------------------
#
# Precisions of one to four words, their geometric mean, times a penalty for texts shorter than the reference (Papineni
# et al. 2002). For single sentences counts of two and more words are smoothed by one (Lin and Och 2004), because a
# short answer rarely has four words in a row right, and one zero would hide the rest. Words are ROUGE's, unstemmed.

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
