"""Files of ours and of others with a value of the wrong type: one sentence with the file and the path of the field."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from loops import one_test
from vestige.cli import main
from vestige.errors import UserError
from vestige.lab.models import is_built
from vestige.runs.archive import moved

PACK = {
    "version": 1,
    "runs": {"a": "x", "b": "y"},
    "order": ["a", "b"],
    "references": {"r": "references/r/T_EVAL.json"},
}


@one_test(
    ("change", "field"),
    [
        ({"version": "1"}, "$.version"),
        ({"runs": {"a": "x", "b": 3}}, "$.runs.b"),
        ({"runs": ["a", "b"]}, "$.runs"),
        ({"order": 3}, "$.order"),
        ({"order": ["a", None]}, "$.order[1]"),
        ({"references": {"r": ["x"]}}, "$.references.r"),
    ],
)
def test_pack_json(change: dict[str, Any], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps(PACK | change)
    with zipfile.ZipFile(tmp_path / "proof.zip", "w") as archive:
        archive.writestr("pack.json", body)
    assert main(["verify", str(tmp_path / "proof.zip")]) == 2
    said = capsys.readouterr().err
    assert "proof.zip" in said and "pack.json" in said and f"at `{field}`" in said, said
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "pack.json").write_text(body)
    with pytest.raises(UserError) as error:  # a run that came out of it
        moved(tmp_path / "runs" / "a")
    assert str(tmp_path / "pack.json") in str(error.value) and f"at `{field}`" in str(error.value)


def test_a_pack_json_of_somebody_else_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "pack.json").write_text('{"name": "modpack", "references": 3}')
    assert moved(tmp_path / "runs" / "a") == {}


@one_test(("change", "field"), [({"key": 3}, "$.key"), ({"settings": ["x"]}, "$.settings")])
def test_lab_json(change: dict[str, Any], field: str, tmp_path: Path) -> None:
    record = {"key": "k", "recipe": [], "settings": {}}
    (tmp_path / "lab.json").write_text(json.dumps(record))
    assert is_built(tmp_path, "k")
    (tmp_path / "lab.json").write_text(json.dumps(record | change))
    with pytest.raises(UserError) as error:
        is_built(tmp_path, "k")
    assert str(tmp_path / "lab.json") in str(error.value) and f"at `{field}`" in str(error.value)
    (tmp_path / "lab.json").write_text('{"key": 3}')  # not a record of ours
    assert not is_built(tmp_path, "k")


ONE = {"model": "a", "values": {"em": 0.5, "uds": 0.5}}
STATES = {"model": "a", "before": {"em": 0.5}, "relearn": {"em": 0.6}}


@one_test(
    ("question", "body", "field"),
    [
        ("faithfulness", {"positive": "runs/*", "negative": [ONE]}, "$.positive"),
        ("faithfulness", {"positive": [ONE], "negative": [ONE, 3]}, "$.negative[1]"),
        ("faithfulness", {"positive": [ONE], "negative": [{"values": {"em": "low"}}]}, "$.negative[0].values.em"),
        ("faithfulness", {"positive": [ONE], "negative": [ONE], "protocol": {"em": 1}}, "$.protocol.em"),
        ("faithfulness", {"positive": [ONE], "negative": [ONE], "metrics": {"em": "low"}}, "$.metrics.em"),
        ("robustness", {"retain": STATES, "models": {"a": STATES}}, "$.models"),
        ("robustness", {"retain": STATES, "models": [{**STATES, "utility_rel": "all"}]}, "$.models[0].utility_rel"),
        ("axes", {"models": [{"model": "a", "run": 3}]}, "$.models[0].run"),
        ("axes", {"models": [ONE], "full": 3}, "$.full"),
    ],
)  # fmt: skip
def test_pool_files(
    question: str, body: dict[str, Any], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pools.yaml").write_text(yaml.safe_dump(body))
    assert main(["meta", question, str(tmp_path / "pools.yaml"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "pools.yaml" in said and f"at `{field}`" in said, said


def test_pools_from_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"a": {"pool": "P", "metrics": {"em": 0.5}}, "b": {"pool": "N", "metrics": [0.5]}}
    (tmp_path / "results.json").write_text(json.dumps(body))
    assert main(["meta", "faithfulness", str(tmp_path / "results.json"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "results.json" in said and "b has no pool (P or N) with metrics" in said, said
