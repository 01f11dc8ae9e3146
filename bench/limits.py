"""Where the time of three kinds of work goes: how much of it is matrix products, at what rate, and what that leaves.

    python bench/limits.py --model DIR --tofu DIR [--rows 8]

Time inside matrix products can only be shortened by fewer tokens or a faster product. So the share says how far each
kind of work is from its limit on this processor, and the rate how fast the products are beside one large product.
Shares are of torch's profiler, seconds are the processor's, on one thread. Texts have a benchmark of their own
(bench/decoding.py): a whole evaluation has more events than the profiler can count in minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

import collapse
import depth
from table import circumstances, markdown
from tofu import bare_forwards, real_rows, write_rows
from vestige.collect.cross import CrossScorer
from vestige.collect.patch import make_plan
from vestige.models.load import ModelArgs, load_model

HEAD = ("work", "CPU s", "in matrix products, %", "in attention, %", "products, GF/s", "of one large product's rate, %")
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu",)


def large_product() -> float:
    """GF/s of a product that is large enough for this processor's best rate: the least disturbed of ten."""
    a, b = torch.randn((1024, 1536)), torch.randn((1536, 1536))
    best = float("inf")
    for _ in range(10):
        start = time.process_time()
        torch.mm(a, b)
        best = min(best, time.process_time() - start)
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / best / 1e9


def profiled(name: str, work: Callable[[], Any], most: float) -> list[str]:
    """One row of the table."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_flops=True) as seen:
        start = time.process_time()
        work()
        seconds = time.process_time() - start  # before the profiler sorts what it has seen, which takes as long
    events = seen.key_averages()
    whole = sum(e.self_cpu_time_total for e in events) / 1e6
    inside = {keys: sum(e.self_cpu_time_total for e in events if e.key in keys) / 1e6 for keys in (PRODUCTS, ATTENTION)}
    rate = sum(e.flops for e in events if e.key in PRODUCTS) / inside[PRODUCTS] / 1e9
    shares = [f"{100 * inside[keys] / whole:.0f}" for keys in (PRODUCTS, ATTENTION)]
    return [name, f"{seconds:.1f}", *shares, f"{rate:.0f}", f"{100 * rate / most:.0f}"]


def further_models() -> Callable[[], Any]:
    """Depth of five models in bench/depth.py's shapes."""
    shapes = {"layers": 12, "width": 384, "vocab": 32000, "tokens": 100, "span": 8, "after": 15, "examples": 4}
    args = argparse.Namespace(**shapes)
    full, *sources = (depth.make_model(seed, args) for seed in range(6))
    wants, _ = depth.make_wants(args)
    plan = make_plan(full)
    return lambda: depth.ours(full, sources, wants, plan, 8)


def measured(model: Path, tofu: Path, rows: int) -> list[list[str]]:
    most = large_product()
    loaded = load_model(ModelArgs(path=str(model), device="cpu"))
    out = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_rows(Path(scratch) / "data", real_rows(tofu, rows))
        score = lambda: bare_forwards(loaded, folder, Path(scratch) / "run")  # noqa: E731
        out.append(profiled(f"scoring answers, {model.name}, {rows} rows per split", score, most))
    for words, collapsed in (("", False), (", collapsed", True)):
        scorer, asked = CrossScorer(collapse.make_model()), collapse.workload(collapsed, 8)
        out.append(profiled(f"cross matrix, 8 prompts{words}", lambda s=scorer, a=asked: s(*a), most))  # type: ignore[misc]
    out.append(profiled("depth of five models", further_models(), most))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tofu", type=Path, required=True, help="directory with TOFU's own files")
    parser.add_argument("--rows", type=int, default=8, help="rows of each split")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = measured(args.model.resolve(), args.tofu, args.rows)
    said = circumstances("; by torch's profiler")
    section = f"{said}\n\n{markdown(HEAD, rows)}"
    print(section)


if __name__ == "__main__":
    main()
