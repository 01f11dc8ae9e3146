"""What rows and evidence cost in memory: shared numbers, arrays laid end to end, files packed piece by piece."""

from __future__ import annotations

import gc
import gzip
import json
import math
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from vestige.data.chat import TOGETHER, Encoder, Template
from vestige.store.arrays import OnDisk, array_pieces
from vestige.store.evidence import Bank
from vestige.store.files import in_order, json_pieces, write_json, write_packed
from vestige.store.formats import AnswerFormat
from vestige.store.laid_out import Joined, LaidOut
from vestige.suites.registry import Found, MissingEvidence
from vestige.types import ARRAY_FIELDS, TokenStats, stats


def some(count: int, seed: int = 0) -> dict[str, TokenStats]:
    rng = np.random.default_rng(seed)
    return {f"{i:032d}": stats(logprob=rng.normal(size=int(rng.integers(1, 30)))) for i in range(count)}


@pytest.mark.parametrize(
    "body",
    [
        {"b": [1, {"c": 2, "a": "ä\ud800"}], "a": [], "": {}, "n": None},
        {str(k): {"examples": [[{"ids": list(range(i, 300)), "text": "x" * i}] for i in range(300)]} for k in range(3)},
        {"deep": {"deeper": {"deepest": {"list": [{"k": (1, 2)}]}}}, "list": [[], [[]], [[1]]]},
        [],
        {3: "numbers as names", 1: "are sorted as numbers"},
    ],
    ids=["small", "rows", "deep", "empty", "numbers"],
)
def test_rows_packed_piece_by_piece_are_the_bytes_of_rows_packed_at_once(tmp_path: Path, body: Any) -> None:
    write_packed(tmp_path / "rows.gz", body)
    text = json.dumps(body, ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass")
    assert (tmp_path / "rows.gz").read_bytes() == gzip.compress(text, compresslevel=6, mtime=0)


def test_evidence_is_made_of_long_arrays_when_it_is_asked_for() -> None:
    items = some(40)
    data = AnswerFormat().dump(items, {})
    loaded, _ = AnswerFormat().load(data)
    assert isinstance(loaded, LaidOut) and set(loaded) == set(items) and len(loaded) == 40
    for key, one in items.items():
        again = loaded[key]
        assert all(np.array_equal(getattr(again, name), getattr(one, name)) for name in (*ARRAY_FIELDS, "order"))
        assert again.steps == one.steps
    assert AnswerFormat().dump(loaded, {}) == data
    with pytest.raises(KeyError):
        loaded["x"]


def test_banks_of_several_parts_are_the_bank_of_all(tmp_path: Path) -> None:
    items = some(30)
    keys = sorted(items)
    bank, whole = Bank[TokenStats](tmp_path / "a", "answers", "m"), Bank[TokenStats](tmp_path / "b", "answers", "m")
    bank.merge({k: items[k] for k in keys[:10]})
    bank.begin(keys[10:], {})
    bank.add_part({k: items[k] for k in keys[10:15]})
    bank.add_part({k: items[k] for k in keys[15:]})
    bank.finish()
    assert set(bank.load()) == set(keys)
    whole.merge(items)
    assert bank.path.read_bytes() == whole.path.read_bytes()
    bank.merge({}, without=keys[:3])
    assert sorted(bank.load()) == keys[3:]


def test_what_comes_later_counts_and_what_is_lacking_is_named() -> None:
    joined = Joined({"a": 1, "b": 2}, {"b": 3})
    assert dict(joined) == {"a": 1, "b": 3} and dict(joined.only(["b"])) == {"b": 3}
    found = Found(joined)
    assert found["b"] == 3 and "x" not in found and found.get("x") is None and len(found) == 2
    with pytest.raises(MissingEvidence):
        found["x"]


class Counting:
    """A tokenizer of words that are numbers, which notes how many texts it is given at once."""

    chat_template = None
    eos_token_id = 2
    given: list[int] = []  # noqa: RUF012

    def __call__(self, texts: list[str], add_special_tokens: bool = False) -> dict[str, Any]:
        self.given.append(len(texts))
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


def test_equal_tokens_are_one_number_and_texts_are_tokenised_in_parts() -> None:
    encoder = Encoder(Counting(), Template(apply_chat_template=False))
    found = encoder.tokenize([f"{1000 + i % 7} 5000 {i}" for i in range(TOGETHER + 5)], special=False)
    assert found[-1] == (1000 + (TOGETHER + 4) % 7, 5000, TOGETHER + 4)
    assert len({id(ids[1]) for ids in found}) == 1 and len({id(ids[0]) for ids in found}) == 7
    assert Counting.given == [TOGETHER, 5]


def test_an_answer_costs_less_than_an_object_of_its_own() -> None:
    data = AnswerFormat().dump(some(2000), {})
    tracemalloc.start()
    try:
        loaded, _ = AnswerFormat().load(data)
        kept = tracemalloc.get_traced_memory()[0] / len(loaded)
    finally:
        tracemalloc.stop()
    assert kept < 700, kept  # 15 tokens of 20 bytes, a key and its place; as objects it was 1,600


ARRAYS: list[dict[str, Any]] = [
    {"label": np.arange(5, dtype=np.int32), "logprob": np.ones(5, np.float32), "offsets": np.arange(3)},
    {"z": np.ones((2, 3)), "a": np.zeros((0, 4), np.float32), "b": np.array([True, False]), "none": np.zeros(0)},
    {},
]


@pytest.mark.parametrize("arrays", ARRAYS)
def test_arrays_written_one_by_one_are_the_bytes_that_safetensors_writes(arrays: dict[str, Any]) -> None:
    said = {"bank": json.dumps({"keys": ["a", "\u00e9 \\ \n"]})}
    assert b"".join(array_pieces(arrays, said)) == save(arrays, metadata=said)


def test_evidence_on_disk_remains_what_was_checked(tmp_path: Path) -> None:
    """A bank that is written over, or removed, does not change what was read from it before."""
    items = some(30)
    bank = Bank[TokenStats](tmp_path, "answers", "m", {"version": 1})
    bank.merge(items)
    have = bank.load()
    assert isinstance(have, LaidOut) and isinstance(have.arrays, OnDisk)
    bank.merge({f"{i:032d}": one for i, one in enumerate(some(9, seed=1).values())})
    bank.path.unlink()
    for key, one in items.items():
        assert all(np.array_equal(getattr(have[key], name), getattr(one, name)) for name in (*ARRAY_FIELDS, "order"))
    assert "" not in have and "x" * 40 not in have and 3 not in have


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
def test_files_of_evidence_are_closed_when_nobody_reads_them(tmp_path: Path) -> None:
    bank = Bank[TokenStats](tmp_path, "answers", "m", {"version": 1})
    bank.merge(some(3))
    gc.collect()
    before = open_files()
    held = [bank.load() for _ in range(5)]
    assert open_files() == before + 5
    del held
    gc.collect()
    assert open_files() == before


@pytest.mark.parametrize("change", [-1, 0, 3, 9, 200])
def test_a_damaged_bank_is_not_read_from_disk(tmp_path: Path, change: int) -> None:
    bank = Bank[TokenStats](tmp_path, "answers", "m", {"version": 1})
    bank.merge(some(20))
    data = bytearray(bank.path.read_bytes())
    data[change] ^= 1
    bank.path.write_bytes(data)
    assert not bank.load() and bank.is_damaged
    bank.path.write_bytes(data[: len(data) // 2])
    assert not bank.load() and bank.is_damaged


def test_a_bank_in_another_order_is_read_all_the_same(tmp_path: Path) -> None:
    items = {key: some(4)[key] for key in sorted(some(4), reverse=True)}
    found = LaidOut(
        {
            **{name: np.concatenate([getattr(one, name) for one in items.values()]) for name in ARRAY_FIELDS},
            "offsets": np.cumsum([0, *(one.tokens for one in items.values())]),
        },
        list(items),
    )
    assert list(found) == list(items)
    assert all(np.array_equal(found[key].logprob, one.logprob) for key, one in items.items())


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize(
    "data",
    [
        {"b": {"c": [1, {"x": {}}]}, "a": {}, "10": {"z": None}, "9": {"q": {"r": {"s": {"t": {"u": {"v": [{}]}}}}}}},
        {"m": {"value_by_index": {"10": {"p": 0.5}, "9": {"p": None, "t": "two\nlines\u2028"}}, "agg_value": 1.0}},
        {"numbers as names": {3: 1, 1: {"a": 2}}},
        {},
        [{"a": {"b": 1}}],
        None,
    ],
)
def test_json_written_piece_by_piece_is_json_written_at_once(data: Any, indent: int | None) -> None:
    whole = json.dumps(in_order(data), indent=indent, ensure_ascii=False, allow_nan=False)
    assert "".join(json_pieces(data, indent)) == whole


def test_a_result_file_with_a_value_that_is_not_a_number_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "r.json", {"m": {"rows": {"0": {"p": 1.0}, "1": {"p": math.nan}}}})
    assert not (tmp_path / "r.json").exists()
