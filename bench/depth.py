"""Patching by staircase beside one full forward per layer, in one run: seconds, and the equality of every score.

    python bench/depth.py                    12 layers, width 384, 100 tokens, span 8, vocabulary 32,000
    python bench/depth.py --after 0          the entity at the very end (default: 15 tokens follow it)

In TOFU's forget10 15 of 60 tokens follow the entity, on average. They cannot matter; only the other side pays for them.

The other side runs each source once and the target once for every layer, over the whole text, with logits everywhere,
as published code does. Both work on the same models with the same number of threads, turn by turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from vestige.collect.cost import Cost
from vestige.collect.patch import Plan, make_plan
from vestige.collect.staircase import Patcher, collect_states
from vestige.types import Target
from vestige.wants import PatchWant


def make_model(seed: int, args: argparse.Namespace) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=args.vocab, hidden_size=args.width, intermediate_size=args.width * 8 // 3,
        num_hidden_layers=args.layers,
        num_attention_heads=args.width // 64, num_key_value_heads=args.width // 64, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def make_wants(args: argparse.Namespace) -> tuple[list[PatchWant], list[list[int]]]:
    """The wants, and the whole texts they were cut from (the other side reads those)."""
    draw = np.random.default_rng(0)
    end = args.tokens - args.after - 1  # the position that predicts the last entity token, plus one
    wants, texts = [], []
    for _ in range(args.examples):
        text = draw.integers(3, args.vocab, args.tokens).tolist()
        wants.append(PatchWant(Target(tuple(text[: end + 1]), end + 1 - args.span), end - args.span, end))
        texts.append(text)
    return wants, texts


@torch.inference_mode()
def naive(full: Any, sources: Sequence[Any], want: PatchWant, text: list[int], clean: bool) -> list[np.ndarray]:
    """One full forward per layer: scores (layers,) for each source; with `clean` also the target's own."""
    ids = torch.tensor([text])
    labels = torch.tensor(want.target.labels)

    def score() -> float:
        logits = full(input_ids=ids, use_cache=False).logits[0, want.first : want.end].float()
        return float(logits.log_softmax(-1).gather(1, labels[:, None]).mean())

    if clean:
        score()
    out = []
    for source in sources:
        states = source(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        scores = []
        for layer, block in enumerate(full.model.layers[:-1]):  # the last one would get a state after the final norm

            def patch(module: Any, args: Any, output: Any, state: torch.Tensor = states[layer + 1]) -> Any:
                hidden = (output[0] if isinstance(output, tuple) else output).clone()
                hidden[:, want.first : want.end] = state[:, want.first : want.end]
                return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

            handle = block.register_forward_hook(patch)
            scores.append(score())
            handle.remove()
        score()  # the last layer costs as much as the others
        out.append(np.array(scores))
    return out


def ours(
    full: Any, sources: Sequence[Any], wants: Sequence[PatchWant], plan: Plan, batch: int
) -> dict[str, list[np.ndarray]]:
    states = [{k: v for b in collect_states(s, wants, plan, batch) for k, v in b.items()} for s in sources]
    patcher = Patcher(full, plan, Cost(), batch)
    patcher.verify = lambda *a: None  # type: ignore[method-assign] # paid once a run, not once an example
    found = {k: v for part in patcher.run(wants, states) for k, v in part.items()}
    assert not patcher.plain
    return {k: [s.logprob.mean(axis=-1)[1:-1] for s in v] for k, v in found.items()}


def clock(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (
        ("layers", 12),
        ("width", 384),
        ("vocab", 32000),
        ("tokens", 100),
        ("span", 8),
        ("after", 15),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1, help="of our side; the other has one example at a time")
    args = parser.parse_args()
    full, *sources = (make_model(seed, args) for seed in range(4))
    wants, texts = make_wants(args)
    plan = make_plan(full)
    kinds = {"S1 + S2": 2, "S1 + S2 + one more": 3}
    seconds: dict[tuple[str, str], list[float]] = {}
    worst = 0.0
    for _ in range(args.rounds):
        for kind, count in kinds.items():
            t, mine = clock(lambda n=count: ours(full, sources[:n], wants, plan, args.batch_size))
            seconds.setdefault((kind, "ours"), []).append(t)
            if kind == "S1 + S2":
                t, theirs = clock(
                    lambda n=count: [naive(full, sources[:n], w, x, True) for w, x in zip(wants, texts, strict=True)]
                )
                seconds.setdefault((kind, "naive"), []).append(t)
                for want, scores in zip(wants, theirs, strict=True):
                    pairs = zip(mine[want.key], scores, strict=True)
                    worst = max(worst, *(float(np.abs(a - b).max()) for a, b in pairs))
        t, _ = clock(lambda: [naive(full, sources[2:3], w, x, False) for w, x in zip(wants, texts, strict=True)])
        seconds.setdefault(("one more", "naive"), []).append(t)
    best = {k: float(np.median(v)) for k, v in seconds.items()}
    more = best["S1 + S2 + one more", "ours"] - best["S1 + S2", "ours"]
    print(f"{args.layers} layers, width {args.width}, {args.tokens} tokens, span {args.span}, vocabulary {args.vocab}")
    print(f"S1 + S2         naive {best['S1 + S2', 'naive']:.2f} s, ours {best['S1 + S2', 'ours']:.2f} s: "
          f"{best['S1 + S2', 'naive'] / best['S1 + S2', 'ours']:.1f}x")  # fmt: skip
    print(f"a further model naive {best['one more', 'naive']:.2f} s, ours {more:.2f} s: "
          f"{best['one more', 'naive'] / more:.1f}x")  # fmt: skip
    print(f"largest difference of a score: {worst:.1e}")


if __name__ == "__main__":
    main()
