"""Checkpoints, rows, archives and plans that nobody could follow: one sentence and status 2 each, and soon."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import LAB
from loops import one_test
from models_tools import tiny_model, tiny_tokenizer, write_gguf
from vestige.cli import main
from vestige.data.rows import read_file
from vestige.errors import UserError
from vestige.guard import parse_json, parse_yaml

FULL = LAB / "models" / "full"
SMALL = ["--limit", "2", "--quiet", "--metrics", "forget_Q_A_ROUGE"]


def changed(place: Path, file: str, **settings: Any) -> Path:
    """A copy of a lab model with other settings."""
    shutil.copytree(FULL, place)
    path = place / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **settings}))
    return place


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    errors = [line for line in said.splitlines() if line.startswith("vestige: error:")]
    assert len(errors) == 1 and "Traceback" not in said, said
    return errors[0]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"rope_parameters": {"rope_type": "wobbly", "rope_theta": 1e4}}, "wobbly"),
    ("config.json", {"rope_scaling": {"type": "wobbly", "factor": 2.0}}, "wobbly"),
    ("config.json", {"hidden_act": "sillu"}, "sillu"),
    ("config.json", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "plain F32"),
    ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "plain F32"),
    ("config.json", {"attn_implementation": "kernels-community/flash-attn"}, "hub"),
    ("config.json", {"_attn_implementation": "kernels-community/flash-attn"}, "hub"),
    ("config.json", {"eos_token_id": "</s>"}, "eos_token_id"),
    ("generation_config.json", {"eos_token_id": "</s>"}, "eos_token_id"),
    ("generation_config.json", {"eos_token_id": [1, "x"]}, "eos_token_id"),
    ("generation_config.json", {"repetition_penalty": -1.2}, "repetition_penalty"),
    ("generation_config.json", {"repetition_penalty": 0}, "repetition_penalty"),
    ("generation_config.json", {"repetition_penalty": "much"}, "repetition_penalty"),
]


@one_test(("file", "settings", "words"), BAD)
def test_settings_of_a_checkpoint(
    file: str, settings: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = changed(tmp_path / "model", file, **settings)
    out = str(tmp_path / "out")
    assert main(["eval", "tofu", "--model", str(model), "--data", str(LAB / "data"), "--out", out, *SMALL]) == 2
    assert words in sentence(capsys)


def test_an_attention_from_a_hub_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", str(FULL), "--data", str(LAB / "data"), "--out", str(tmp_path), *SMALL]
    assert main(["eval", "tofu", *words, "model.model_args.attn_implementation=kernels-community/x"]) == 2
    assert "Unknown attention" in sentence(capsys)


# ---- rows longer than the model reads -------------------------------------------------------------------------------

LONG = {"words": "word " * 200_000, "one word": "x" * 1_000_000, "a bit": "the cat sat, 123 " * 200}


@pytest.fixture(params=LONG)
def long_rows(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / "data"
    shutil.copytree(LAB / "data", place)
    rows = [json.loads(line) for line in (place / "forget.jsonl").read_text().splitlines()[:4]]
    rows[2]["answer"] = LONG[request.param]
    (place / "forget.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def verbs(data: Path, out: Path) -> Iterator[list[str]]:
    rows, model = str(data / "forget.jsonl"), str(FULL)
    yield ["eval", "tofu", "--model", model, "--data", str(data), "--out", str(out / "e"), "--quiet"]
    yield ["plan", "tofu", "--model", model, "--data", str(data)]
    yield ["unlearn", "--method", "GradAscent", "--model", model, "--forget", rows, "--out", str(out / "u"), "--quiet"]
    models = ["--unlearned", model, "--full", model, "--retain-model", model]
    yield ["depth", *models, "--forget", rows, "--out", str(out / "d"), "--quiet"]


def test_a_row_longer_than_the_context_is_refused_at_once(
    long_rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan", "tofu", "--model", str(FULL), "--data", str(LAB / "data")])  # imports are not what is timed
    capsys.readouterr()
    for words in verbs(long_rows, tmp_path / "out"):
        start = time.process_time()
        assert main(words) == 2
        assert time.process_time() - start < 5, words
        said = sentence(capsys)
        assert "forget.jsonl row 2" in said and "256" in said, said


def long_rollouts(place: Path, text: str) -> Path:
    rows = [{"prompt": f"Question {n}?", "response": f"<think>because of {n}</think> {n}"} for n in range(4)]
    rows[2]["response"] = f"<think>{text}</think> 2"
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


@pytest.mark.parametrize("kind", LONG)
def test_a_rollout_longer_than_the_context_is_refused_before_weights_are_read(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = long_rollouts(tmp_path / "rollouts.jsonl", LONG[kind])
    monkeypatch.setattr("vestige.engine.handles.load_model", lambda args: pytest.fail("weights were read"))
    start = time.process_time()
    assert main(["collapse", str(rollouts), "--model", str(FULL), "--out", str(tmp_path / "c"), "--quiet"]) == 2
    assert time.process_time() - start < 5
    said = sentence(capsys)
    assert "rollouts.jsonl row 3" in said and "256" in said, said  # rollout files count rows from 1


@pytest.mark.parametrize("kind", LONG)
def test_a_row_longer_than_the_context_of_a_gguf_file(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    context = 256
    model = tiny_model(max_position_embeddings=context)
    write_gguf(tmp_path / "tiny.gguf", model, tiny_tokenizer())
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"question": f"Question {n}?", "answer": f"Answer {n}."} for n in range(3)]
    rows[1]["answer"] = LONG[kind]
    (data / "forget.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rollouts = long_rollouts(tmp_path / "rollouts.jsonl", LONG[kind])
    monkeypatch.setattr("vestige.engine.handles.load_model", lambda args: pytest.fail("weights were read"))
    named = ["--model", str(tmp_path / "tiny.gguf"), "--out", str(tmp_path / "out"), "--quiet"]
    for words, where in (
        (["eval", "tofu", *named, "--data", str(data), *SMALL], "forget.jsonl row 1"),
        (["collapse", str(rollouts), *named], "rollouts.jsonl row 3"),
    ):
        start = time.process_time()
        assert main(words) == 2
        assert time.process_time() - start < 5, words
        said = sentence(capsys)
        assert where in said and f"{context:,}" in said, said


def test_what_max_length_cuts_is_not_refused(long_rows: Path, tmp_path: Path) -> None:
    tags = [
        "model.template_args.apply_chat_template=false",
    ]
    words = ["eval", "tofu", "--model", str(FULL), "--data", str(long_rows), "--out", str(tmp_path / "o"), "--quiet"]
    data = "eval.tofu.metrics.forget_Q_A_Prob.datasets.TOFU_QA_forget.args.max_length=64"
    assert main([*words, "--metrics", "forget_Q_A_Prob", *tags, f"++{data}"]) == 0


# ---- double keys ----------------------------------------------------------------------------------------------------


def test_double_keys_in_rows(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"question": "a", "answer": "b"}\n{"question": "q", "answer": "x", "question": "z"}\n')
    with pytest.raises(UserError, match=r"a\.jsonl line 2: the key 'question' is there twice"):
        read_file(lines)
    array = tmp_path / "a.json"
    array.write_text('[{"question": "a", "answer": "b"},\n {"question": "q",\n  "answer": "x",\n  "question": "z"}]')
    with pytest.raises(UserError, match=r"a\.json: the key 'question' is there twice"):
        read_file(array)
    nested = tmp_path / "n.jsonl"
    nested.write_text('{"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]}\n')
    assert read_file(nested)  # the same key in different objects


def test_double_keys_in_plans_and_configs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("models: [a]\nsuites: {tofu: {limit: 1}}\nmodels: [b]\n")
    assert main(["sweep", str(plan)]) == 2
    said = sentence(capsys)
    assert "line 3" in said and "'models'" in said
    with pytest.raises(ValueError, match="line 4: the key 'x' is already on line 3"):
        parse_yaml("a:\n  b:\n    x: 1\n    x: 2\n")
    assert parse_yaml("a: &o {b: 1}\nc: {<<: *o, b: 2}\nd: {b: 3}") == {"a": {"b": 1}, "c": {"b": 2}, "d": {"b": 3}}
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}  # what is not rows is read as ever
    group = tmp_path / "conf" / "eval" / "tofu_metrics"
    group.mkdir(parents=True)
    (group / "mine.yaml").write_text("handler: probability\nhandler: rouge\n")
    words = ["--model", str(FULL), "--data", str(LAB / "data"), "--config-dir", str(tmp_path / "conf")]
    assert main(["eval", "tofu", *words, "--metrics", "mine", "--out", str(tmp_path / "o")]) == 2
    said = sentence(capsys)
    assert "mine.yaml, line 2" in said and "'handler'" in said
