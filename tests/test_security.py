"""What a hostile file or name cannot do: run code, leave its directory, fill the memory, follow links."""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import LAB
from fuzz_inputs import BILLION_LAUGHS
from loops import one_test
from models_tools import save, tiny_model
from vestige import guard
from vestige.cli import main
from vestige.collapse.rollouts import load_rollouts
from vestige.engine.config import compose_runs
from vestige.errors import UserError
from vestige.runs.directory import open_run, write_bytes
from vestige.runs.evidence import remove_evidence
from vestige.runs.files import write_json
from vestige.runs.imports import import_file

SOURCE = Path(__file__).parent.parent / "src" / "vestige"
WORDS = ["model=local", "model.model_args.pretrained_model_name_or_path=m"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("vestige: error: ")
    return said


# ---- nothing in a file is run --------------------------------------------------------------------------------


def calls() -> list[tuple[str, str]]:
    """Every call in the source: (file, what is called with which keywords)."""
    out = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                out.append((str(path.relative_to(SOURCE)), ast.unparse(node)))
    return out


def test_the_source_opens_no_door() -> None:
    """Calls that can run what is in a file are not made, or only in their safe form."""
    for file, call in calls():
        if file == "isolation.py":  # it reads no file: what a fork of this process hands back, and a fixed program
            continue
        name = call.split("(")[0]
        if file == "adapters/plugins.py" and name == "exec":  # a plug-in is a program that the user names with --plugin
            continue
        assert name not in ("eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system"), (
            file,
            call,
        )
        assert not name.endswith((".extractall", ".extract")), (file, call)
        assert name not in ("pickle.load", "pickle.loads", "torch.jit.load", "joblib.load"), (file, call)
        if name == "torch.load":
            assert "weights_only=True" in call, (file, call)
        if name == "np.load":
            assert "allow_pickle=False" in call, (file, call)
        assert "shell=True" not in call, (file, call)
        if "trust_remote_code=" in call:
            assert "trust_remote_code=True" not in call, (file, call)
        if name == "yaml.compose":
            assert "SafeLoader" in call, (file, call)


class Attack:
    """Pickles as a call of anything."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def test_a_slime_file_with_a_program_in_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"samples": [Attack(os.system, "touch pwned")]}, tmp_path / "r.pt")
    with pytest.raises(UserError, match="cannot be read as plain data"):
        load_rollouts(tmp_path / "r.pt")
    assert not (tmp_path / "pwned").exists()


def test_recorded_logits_are_plain_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vestige.collect.denoise import read_tensors

    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "x.npy", np.array([Attack(os.system, "touch pwned")], dtype=object), allow_pickle=True)
    with pytest.raises(UserError):
        read_tensors(tmp_path / "x.npy")
    assert not (tmp_path / "pwned").exists()


def test_pickle_weights_are_refused_with_the_way_to_allow_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = save(tmp_path / "m")
    (place / "model.safetensors").unlink()
    (place / "pytorch_model.bin").write_bytes(pickle.dumps(Attack(os.system, "touch pwned")))
    said = refused(capsys, "eval", "tofu", "--model", str(place), "--data", str(LAB / "data"), "--out", "o")
    assert "pickle" in said and "use_safetensors" in said
    # Even allowed, torch reads weights only; what is no tensor stays unread.
    words = ["eval", "tofu", "--model", str(place), "--data", str(LAB / "data"), "--out", "o"]
    assert main([*words, "+model.model_args.use_safetensors=false"]) == 2
    assert not (tmp_path / "pwned").exists()


def test_code_in_a_checkpoint_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = save(tmp_path / "m")
    config = json.loads((place / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "evil.py").write_text("open('pwned', 'w').close()\n")
    said = refused(capsys, "eval", "tofu", "--model", str(place), "--data", str(LAB / "data"), "--out", "o")
    assert "trust_remote_code" in said
    tokens = json.loads((place / "tokenizer_config.json").read_text())
    tokens["auto_map"] = {"AutoTokenizer": ["evil.T", None]}
    (place / "tokenizer_config.json").write_text(json.dumps(tokens))
    assert main(["eval", "tofu", "--model", str(place), "--data", str(LAB / "data"), "--out", "o"]) == 2
    assert not (tmp_path / "pwned").exists()


# ---- names stay in their directory ---------------------------------------------------------------------------


@one_test("name", ["../../x", "/tmp/x", "..", "a/../../b", "a//b", ".", "", "x" * 300, "a\\..\\b", "a\nb"])
def test_names_that_lead_out_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot name a folder"):
        guard.inside(name, "task_name")


@one_test("name", ["tofu_npo", "a/b", "Llama-3.2_lr=1e-5", "..x", "日本"])
def test_names_that_stay(name: str) -> None:
    assert guard.inside(name, "task_name") == name


def test_task_names_cannot_escape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for word in ("task_name=../../x", "task_name=/tmp/x", "task_name=${paths.root_dir}./x"):
        with pytest.raises(UserError, match="leads out"):
            compose_runs([*WORDS, word])
    inside = compose_runs([*WORDS, "task_name=a/b"])[0]
    assert inside.output_dir.resolve() == tmp_path / "saves" / "eval" / "a" / "b"


def test_task_names_of_training_cannot_escape(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["unlearn", "--model", "m", "--forget", str(LAB / "data/forget.jsonl"), "--task-name", "../../x", "--cfg"]
    assert "leads out" in refused(capsys, *words)


@one_test("name", ["../x", "/x", "a/b", "..", "-x", ".hidden", "a b", "a\x00"])
def test_names_in_a_sweep_are_names(name: str, tmp_path: Path) -> None:
    from vestige.sweep.plan import read_plan

    for body in ({"models": {name: "m"}, "suites": ["tofu"]}, {"models": {"a": "m"}, "suites": {name: None}}):
        (tmp_path / "plan.yaml").write_text(json.dumps(body))
        with pytest.raises(UserError, match="cannot name a directory"):
            read_plan(tmp_path / "plan.yaml")


def test_job_names_are_names() -> None:
    from vestige.sweep.job import read_settings

    for name in ("../x", "a/b", "A", "x" * 50, "", "a\n"):
        with pytest.raises(UserError):
            read_settings([f"name={json.dumps(name)}"])


def test_weights_are_read_from_their_own_directory(tmp_path: Path) -> None:
    from vestige.models.args import ModelArgs
    from vestige.models.checks import check_place
    from vestige.models.locate import locate

    place = save(tmp_path / "m")
    (place / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../outside.safetensors"}}))
    args = ModelArgs(path=str(place))
    with pytest.raises(UserError, match="leads out"):
        check_place(locate(args), args)


def test_cleaning_a_sweep_does_not_follow_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vestige.sweep.plan import read_plan
    from vestige.sweep.run import clean

    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "precious" / "work"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("years")
    (tmp_path / "plan.yaml").write_text("models: {a: m}\nsuites: [tofu]\nout: s\n")
    (tmp_path / "s" / "runs").mkdir(parents=True)
    (tmp_path / "s" / "runs" / "tofu").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="through a link"):
        clean(read_plan(tmp_path / "plan.yaml"), everything=True)
    assert (mine / "thesis.txt").read_text() == "years"


def test_writing_neither_replaces_nor_follows_links(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("keep")
    run = tmp_path / "run"
    run.mkdir()
    (run / "x.json").symlink_to(secret)
    with open_run(run, "eval", ["evidence/"]), pytest.raises(UserError, match="is a link"):
        write_json(run / "x.json", {"a": 1})
    assert secret.read_text() == "keep" and (run / "x.json").is_symlink()
    (run / "evidence").mkdir()
    (run / "evidence" / "e").symlink_to(secret)
    (run / "evidence" / "d").symlink_to(tmp_path)
    remove_evidence(run / "evidence")
    assert secret.read_text() == "keep"


def test_a_lock_that_is_a_link_empties_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("keep")
    run = tmp_path / "run"
    run.mkdir()
    (run / ".vestige").mkdir()
    (run / ".vestige" / ".lock").symlink_to(secret)
    with pytest.raises((OSError, UserError)), open_run(run, "eval"):
        pass
    assert secret.read_text() == "keep"


def test_importing_writes_only_its_own_files(tmp_path: Path) -> None:
    """Names in a result file are names of metrics, never of files."""
    from fuzz_runs import eval_file

    body = {**eval_file(), "../../escape": {"agg_value": 1.0}}
    (tmp_path / "in.json").write_text(json.dumps(body))
    import_file(tmp_path / "in.json", tmp_path / "a" / "b")
    made = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file() and ".vestige" not in p.parts}
    assert made == {"in.json", "a/b/TOFU_EVAL.json", "a/b/TOFU_SUMMARY.json"}


# ---- memory and time -----------------------------------------------------------------------------------------


def test_aliases_are_counted_before_they_are_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vestige.meta.pools import read_pools
    from vestige.sweep.job import read_settings
    from vestige.sweep.plan import read_plan

    path = tmp_path / "x.yaml"
    path.write_text(BILLION_LAUGHS)
    for read in (read_pools, read_plan, lambda p: read_settings([], p)):
        with pytest.raises(UserError, match="aliases written out"):
            read(path)
    place = tmp_path / "c" / "eval" / "tofu_metrics"
    place.mkdir(parents=True)
    (place / "mine.yaml").write_text("handler: probability\n" + BILLION_LAUGHS)
    with pytest.raises(UserError, match="aliases written out"):
        compose_runs([*WORDS, "task_name=t"], config_dir=tmp_path / "c", only=["mine"])


@one_test(
    ("text", "says"),
    [
        ("a: &a [*a]", "contains itself"),
        ("[" * 500 + "]" * 500, "deep"),
        ("a: !!python/object/apply:os.system [touch pwned]", "could not determine a constructor"),
        ("a: 2024-99-99", "month"),
        ("a: !!int x", "invalid literal"),
        ('a: "\\ud800"', "surrogate"),
        ("a: " + "1" * 5000, "digits"),
        ("a: [", "expected"),
    ],
)
def test_yaml_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        guard.parse_yaml(text)


@one_test(
    ("text", "says"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a": ' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ("1" * 301, "digits"),
        ("1" * 100_000, "digits"),
        ('"\\ud800"', "surrogate"),
    ],
)
def test_json_that_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        guard.parse_json(text)


def test_json_that_is_odd_and_fine() -> None:
    digits = "3" * 5000
    assert guard.parse_json(f'{{"pi": "{digits}", "n": [NaN, 1e999]}}')["pi"] == digits
    assert guard.parse_json('"\\ud83d\\ude00"') == "\U0001f600"


def test_large_files_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of ten gigabytes (sparse: it takes no room), a bomb in gzip, a bomb in zip, a billion rows of Parquet."""
    from vestige.collect.denoise import read_tensors
    from vestige.data.rows import load_rows

    big = tmp_path / "x.jsonl"
    with big.open("wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(UserError, match="more than 2,048 MB"):
        load_rows({"path": str(big)})
    monkeypatch.setenv("VESTIGE_MAX_BYTES", str(2**20))
    bomb = tmp_path / "x.jsonl.gz"
    bomb.write_bytes(gzip.compress(b" " * 2**25))
    with pytest.raises(UserError, match="more than 1 MB"):
        load_rows({"path": str(bomb)})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", b"\0" * 2**25)
    (tmp_path / "x.npz").write_bytes(out.getvalue())
    with pytest.raises(UserError, match="more than 1 MB"):
        read_tensors(tmp_path / "x.npz")
    (tmp_path / "r.pt").write_bytes(out.getvalue())
    with pytest.raises(UserError, match="more than 1 MB"):
        load_rollouts(tmp_path / "r.pt")
    monkeypatch.setenv("VESTIGE_MAX_BYTES", "lots")
    with pytest.raises(UserError, match="whole number of bytes"):
        load_rows({"path": str(bomb)})


def test_a_few_bytes_of_parquet_cannot_be_a_billion_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    import pyarrow.parquet

    from vestige.data.rows import load_rows

    column = pyarrow.array(["the same text every time"] * 300_000).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 10_000
    monkeypatch.setenv("VESTIGE_MAX_BYTES", str(2**20))
    with pytest.raises(UserError, match="more than 1 MB"):
        load_rows({"path": str(tmp_path / "x.parquet")})


def test_layers_are_not_counted_to_a_billion() -> None:
    from vestige.depth.ask import parse_layers

    with pytest.raises(UserError, match="no model has"):
        parse_layers("0-9999999999")


# ---- what is printed -----------------------------------------------------------------------------------------


def test_what_a_file_says_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"\x1b[2J\x07": {"agg_value": "\x1b]0;owned\x07"}}))
    said = refused(capsys, "import", str(tmp_path / "x.json"))
    assert re.fullmatch(r"[\x20-\x7e]*", said)


def test_trouble_with_files_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    words = ("eval", "tofu", "--model", str(save(tmp_path / "m", tiny_model())), "--data", str(LAB / "data"))
    said = refused(capsys, *words, "--out", str(tmp_path / "file" / "x"), "--limit", "1")
    assert "a directory is needed" in said
    assert "File name too long" in refused(capsys, "import", "x" * 300)


def test_atomic_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match="Is a directory"):
        write_bytes(tmp_path / "x", b"1")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
