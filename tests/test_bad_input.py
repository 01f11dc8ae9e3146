"""What fuzzing found, each as a plain case; and odd tokenizers, odd models and odd rows from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz_config import METHOD_RESULTS, POOLS, SUMMARY
from fuzz_runs import eval_file, tofu_log
from fuzz_targets import TARGETS
from fuzz_tools import attempt
from loops import one_test
from models_tools import tiny_model, tiny_tokenizer
from vestige.cli import main
from vestige.engine.config import compose_runs
from vestige.errors import UserError
from vestige.guard import is_there

WORDS = ["task_name=t", "model=local", "model.model_args.pretrained_model_name_or_path=m"]


# ---- found by fuzzing ----------------------------------------------------------------------------------------

FOUND: list[tuple[str, Any]] = [
    # rows: values of the wrong kind in hf_args, names no file can have
    ("rows.directory", {"hf_args": {"name": 3}}),
    ("rows.directory", {"hf_args": {"data_files": 3}}),
    ("rows.directory", {"hf_args": {"data_files": {"train": [None]}}}),
    ("rows.directory", {"hf_args": {"data_files": "x" * 5000}}),
    ("rows.directory", {"hf_args": {"data_files": "a\0b"}}),
    ("rows.directory", {"limit": "all"}),
    # template: numbers as tags, settings that are no mapping
    ("template", {"template_args": {"apply_chat_template": False, "user_start_tag": 3}, "pairs": [["q", "a"]]}),
    ("template", {"template_args": ["a"]}),
    ("template", {"template_args": {"apply_chat_template": False, "asst_end_tag": "\ud800"}, "pairs": [["q", "a"]]}),
    ("template", {"template_args": float("nan")}),
    # rollouts: infinite turns, negative and giant token ids, no history
    ("reasoning", {"history": None, "env_id": 1}),
    ("reasoning", {"prompt": "p", "response": "r", "turn": float("inf")}),
    ("reasoning", {"prompt_ids": [-1], "response_ids": [2**40]}),
    ("reasoning", {"prompt_ids": [float("inf")], "response": "r"}),
    ("rollouts.slime_samples", {"samples": [{"tokens": [float("inf")], "response_length": float("nan")}]}),
    # meta-evaluation
    ("meta.files", {"m1": {"pool": {}, "metrics": {}}}),
    ("meta.files", {**METHOD_RESULTS, "full_utility": [1]}),
    ("meta.files", {"criteria": 0.5}),
    ("meta.files", {"usable_models_per_metric": {"em": 3.5}}),
    ("meta.tree", {**SUMMARY, "attacks": {"loss": {"auc": "x", "retain_auc": 0.5}}}),
    ("meta.tree", {**SUMMARY, "attacks": [1]}),
    ("meta.tree", {**SUMMARY, "metrics": "x"}),
    ("plan", {"models": ["a"], "suites": {"tofu": "x"}}),
    ("plan", {"models": ["a", "b/c"], "suites": ["tofu", ["a", 1, None]]}),
    ("plan", {"models": ["a"], "suites": ["tofu"], "memory": "1.2.3"}),
    ("plan", {"models": ["a"], "suites": ["tofu"], "memory": "9" * 400}),
    ("pools", {"models": ["a" * 3000]}),
    ("plan", {"models": ["a"], "suites": ["tofu"], "retain": "a" * 3000}),
    ("plan", {"models": ["a", "a" * 3000], "suites": ["tofu"]}),
    ("plan", {"models": ["a"], "suites": {"tofu": {"data": int("1" * 350)}}}),
    ("user_config", 3.5),
    ("user_config", "1:2:3"),
    ("user_config", ["handler"]),
    ("user_config", {"handler": "privleak", "pre_compute": 3.5}),
    # trajectories: a number for a name or a list of names
    ("trajectory", {"trajectory_config": {"trajectories": 3}}),
    ("trajectory", {"trajectory_config": {"include_views": 3}}),
    ("trajectory", {"trajectory_config": {"include_views": [[]]}}),
    # checkpoints: settings of another kind in config.json
    ("model.config", {"model_type": "llama", "architectures": True}),
    ("model.config", {"model_type": "llama", "auto_map": 3}),
    ("model.config", {"model_type": "llama", "quantization_config": "x"}),
    # imported results
    ("import", {"m": {"agg_value": "x"}}),
    ("import", {"m": {"agg_value": 1.0, "value_by_index": 3.5}}),
    ("import", {"m": {"agg_value": 1.0, "value_by_index": {"0": ["a"]}}}),
    ("import", {"eval_log_forget.json": {"avg_gt_loss": {"0": "x"}}}),
    ("import", {"eval_log_forget.json": {"rougeL_recall": {"0": 1.0}, "rouge1_recall": {}}}),
]


@one_test(("name", "value"), FOUND)
def test_found(name: str, value: Any) -> None:
    found = attempt(TARGETS[name], json.dumps(value).encode())
    assert found is None, found


def test_found_a_number_for_a_key() -> None:
    data = b"models: [{model: x, 1: 2, values: {em: 0.2}}]\nfull: {em: 0.9}\nretain: {values: {em: 0.1}}\n"
    found = attempt(TARGETS["meta.numbers"], data)
    assert found is None, found


def bad_manifests() -> list[dict[str, Any]]:
    from fuzz_runs import finished_run

    good = json.loads((finished_run() / "manifest.json").read_text())
    lacking = [{k: v for k, v in good.items() if k != key} for key in ("versions", "data", "template", "config")]
    references = {**good, "references": "x"}
    lacking.append({**good, "patched": {"full": "x" * 3000}})
    lacking.append({**good, "data_of": {name: {} for name in good["data_of"]}})
    return [*lacking, references, {**good, "config": {**good["config"], "metrics": [1]}}, {**good, "data_of": 3}]


def test_found_in_manifests() -> None:
    for body in bad_manifests():
        found = attempt(TARGETS["stored.manifest"], json.dumps(body).encode())
        assert found is None, found


@one_test(
    ("name", "data"),
    [
        ("stored.eval", b'{"a": \xaa}'),
        ("stored.eval", b"{"),
        ("stored.manifest", b"[" * 5000),
        ("stored.examples", b"\x1f\x8b\x08\x00garbage"),
        ("stored.texts", b'{"key": "k", "ids": [1], "text": 3.5, "proven": 0}\n'),
        ("stored.texts", b'{"key": "k", "ids": [[[1]]], "text": [], "proven": 0}\n'),
        ("stored.texts", b"[" * 5000),
        ("user_config", b"handler: \xe7"),
        ("pools", b'{"positive": [{"model": "\\udc00", "values": {"em": 1}}], "negative": []}'),
        ("rows.jsonl", b'{"question": "\\ud800", "answer": "a"}'),
        ("rows.jsonl", b'{"question": ' + b"1" * 5000 + b"}"),
        ("rows.jsonl", b"[" * 100_000),
    ],
)
def test_found_in_bytes(name: str, data: bytes) -> None:
    found = attempt(TARGETS[name], data)
    assert found is None, found


def test_found_what_arrow_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors are not all OSErrors and ValueErrors."""
    import pyarrow

    def refuse(*_: Any, **__: Any) -> None:
        raise pyarrow.ArrowNotImplementedError("Integers with less than 8 bits not implemented")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile", refuse)
    found = attempt(TARGETS["rows.parquet"], TARGETS["rows.parquet"].seeds()[0])
    assert found is None, found


