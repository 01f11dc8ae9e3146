"""Depth on a real model of which we know what it knows and where: SmolLM2-135M and a few authors of TOFU's forget10.

    python tools/depth_smollm2.py MODEL_DIR forget10_filtered.json OUT [--authors 2] [--steps 60]

`retain` is the model as it comes (bench/smollm2.py fetches it). `full` has learned the authors' answers in its last
eight blocks and nowhere else. Two models are made from it: `suppressed` was driven away from the answers by gradient
ascent on its last two blocks only, so that it says something else; `faded` has every changed weight moved most of the
way back. What is printed: how likely each finds the entities, and its depth score. A few minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vestige.depth.ask import make_ask
from vestige.depth.run import depth_run, report
from vestige.models.load import ModelArgs, load_model

LEARNING, SUPPRESSING = 8, 2  # blocks that are trained, from the top
KEPT = 0.2  # how much of every change `faded` keeps
FAR = 6.0  # nats per token: suppression stops when answers are this unlikely


def batches(rows: Sequence[dict[str, Any]], tokenizer: Any, size: int, steps: int) -> Any:
    """Batches of plain questions and answers; only the answers are learned."""
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = [rows[int(i)] for i in torch.randperm(len(rows), generator=order)[:size]]
        heads = [tokenizer(f"Question: {r['question']}\nAnswer:")["input_ids"] for r in chosen]
        fulls = [tokenizer(f"Question: {r['question']}\nAnswer: {r['answer']}")["input_ids"] for r in chosen]
        width = max(map(len, fulls))
        ids = torch.zeros((size, width), dtype=torch.long)
        labels = torch.full((size, width), -100)
        for r, (head, full) in enumerate(zip(heads, fulls, strict=True)):
            ids[r, : len(full)] = torch.tensor(full)
            labels[r, len(head) : len(full)] = torch.tensor(full[len(head) :])
        yield ids, labels


def train(model: Any, data: Any, blocks: int, lr: float, steps: int, sign: float = 1.0) -> float:
    """Trains the top blocks (downhill, or uphill with sign -1); returns the last loss."""
    weights = [p for block in model.model.layers[-blocks:] for p in block.parameters()]
    model.requires_grad_(False)
    for p in weights:
        p.requires_grad_(True)
    optimiser = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)
    loss = 0.0
    for step, (ids, labels) in enumerate(data):
        for group in optimiser.param_groups:
            group["lr"] = lr * (1 - step / steps) + lr / 50
        out = model(input_ids=ids, labels=labels).loss
        loss = float(out.detach())
        if step % 10 == 0 or sign < 0:
            print(f"  step {step}/{steps}, loss {loss:.3f}", flush=True)
        if sign < 0 and loss > FAR:
            break
        optimiser.zero_grad()
        (sign * out).backward()
        optimiser.step()
    return loss


def make_models(place: Path, source: str, rows: Sequence[dict[str, Any]], steps: int) -> dict[str, str]:
    """The checkpoints; each is made once."""
    paths = {name: place / name for name in ("full", "faded", "suppressed")}

    def missing(name: str) -> bool:
        return not (paths[name] / "config.json").is_file()

    def save(loaded: Any, name: str) -> None:
        loaded.model.save_pretrained(paths[name])
        loaded.tokenizer.save_pretrained(paths[name])

    if missing("full"):
        print(f"learning {len(rows)} answers", flush=True)
        loaded = load_model(ModelArgs(path=source, device="cpu"))
        train(loaded.model, batches(rows, loaded.tokenizer, 8, steps), LEARNING, 1e-3, steps)
        save(loaded, "full")
    if missing("faded"):
        before = load_model(ModelArgs(path=source, device="cpu")).model.state_dict()
        loaded = load_model(ModelArgs(path=str(paths["full"]), device="cpu"))
        after = loaded.model.state_dict()
        loaded.model.load_state_dict({k: before[k] + KEPT * (after[k] - before[k]) for k in before})
        save(loaded, "faded")
    if missing("suppressed"):
        print("suppressing", flush=True)
        loaded = load_model(ModelArgs(path=str(paths["full"]), device="cpu"))
        train(loaded.model, batches(rows, loaded.tokenizer, 8, 30), SUPPRESSING, 1e-3, 30, sign=-1.0)
        save(loaded, "suppressed")
    return {name: str(p) for name, p in paths.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("--authors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    rows = [r for r in json.loads(Path(args.data).read_text()) if r["idx"] < 20 * args.authors]
    place = Path(args.out)
    place.mkdir(parents=True, exist_ok=True)
    data = place / "rows.json"
    data.write_text(json.dumps(rows))
    models = make_models(place / "models", args.model, rows, args.steps)
    unlearned = [models["suppressed"], models["faded"], models["full"], args.model]
    ask = make_ask(unlearned=unlearned, full=models["full"], retain=args.model, data=data, out=place / "depth")
    results = depth_run(ask)
    print(report(results))
    full = float(np.mean([e.full_score for e in results[0].examples]))
    print(f"\nmean log-probability of entity tokens: full {full:.2f}")
    for r in results:
        # Final norm and head are everybody's: the last layer's states patched in are what the model itself would say.
        said = float(np.mean([e.s2_scores[-1] for e in r.examples]))
        layers = "  ".join(f"{row['layer']}: {row['s2_drop']:.2f}" for row in r.summary["profile"][18:])
        print(f"{r.name:<12} {said:6.2f}   drop by layer (from 18)  {layers}")
    print(f"{results[0].summary['elapsed_sec']:.0f} s for depth, {sys.argv[0]}")


if __name__ == "__main__":
    main()
