"""Keys, resume, notes, digests and seals in small cases by hand: what whole runs test in minutes, in seconds.

Most of these tests are here because a planted fault in that code went unnoticed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conftest import GOLDEN
from models_tools import save, tiny_model, tiny_tokenizer
from vestige.cli import main
from vestige.collect.safety import check_tokens
from vestige.depth.kept import KEPT, score_again
from vestige.engine import handles
from vestige.engine.handles import ModelHandle
from vestige.errors import UserError
from vestige.io import DamagedError
from vestige.models import fingerprint as fingerprints
from vestige.models.args import ModelArgs
from vestige.models.tokenizer import pipeline_key, special_ids
from vestige.runs import archive
from vestige.runs.directory import open_run, write_bytes
from vestige.runs.evidence import EvidenceFolder
from vestige.runs.files import read_packed, write_packed
from vestige.runs.manifest import read_run
from vestige.sweep import tasks as task_keys
from vestige.sweep.tasks import harness_part, is_done, make_tasks, perform
from vestige.types import TokenStats


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model") / "m")


# ---- identity and fingerprints --------------------------------------------------------------------------------------


def test_the_way_4bit_weights_are_read_is_in_the_identity(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> list[str]:
        return [ModelHandle(ModelArgs(str(checkpoint), quantization=q)).identity for q in ("4bit", None)]

    before = names()
    monkeypatch.setattr(handles, "RULE", "4-bit, another rule")
    after = names()
    assert before[0] != after[0] and before[1] == after[1]


@pytest.mark.parametrize("name", ["eos_token_id", "mask_token_id", "pad_token_id", "bos_token_id"])
def test_each_special_token_counts(name: str) -> None:
    ids = {"eos_token_id": 1, "mask_token_id": 2, "pad_token_id": 3, "bos_token_id": 4}
    assert special_ids(SimpleNamespace(**ids)) != special_ids(SimpleNamespace(**{**ids, name: 9}))


def test_a_tokenizer_is_what_cuts_and_joins_text_not_how_it_pads() -> None:
    from tokenizers import decoders, pre_tokenizers

    tokenizer = tiny_tokenizer()
    before = pipeline_key(tokenizer)
    tokenizer.backend_tokenizer.enable_padding(length=8)
    tokenizer.backend_tokenizer.enable_truncation(4)
    assert pipeline_key(tokenizer) == before
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    cut = pipeline_key(tokenizer)
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    assert len({before, cut, pipeline_key(tokenizer)}) == 3


def test_a_file_written_in_place_with_its_old_time_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rsync and some trainers leave it: the same file, size and modification time. Only the change time moves."""
    monkeypatch.setenv("VESTIGE_CACHE", str(tmp_path / "cache"))
    now = time.time()
    monkeypatch.setattr(fingerprints.time, "time", lambda: now + 60)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"one")
    os.utime(file, ns=(1, 1))
    before = fingerprints.digests([file])
    time.sleep(0.02)
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert fingerprints.digests([file]) != before


def test_which_adapter_is_on_counts() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    torch.manual_seed(0)
    model = get_peft_model(tiny_model(), config)
    model.add_adapter("other", config)
    before = fingerprints.fingerprint_module(model)
    model.set_adapter("other")
    assert fingerprints.fingerprint_module(model) != before


# ---- keys of tasks --------------------------------------------------------------------------------------------------


def test_the_version_of_a_foreign_harness_counts_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for version in ("1", "2"):
        monkeypatch.setattr(task_keys, "library", lambda name, v=version: v)
        found.append([harness_part({"tasks": ["x"]}), harness_part({})])
    assert found[0][0] != found[1][0] and found[0][1] == found[1][1]


