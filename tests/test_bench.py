"""The benchmarks' own machinery: what is measured, and what is written where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

import growth
import measure
import overhead
import peers
import table

BENCH = Path(table.__file__).parent


def beside(**more: Any) -> dict[str, Any]:
    row = measure.Beside("eval", "a case", "a loop", 6.0, 2.0, True, "all equal", 0.25)
    return {**row.__dict__, **more}


def grown(**more: Any) -> dict[str, Any]:
    row = {"capability": "eval", "axis": "rows", "sizes": [1, 2, 4], "seconds": [1.0, 2.0, 4.2], "overhead": 0.1}
    return {
        **row,
        "ratios": [2.0, 2.1],
        "per_doubling": 2.04,
        "megabytes": [1.0, 2.0, 3.0],
        "kilobytes": 512.0,
        "expected": "linear",
        "good": True,
        **more,
    }


def test_a_row_says_ratio_equality_overhead_memory_and_growth() -> None:
    rows = list(table.capability_rows(table.Found([beside()], [grown()])))
    assert rows[0] == ["eval", "a loop (a case)", "3.0", "all equal", "25 %", "3 MB", "rows 2.0"]
    assert [r[0] for r in rows[1:]] == list(table.NO_PEER)  # what has no reference is said, not left out


@pytest.mark.parametrize(
    "found",
    [
        table.Found([beside(seconds=7.0)]),
        table.Found([beside(equal=False)]),
        table.Found(growth=[grown(good=False)]),
        table.Found(failed=["depth"]),
    ],
    ids=["slower", "unequal", "steep", "failed"],
)
def test_what_is_not_good_is_not_called_good(found: table.Found) -> None:
    assert table.Found([beside()], [grown()]).good()
    assert not found.good()


def test_only_the_section_between_the_markers_is_replaced() -> None:
    before = table.PAGE.read_text(encoding="utf-8")
    after = table.written(before, "NEW")
    assert after.split(table.OPEN)[0] == before.split(table.OPEN)[0]
    assert after.split(table.CLOSE)[1] == before.split(table.CLOSE)[1]
    assert f"{table.OPEN}\nNEW\n{table.CLOSE}" in after


def test_forwards_are_outermost_calls_of_modules() -> None:
    import torch

    class Slow(torch.nn.Module):
        def forward(self, seconds: float) -> None:
            start = measure.time.process_time()
            while measure.time.process_time() - start < seconds:
                pass

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Slow()

        def forward(self, seconds: float) -> None:
            self.inner(seconds)

    def work() -> None:
        Outer()(0.05)
        Slow.forward(Slow(), 0.05)  # not a call of a module

    with measure.forwards() as inside:
        work()
    assert 0.045 < inside["seconds"] < 0.09  # the inner call is not counted twice
    assert measure.over_forwards(work) == pytest.approx(1.0, abs=0.5)


def said(script: str, tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    note = tmp_path / "said.json"
    subprocess.run([sys.executable, str(BENCH / script), *words, "--json", str(note)], capture_output=True, text=True)
    rows: list[dict[str, Any]] = json.loads(note.read_text())
    return rows


def test_growth_measures_each_size_in_a_process_of_its_own(tmp_path: Path) -> None:
    (rows,) = said("growth.py", tmp_path, "--only", "ROUGE", "--smallest", "--repeat", "1")
    assert rows["sizes"] == [100, 200]
    assert rows["kilobytes"] == pytest.approx(1024 * (rows["megabytes"][1] - rows["megabytes"][0]) / 100)
    assert all(s > 0 for s in rows["seconds"]) and rows["ratios"][0] > 1
    assert rows["overhead"] is None


def test_rows_double_from_a_first_number_to_a_last() -> None:
    rows, words = (next(a for a in growth.AXES if (a.capability, a.name) == ("eval", n)) for n in ("rows", "words"))
    assert growth.sizes_of(rows, 2, 1) == [32, 64, 128]
    assert growth.sizes_of(rows, 2, 1, (3, 20)) == [3, 6, 12, 20]
    assert growth.sizes_of(words, 1, 4, (3, 20)) == [4, 8]


def test_the_table_of_many_rows_says_what_a_further_row_takes() -> None:
    found = growth.Growth("eval", "rows", [10, 30], [1.0, 5.0], [4.0, 14.0], None, "linear", True)
    lines = growth.many_rows([found]).splitlines()
    assert lines[-2:] == ["| eval | 10 | 1 | 4 | 100.0 | 410 |", "| eval | 30 | 5 | 14 | 200.0 | 512 |"]


@pytest.mark.parametrize("module", [growth, overhead])
def test_the_page_has_a_place_for_each_table(module: Any) -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    assert page.count(module.OPEN) == page.count(module.CLOSE) == 1


def test_resampling_is_what_plain_loops_say(tmp_path: Path) -> None:
    rows = said("resampling.py", tmp_path, "--rows", "30", "--resamples", "40", "--models", "8")
    assert [r["capability"] for r in rows] == ["statistics", "meta-evaluation"]
    assert all(r["equal"] for r in rows)


# ---- other projects' programs --------------------------------------------------------------------------------------

DATASETS = """TOFU_QA_forget:
  args:
    hf_args:
      name: "forget10"
      split: "train"
      path: "locuslab/TOFU"
    question_key: "question"
