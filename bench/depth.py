"""Layered patching next to one full forward per layer, in one run: processor seconds, equality of every score.

    python bench/depth.py                    12 layers, width 384, 100 tokens, span 8, vocabulary 32,000
    python bench/depth.py --after 0          the entity at the very end (default: 15 tokens follow it)

In TOFU's forget10 15 of 60 tokens follow the entity, on average. They cannot matter; only the other side pays for them.

The other side runs each source once and the target once for every layer, over the whole text, with logits everywhere,
as published code does. Both work on the same models and threads, turn by turn, each with its own default batch size
(--peer-batch 8 gives both the same).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))

from measure import Comparison, operations, over_forwards, save, time_in_turns
from vestige.collect.backend import Cost
from vestige.collect.layered_patching import Patcher
from vestige.collect.patch import PatchPlan, collect_states, make_plan
from vestige.types import Target
from vestige.wants import PatchWant

MORE = 3  # further models that share its forwards; the cost of one is a third of what they add


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
def naive(
    full: Any, sources: Sequence[Any], wants: Sequence[PatchWant], texts: list[list[int]], clean: bool
) -> dict[str, list[np.ndarray]]:
    """One full forward per layer over a batch: scores (layers,) of each source; with `clean` also the target's own."""
    ids = torch.tensor(texts)
    labels = torch.tensor([w.target.labels for w in wants])
    span = slice(wants[0].first, wants[0].end)  # all texts are alike in length and place of the entity

    def scores() -> np.ndarray:
        logits = full(input_ids=ids, use_cache=False).logits[:, span].float()
        return logits.log_softmax(-1).gather(2, labels[..., None]).mean(dim=(1, 2)).numpy()

    if clean:
        scores()
    out: dict[str, list[np.ndarray]] = {w.key: [] for w in wants}
    for source in sources:
        states = source(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        found = []
        for layer, block in enumerate(full.model.layers[:-1]):  # the last one would get a state after the final norm

            def patch(module: Any, args: Any, output: Any, state: torch.Tensor = states[layer + 1]) -> Any:
                hidden = (output[0] if isinstance(output, tuple) else output).clone()
                hidden[:, span] = state[:, span]
                return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

            handle = block.register_forward_hook(patch)
            found.append(scores())
            handle.remove()
        scores()  # the last layer costs as much as the others
        for i, w in enumerate(wants):
            out[w.key].append(np.array([x[i] for x in found]))
    return out


def ours(
    full: Any, sources: Sequence[Any], wants: Sequence[PatchWant], plan: PatchPlan, batch: int
) -> dict[str, list[np.ndarray]]:
    states = [{k: v for b in collect_states(s, wants, plan, batch) for k, v in b.items()} for s in sources]
    patcher = Patcher(full, plan, Cost(), batch)
    patcher.verify = lambda *a: None  # type: ignore[method-assign] # paid once per run, not per example
    found = {k: v for part in patcher.run(wants, states) for k, v in part.items()}
    assert not patcher.plain
    return {k: [s.logprob.mean(axis=-1)[1:-1] for s in v] for k, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 12, "width": 384, "vocab": 32000, "tokens": 100, "span": 8, "after": 15, "examples": 4}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8, help="examples in a forward, on our side (our default)")
    parser.add_argument("--peer-batch", type=int, default=1, help="on the other side (published code's default)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    full, *sources = (make_model(seed, args) for seed in range(3 + MORE))
    wants, texts = make_wants(args)
    plan = make_plan(full)

    def layer_by_layer(chosen: Sequence[Any], clean: bool) -> dict[str, list[np.ndarray]]:
        size = args.peer_batch
        starts = range(0, len(wants), size)
        parts = [naive(full, chosen, wants[i : i + size], texts[i : i + size], clean) for i in starts]
        return {key: scores for part in parts for key, scores in part.items()}

    ways: dict[str, Callable[[], Any]] = {
        "ours, two": lambda: ours(full, sources[:2], wants, plan, args.batch_size),
        "peer, two": lambda: layer_by_layer(sources[:2], True),
        "ours, more": lambda: ours(full, sources, wants, plan, args.batch_size),
        "peer, one": lambda: layer_by_layer(sources[2:3], False),
    }
    results, seconds = time_in_turns(ways, args.rounds)
    counts = {name: operations(work) for name, work in ways.items()}
    gaps = []
    for key, scores in results["peer, two"].items():
        gaps += [float(np.abs(a - b).max()) for a, b in zip(results["ours, two"][key], scores, strict=True)]
    equal, words, peer = max(gaps) < 1e-4, f"every score within {max(gaps):.0e}", "one full forward per layer"
    two = Comparison(
        "depth", f"{args.layers} layers, S1 + S2", peer, seconds["peer, two"], seconds["ours, two"], equal, words,
        over_forwards(ways["ours, two"]), fewer=counts["peer, two"] / counts["ours, two"],
    )  # fmt: skip
    # One further model is a third of what three of them add; there is no overhead of a difference.
    further = (seconds["ours, more"] - seconds["ours, two"]) / MORE
    fewer = counts["peer, one"] * MORE / (counts["ours, more"] - counts["ours, two"])
    more = Comparison(
        "depth",
        f"{args.layers} layers, a further model",
        peer,
        seconds["peer, one"],
        further,
        equal,
        words,
        fewer=fewer,
    )
    save(args.json, [two, more])


if __name__ == "__main__":
    main()
