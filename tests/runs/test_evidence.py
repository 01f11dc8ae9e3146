"""Evidence files: what is written comes back, and a file that is not as written is never read as a number."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from vestige import UserError, read_evidence
from vestige.io import DamagedError
from vestige.runs.evidence import EvidenceFolder, Plan
from vestige.types import ARRAY_FIELDS, Text, TokenStats, Trace, stats


def answers(count: int, seed: int = 0) -> dict[str, TokenStats]:
    rng = np.random.default_rng(seed)
    return {f"{i:032d}": stats(logprob=rng.normal(size=int(rng.integers(1, 30)))) for i in range(count)}


def layers(count: int) -> dict[str, TokenStats]:
    rng = np.random.default_rng(2)
    return {f"k{i}": stats(logprob=rng.normal(size=(5, i + 1))) for i in range(count)}


def trace(steps: int, length: int, watched: int) -> Trace:
    rng = np.random.default_rng(steps)
    plane, ids = (steps, length), np.arange(length)
    return Trace(
        final=ids,
        fixed=np.minimum(ids, steps - 1),
        committed=np.arange(steps),
        canvas=rng.integers(0, 9, plane),
        proposal=rng.integers(0, 9, plane),
        top1=rng.integers(0, 9, plane),
        mean=rng.normal(size=plane).astype(np.float32),
        std=rng.normal(size=plane).astype(np.float32),
        labels=rng.integers(0, 9, (watched, length)),
        logprob=rng.normal(size=(watched, *plane)).astype(np.float32),
    )


KINDS: dict[str, dict[str, Any]] = {
    "answers": answers(7),
    "visible": answers(2),
    "patched": layers(4),
    "cross": {"b": np.float32([-1, -2.5]), "a": np.float32([]), "c": np.float32([-0.25])},
    "denoised": {"x": trace(3, 4, 2), "y": trace(1, 6, 0), "z": trace(2, 1, 1)},
    "gradients": {"a": 0.1, "b": float("nan"), "c": 1e300},
    "texts": {"a": Text((3, 4), "Pläne \ud800 \u2028\n", 1), "b": Text((), "", 0)},
    "requests": {"a": {"answers": [[-1.5, True], "x"], "random": {}}},
}


def assert_same_item(one: Any, other: Any) -> None:
    names = getattr(type(one), "__dataclass_fields__", None)
    if names is None or isinstance(one, Text):
        np.testing.assert_equal(other, one)
    else:
        for name in names:
            np.testing.assert_array_equal(getattr(other, name), getattr(one, name), name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_item_comes_back(kind: str, tmp_path: Path) -> None:
    items = KINDS[kind]
    folder = EvidenceFolder[Any](tmp_path, kind, "m")
    first, second = dict(list(items.items())[:2]), dict(list(items.items())[2:])
    folder.write(first, {"tokens": 5}, {"dtype": "float32"}, ["halved"])
    folder.write(second)
    for strict in (True, False):
        found = folder.load(strict)
        assert set(found) == set(items) and len(found) == len(items)
        assert found.how == {"dtype": "float32"} and found.notes == ["halved"]
        for key, item in items.items():
            assert key in found
            assert_same_item(item, found[key])
    with pytest.raises(KeyError):
        found["z" * 40]
    assert 3 not in found and "" not in found


@pytest.mark.parametrize("kind", KINDS)
def test_equal_evidence_is_equal_bytes(kind: str, tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        EvidenceFolder[Any](tmp_path / name, kind, "m").write(KINDS[kind], {"b": 1, "a": 2}, {"x": 1}, ["note"])
        (file,) = (tmp_path / name).rglob("*.*")
        files.append(file.read_bytes())
    assert files[0] == files[1]
    assert file.stem == min(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_as_written(kind: str, tmp_path: Path) -> None:
    """Cut short, with any byte changed, or of another model: collected again, and refused by name when scoring."""
    folder, other = (EvidenceFolder[Any](tmp_path / name, kind, name) for name in ("m", "n"))
    folder.write(KINDS[kind])
    other.write(KINDS[kind])
    (file,) = (tmp_path / "m").rglob("*.*")
    (theirs,) = (tmp_path / "n").rglob("*.*")
    whole = file.read_bytes()
    rng = np.random.default_rng(1)
    changes: list[bytes] = [b"", whole[: len(whole) // 2], whole[:-1], theirs.read_bytes()]
    for place in rng.integers(0, len(whole), 40).tolist():
        changes.append(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    for data in changes:
        file.write_bytes(data)
        assert len(folder.load()) == 0
        with pytest.raises(DamagedError, match=file.name):
            folder.load(strict=True)
    file.write_bytes(whole)
    assert set(folder.load(strict=True)) == set(KINDS[kind])


def test_what_else_lies_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    folder = EvidenceFolder[float](tmp_path, "gradients", "m")
    folder.write({"a": 1.0})
    folder.write_plan(Plan(["a", "b"], {"rows": 2}))
    folder.write_plan(Plan(["c"], {}))
    (folder.path / "plan-mine.json").write_text("[")
    (folder.path / "notes.txt").write_text("mine")
    assert dict(folder.load(strict=True)) == {"a": 1.0}
    assert sorted(folder.plans(), key=lambda plan: plan.keys) == [Plan(["a", "b"], {"rows": 2}), Plan(["c"], {})]


def test_two_lines_of_numpy_open_a_file(tmp_path: Path) -> None:
    items = answers(5)
    EvidenceFolder[TokenStats](tmp_path, "answers", "m").write(items)
    (file,) = tmp_path.rglob("*.safetensors")
    arrays = load_file(file)
    for row, item in enumerate(items.values()):
        first, end = arrays["offsets"][row : row + 2]
        for name in ARRAY_FIELDS:
            np.testing.assert_array_equal(arrays[name][first:end], getattr(item, name))


def test_read_evidence_names_what_is_there(tmp_path: Path) -> None:
    place = tmp_path / "evidence"
    mine, theirs = (EvidenceFolder[float](place, "gradients", name) for name in ("mine", "theirs"))
    mine.write({"a": 1.0})
    assert dict(read_evidence(tmp_path, "gradients")) == {"a": 1.0}
    theirs.write({"a": 2.0})
    assert dict(read_evidence(str(tmp_path), "gradients-theirs")) == {"a": 2.0}
    with pytest.raises(UserError, match="gradients-mine, gradients-theirs"):
        read_evidence(tmp_path, "gradients")
    (tmp_path / "manifest.json").write_text(json.dumps({"evidence": {"gradients": "gradients-mine"}}))
    assert dict(read_evidence(tmp_path, "gradients")) == {"a": 1.0}
    with pytest.raises(UserError, match="nothing"):
        read_evidence(tmp_path / "elsewhere", "answers")
    with pytest.raises(UserError, match="gradients-mine"):
        read_evidence(tmp_path, "answers")


def test_read_evidence_needs_no_torch(tmp_path: Path) -> None:
    EvidenceFolder[TokenStats](tmp_path / "evidence", "answers", "m").write(answers(2))
    code = (
        f"import sys, vestige; print(len(vestige.read_evidence({str(tmp_path)!r}, 'answers')), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]


def test_an_answer_costs_less_than_an_object_of_its_own(tmp_path: Path) -> None:
    folder = EvidenceFolder[TokenStats](tmp_path, "answers", "m")
    items = answers(4000)
    keys = sorted(items)
    for start in range(0, len(keys), 40):
        folder.write({key: items[key] for key in keys[start : start + 40]})
    folder.load()
    tracemalloc.start()
    try:
        found = folder.load()
        for key in keys:
            found[key]
        kept = tracemalloc.get_traced_memory()[0] / len(found)
    finally:
        tracemalloc.stop()
    assert kept < 700, kept  # 15 tokens of 20 bytes in recently read files, a key and its place; as objects 1,600
