"""ROUGE next to `rouge-score`, on texts of TOFU's size, in one run.

    python bench/rouge.py [--rows 1017] [--models 2]

Processor seconds with empty caches, and whether all floats are equal.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from rouge_score.rouge_scorer import RougeScorer

sys.path.insert(0, str(Path(__file__).parent))

from measure import Comparison, save, time_in_turns
from vestige.metrics import text as rouge

Pairs = list[tuple[str, str]]
KEYS = ("rouge1_recall", "rougeL_f1", "rougeL_recall")


def made_up_pairs(rows: int, models: int, seed: int = 0) -> Pairs:
    """1,017 answers (as TOFU forget10) of about 45 words; generations that repeat, vary or ramble."""
    rng = random.Random(seed)
    words = vocabulary(rng, 5000)
    weights = [1 / (rank + 2) for rank in range(len(words))]
    pairs = []
    references = [rng.choices(words, weights, k=rng.randint(15, 75)) for _ in range(rows)]
    for _ in range(models):
        for reference in references:
            kept = [word if rng.random() < 0.7 else rng.choice(words) for word in reference]
            rambled = rng.choices(words, weights, k=rng.randint(0, 120))
            written = rng.choice([reference, kept, rambled, kept + rambled])
            pairs.append((" ".join(reference) + ".", " ".join(written) + "."))
    return pairs


def vocabulary(rng: random.Random, size: int) -> list[str]:
    starts = ["".join(rng.choices("bcdfglmnprstv", k=1) + rng.choices("aeiou", k=1)) for _ in range(400)]
    ends = ["", "", "s", "ed", "ing", "ly", "ation", "ment", "ness", "er", "ies", "able"]
    return ["".join(rng.choices(starts, k=rng.choice([1, 2, 2, 3]))) + rng.choice(ends) for _ in range(size)]


def theirs(pairs: Pairs) -> list[dict[str, float]]:
    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
    found = [scorer.score(reference, prediction) for reference, prediction in pairs]
    return [dict(zip(KEYS, (s["rouge1"].recall, s["rougeL"].fmeasure, s["rougeL"].recall), strict=True)) for s in found]


def ours_from_nothing(pairs: Pairs) -> list[dict[str, float]]:
    for cached in (rouge.rouge_tokens, rouge._reference, rouge._stem):
        cached.cache_clear()
    return [rouge.rouge_scores(reference, prediction) for reference, prediction in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1017)
    parser.add_argument("--models", type=int, default=2, help="how many models answer the same rows")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    pairs = made_up_pairs(args.rows, args.models)
    ways = {"theirs": lambda: theirs(pairs), "ours": lambda: ours_from_nothing(pairs)}
    results, seconds = time_in_turns(ways, 1)
    equal = results["ours"] == results["theirs"]
    case, words = f"{len(pairs):,} pairs, empty caches", "all floats equal" if equal else "floats differ"
    save(args.json, [Comparison("ROUGE", case, "rouge-score", seconds["theirs"], seconds["ours"], equal, words)])


if __name__ == "__main__":
    main()