def test_numbers_beyond_floats(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text(POOLS.replace("0.9", "1" * 400))
    assert attempt(TARGETS["meta.numbers"], path.read_bytes()) is None
    body = json.dumps(eval_file()).replace("0.", "1" * 400 + ".", 1)
    assert attempt(TARGETS["import"], body.encode()) is None
    assert attempt(TARGETS["import"], json.dumps(tofu_log()).replace("1.0", "1" * 301).encode()) is None


@one_test("word", ["data.max_samples=abc", "batch_tokens=[1]", "max_rows=1.5", "data.max_samples=0"])
def test_counts_are_whole_numbers(word: str) -> None:
    with pytest.raises(UserError, match="whole number"):
        compose_runs([*WORDS, word])


# ---- rows that are odd and fine ------------------------------------------------------------------------------

SHORT = "forget_Q_A_Prob,forget_Q_A_ROUGE,exact_memorization"
ROWS = [
    {"question": "what did the dog eat", "answer": "the small cat"},
    {"question": "who sat", "answer": "a dog sat on the mat"},
]


def rows_file(place: Path, rows: list[dict[str, Any]]) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "forget.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return place


def checkpoint(place: Path, model: Any = None, tokenizer: Any = None) -> Path:
    (model if model is not None else tiny_model()).save_pretrained(place)
    (tokenizer or tiny_tokenizer()).save_pretrained(place)
    return place


def evaluated(tmp_path: Path, model: Path, rows: list[dict[str, Any]], *more: str) -> dict[str, Any]:
    words = ["eval", "tofu", "--model", str(model), "--data", str(rows_file(tmp_path / "d", rows)), "--quiet"]
    assert main([*words, "--out", str(tmp_path / "out"), "--metrics", SHORT, *more]) == 0
    return dict(json.loads((tmp_path / "out" / "TOFU_EVAL.json").read_text()))


def test_a_tokenizer_without_pad_end_and_beginning(tmp_path: Path) -> None:
    bare = tiny_tokenizer()
    bare.eos_token = bare.bos_token = bare.pad_token = None
    place = checkpoint(tmp_path / "m", tokenizer=bare)
    found = evaluated(tmp_path, place, ROWS)
    assert found["forget_Q_A_ROUGE"]["agg_value"] is not None
    # Nothing is appended where there is no end token: one label fewer a row than with it.
    full = evaluated(tmp_path / "b", checkpoint(tmp_path / "n"), ROWS)
    assert found["forget_Q_A_Prob"]["agg_value"] != full["forget_Q_A_Prob"]["agg_value"]


def test_embeddings_for_more_tokens_than_the_tokenizer_has(tmp_path: Path) -> None:
    """Padded vocabularies are common; the extra rows take part in the softmax, as they do in the model."""
    model = tiny_model()
    model.resize_token_embeddings(384)
    found = evaluated(tmp_path, checkpoint(tmp_path / "m", model), ROWS)
    tags = json.loads((tmp_path / "out" / "manifest.json").read_text())["template"]
    assert tags["apply_chat_template"] is False
    rows = found["forget_Q_A_Prob"]["value_by_index"]
    tokenizer = tiny_tokenizer()
    for index, row in enumerate(ROWS):
        text = tags["user_start_tag"] + row["question"] + tags["user_end_tag"] + tags["asst_start_tag"]
        prompt, whole = (tokenizer(t)["input_ids"] for t in (text, text + row["answer"]))
        whole = [*whole, tokenizer.eos_token_id]
        with torch.no_grad():
            logp = model(torch.tensor([whole])).logits[0].float().log_softmax(-1)
        mean = torch.stack([logp[i - 1, whole[i]] for i in range(len(prompt), len(whole))]).mean()
        assert rows[str(index)]["prob"] == pytest.approx(float(mean.exp()), rel=1e-4)


def test_answers_longer_than_a_rotary_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = checkpoint(tmp_path / "m", tiny_model(max_position_embeddings=64))
    data = rows_file(
        tmp_path / "d", [{"question": "q", "answer": "a"}, {"question": "q", "answer": "the cat sat " * 60}]
    )
    words = ["eval", "tofu", "--model", str(place), "--data", str(data), "--out", str(tmp_path / "o"), "--quiet"]
    assert main([*words, "--metrics", SHORT]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "forget.jsonl row 1" in said and "this model reads 64" in said


def test_odd_texts_have_numbers(tmp_path: Path) -> None:
    odd = [
        {"question": "\0\u2028", "answer": "\ufeff\u200b"}, {"question": "日本", "answer": "𝕏" * 10},
        {"question": "", "answer": ""}, {"question": "who sat", "answer": "a dog", "id": 1},
        {"question": "who sat", "answer": "a dog", "id": 1}, {"question": "<s></s>", "answer": "</s><s>"},
    ]  # fmt: skip
    found = evaluated(tmp_path, checkpoint(tmp_path / "m"), odd)
    rows = found["forget_Q_A_Prob"]["value_by_index"]
    assert set(rows) == {str(i) for i in range(len(odd))} and rows["3"] == rows["4"]


@one_test("word", ["eval=3.5", "model=nan", "eval=[1,2]"])
def test_a_group_takes_a_name(word: str) -> None:
    """Found by fuzzing."""
    with pytest.raises(UserError, match="write GROUP=NAME"):
        compose_runs([word, "task_name=t"])


@one_test("word", ["seed=None", "seed=1e999", "seed=-1", "seed=true"])
def test_a_seed_is_a_whole_number(word: str) -> None:
    """Found by fuzzing."""
    with pytest.raises(UserError, match="seed"):
        compose_runs([*WORDS, word])
    assert attempt(TARGETS["training_words"], word.encode()) is None


def test_what_may_not_be_read_is_not_taken_for_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    assert not is_there(Path("a" * 3000))
    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(PermissionError):
        is_there(Path("x"))
