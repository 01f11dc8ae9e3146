"""The golden collapse file, the tiny model that made it, and trajectories from it."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from conftest import GOLDEN
from vestige.collapse.reasoning import Extractor, Reasoning, Trajectory
from vestige.collapse.rollouts import rows_to_rollouts
from vestige.metrics.collapse import Cross, cross_of

HOME = GOLDEN / "collapse"
TINY = HOME / "tiny"


@cache
def golden() -> Any:
    return json.loads(gzip.decompress((HOME / "collapse.json.gz").read_bytes()))


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TINY)


@cache
def tiny(dtype: str = "float32") -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=getattr(torch, dtype)).eval()


def history_rows(which: str) -> list[dict[str, Any]]:
    """The golden rollouts with what RAGEN's configuration adds to them."""
    more = {"env_instruction": golden()["meta"]["sys_prefix"], "max_tokens": 64}
    return [{**row, **more} for row in golden()["rollouts"][which]]


@cache
def trajectories(which: str) -> list[Trajectory]:
    extractor = Extractor(tokenizer(), Reasoning(parity="ragen", tokenization="separate"))
    return extractor.trajectories(rows_to_rollouts(history_rows(which), "ragen-history"))


def call_cross(call: dict[str, Any], sums: Any = None) -> Cross:
    lengths = [len(z) for z in call["z_ids"]]
    return cross_of(call["cross_sum"] if sums is None else sums, lengths, call["col_ids"], columns(call))


def columns(call: dict[str, Any]) -> list[tuple[int, ...]]:
    return [tuple(call["x_ids"][call["group_ids"].index(g)]) for g in call["unique_groups"]]


def calls(dtype: str) -> list[tuple[str, dict[str, Any]]]:
    """(scenario, call) for every matrix in the file."""
    out = []
    for name, scenario in golden()[dtype].items():
        if isinstance(scenario, dict):
            out += [(name, c) for c in scenario.get("calls", ()) if "cross_sum" in c]
    return out


def random_cross(rows: int = 12, columns: int = 4, signal: float = 3.0, seed: int = 0) -> Cross:
    """Reasoning that is likelier under its own prompt by `signal` nats."""
    rng = np.random.default_rng(seed)
    own = np.arange(rows) % columns
    sums = rng.normal(-40, 2, (rows, columns))
    sums[np.arange(rows), own] += signal
    return cross_of(sums, rng.integers(5, 30, rows), own, range(columns))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def turn_rows(prompts: int = 4, samples: int = 3) -> list[dict[str, Any]]:
    """Answers to states that repeat the state they saw."""
    rows = []
    for p in range(prompts):
        state = f"Player ({p}, {p + 1}) Box ({p + 2}, 1)"
        for s in range(samples):
            response = f"<think>I see {state} so {'go up' if s else 'wait'}.</think><answer>Up</answer>"
            rows.append({"messages": [{"role": "user", "content": state}], "response": response, "group_id": p})
    return rows
