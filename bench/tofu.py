"""vestige beside a peer-style loop, in one run: wall and processor time, tokens, and the equality of every value.

    python bench/tofu.py                          the lab's full model on the lab's rows (a minute or two)
    python bench/tofu.py --model DIR --data DIR   any checkpoint on any rows (forget.jsonl, retain.jsonl, ...)
    python bench/tofu.py --smollm2 DIR --tofu DIR SmolLM2-135M (fetched into DIR) on real TOFU rows, as it is and
                                                  after it has learned them by heart (pad = eos, and not);
                                                  --write: into docs/bench.md

The peer (bench/peer_loop.py) runs each metric as its own padded pass in batches of 32 and calls HF generate for each
ROUGE metric. Both work on the same model object, one after the other, with the same number of threads.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import peer_loop
from measure import Beside, save
from table import circumstances, markdown, put
from vestige.engine.config import make_config
from vestige.engine.evaluate import evaluate_config
from vestige.models.load import LoadedModel, wrap_model

FILES = ("forget", "retain", "holdout", "real_authors", "world_facts")
# Where real TOFU keeps them. It has no holdout rows; other retain authors stand in (a benchmark, not a result).
OPEN, CLOSE = "<!-- tofu table -->", "<!-- /tofu table -->"
HEAD = (
    "case", "peer, CPU s", "vestige, CPU s", "times faster", "tokens scored, peer / vestige",
    "tokens decoded, peer / vestige", "the same numbers?",
)  # fmt: skip
TOFU = {
    "forget": "forget10_perturbed", "retain": "retain_perturbed", "holdout": "retain90",
    "real_authors": "real_authors_perturbed", "world_facts": "world_facts_perturbed",
}  # fmt: skip


Clocks = np.ndarray  # wall seconds, processor seconds


def clocks() -> Clocks:
    return np.array([time.perf_counter(), time.process_time()])


def real_rows(folder: Path, rows: int) -> dict[str, list[dict[str, Any]]]:
    out = {}
    for name, stem in TOFU.items():
        lines = (folder / f"{stem}.json").read_text().splitlines()
        start = 1000 if name == "holdout" else 0
        out[name] = [json.loads(line) for line in lines[start : start + rows]]
        for row in out[name]:
            row.pop("task_id", None)
    return out


def write_rows(folder: Path, data: dict[str, list[dict[str, Any]]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in data.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


def run_peer(loaded: LoadedModel, data: dict[str, list[dict[str, Any]]]) -> tuple[dict[str, Any], Clocks]:
    start = clocks()
    result = peer_loop.evaluate(loaded.model, loaded.tokenizer, data, system_prompt=None)
    return result, clocks() - start


def run_ours(loaded: LoadedModel, folder: Path, out: Path) -> tuple[Any, Clocks]:
    run = make_config(model="in-memory", data=str(folder), out=str(out), progress=False)
    start = clocks()
    outcome = evaluate_config(run, loaded)
    return outcome, clocks() - start


def bare_forwards(loaded: LoadedModel, folder: Path, out: Path) -> tuple[float, float]:
    """Processor seconds of scoring, and of nothing but the forwards of the same packed batches, turn by turn.

    Alternating batch by batch keeps other load on the machine from favouring either side.
    """
    from vestige.collect import forward
    from vestige.collect.answers import AnswerCollector, default_limits, vocabulary
    from vestige.collect.backend import Cost
    from vestige.engine.prepare import make_encoder_context, prepare

    run = make_config(model="in-memory", data=str(folder), out=str(out), progress=False)
    wants = prepare(run, make_encoder_context(run, loaded.tokenizer, [])).wants
    targets = list({t.key: t for t in wants.answers}.values())
    vocab = vocabulary(loaded.model)
    collector = AnswerCollector(loaded.model, vocab, default_limits(False), Cost())
    spent = {"bare": 0.0}
    real = forward.logits_at

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        logits = real(*args, **kwargs)
        spent["bare"] += time.process_time() - start
        return logits

    forward.logits_at = timed
    try:
        start = time.process_time()
        for _ in collector.run(targets):
            pass
        whole = time.process_time() - start
    finally:
        forward.logits_at = real
    return whole, spent["bare"]


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


def compare(title: str, loaded: LoadedModel, data: dict[str, list[dict[str, Any]]]) -> tuple[Beside, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_rows(Path(scratch) / "data", data)
        outcome, ours = run_ours(loaded, folder, Path(scratch) / "run")
        peer, theirs = run_peer(loaded, data)
        whole, bare = bare_forwards(loaded, folder, Path(scratch) / "bare")
        mine = json.loads((Path(scratch) / "run" / "TOFU_EVAL.json").read_text())
    gaps = list(worst(peer["metrics"], mine))
    texts = [g for p, g in gaps if p.endswith("text")]
    numbers = [(g, p) for p, g in gaps if not p.endswith("text")]
    cost, counts, seconds = outcome.manifest["cost"], peer["counts"], outcome.manifest["seconds"]
    row = {
        "case": title,
        "peer seconds": round(theirs[0], 1),
        "vestige seconds": round(ours[0], 1),
        "times faster": round(theirs[0] / ours[0], 2),
        "times faster, processor time": round(theirs[1] / ours[1], 2),
        "tokens scored, peer": counts["score_tokens_padded"],
        "tokens scored, vestige": cost["score_tokens"],
        "distinct prefixes": cost["nodes"],
        "pushed / distinct prefixes": round(cost["score_tokens"] / cost["nodes"], 3),
        "tokens emitted, peer": counts["gen_tokens_emitted"],
        "decode row-steps, vestige": cost["decode_row_steps"],
        "tokens produced": cost["tokens_produced"],
        "of them proven": cost["tokens_proven"],
        "seconds by stage": seconds,
        "overhead over bare forwards": f"{100 * (whole / bare - 1):.1f} %",
        "values compared": len(gaps),
        "worst difference (relative)": max(numbers, default=(0.0, "")),
        "texts that differ": f"{sum(texts):.0f} of {len(texts)}",
    }
    print(json.dumps(row, indent=2), flush=True)
    gap, differ = row["worst difference (relative)"][0], sum(texts)
    said = f"{len(texts) - differ:.0f} of {len(texts)} texts equal, {len(numbers):,} numbers within {gap:.0e}"
    peer_way = "a padded pass per metric, HF generate"
    row |= {"processor seconds, peer": theirs[1], "processor seconds, vestige": ours[1], "equal": said}
    return Beside("eval", title, peer_way, theirs[1], ours[1], gap < 1e-3 and not differ, said, whole / bare - 1), row


def lines(found: Sequence[dict[str, Any]], rows: int) -> str:
    """The table of docs/bench.md."""
    cells = []
    for row in found:
        seconds = [row[f"processor seconds, {side}"] for side in ("peer", "vestige")]
        tokens = f"{row['tokens scored, peer']:,} / {row['tokens scored, vestige']:,}"
        steps = f"{row['tokens emitted, peer']:,} / {row['decode row-steps, vestige']:,}"
        times = f"{seconds[0] / seconds[1]:.1f}"
        cells.append([row["case"], f"{seconds[0]:.0f}", f"{seconds[1]:.0f}", times, tokens, steps, row["equal"]])
    return f"{circumstances(f'; {rows} rows per split')}\n\n{markdown(HEAD, cells)}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path)
    p.add_argument("--data", type=Path)
    p.add_argument("--smollm2", type=Path, help="where SmolLM2 is, or is to be fetched to")
    p.add_argument("--tofu", type=Path, help="directory with TOFU's own files (forget10_perturbed.json, ...)")
    p.add_argument("--rows", type=int, default=20, help="rows of each split")
    p.add_argument("--threads", type=int, default=torch.get_num_threads())
    p.add_argument("--skip-plain", action="store_true", help="only the model that learned its rows by heart")
    p.add_argument("--json", type=Path, metavar="FILE")
    p.add_argument("--write", action="store_true", help="with --smollm2: into docs/bench.md, on one thread")
    args = p.parse_args()
    torch.set_num_threads(1 if args.write else args.threads)
    found = smollm2(args) if args.smollm2 else [compare(*_lab(args))]
    save(args.json, [beside for beside, _ in found])
    if args.write:
        put(lines([row for _, row in found], args.rows), OPEN, CLOSE)


def _lab(args: argparse.Namespace) -> tuple[str, LoadedModel, dict[str, list[dict[str, Any]]]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if args.model is None:
        from vestige.lab.models import build_lab

        lab = build_lab(Path("saves/demo/lab"))
        args.model, args.data = lab.models["full"], lab.data
    data = {f: [json.loads(x) for x in (args.data / f"{f}.jsonl").read_text().splitlines()] for f in FILES}
    model, tokenizer = AutoModelForCausalLM.from_pretrained(args.model), AutoTokenizer.from_pretrained(args.model)
    return f"{args.model.parent.name}/{args.model.name}", wrap_model(model, tokenizer), data


def smollm2(args: argparse.Namespace) -> list[tuple[Beside, dict[str, Any]]]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from smollm2 import fetch, memorise

    place = fetch(args.smollm2)
    data = real_rows(args.tofu, args.rows)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
    found = []
    if not args.skip_plain:
        found.append(
            compare("SmolLM2-135M, real TOFU rows, as shipped (pad = eos)", wrap_model(model, tokenizer), data)
        )
    known = [row for name in FILES if name != "holdout" for row in data[name]]
    loss = memorise(model, tokenizer, known)
    # As shipped first: scoring and generation then hide other tokens, so that scoring drafts texts and proves none.
    # With a padding token of its own they see the same, and scoring proves what it can.
    for pad in ("eos", "a token of its own"):
        if pad != "eos":
            tokenizer.pad_token = "<|endoftext|>"
        title = f"SmolLM2-135M that has memorised the rows (loss {loss:.3f}), pad = {pad}"
        found.append(compare(title, wrap_model(model, tokenizer), data))
    return found


if __name__ == "__main__":
    main()
