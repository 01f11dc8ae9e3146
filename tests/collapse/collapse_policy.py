"""A policy that collapses, built so that its log-probabilities are known.

At each step the policy answers its own question with the lab's model, or, with a growing probability, the same fixed
question whatever it was asked. That is a mixture of two models over whole sequences, so the probability of a token is
known exactly, and so is the end: when the share is 1, reasoning says nothing of its prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vestige.collapse.detector import CollapseDetector, CollapseSettings, Measured
from vestige.collapse.reasoning import Extractor, Reasoning, Rollout, Trajectory, Turn
from vestige.collect.cross import CrossScorer

LAB = Path(__file__).parents[1] / "golden" / "lab"
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
SHARES = {1: 0.0, 5: 0.25, 10: 0.5, 15: 0.75, 20: 0.95, 25: 1.0}
Ids = tuple[int, ...]


def questions(extractor: Extractor, count: int) -> list[Ids]:
    """Prompts about different authors, in tokens."""
    lines = (LAB / "data" / "retain.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][:: max(1, len(lines) // count)][:count]
    chats = [(SYSTEM, {"role": "user", "content": row["question"]}) for row in rows]
    return [extractor.turn(Rollout("t", messages=chat, response="x")).x for chat in chats]


@torch.inference_mode()
def written(model: Any, prompt: Ids, count: int, end: int) -> list[Ids]:
    """Answers drawn from the model, without their end token."""
    ids = torch.tensor([prompt] * count)
    drawn = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, top_p=1.0, max_new_tokens=24,
        eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    out = []
    for row in drawn[:, len(prompt) :].tolist():
        z = tuple(row[: row.index(end)] if end in row else row)
        out.append(z or (end,))
    return out


class Mixture:
    """log p(token | prompt, tokens before): a sequence is the model's own with probability 1 - share, else fixed."""

    def __init__(self, scorer: CrossScorer, fixed: Ids, share: float) -> None:
        self.scorer, self.fixed, self.share = scorer, fixed, share

    def __call__(self, prompts: Sequence[Ids], reasonings: Sequence[Ids]) -> list[np.ndarray]:
        xs, zs = sorted(set(prompts)), sorted(set(reasonings))
        found = self.scorer([*xs, self.fixed], zs)
        place = {z: found.tokens[i] for i, z in enumerate(zs)}
        return [self._tokens(place[z][xs.index(x)], place[z][-1]) for x, z in zip(prompts, reasonings, strict=True)]

    def _tokens(self, own: np.ndarray, fixed: np.ndarray) -> np.ndarray:
        """Both models' sequences so far, weighted; a token's log-probability is what it adds."""
        with np.errstate(divide="ignore"):
            weights = np.log1p(-self.share), np.log(self.share)
        so_far = np.logaddexp(weights[0] + np.cumsum(own, dtype=float), weights[1] + np.cumsum(fixed, dtype=float))
        return np.diff(so_far, prepend=0.0)


def trajectories(
    model: Any, prompts: Sequence[Ids], fixed: Ids, share: float, samples: int, end: int, seed: int
) -> list[Trajectory]:
    """Rollouts of the mixture."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    out = []
    for p, x in enumerate(prompts):
        stray = int((rng.random(samples) < share).sum())
        texts = (written(model, fixed, stray, end) if stray else []) + (
            written(model, x, samples - stray, end) if stray < samples else []
        )
        for k, z in enumerate(texts):
            out.append(Trajectory(f"{p}.{k}", (Turn(x, z, str(p), 0, f"{p}.{k}"),)))
    return out


def collapse_of_a_policy(prompts: int = 8, samples: int = 8, model_name: str = "full") -> list[Measured]:
    """The detector's outcome at each step of SHARES."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = LAB / "models" / model_name
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(place)
    extractor = Extractor(tokenizer, Reasoning(mode="whole", tokenization="separate"))
    *asked, fixed = questions(extractor, prompts + 1)
    settings = CollapseSettings(num_samples="all", multi_turn_enabled=False)
    state: dict[str, Any] = {}
    outcomes = []
    for step, share in SHARES.items():
        mixture = Mixture(CrossScorer(model), fixed, share)
        detector = CollapseDetector(settings, log_prob_fn=mixture)
        if state:
            detector.load_state_dict(state)
        drawn = trajectories(model, asked, fixed, share, samples, tokenizer.eos_token_id, seed=step)
        outcomes.append(detector.compute(drawn, step))
        state = detector.state_dict()
    return outcomes
