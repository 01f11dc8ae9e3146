"""Planted tokens: ten ways in, every verb that writes, and not a byte of them in what comes out."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from vestige import secrets
from vestige.cli import main
from vestige.errors import UserError

FULL, RETAIN, UNLEARNED = (str(LAB / "models" / name) for name in ("full", "retain", "unlearned"))
DATA = str(LAB / "data")
FORGET = str(LAB / "data" / "forget.jsonl")
SMALL = ["--limit", "2", "--quiet", "--metrics", "forget_Q_A_Prob"]


def token(number: int) -> str:
    """None of the known shapes, so that only where it came from gives it away."""
    return f"plnt{number}Q7zKx9Wv3"


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins without knowing any secret, as a new process does."""
    monkeypatch.setattr(secrets, "_secrets", {})
    monkeypatch.setattr(secrets, "_environment", {})
    yield


def contents(place: Path) -> Iterator[tuple[str, bytes]]:
    """Every byte below a directory, what is packed unpacked."""
    for path in sorted(p for p in place.rglob("*") if p.is_file()):
        yield from opened(str(path), path.read_bytes())


def opened(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    yield name, data
    if data[:2] == b"\x1f\x8b":
        yield f"{name} (unpacked)", gzip.decompress(data)
    if data[:4] == b"PK\x03\x04":
        import io

        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.namelist():
                yield from opened(f"{name}:{entry}", archive.read(entry))


def find(place: Path, *needles: str, said: str = "") -> list[str]:
    where = [name for name, data in contents(place) for needle in needles if needle.encode() in data]
    names = [str(path) for path in place.rglob("*") if any(needle in path.name for needle in needles)]
    return where + names + [f"said: {needle}" for needle in needles if needle in said]


def spoken(capfd: pytest.CaptureFixture[str]) -> str:
    out = capfd.readouterr()
    return out.out + out.err


def checkpoint(place: Path, **more: Any) -> str:
    """A lab model whose own config.json says more than it should."""
    shutil.copytree(FULL, place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, **more}))
    return str(place)


def test_retain_logs_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The path is kept as the expression: score works where it is set, says so where it is not."""
    logs, run = tmp_path / f"in-{token(1)}" / "retain", tmp_path / "out" / "run"
    flags = ["--data", DATA, "--limit", "3", "--quiet", "--metrics", "privleak"]
    assert main(["eval", "tofu", "--model", RETAIN, "--out", str(tmp_path / "retain"), *flags]) == 0
    shutil.copytree(tmp_path / "retain", logs)
    monkeypatch.setenv("RETAIN_LOGS", str(logs / "TOFU_EVAL.json"))
    word = "eval.tofu.retain_logs_path=${oc.env:RETAIN_LOGS}"
    assert main(["eval", "tofu", "--model", UNLEARNED, "--out", str(run), *flags, word]) == 0
    capfd.readouterr()
    assert find(run, token(1)) == []
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["config"]["settings"]["retain_logs_path"] == "${oc.env:RETAIN_LOGS}"
    before = (run / "TOFU_EVAL.json").read_bytes()
    assert main(["score", str(run)]) == 0
    assert (run / "TOFU_EVAL.json").read_bytes() == before
    assert main(["verify", str(run)]) == 0
    assert main(["pack", str(run), "-o", str(tmp_path / "out" / "proof.zip")]) == 0
    assert find(tmp_path / "out", token(1)) == []
    monkeypatch.delenv("RETAIN_LOGS")
    capfd.readouterr()
    assert main(["verify", str(tmp_path / "out" / "proof.zip")]) == 0  # what it needs is in it
    assert main(["score", str(run)]) == 2
    said = spoken(capfd)
    assert "environment variable RETAIN_LOGS" in said and token(1) not in said
    monkeypatch.setenv("RETAIN_LOGS", str(tmp_path / f"gone-{token(2)}"))
    assert main(["score", str(run)]) == 2
    assert token(2) not in spoken(capfd)


def test_train_and_unlearn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Trainer arguments, the model's token, and what the checkpoint's own files say of it."""
    monkeypatch.setenv("HUB", token(3))
    model = checkpoint(tmp_path / "model", api_key=token(1), extra={"password": token(2)})
    tokenizer = Path(model) / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "api_key": token(5)}))
    out = tmp_path / "out"
    words = [f"+model.model_args.token={token(4)}", "+trainer.args.hub_token=${oc.env:HUB}"]
    flags = ["--forget", FORGET, "--out", str(out), "--limit", "2", "--epochs", "1", "--quiet"]
    assert main(["unlearn", "--method", "GradAscent", "--model", model, *flags, *words]) == 0
    assert find(out, *(token(n) for n in range(1, 6)), said=spoken(capfd)) == []
    assert json.loads((out / "config.json").read_text())["api_key"] == "<secret>"
    assert json.loads((out / "training.json").read_text())["config"]["model_args"]["token"] == "<secret>"


def test_depth_and_collapse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / f"in-{token(1)}"
    place.mkdir()
    rows = place / "forget.jsonl"
    rows.write_text("".join(Path(FORGET).read_text().splitlines(keepends=True)[:2]))
    monkeypatch.setenv("ROWS", str(rows))
    out = tmp_path / "out"
    models = ["--unlearned", UNLEARNED, "--full", FULL, "--retain-model", RETAIN, "--quiet"]
    assert main(["depth", *models, "data=${oc.env:ROWS}", "--out", str(out / "depth")]) == 0
    rollouts = tmp_path / "rollouts.jsonl"
    lines = [{"prompt": f"who is {x}", "response": f"<think>one {x}</think> y", "group": x} for x in "abc"]
    rollouts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main(["collapse", str(rollouts), "--model", FULL, "--out", str(out / "collapse"), "--quiet"])
    assert find(out, token(1)) == []