"""
METRIC = """datasets:
  TOFU_QA_holdout:
    args:
      hf_args:
        name: ${eval.tofu.holdout_split}
"""


def test_their_configs_read_local_rows(tmp_path: Path) -> None:
    import yaml

    rows = tmp_path / "rows"
    rows.mkdir()
    for name in set(peers.SPLITS.values()):
        (rows / f"{name}.jsonl").write_text(json.dumps({"question": name}) + "\n")
    for place, text in (("data/datasets/TOFU_QA_forget", DATASETS), ("eval/tofu_metrics/mia_min_k", METRIC)):
        file = tmp_path / "theirs" / "configs" / f"{place}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    made = peers.local_configs(tmp_path / "theirs", tmp_path / "copy", rows)
    data = yaml.safe_load((made / "data/datasets/TOFU_QA_forget.yaml").read_text())["TOFU_QA_forget"]["args"]
    assert data["hf_args"] == {"path": "json", "split": "train", "data_files": f"{made}/forget10.jsonl"}
    assert data["question_key"] == "question"
    metric = yaml.safe_load((made / "eval/tofu_metrics/mia_min_k.yaml").read_text())
    files = metric["datasets"]["TOFU_QA_holdout"]["args"]["hf_args"]
    assert files == {"data_files": f"{made}/${{eval.tofu.holdout_split}}.jsonl"}
    assert "holdout" in (made / "holdout10.jsonl").read_text()
    assert (tmp_path / "theirs" / "configs" / "data/datasets/TOFU_QA_forget.yaml").read_text() == DATASETS


def test_a_checkpoint_for_an_older_library_keeps_the_original(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    new = {"dtype": "float32", "rope_parameters": {"rope_theta": 9.0, "rope_type": "default"}, "vocab_size": 5}
    (model / "config.json").write_text(json.dumps(new))
    (model / "tokenizer_config.json").write_text('{"backend": "tokenizers", "tokenizer_class": "TokenizersBackend"}')
    (model / "chat_template.jinja").write_text("{{ x }}")
    (model / "model.safetensors").write_bytes(b"weights")
    old = peers.older_checkpoint(model, tmp_path / "older")
    assert json.loads((old / "config.json").read_text()) == {
        "vocab_size": 5,
        "rope_theta": 9.0,
        "torch_dtype": "float32",
    }
    said = json.loads((old / "tokenizer_config.json").read_text())
    assert said == {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ x }}"}
    assert (old / "model.safetensors").read_bytes() == b"weights"
    assert json.loads((model / "config.json").read_text()) == new


def test_the_table_of_peers_replaces_its_own_rows_only() -> None:
    page = f"above\n{peers.OPEN}\n{peers.CLOSE}\nbelow"
    first = peers.row("UDS abc", "three rows", [1.0, 2.0, 1.5], [9.0, 20.0, 15.0], "1 numbers within 0e+00")
    assert first[2:5] == ["15.0 (9.0 to 20.0)", "1.5 (1.0 to 2.0)", "10.0 (9.0 to 10.0)"]
    page = peers.written(page, [first], "here, today")
    page = peers.written(page, [["RAGEN", "x", "1", "1", "1", "same"]], "here, today")
    again = peers.written(page, [[*first[:2], "2", "1", "2", "same"]], "there, later")
    lines = again.splitlines()
    assert lines[0] == "above" and lines[-1] == "below"
    assert sum(line.startswith("| UDS") for line in lines) == 1 and "there, later" in again
    assert "| RAGEN | x | 1 | 1 | 1 | same | here, today |" in lines
    assert [line for line in lines if line.startswith("| their program")]


def test_a_run_of_a_side_starts_from_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = "import os; os.mkdir('out'); print(os.environ['OMP_NUM_THREADS'])"
    side = peers.Side([sys.executable, "-c", program], tmp_path, out, lambda: out.is_dir())
    assert peers.started(side) > 0 and side.found()
    assert peers.started(side) > 0  # it would have failed on what the first run left
    with pytest.raises(SystemExit, match="boom"):
        peers.started(peers.Side([sys.executable, "-c", "raise ValueError('boom')"], tmp_path, out, lambda: None))