def test_a_task_is_done_only_with_its_own_whole_run(tmp_path: Path) -> None:
    from sweep_tools import write_plan
    from vestige.sweep.plan import read_plan

    task = make_tasks(read_plan(write_plan(tmp_path, retain=None)))[0]
    assert perform(task).status == "done" and is_done(task)
    out = Path(task.out)
    good = (results := out / "TOFU_EVAL.json").read_bytes()
    results.write_bytes(good.replace(b"0.", b"1.", 1))
    assert not is_done(task)
    results.write_bytes(good)
    assert is_done(task)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["model"]["fingerprint"] = "0" * 32  # another model was evaluated there by hand meanwhile
    with open_run(out, "eval", []) as run:
        run.finish(manifest)
    assert not is_done(task)


# ---- depth made again -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def depth_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, models = tmp_path_factory.mktemp("depth") / "run", GOLDEN / "lab" / "models"
    words = ["depth", "--full", models / "full", "--retain-model", models / "retain",
             "--unlearned", models / "unlearned",
             "--forget", GOLDEN / "lab" / "data" / "forget.jsonl", "--limit", "3", "--out", out, "--quiet"]  # fmt: skip
    assert main([str(word) for word in words]) == 0
    return out


@pytest.fixture
def depth(depth_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(depth_run, tmp_path / "depth"))


def test_depth_is_not_scored_of_half_its_examples(depth: Path) -> None:
    assert score_again(depth)
    body = read_packed(depth / "evidence" / KEPT)
    folder: EvidenceFolder[TokenStats] = EvidenceFolder(depth / "evidence", "patched", body["evidence"]["retain"])
    found = folder.load()
    gone = body["examples"][body["order"][-1]]["key"]
    rest = {key: found[key] for key in found if key != gone}
    for file in folder.path.glob("*.safetensors"):
        file.unlink()
    folder.write(rest)
    with pytest.raises(DamagedError, match="examples are missing"):
        score_again(depth)


@pytest.mark.parametrize("change", ["order", "names"])
def test_depth_names_that_nothing_explains_are_damage(depth: Path, change: str) -> None:
    file = depth / "evidence" / KEPT
    body = read_packed(file)
    if change == "order":
        body["order"].append("stranger")
    else:
        body["evidence"]["names"] = {}
    file.unlink()
    write_packed(file, body)
    with pytest.raises(DamagedError, match="does not explain"):
        score_again(depth)


# ---- archives ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_two_files_of_one_name_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as out:
        out.writestr(archive.PACK, "{}")
        for text in ("one", "two"):
            out.writestr("runs/a/TOFU_EVAL.json", text)
    with pytest.raises(UserError, match="two of its files have one name"):
        archive.extract(tmp_path / "x.zip", tmp_path / "out")


def test_another_run_in_a_packed_runs_place_is_compared_with_its_own_logs(tmp_path: Path) -> None:
    run, logs = tmp_path / "runs" / "mine", "/elsewhere/TOFU_EVAL.json"
    run.mkdir(parents=True)
    with open_run(run, "eval", ["TOFU_EVAL.json"]) as directory:
        write_bytes(run / "TOFU_EVAL.json", b"{}")
        directory.finish({"kind": "eval", "reads": {logs: "0" * 64}})
    (tmp_path / "references" / "r").mkdir(parents=True)
    (tmp_path / "references" / "r" / "TOFU_EVAL.json").write_text("{}")
    manifest = read_run(run)
    assert manifest is not None
    about = {"version": 1, "order": ["mine"], "references": {logs: "references/r/TOFU_EVAL.json"}}
    for root, found in ((manifest.root, [logs]), ("0" * 64, [])):
        (tmp_path / archive.PACK).write_text(json.dumps({**about, "runs": {"mine": root}}))
        assert list(archive.moved(run)) == found


# ---- tables of tokens ----------------------------------------------------------------------------------------------


def test_the_first_token_past_the_table_is_refused() -> None:
    model = tiny_model(vocab_size=40)
    check_tokens(model, [(3, 39)])
    with pytest.raises(UserError, match="gives token 40, but this model knows only tokens 0 to 39"):
        check_tokens(model, [(3, 39), (40,)])
