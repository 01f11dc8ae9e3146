"""What rows cost in memory: shared numbers, files packed piece by piece."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from vestige.data.chat import TOGETHER, Encoder, Template
from vestige.io import in_order, json_pieces
from vestige.runs.files import write_json, write_packed


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