# ---- older runs, and people's homes ---------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    assert main(["eval", "tofu", "--model", UNLEARNED, "--data", DATA, "--out", str(out), *SMALL]) == 0
    return out


def resealed(run: Path, change: Any) -> None:
    """A run as somebody might have edited it."""
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest)
    manifest.pop("root")
    text = json.dumps({**manifest, "root": ""}, indent=4)
    root = hashlib.sha256(text.encode()).hexdigest()
    (run / "manifest.json").write_text(text.replace('\n    "root": ""', f'\n    "root": "{root}"'))


def test_pack_refuses_secrets_of_earlier_versions(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    resealed(run, lambda m: m["config"]["model"]["model_args"].update(token="hf_" + "a1" * 12))
    assert main(["pack", str(run), "-o", str(run.parent / "x.zip")]) == 2
    said = spoken(capfd)
    assert "manifest.json" in said and "config.model.model_args.token" in said and "a1a1" not in said
    assert not (run.parent / "x.zip").exists()
    assert main(["report", str(run), "-o", str(run.parent / "report")]) == 0
    assert find(run.parent / "report", "a1a1") == []


def test_homes_are_named_and_shortened(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    resealed(run, lambda m: m["model"].update(name="/home/ada/models/npo"))
    archive, place = run.parent / "x.zip", run.parent
    assert main(["pack", str(run), "-o", str(archive)]) == 0
    assert "/home/ada" in caplog.text and "--shorten-paths" in caplog.text
    caplog.clear()
    assert main(["pack", str(run), "-o", str(archive), "--shorten-paths"]) == 0
    packed = list(opened("x.zip", archive.read_bytes()))
    assert [name for name, data in packed if b"~/models/npo" in data]
    assert not [name for name, data in packed if b"/home/ada" in data]
    assert main(["verify", str(archive)]) == 0
    assert main(["report", str(run), "-o", str(place / "r1")]) == 0
    assert "--shorten-paths" in caplog.text
    assert main(["report", str(run), "-o", str(place / "r2"), "--shorten-paths"]) == 0
    assert find(place / "r2", "/home/ada") == []
    assert main(["verify", str(place / "r2")]) == 0


# ---- names and shapes -----------------------------------------------------------------------------------------------

SECRET = "token hf_token HF_TOKEN use_auth_token api_key apiKey api-key password db_password secret client_secret "
SECRET += "authorization aws_secret_access_key private_key WANDB_API_KEY hub_token credentials"
OURS = "eos_token pad_token max_new_tokens batch_tokens tokens access_key key token_type_ids tokenizer mask_token_id "
OURS += "additional_special_tokens question_key secretary num_tokens_per_row"


def test_names() -> None:
    assert [n for n in SECRET.split() if not secrets.is_secret_name(n)] == []
    assert [n for n in OURS.split() if secrets.is_secret_name(n)] == []


def test_plain_words_are_not_looked_for_everywhere() -> None:
    secrets.note_words(["model.token=test", "model.password=1234", "model.secret=password"])
    assert secrets.hide('{"test_split": 0.1234, "password": 1}') == '{"test_split": 0.1234, "password": 1}'
    assert secrets.masked({"token": "test", "eos_token": "test", "password": 1234}) == {
        "token": "<secret>", "eos_token": "test", "password": "<secret>",
    }  # fmt: skip


def test_shapes_and_spellings() -> None:
    for text in ("hf_" + "x9" * 10, "sk-" + "x9" * 12, "ghp_" + "x9" * 12, "Bearer abcdefgh12345", "AKIA" + "X" * 16):
        assert "x9x9" not in secrets.hide(f"see {text}!") and "<secret>" in secrets.hide(f"see {text}!")
    secrets.note('a"b\\c/ü+12')
    for form in (json.dumps('a"b\\c/ü+12'), repr('a"b\\c/ü+12'), "a%22b%5Cc%2F%C3%BC%2B12"):
        assert "12" not in secrets.hide(form), form


def test_a_secret_inside_a_longer_one_and_one_after_a_flag() -> None:
    secrets.note_words(["--api-key", "opal-7q1", "--token", "opal-7q1-and-its-tail-3"])
    assert secrets.hide("with opal-7q1 or opal-7q1-and-its-tail-3.") == "with <secret> or <secret>."


def test_user_errors_hide() -> None:
    secrets.note(token(1))
    assert token(1) not in str(UserError(f"cannot use {token(1)}."))


def test_expand_is_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "/srv/data")
    secrets.note_environment("PLACE", "/srv/data")
    shown = secrets.masked({"path": "/srv/data/x.json", "handler": "/srv/data"})
    assert shown == {"path": "${oc.env:PLACE}/x.json", "handler": "/srv/data"}
    assert secrets.expand(shown)["path"] == "/srv/data/x.json"
    monkeypatch.delenv("PLACE")
    assert secrets.expand(shown) == shown and secrets.unset(shown["path"]) == "PLACE"
    assert "PLACE" not in os.environ


def test_another_value_in_the_environment_is_another_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests show the expression; a sweep must still see that what is behind it changed."""
    from vestige.engine.config import compose_runs
    from vestige.runs.manifest import config_json

    words = ["task_name=t", "model=local", "model.model_args.pretrained_model_name_or_path=m"]
    found = []
    for value in ("/data/one", "/data/two", "/data/one"):
        monkeypatch.setenv("PLACE", value)
        monkeypatch.setattr(secrets, "_environment", {})
        found.append(config_json(compose_runs([*words, "++eval.tofu.place=${oc.env:PLACE}"])[0].describe()))
    assert all(body["settings"]["place"] == "${oc.env:PLACE}" for body in found)
    assert found[0] == found[2] != found[1]
    assert "/data" not in json.dumps(found)
