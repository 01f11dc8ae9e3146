"""What rows and evidence cost in memory: shared numbers, arrays laid end to end, files packed piece by piece."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vestige.data.chat import TOGETHER, Encoder, Template
from vestige.store.evidence import Bank
from vestige.store.examples import write_packed
from vestige.store.formats import AnswerFormat, Joined, LaidOut
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
    assert set(bank.finish()) == set(keys)
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
