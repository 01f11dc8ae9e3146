"""ROUGE side by side with `rouge-score`, on texts of TOFU's size, in one run.

    python bench/rouge.py [--rows 1017] [--models 2] [--texts TOFU_EVAL.json ...]

Prints ratios of processor seconds (with empty caches, and once all texts are known) and whether all floats are equal.
With --texts the pairs are those of open-unlearning result files instead of made-up ones.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rouge_score.rouge_scorer import RougeScorer

sys.path.insert(0, str(Path(__file__).parent))

from measure import Beside, save
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


def read_pairs(paths: list[Path]) -> Pairs:
    """Every (ground truth, generation) in open-unlearning result files."""
    pairs: Pairs = []
    for path in paths:
        for metric in json.loads(path.read_text()).values():
            for row in metric.get("value_by_index", {}).values():
                if isinstance(row.get("generation"), str):
                    pairs.append((row["ground_truth"], row["generation"]))
    return pairs


def theirs(pairs: Pairs) -> list[dict[str, float]]:
    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
    found = [scorer.score(reference, prediction) for reference, prediction in pairs]
    return [dict(zip(KEYS, (s["rouge1"].recall, s["rougeL"].fmeasure, s["rougeL"].recall), strict=True)) for s in found]


def ours(pairs: Pairs) -> list[dict[str, float]]:
    return [rouge.rouge_scores(reference, prediction) for reference, prediction in pairs]


def ours_from_nothing(pairs: Pairs) -> list[dict[str, float]]:
    for cached in (rouge.rouge_tokens, rouge._reference, rouge._stem):
        cached.cache_clear()
    return ours(pairs)


def timed(score: Callable[[Pairs], list[dict[str, float]]], pairs: Pairs) -> tuple[float, list[dict[str, float]]]:
    start = time.process_time()
    scores = score(pairs)
    return time.process_time() - start, scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1017)
    parser.add_argument("--models", type=int, default=2, help="how many models answer the same rows")
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    pairs = read_pairs(args.texts) if args.texts else made_up_pairs(args.rows, args.models)
    slow, expected = timed(theirs, pairs)
    cold, first = timed(ours_from_nothing, pairs)
    warm, second = timed(ours, pairs)
    report = {
        "pairs": len(pairs),
        "equal": first == expected and second == expected,
        "rouge_score_s": round(slow, 3),
        "vestige_cold_s": round(cold, 4),
        "vestige_warm_s": round(warm, 4),
        "ratio_cold": round(slow / cold, 1),
        "ratio_warm": round(slow / warm, 1),
    }
    print(json.dumps(report, indent=1))
    case, said = f"{len(pairs):,} pairs, empty caches", "all floats equal" if report["equal"] else "floats DIFFER"
    save(args.json, [Beside("ROUGE", case, "rouge-score", slow, cold, bool(report["equal"]), said)])


if __name__ == "__main__":
    main()
