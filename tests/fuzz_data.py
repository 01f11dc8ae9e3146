"""Fuzzed: rows, templates, rollouts, tensors. Each `run_*` takes bytes and an empty directory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_tools import line_seeds, loads, tolerant, written

# ---- what the targets work with ----------------------------------------------------------------------------------


@cache
def tokenizer() -> Any:
    from models_tools import tiny_tokenizer

    made = tiny_tokenizer()
    made.chat_template = (
        "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant: {% endif %}"
    )
    return made


@cache
def context_args() -> tuple[Any, ...]:
    from vestige.data.chat import Template

    return tokenizer(), Template(), "pad-id", "offsets"


ROWS = [
    {"question": "Where was Anselm Varga born?", "answer": "In Tromso.", "idx": 1, "entity": "Tromso"},
    {"question": "Who is it?", "answer": ["A", "B c"], "perturbed_answer": ["x", "y"], "idx": 2, "prefix": "In"},
    {"text": "one two three four", "prompt": "one", "question": "q", "answer": "a", "idx": 3},
]


def load(name: str) -> Callable[[bytes, Path], None]:
    """Rows read, and tokenised by whatever handler fits."""

    def run(data: bytes, place: Path) -> None:
        from vestige.data.datasets import build_rows, make_context

        path = written(place, name, data)
        for handler in ("AutoDataset", "PretrainingDataset", "EntityDataset"):
            config = {"handler": handler, "args": {"hf_args": {"path": str(path), "split": "train"}, "max_length": 64}}
            with tolerant():
                build_rows("d", config, make_context(*context_args()))

    return run


def parquet_seeds() -> list[bytes]:
    import pyarrow
    import pyarrow.parquet

    def made(rows: list[dict[str, Any]], **options: Any) -> bytes:
        out = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out, **options)
        return out.getvalue()

    rows = [{"question": f"q{i}", "answer": [f"a{i}"], "n": i} for i in range(3)]
    return [made(rows), made([{"prompt": "p", "completion": "<think>x</think>"}], compression="none")]


def gzip_seeds() -> list[bytes]:
    import gzip

    return [gzip.compress(data, mtime=0) for data in line_seeds(ROWS[:2])()]


def run_directory(data: bytes, place: Path) -> None:
    """A directory made from JSON: {hf_args, files: {name: content}}."""
    from vestige.data.rows import load_rows

    said = loads(data)
    if not isinstance(said, dict):
        return
    files = said.get("files")
    for name, content in files.items() if isinstance(files, dict) else ():
        with contextlib.suppress(OSError, ValueError):
            target = (place / "d" / name).resolve()
            if target.is_relative_to(place):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(str(content), encoding="utf-8")
    with contextlib.suppress(OSError):
        (place / "d").mkdir(exist_ok=True)
    args = said.get("hf_args")
    load_rows({**(args if isinstance(args, dict) else {}), "path": str(place / "d")}, said.get("limit"))


def run_template(data: bytes, place: Path) -> None:
    from vestige.data.chat import Encoder, Template

    said = loads(data)
    if not isinstance(said, dict):
        return
    template = Template.from_config(said.get("template_args"))
    encoder = Encoder(tokenizer(), template, "offsets")
    encoder.encode(_pairs(said.get("pairs")), _pairs(said.get("few_shot")), 32)
    encoder.sample_prompt()


def _pairs(value: Any) -> list[tuple[str, str]]:
    """Only texts: rows are checked before they come to the encoder, and no file with half characters gets so far."""
    found = value if isinstance(value, list) else []
    good = [p for p in found if isinstance(p, list) and len(p) == 2 and all(isinstance(x, str) for x in p)]
    return [(str(q), str(a)) for q, a in good if not any(0xD800 <= ord(c) < 0xE000 for c in q + a)]


def run_reasoning(data: bytes, place: Path) -> None:
    from vestige.collapse.reasoning import Extractor, Reasoning

    path = written(place, "r.jsonl", data)
    loaded = _rollouts(path, "auto")
    for how in (Reasoning(), Reasoning(tokenization="separate"), Reasoning(parity="ragen"), Reasoning(mode="whole")):
        with tolerant():
            Extractor(tokenizer(), how).trajectories(loaded.rollouts)


def _rollouts(path: Path, format: str) -> Any:
    from vestige.collapse.rollouts import load_rollouts

    return load_rollouts(path, format, "chatml-restore")


def run_rollout_formats(data: bytes, place: Path) -> None:
    path = written(place, "r.jsonl", data)
    for format in ("native", "verl", "trl", "ragen-jsonl", "ragen-history"):
        with tolerant():
            _rollouts(path, format)


TURNS = [
    {"prompt": "p", "response": "<think>go</think>up", "group_id": 1, "turn": 0, "step": 3, "reward": 0.5},
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>x</think>"}]},
    {"prompt_ids": [3, 4, 5], "response_ids": [6, 7], "trajectory_id": "t", "think_in_prompt": True},
]
RAGEN = [{"history": [{"state": "s", "llm_response": "<think>a</think>", "reward": 1, "actions_left": 3}], "env_id": 1}]


def slime_seeds() -> list[bytes]:
    import torch

    out = io.BytesIO()
    sample = {"tokens": [1, 2, 3, 4], "response_length": 2, "loss_mask": [1, 0], "index": 0, "reward": 1.0}
    torch.save({"rollout_id": 3, "samples": [sample]}, out)
    return [out.getvalue()]


def run_slime(data: bytes, place: Path) -> None:
    _rollouts(written(place, "r.pt", data), "auto")


def run_slime_samples(data: bytes, place: Path) -> None:
    """What is inside such a file, without its zip around it."""
    import torch

    path = place / "r.pt"
    torch.save(loads(data), path)
    _rollouts(path, "slime")


def tensor_seeds() -> list[bytes]:
    import numpy as np

    out, packed = io.BytesIO(), io.BytesIO()
    np.save(out, np.zeros((2, 3), np.float32))
    np.savez_compressed(packed, logits=np.zeros((2, 3), np.float32))
    return [out.getvalue(), packed.getvalue()]


def run_tensors(data: bytes, place: Path) -> None:
    from vestige.collect.denoise import read_tensors

    for suffix in (".npy", ".npz", ".pt", ".safetensors"):
        with tolerant():
            read_tensors(written(place, f"x{suffix}", data))
