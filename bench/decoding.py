"""A decoding step beside its own matrix products: how much of this processor's rate is reached.

    python bench/decoding.py                    SmolLM2-135M's shape, 80 rows, 180 columns in the cache
    python bench/decoding.py --layers 30        all its layers (default 6; the share is that of 30 either way)
    ... --write                                 puts it into docs/bench.md

A step is timed as generation runs it, and as it would run with the library's attention; the products are timed alone,
on the same shapes, in turn with the steps. Times are processor seconds, the least of --repeat.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))

from table import circumstances, markdown, put
from vestige.collect.forward import logits_at
from vestige.models.cache import SlotCache
from vestige.models.calling import decoding, without_copies

OPEN, CLOSE = "<!-- decoding table -->", "<!-- /decoding table -->"
WIDTH, INNER, KEPT, VOCABULARY, LAYERS = 576, 1536, 192, 49152, 30
# Of one layer: query and output, key and value, gate and up, down. (inputs, outputs): how many
PRODUCTS = {(WIDTH, WIDTH): 2, (WIDTH, KEPT): 2, (WIDTH, INNER): 2, (INNER, WIDTH): 1}


def make_model(layers: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=layers,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def filled(model: Any, rows: int, columns: int, room: int, across: bool) -> SlotCache:
    """A cache as after a prefill."""
    cache = SlotCache(model.config.num_hidden_layers, rows, columns + room, across)
    for slot in cache.slots:
        like = torch.randn((rows, 3, columns, 64))
        slot.admit(like, like, torch.arange(rows * columns).reshape(rows, columns), columns)
    return cache


def least(works: dict[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Processor seconds of each, in turn."""
    out = dict.fromkeys(works, float("inf"))
    for _ in range(repeat):
        for name, work in works.items():
            start = time.process_time()
            work()
            out[name] = min(out[name], time.process_time() - start)
    return out


@torch.inference_mode()
def measured(args: argparse.Namespace) -> tuple[dict[str, float], dict[tuple[int, int], float]]:
    model = make_model(args.layers)
    mask = torch.ones((args.rows, args.columns + args.repeat), dtype=torch.long)
    for row in range(args.rows):
        mask[row, : row // 2] = 0
    caches = {name: filled(model, args.rows, args.columns, args.repeat, name == "ours") for name in ("ours", "library")}

    def step(name: str) -> None:
        cache = caches[name]
        with decoding(model) if name == "ours" else without_copies(model):
            logits_at(
                model, torch.arange(args.rows), input_ids=torch.randint(0, VOCABULARY, (args.rows, 1)),
                attention_mask=mask[:, : cache.get_seq_length() + 1],
                position_ids=torch.full((args.rows, 1), args.columns), past_key_values=cache, use_cache=True,
            )  # fmt: skip

    works: dict[str, Callable[[], Any]] = {name: lambda name=name: step(name) for name in caches}  # type: ignore[misc]
    shapes = [*PRODUCTS, (WIDTH, VOCABULARY)]
    for k, n in shapes:
        x, weight = torch.randn((args.rows, k)), torch.randn((n, k))
        works[f"{k}x{n}"] = lambda x=x, weight=weight: torch.nn.functional.linear(x, weight)  # type: ignore[misc]
    found = least(works, args.repeat)
    return found, {(k, n): found[f"{k}x{n}"] for k, n in shapes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, default=80)
    parser.add_argument("--columns", type=int, default=180)
    parser.add_argument("--repeat", type=int, default=12)
    parser.add_argument("--write", action="store_true", help="into docs/bench.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found, products = measured(args)
    head = products[WIDTH, VOCABULARY]
    layer = sum(count * products[shape] for shape, count in PRODUCTS.items())
    rows = []
    for name, words in (("ours", "as generation runs it"), ("library", "with the library's sdpa attention")):
        rest = (found[name] - head - args.layers * layer) / args.layers
        whole = head + LAYERS * (layer + rest)
        share = (head + LAYERS * layer) / whole
        rows.append([words, f"{1000 * whole:.0f}", f"{1000 * rest:.1f}", f"{100 * share:.0f} %"])
    rates = [f"{k}x{n} {2 * args.rows * k * n / s / 1e9:.0f}" for (k, n), s in products.items()]
    said = circumstances(f". {args.rows} rows, {args.columns} columns; GF/s: {', '.join(rates)}")
    columns = ("a step", f"ms at {LAYERS} layers", "ms per layer beside products", "share of the matrix rate")
    section = f"{said}\n\n{markdown(columns, rows)}"
    print(section)
    if args.write:
        put(section, OPEN, CLOSE)


if __name__ == "__main__":
    main()
