"""vestige next to a peer-style loop, in one run: processor time, tokens, and the equality of every value.

    python bench/tofu.py                          the golden lab's full model and rows (a minute)
    python bench/tofu.py --model DIR --data DIR   any checkpoint on any rows (forget.jsonl, retain.jsonl, ...)
    python bench/tofu.py --model DIR --tofu DIR   or on TOFU's own files; --write: into docs/bench.md

The peer (bench/peer_loop.py) runs each metric as its own padded pass in batches of 32 and calls HF generate for each
ROUGE metric. Both work on the same model object, one after the other, on one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

import peer_loop
import vestige
from measure import DOCS, Comparison, circumstances, forwards, markdown, replace_section, save

LAB = Path(__file__).parent.parent / "tests" / "golden" / "lab"
FILES = ("forget", "retain", "holdout", "real_authors", "world_facts")
OPEN, CLOSE = "<!-- tofu table -->", "<!-- /tofu table -->"
HEAD = (
    "case", "peer, CPU s", "vestige, CPU s", "times faster", "tokens scored, peer / vestige",
    "tokens decoded, peer / vestige", "the same numbers?",
)  # fmt: skip
# Where real TOFU keeps them. It has no holdout rows; other retain authors stand in (a benchmark, not a result).
TOFU = {
    "forget": "forget10_perturbed", "retain": "retain_perturbed", "holdout": "retain90",
    "real_authors": "real_authors_perturbed", "world_facts": "world_facts_perturbed",
}  # fmt: skip
Rows = dict[str, list[dict[str, Any]]]


def real_rows(folder: Path, rows: int) -> Rows:
    out = {}
    for name, stem in TOFU.items():
        lines = (folder / f"{stem}.json").read_text().splitlines()
        start = 1000 if name == "holdout" else 0
        out[name] = [json.loads(line) for line in lines[start : start + rows]]
        for row in out[name]:
            row.pop("task_id", None)
    return out


def write_rows(folder: Path, data: Rows) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in data.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def worst(peer: Any, ours: Any) -> Iterator[tuple[str, float]]:
    """(path, difference) of every number both sides have; texts count 0 or 1."""
    if isinstance(peer, dict):
        for key in peer:
            if key in ours:
                for path, gap in worst(peer[key], ours[key]):
                    yield f"{key}/{path}", gap
    elif isinstance(peer, list):
        for a, b in zip(peer, ours, strict=True):
            yield from worst(a, b)
    elif isinstance(peer, str):
        yield "text", float(peer != ours)
    elif isinstance(peer, (int, float)) and isinstance(ours, (int, float)):
        yield "", abs(peer - ours) / (1 + abs(peer))


def compare(title: str, model: Any, tokenizer: Any, data: Rows) -> tuple[Comparison, list[str]]:
    """The outcome, and its line of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_rows(Path(scratch) / "data", data)
        with forwards() as inside:
            start = time.process_time()
            result = vestige.evaluate(
                model, tokenizer=tokenizer, data=folder, out=Path(scratch) / "run", progress=False
            )
            seconds = time.process_time() - start
        ours = json.loads((Path(scratch) / "run" / "TOFU_EVAL.json").read_text())
        cost = result.manifest["cost"]
    start = time.process_time()
    peer = peer_loop.evaluate(model, tokenizer, data, system_prompt=None)
    peer_seconds = time.process_time() - start
    gaps = list(worst(peer["metrics"], ours))
    texts = [gap for path, gap in gaps if path.endswith("text")]
    numbers = [gap for path, gap in gaps if not path.endswith("text")]
    words = (
        f"{len(texts) - sum(texts):.0f} of {len(texts)} texts equal, {len(numbers):,} numbers within {max(numbers):.0e}"
    )
    equal = max(numbers) < 1e-3 and not sum(texts)
    way, counts = "a padded pass per metric, HF generate", peer["counts"]
    overhead = seconds / inside["seconds"] - 1
    tokens = f"{counts['score_tokens_padded']:,} / {cost['score_tokens']:,}"
    steps = f"{counts['gen_tokens_emitted']:,} / {cost['decode_row_steps']:,}"
    cells = [title, f"{peer_seconds:.0f}", f"{seconds:.0f}", f"{peer_seconds / seconds:.1f}", tokens, steps, words]
    return Comparison("eval", title, way, peer_seconds, seconds, equal, words, overhead), cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=LAB / "models" / "full")
    parser.add_argument("--data", type=Path, default=LAB / "data")
    parser.add_argument("--tofu", type=Path, help="directory with TOFU's own files (forget10_perturbed.json, ...)")
    parser.add_argument("--rows", type=int, default=20, help="rows of each split of --tofu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true", help="into docs/bench.md")
    args = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    data = real_rows(args.tofu, args.rows) if args.tofu else peer_loop.read_data(args.data)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(args.model), AutoTokenizer.from_pretrained(args.model)
    comparison, cells = compare(f"{args.model.parent.name}/{args.model.name}", model, tokenizer, data)
    table = markdown(HEAD, [cells])
    print(table)
    save(args.json, [comparison])
    if args.write:
        replace_section(DOCS / "bench.md", f"{circumstances()}\n\n{table}", OPEN, CLOSE)


if __name__ == "__main__":
    main()
