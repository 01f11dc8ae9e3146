"""Attacks on checkpoints: does what was forgotten come back?"""

from vestige.stress.attacks import Attacked, prune, quantise, relearn
from vestige.stress.leak import expected_best
from vestige.stress.prompts import PROMPTS, few_shot, jailbreak, paraphrase

__all__ = [
    "PROMPTS",
    "Attacked",
    "expected_best",
    "few_shot",
    "jailbreak",
    "paraphrase",
    "prune",
    "quantise",
    "relearn",
]
