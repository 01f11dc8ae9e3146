"""One side of bench/peers.py for RAGEN: a cross matrix by its own function, or by ours.

    python bench/peer_ragen.py theirs|ours MODEL ASK.json OUT.json

`theirs` runs in another environment and imports nothing of vestige. RAGEN's function gets its log-probabilities from a
worker of verl; the one here does what that worker does on one process: micro-batches of 16, logits at the response,
log-softmax, in inference mode (without the entropies that the worker also makes).
"""

from __future__ import annotations

import json
import sys
import time
import types
from pathlib import Path
from typing import Any


class Proto:
    """As much of verl's DataProto as the function uses."""

    def __init__(self, batch: dict[str, Any], meta_info: dict[str, Any] | None = None) -> None:
        self.batch, self.meta_info = batch, meta_info or {}

    @classmethod
    def from_dict(cls, tensors: dict[str, Any], meta_info: dict[str, Any] | None = None, **_: Any) -> Proto:
        return cls(tensors, meta_info)


def loaded(path: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa").eval()


def theirs(path: str, ask: dict[str, Any]) -> tuple[list[list[float]], float]:
    import numpy as np
    import torch

    verl = types.ModuleType("verl")
    verl.DataProto = Proto  # type: ignore[attr-defined]
    sys.modules["verl"] = verl
    # Not through the package: its own imports want a trainer.
    from importlib import import_module

    package = types.ModuleType("ragen")
    home = next(Path(p) for p in sys.path if (Path(p) / "ragen" / "trainer" / "collapse_metrics.py").is_file())
    package.__path__ = [str(home / "ragen")]
    trainer = types.ModuleType("ragen.trainer")
    trainer.__path__ = [str(home / "ragen" / "trainer")]
    sys.modules |= {"ragen": package, "ragen.trainer": trainer}
    detector = import_module("ragen.trainer.collapse_metrics").CollapseDetector(micro_batch_size=16)
    model = loaded(path)

    @torch.inference_mode()
    def log_probs(data: Proto) -> Proto:
        parts = []
        width = data.batch["responses"].shape[1]
        for at in range(0, len(data.batch["input_ids"]), 16):
            one = {k: data.batch[k][at : at + 16] for k in ("input_ids", "attention_mask", "position_ids", "responses")}
            label = one.pop("responses")
            logits = model(**one, use_cache=False).logits[:, -width - 1 : -1].float()
            parts.append(logits.log_softmax(-1).gather(-1, label[..., None])[..., 0])
        return Proto({"old_log_probs": torch.cat(parts)})

    groups = np.arange(len(ask["prompts"]))
    prompts = {int(g): torch.tensor(ask["prompts"][g]) for g in groups}
    ids, mask = detector._build_padded_token_batch(ask["reasonings"], 0, torch.device("cpu"))
    start = time.process_time()
    _, sums = detector._compute_cross_log_probs(Proto({}), log_probs, prompts, groups, ids, mask)
    return sums.tolist(), time.process_time() - start


def ours(path: str, ask: dict[str, Any]) -> tuple[list[list[float]], float]:
    from vestige.collect.cross import CrossScorer

    model = loaded(path)
    prompts, reasonings = ([tuple(ids) for ids in ask[name]] for name in ("prompts", "reasonings"))
    start = time.process_time()
    scorer = CrossScorer(model)
    sums = scorer(prompts, reasonings).sums
    spent = time.process_time() - start
    assert not scorer.plain, scorer.cost.notes
    return sums.tolist(), spent


def main() -> None:
    side, model, ask, out = sys.argv[1:]
    sums, seconds = {"theirs": theirs, "ours": ours}[side](model, json.loads(Path(ask).read_text(encoding="utf-8")))
    Path(out).write_text(json.dumps({"sums": sums, "seconds": seconds}), encoding="utf-8")


if __name__ == "__main__":
    main()
