"""The vocabulary axis, followed through runs: which packages receive or return logits.

A profiler looks at every call in the source while commands run on tiny models. A tensor whose last axis is as long as
the vocabulary stays in the packages that run models, sample and reduce; nothing else ever holds one.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import GOLDEN, LAB
from vestige import numeric
from vestige.cli import main
from vestige.collect.reduce import REDUCTIONS

SOURCE = Path(numeric.__file__).parent
DIFFUSION = GOLDEN / "lab_diffusion"
WITH_LOGITS = {"models", "collect"}  # packages that run a model, choose tokens and reduce logits


def arrays(value: Any, depth: int = 2) -> Iterator[Any]:
    """The tensors in a value: itself, or in the containers and records around them."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield value
    elif depth:
        inside: list[Any] = []
        if isinstance(value, (list, tuple)):
            inside = list(value[:100])
        elif type(value) is dict:
            inside = list(value.values())[:100]
        elif is_dataclass(value) and not isinstance(value, type):
            inside = [value.__dict__.get(f.name) for f in fields(value)] if hasattr(value, "__dict__") else []
        for one in inside:
            yield from arrays(one, depth - 1)


def wide(value: Any, vocabulary: int) -> bool:
    return any(x.ndim and x.shape[-1] == vocabulary for x in arrays(value))


@contextmanager
def watched(vocabulary: int) -> Iterator[set[str]]:
    """The functions of ours that receive or return something with a vocabulary axis while this is open."""
    seen: set[str] = set()
    root = f"{SOURCE}/"

    def look(frame: Any, event: str, arg: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(root):
            return
        name = f"{code.co_filename[len(root) : -3].replace('/', '.')}:{code.co_qualname}"
        if name in seen:
            return
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
        local: Mapping[str, Any] = frame.f_locals if event == "call" else {"": arg}
        names = [n for n in code.co_varnames[:count] if n != "self"] if event == "call" else [""]
        if any(wide(local.get(n), vocabulary) for n in names):
            seen.add(name)

    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield seen
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def vocabulary_of(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def evaluated(suite: str, root: Path) -> tuple[Path, list[str]]:
    model = root / "models" / "full"
    return model, ["eval", suite, "--model", str(model), "--data", str(root / "data"), "--limit", "1"]


def depth() -> tuple[Path, list[str]]:
    places = {"--unlearned": "unlearned", "--full": "full", "--retain-model": "retain"}
    models = [word for flag, name in places.items() for word in (flag, str(LAB / "models" / name))]
    return LAB / "models" / "full", ["depth", *models, "--forget", str(LAB / "data" / "forget.jsonl"), "--limit", "1"]


def collapse(place: Path) -> tuple[Path, list[str]]:
    rows = [{"prompt": f"who is {x}", "response": f"<think>one {x}</think> y", "group": x} for x in "abc"]
    file = place / "rollouts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return LAB / "models" / "full", ["collapse", str(file), "--model", str(LAB / "models" / "full")]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    place = tmp_path_factory.mktemp("vocabulary")
    runs = {
        "causal": evaluated("tofu", LAB),
        "diffusion": evaluated("tofu", DIFFUSION),
        "trajectory": evaluated("tofu_trajectory", DIFFUSION),
        "depth": depth(),
        "collapse": collapse(place),
    }
    out = {}
    for name, (model, argv) in runs.items():
        with watched(vocabulary_of(model)) as found:
            assert main([*argv, "--out", str(place / name), "--quiet"]) == 0
        out[name] = found
    return out


NAMED = {f"{f.__module__.removeprefix('vestige.')}:{f.__qualname__}" for f in REDUCTIONS}


def test_only_packages_that_run_models_see_the_vocabulary(seen: dict[str, set[str]]) -> None:
    strays = {}
    for run, names in seen.items():
        strays[run] = sorted(name for name in names if name.split(".")[0] not in WITH_LOGITS)
    assert not any(strays.values()), f"these see the vocabulary axis: {strays}"


def test_every_reduction_is_reached(seen: dict[str, set[str]]) -> None:
    """Otherwise the runs above would say nothing about them."""
    assert set().union(*seen.values()) >= NAMED
