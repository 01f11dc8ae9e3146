"""docs/lab.md walked through on the lab: the page's own commands, a few rows, a tiny model."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from conftest import LAB
from vestige.cli import main
from vestige.data.rows import read_file
from vestige.errors import UserError

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import real_model
import tofu_authors

VERBS = ["train", "train", "unlearn", "eval", "eval", "eval", "depth", "stress"]


def test_the_commands_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for file in (LAB / "data").glob("*.jsonl"):
        shutil.copy(file, data)
    shutil.copy(data / "forget.jsonl", data / "entities.jsonl")
    monkeypatch.chdir(tmp_path)
    todo = real_model.commands(BASE_MODEL=str(LAB / "models" / "retain"), DIR=str(data))
    assert [words[1] for words in todo] == VERBS
    for words in todo:
        assert main([*words[1:], "--limit", "4"]) == 0, words
    assert (tmp_path / "saves" / "npo" / "adapter_config.json").is_file()  # every later step takes the adapter
    assert list((tmp_path / "saves" / "stress").glob("curve*.png"))
    shown = real_model.results(tmp_path).splitlines()
    width = len(shown[0].split())
    complete = [line for line in shown if len(line.split()) == width and "-" not in line.split()]
    assert {line.split()[0] for line in complete} >= {"forget_Q_A_Prob", "forget_Q_A_ROUGE", "model_utility"}
    taught = json.loads((tmp_path / "saves" / "full" / "training.json").read_text())
    assert [source["rows"] for source in taught["data"]["train"]] == [4, 4]  # both files
    relearned = json.loads((tmp_path / "saves" / "stress" / "stress.json").read_text())["relearning"]
    assert [entry["budget"] for entry in relearned] == [2, 5]


def test_authors_are_cut_out_of_tofu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tofu, out = tmp_path / "tofu", tmp_path / "authors"
    tofu.mkdir()
    names = ("forget10_perturbed", "retain_perturbed", "real_authors_perturbed", "world_facts_perturbed")
    for name in names:
        rows = [{"question": f"{name} {n}?", "answer": f"It is {n}."} for n in range(100)]
        (tofu / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
    known = [{"question": "forget10_perturbed 21?", "prefix": "It is", "entity": "21"}]
    (tmp_path / "known.json").write_text(json.dumps(known))
    words = [str(tofu), str(out), "--rows", "2", "--entities", str(tmp_path / "known.json")]
    monkeypatch.setattr(sys, "argv", ["tofu_authors.py", *words])
    tofu_authors.main()
    numbers = {f.stem: [int(r["question"][:-1].split()[1]) for r in read_file(f)] for f in out.glob("*.jsonl")}
    assert numbers["forget"] == numbers["retain"] == [0, 1, 20, 21]
    assert numbers["holdout"] == [40, 41, 60, 61]  # other authors than those kept
    assert numbers["entities"] == [21] and read_file(out / "entities.jsonl")[0]["entity"] == "21"
    with pytest.raises(UserError, match="no file for 'retain_perturbed'"):
        tofu_authors.cut(str(tmp_path), 1, 1, 1, 1)
