"""A decoding step beside its own matrix products: how much of this processor's rate is reached.

    python bench/decoding.py                    SmolLM2-135M's shape, 80 rows, 180 columns in the cache
    python bench/decoding.py --layers 30        all its layers (default 6; the share is that of 30 either way)

A step is timed as generation runs it; its matrix products and its attention are timed alone, on the same shapes, in
turn with the steps. Times are processor seconds, the least of --repeat.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))

from measure import circumstances, markdown, time_in_turns
from vestige.collect.forward import logits_at
from vestige.models.attention import without_copies
from vestige.models.kv_cache import SlotCache

WIDTH, INNER, KEPT, VOCABULARY, LAYERS = 576, 1536, 192, 49152, 30
# Of one layer: query and output, key and value, gate and up, down. (inputs, outputs): how many
PRODUCTS = {(WIDTH, WIDTH): 2, (WIDTH, KEPT): 2, (WIDTH, INNER): 2, (INNER, WIDTH): 1}
HEAD = (
    f"a step at {LAYERS} layers, ms", "share of the matrix rate",
    "per layer beside products, ms", "of it attention, ms",
)  # fmt: skip


def make_model(layers: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=layers,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def filled(model: Any, rows: int, columns: int, room: int) -> SlotCache:
    """A cache as after a prefill."""
    cache = SlotCache(model.config.num_hidden_layers, rows, columns + room)
    for slot in cache.slots:
        like = torch.randn((rows, 3, columns, 64))
        slot.admit(like, like, torch.arange(rows * columns).reshape(rows, columns), columns)
    return cache


@torch.inference_mode()
def measured(args: argparse.Namespace) -> dict[Any, float]:
    """Seconds of a step, of the attention of one layer, and of each product by its shape."""
    model = make_model(args.layers)
    mask = torch.ones((args.rows, args.columns + args.repeat + 1), dtype=torch.long)  # and one to warm up
    for row in range(args.rows):
        mask[row, : row // 2] = 0
    cache = filled(model, args.rows, args.columns, args.repeat + 1)

    def step() -> None:
        with without_copies(model):
            logits_at(
                model, torch.arange(args.rows), input_ids=torch.randint(0, VOCABULARY, (args.rows, 1)),
                attention_mask=mask[:, : cache.get_seq_length() + 1],
                position_ids=torch.full((args.rows, 1), args.columns), past_key_values=cache, use_cache=True,
            )  # fmt: skip

    works: dict[Any, Callable[[], Any]] = {"step": step}
    query = torch.randn((args.rows, 9, 1, 64))
    keys, values = (torch.randn((args.rows, 3, args.columns, 64)) for _ in range(2))
    allowed = mask[:, None, None, : args.columns].bool()
    works["attention"] = lambda: scaled_dot_product_attention(query, keys, values, allowed, enable_gqa=True)
    for k, n in [*PRODUCTS, (WIDTH, VOCABULARY)]:
        x, weight = torch.randn((args.rows, k)), torch.randn((n, k))
        works[k, n] = lambda x=x, weight=weight: linear(x, weight)  # type: ignore[misc]
    for work in works.values():
        work()  # kernels are chosen once
    return time_in_turns(works, args.repeat)[1]


def at_rest(products: dict[Any, float], layers: int) -> float:
    """Seconds of a step's products, at so many layers."""
    return products[WIDTH, VOCABULARY] + layers * sum(count * products[shape] for shape, count in PRODUCTS.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, default=80)
    parser.add_argument("--columns", type=int, default=180)
    parser.add_argument("--repeat", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(args)
    rest = (found["step"] - at_rest(found, args.layers)) / args.layers
    products = at_rest(found, LAYERS)
    whole = products + LAYERS * rest
    rates = [f"{k}x{n} {2 * args.rows * k * n / found[k, n] / 1e9:.0f}" for k, n in [*PRODUCTS, (WIDTH, VOCABULARY)]]
    said = circumstances(f". {args.rows} rows, {args.columns} columns; GF/s: {', '.join(rates)}")
    ms = [f"{1000 * seconds:.1f}" for seconds in (rest, found["attention"])]
    print(f"{said}\n\n{markdown(HEAD, [[f'{1000 * whole:.0f}', f'{100 * products / whole:.0f} %', *ms]])}")


if __name__ == "__main__":
    main()
