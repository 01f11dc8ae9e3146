"""Two source trees timed in alternation on the same work: processor seconds, peak memory, and equal result files.

    python bench/compare_trees.py OLD/src NEW/src             four cases, three runs each (a few minutes)
    python bench/compare_trees.py OLD/src NEW/src --tiny      the golden models and a few rows: does it work?
    python bench/compare_trees.py OLD/src NEW/src --only depth --runs 5

The cases are those of bench/tofu.py, depth.py, collapse.py and trajectory.py, run through the public command line,
because both trees have that. Models are random and large enough that forwards take most of the time. Each run is a
process of its own with one thread: it runs the command once on few rows, which pays for imports, and then the whole.
Only the whole is measured. Memory is the peak above what the process held before the whole.

The exit status is 1 if result files differ or the new tree takes more than 5 % longer (median of the runs) on any case.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from measure import circumstances, markdown, measured_memory

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
LAB, DIFFUSION = GOLDEN / "lab", GOLDEN / "lab_diffusion"
SAMPLER = "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs"
# Keys of results that differ between any two runs: when, how long, and where.
VARYING = ("created", "elapsed_sec", "sec_per_evaluable", "timing_s", "s1_cache")
TOLERANCE = 0.05  # how much longer the new tree may take
HEAD = ("case", "old, CPU s", "new, CPU s", "new / old", "old, peak MB", "new, peak MB", "result files")


@dataclass(frozen=True)
class Case:
    """A command without its --out: on few rows, to warm up, and whole; and the result files that must agree."""

    name: str
    warm: list[str]
    whole: list[str]
    results: tuple[str, ...]


# ---- models and data -------------------------------------------------------------------------------------------------


def save_causal_model(place: Path, seed: int, tiny: bool) -> Path:
    """A random Llama with the golden lab's tokenizer; if tiny, the golden model itself."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    golden = LAB / "models" / place.name
    shutil.copytree(golden, place)
    if not tiny:
        torch.manual_seed(seed)
        config = LlamaConfig.from_pretrained(golden)
        config.update(
            {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 8,
             "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 512}
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(place)
    return place


def save_diffusion_model(place: Path, tiny: bool) -> Path:
    """A random mask predictor with the golden diffusion lab's tokenizer."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    golden = DIFFUSION / "models" / "full"
    shutil.copytree(golden, place)
    if not tiny:
        torch.manual_seed(0)
        config = BertConfig.from_pretrained(golden)
        config.update({"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4})
        BertForMaskedLM(config).save_pretrained(place)
    return place


def write_rollouts(file: Path, prompts: int) -> Path:
    """Four reasonings for each of the golden lab's questions; they begin alike, as those of one prompt do."""
    rows = [json.loads(line) for line in (LAB / "data" / "retain.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = []
    for i, row in enumerate(rows[:prompts]):
        for answer in (row["answer"], row["paraphrased_answer"], *row["perturbed_answer"][:2]):
            response = f"<think>Let me recall what I know. {answer} That must be right.</think>{answer}"
            turn = {"messages": [{"role": "user", "content": row["question"]}], "response": response, "group_id": i}
            lines.append(json.dumps(turn) + "\n")
    file.write_text("".join(lines), encoding="utf-8")
    return file


def make_cases(scratch: Path, tiny: bool) -> list[Case]:
    models = [
        save_causal_model(scratch / name, seed, tiny) for seed, name in enumerate(("full", "retain", "unlearned"))
    ]
    full, retain, model = map(str, models)
    predictor = str(save_diffusion_model(scratch / "diffusion", tiny))
    forget = str(LAB / "data" / "forget.jsonl")
    few, rollouts = (
        write_rollouts(scratch / "few.jsonl", 2),
        write_rollouts(scratch / "rollouts.jsonl", 4 if tiny else 24),
    )

    def limited(words: list[str], rows: int) -> list[str]:
        return [*words, "--limit", str(rows), "--quiet"]

    tofu = ["eval", "tofu", "--model", model, "--data", str(LAB / "data")]
    tofu += ["stats.resamples=0"]
    depth = ["depth", "--unlearned", model, "--full", full, "--retain-model", retain, "--forget", forget]
    depth += ["--cluster", "none", "resamples=0"]
    trajectory = ["eval", "tofu_trajectory", "--model", predictor, "--data", str(DIFFUSION / "data")]
    trajectory += ["--cluster", "none", "stats.resamples=0", f"{SAMPLER}.steps={4 if tiny else 16}"]
    trajectory += [f"{SAMPLER}.max_new_tokens={16 if tiny else 40}"]
    collapse = ["collapse", "--model", model, "--resamples", "0", "--num-samples", "all", "--quiet"]
    return [
        Case("tofu", limited(tofu, 1), limited(tofu, 2 if tiny else 24), ("TOFU_EVAL.json", "TOFU_SUMMARY.json")),
        Case("depth", limited(depth, 1), limited(depth, 2 if tiny else 32), ("results.json", "summary.json")),
        Case("collapse", [*collapse, str(few)], [*collapse, str(rollouts)], ("metrics.json", "rows.jsonl")),
        Case("trajectory", limited(trajectory, 1), limited(trajectory, 1 if tiny else 8), ("TOFU_EVAL.json",)),
    ]  # fmt: skip


# ---- one run ---------------------------------------------------------------------------------------------------------


def run_in_child(order: dict[str, Any]) -> None:
    """What a measured process does; the tree is on its PYTHONPATH."""
    import torch

    import vestige
    from vestige.cli import main

    assert Path(vestige.__file__).is_relative_to(order["tree"]), vestige.__file__
    torch.set_num_threads(1)
    out = Path(order["out"])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main([*order["warm"], "--out", str(out / "warm")])
        with measured_memory() as memory:
            start = time.process_time()
            status = status or main([*order["whole"], "--out", str(out / "whole")])
            seconds = time.process_time() - start
    if status:
        raise SystemExit(f"{order['whole']} ended with {status}:\n{errors.getvalue()[-2000:]}")
    (out / "measured.json").write_text(json.dumps({"seconds": seconds, "megabytes": memory["megabytes"]}))


def run_case(case: Case, tree: Path, out: Path) -> dict[str, float]:
    """Processor seconds and peak megabytes of one run."""
    out.mkdir(parents=True)
    order = json.dumps({"tree": str(tree), "warm": case.warm, "whole": case.whole, "out": str(out)})
    env = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "VESTIGE_CACHE": str(out / "cache")}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", order]
    subprocess.run(command, cwd=out, env=env, check=True)
    found: dict[str, float] = json.loads((out / "measured.json").read_text(encoding="utf-8"))
    return found


# ---- equality --------------------------------------------------------------------------------------------------------


def read_result(place: Path, name: str) -> Any:
    found = sorted(place.rglob(name))
    if not found:
        raise SystemExit(f"{place} has no {name}")
    contents = [file.read_text(encoding="utf-8") for file in found]
    if name.endswith(".jsonl"):
        return [[json.loads(line) for line in text.splitlines()] for text in contents]
    return [json.loads(text) for text in contents]


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """(where, how much) for everything in which two results differ; infinite for keys, texts and lengths."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key.startswith(VARYING):
                continue
            if key in old and key in new:
                yield from differences(old[key], new[key], f"{path}/{key}")
            else:
                yield f"{path}/{key} in one tree only", math.inf
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{path}/{i}")
    elif isinstance(old, float) and isinstance(new, float):
        if old != new and not (math.isnan(old) and math.isnan(new)):
            yield path, abs(old - new) / (1 + abs(old))
    elif old != new:
        yield path, math.inf


def compare_results(case: Case, old: Path, new: Path) -> tuple[bool, str]:
    """Whether the files agree (numbers to 1e-6), and a word about it."""
    gaps = []
    for name in case.results:
        gaps += [(f"{name}{where}", gap) for where, gap in differences(read_result(old, name), read_result(new, name))]
    if not gaps:
        return True, "equal"
    where, worst = max(gaps, key=lambda gap: gap[1])
    if worst <= 1e-6:
        return True, f"{len(gaps)} numbers differ by up to {worst:.0e}"
    for place, gap in gaps[:10]:
        print(f"{case.name}: {place}: {gap:.1e}", file=sys.stderr)
    return False, f"**DIFFERENT**: {len(gaps)} values, first {where}"


# ---- the table -------------------------------------------------------------------------------------------------------


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def measure_case(case: Case, trees: dict[str, Path], runs: int, scratch: Path) -> tuple[bool, list[str]]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for turn in range(runs):
        # Who comes first changes with each turn: a machine that slows down must not favour one side.
        for name in list(trees) if turn % 2 == 0 else list(trees)[::-1]:
            measured[name].append(run_case(case, trees[name], scratch / case.name / f"{name}{turn}"))
    seconds = {name: [run["seconds"] for run in found] for name, found in measured.items()}
    megabytes = {name: [run["megabytes"] for run in found] for name, found in measured.items()}
    folder = scratch / case.name
    equal, words = compare_results(case, folder / "old0" / "whole", folder / "new0" / "whole")
    ratio = statistics.median(seconds["new"]) / statistics.median(seconds["old"])
    slow = ratio > 1 + TOLERANCE
    cells = [case.name, spread(seconds["old"], 2), spread(seconds["new"], 2), f"{ratio:.3f}" + " **SLOWER**" * slow]
    cells += [spread(megabytes["old"], 0), spread(megabytes["new"], 0), words]
    return equal and not slow, cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", help="the src directory of one tree")
    parser.add_argument("new", type=Path, nargs="?", help="and of the other")
    parser.add_argument("--runs", type=int, default=3, help="of each tree and case")
    parser.add_argument("--only", default="", metavar="NAME,...", help="tofu, depth, collapse, trajectory")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_in_child(json.loads(args.child))
        return 0
    if args.new is None:
        parser.error("two source trees are needed")
    trees = {"old": args.old.resolve(), "new": args.new.resolve()}
    for tree in trees.values():
        if not (tree / "vestige").is_dir():
            parser.error(f"{tree} has no vestige/")
    rows, good = [], True
    with tempfile.TemporaryDirectory(prefix="trees-") as scratch:
        for case in make_cases(Path(scratch), args.tiny):
            if args.only and case.name not in args.only.split(","):
                continue
            fine, cells = measure_case(case, trees, args.runs, Path(scratch))
            print(markdown(HEAD, [cells]).splitlines()[-1], file=sys.stderr, flush=True)
            rows.append(cells)
            good = good and fine
    print(f"{circumstances()} {args.runs} runs of each tree in alternation.\n\n{markdown(HEAD, rows)}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
