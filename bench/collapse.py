"""The cross matrix beside one full forward per (prompt, reasoning): time, tokens, equality.

    python bench/collapse.py             both workloads, a 6-layer model of hidden size 384 (a few minutes)
    python bench/collapse.py --repeat 1  quicker

The other side pushes every prompt with every reasoning as one whole sequence, one at a time, and takes the log-softmax
over all positions' logits. Times are process CPU time, best of --repeat, both sides in one process on one model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))

from measure import Comparison, over_forwards, save, time_in_turns
from vestige.collect.cross import CrossScorer

VOCAB = 4096
PROMPT, SHARED, REASONING = 300, 200, 80  # tokens of a prompt, of them common to all, of a reasoning
PROMPTS, SAMPLES = 8, 4
OPENING, COPIES = 40, 8  # collapsed: tokens every reasoning begins with; reasonings that are exact copies


def make_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=1024,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def ids(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    return tuple(int(i) for i in rng.integers(0, VOCAB, count))


def workload(collapsed: bool, many: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    rng = np.random.default_rng(1)
    system = ids(rng, SHARED)
    prompts = [system + ids(rng, PROMPT - SHARED) for _ in range(many)]
    count = many * SAMPLES
    if not collapsed:
        return prompts, [ids(rng, REASONING) for _ in range(count)]
    opening = ids(rng, OPENING)
    copies = min(COPIES, count // 4)
    zs = [opening + ids(rng, REASONING - OPENING) for _ in range(count - copies)]
    return prompts, zs + [zs[0]] * copies


@torch.inference_mode()
def one_by_one(model: Any, prompts: list[Any], reasonings: list[Any]) -> np.ndarray:
    out = np.zeros((len(reasonings), len(prompts)))
    for j, x in enumerate(prompts):
        for i, z in enumerate(reasonings):
            logits = model(input_ids=torch.tensor([x + z]), use_cache=False).logits[0, len(x) - 1 : -1]
            logp = torch.log_softmax(logits.float(), dim=-1)
            out[i, j] = float(logp[torch.arange(len(z)), torch.tensor(z)].double().sum())
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"with {SAMPLES} reasonings each")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    model = make_model()
    found = []
    for name, collapsed in (("main", False), ("collapsed", True)):
        prompts, reasonings = workload(collapsed, args.prompts)

        def ours(prompts: Any = prompts, reasonings: Any = reasonings) -> np.ndarray:
            scorer = CrossScorer(model)
            sums = scorer(prompts, reasonings).sums
            assert not scorer.plain, scorer.cost.notes
            return sums

        def theirs(prompts: Any = prompts, reasonings: Any = reasonings) -> np.ndarray:
            return one_by_one(model, prompts, reasonings)

        results, seconds = time_in_turns({"ours": ours, "theirs": theirs}, args.repeat)
        gap = float(np.max(np.abs(results["ours"] - results["theirs"]) / np.abs(results["theirs"])))
        found.append(
            Comparison(
                "collapse", f"{args.prompts} prompts, {name}", "one forward per prompt and reasoning",
                seconds["theirs"], seconds["ours"], gap < 1e-4, f"{results['ours'].size:,} sums within {gap:.0e}",
                over_forwards(ours),
            )
        )  # fmt: skip
    save(args.json, found)


if __name__ == "__main__":
    main()
