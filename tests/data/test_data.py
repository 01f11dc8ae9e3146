"""Rows from wherever they live, and one sentence for everything that can be wrong with them."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from loops import one_test
from vestige.data.rows import MissingData, load_rows
from vestige.errors import UserError

ROWS = [{"question": f"q{i}", "answer": f"a{i}"} for i in range(10)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("hf")))


def jsonl(rows: Any = ROWS) -> str:
    return "".join(json.dumps(r) + "\n" for r in rows)


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(jsonl(rows).encode(), mtime=0))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    else:
        path.write_text(jsonl(rows), encoding="utf-8")
    return path


def read(**hf_args: Any) -> list[dict[str, Any]]:
    return load_rows({k: str(v) if isinstance(v, Path) else v for k, v in hf_args.items()})[0]


def fails(kind: type[UserError] = UserError, **hf_args: Any) -> str:
    with pytest.raises(kind) as caught:
        read(**hf_args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- formats --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.parquet", "x.jsonl.gz", "x.json.gz"])
def test_formats(tmp_path: Path, name: str) -> None:
    assert read(path=write(tmp_path / name)) == ROWS


def test_text_survives_as_it_is(tmp_path: Path) -> None:
    """U+2028 and U+0085 end lines for Python, not for JSON; a byte-order mark and Windows line ends mean nothing."""
    odd = [{"text": "a\u2028b\u0085c\x1cd", "é": "日本"}, {"text": "e\r\nf\n", "é": ""}]
    place = tmp_path / "x.jsonl"
    lines = [json.dumps(r, ensure_ascii=False) for r in odd]
    place.write_bytes(b"\xef\xbb\xbf" + ("\r\n".join(lines) + "\r\n\r\n").encode())
    assert read(path=place) == odd


# ---- directories and data_files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "hf_args"),
    [
        ("forget10.jsonl", {"name": "forget10", "split": "train"}),
        ("forget10.json", {"name": "forget10"}),
        ("forget10/train.jsonl", {"name": "forget10", "split": "train"}),
        ("forget10/train.parquet", {"name": "forget10"}),
        ("data/forget10.parquet", {"name": "forget10"}),
        ("knowmem/forget_qa-00000-of-00001.parquet", {"name": "knowmem", "split": "forget_qa"}),
        ("data/train-00000-of-00001.parquet", {"split": "train"}),
        ("train.jsonl", {}),
        ("test.jsonl", {"split": "test[:100]"}),
    ],
)
def test_layouts(tmp_path: Path, layout: str, hf_args: dict[str, str]) -> None:
    write(tmp_path / layout)
    for other in ("forget10_perturbed.jsonl", "forget01.jsonl", "validation.jsonl", "other/train.jsonl"):
        write(tmp_path / other, [{"no": "not this"}])
    assert read(path=tmp_path, **hf_args) == ROWS


def test_shards_are_read_in_order_and_whole(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"data/train-0000{i}-of-00003.parquet", ROWS[3 * i : 3 * i + 3])
    write(tmp_path / "data/train-extra.parquet", [{"no": "not this"}])
    assert read(path=tmp_path) == ROWS[:9]
    (tmp_path / "data/train-00001-of-00003.parquet").unlink()
    assert "2 of the 3 files" in fails(MissingData, path=tmp_path)


def test_a_data_card_maps_names_to_files(tmp_path: Path) -> None:
    card = (
        "---\nconfigs:\n- config_name: easy\n  data_files:\n  - split: train\n    path: files/a.jsonl\n"
        "- config_name: hard\n  data_files:\n  - split: train\n    path: files/b.jsonl\n---\n# A data set\n"
    )
    (tmp_path / "README.md").write_text(card)
    write(tmp_path / "files/a.jsonl", ROWS[:4])
    write(tmp_path / "files/b.jsonl", ROWS[4:])
    start = time.monotonic()
    assert read(path=tmp_path, name="easy") == ROWS[:4]
    assert read(path=tmp_path, name="hard", split="train[:2]") == ROWS[4:6]
    assert "none" in fails(MissingData, path=tmp_path, name="none")
    assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    ("split", "want"),
    [
        ("train", range(10)),
        ("train[:3]", range(3)),
        ("train[7:]", range(7, 10)),
        ("train[2:4]", range(2, 4)),
        ("train[-2:]", range(8, 10)),
        ("train[:-2]", range(8)),
        ("train[10%:30%]", range(1, 3)),
        ("train[-10%:]", range(9, 10)),
        ("train[:26%]", range(3)),
        ("train[:50]", range(10)),
    ],
)
def test_split_slices_mean_what_they_mean_in_datasets(tmp_path: Path, split: str, want: range) -> None:
    import datasets

    write(tmp_path / "train.jsonl")
    got = read(path=tmp_path, split=split)
    assert got == [ROWS[i] for i in want]
    if split != "train[:50]":  # `datasets` refuses to slice past the end; we do not mind
        files = {"train": str(tmp_path / "train.jsonl")}
        assert got == list(datasets.load_dataset("json", data_files=files, split=split))


# ---- what can be wrong ----------------------------------------------------------------------------------------


@one_test(
    ("name", "content", "says"),
    [
        ("x.jsonl", b"", "empty"),
        ("x.jsonl", b" \n\n", "empty"),
        ("x.json", b"[]", "holds no rows"),
        ("x.csv", b"question,answer\n", "holds no rows"),
        ("x.jsonl", b'{"a": 1}\n\n{"a": \n', "line 3 "),
        ("x.json", b'[\n{"a": 1},\n{"a" 2}]', "line 3 "),
        ("x.jsonl", b'{"a": 1}\n"word"\n', "line 2 "),
        ("x.json", b'[{"a": 1}, 5]', "row 1 "),
        ("x.jsonl", b'{"a": "\xff"}\n', "UTF-8"),
        ("x.csv", b"a\n\xff\n", "UTF-8"),
        ("x.txt", b"\xff\n", "UTF-8"),
        ("x.csv", b"a,b\n1,2,3\n", "line 2 "),
        ("x.jsonl.gz", b"not gzip", "gzip"),
        ("x.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 99, mtime=0)[:-9], "compressed"),
        ("x.jsonl.gz", gzip.compress(b"\xff", mtime=0), "UTF-8"),
        ("x.parquet", b"not parquet", "Parquet"),
    ],
)
def test_faulty_files(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    place = tmp_path / name
    place.write_bytes(content)
    message = fails(path=place)
    assert says in message
    assert str(place) in message
