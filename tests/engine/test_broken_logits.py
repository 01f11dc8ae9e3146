"""A model whose logits are NaN or infinite gets no value from them: null with a reason, and a status that says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import LAB
from vestige.cli import main
from vestige.stats import vectors
from vestige.types import BAD_LOGITS

DIFFUSION = Path(__file__).parents[1] / "golden" / "lab_diffusion"


def broken(source: Path, place: Path, value: float) -> Path:
    """A copy of a checkpoint with one weight of its first block spoilt."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, place)
    tensors = load_file(place / "model.safetensors")
    name = next(n for n in sorted(tensors) if ".0." in n and tensors[n].ndim == 2)
    tensors[name].view(-1)[0] = value
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


@pytest.fixture(scope="module")
def nan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return broken(LAB / "models" / "unlearned", tmp_path_factory.mktemp("nan") / "model", float("nan"))


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def numbers(value: Any) -> list[float]:
    """Every float below a value."""
    if isinstance(value, dict):
        return [x for v in value.values() for x in numbers(v)]
    if isinstance(value, list):
        return [x for v in value for x in numbers(v)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_eval_has_no_value_at_all_not_even_from_texts(
    value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = broken(LAB / "models" / "unlearned", tmp_path / "model", value)
    out = tmp_path / "out"
    flags = ["--metrics", "forget_Q_A_ROUGE,forget_quality,mia_gradnorm,model_utility", "--limit", "3", "--quiet"]
    assert main(["eval", "tofu", "--model", str(model), "--data", str(LAB / "data"), "--out", str(out), *flags]) == 2
    assert read(out / "TOFU_SUMMARY.json") == {}
    results = read(out / "TOFU_EVAL.json")
    assert len(results) > 10
    assert all(entry["agg_value"] is None and BAD_LOGITS in entry["reason"] for entry in results.values())
    assert not numbers(results)
    assert "None of the metrics" in capsys.readouterr().err
    assert main(["score", str(out)]) in (0, 2)
    assert read(out / "TOFU_EVAL.json") == results
    assert main(["verify", str(out)]) == 0


def test_a_classifier_is_not_asked_about_texts_that_are_not_there(nan: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--metrics", "forget_Q_A_gibberish", "--limit", "2", "--quiet"]
    more = ["++eval.tofu.metrics.forget_Q_A_gibberish.classifier_model_args.pretrained_model_name_or_path=/nowhere"]
    main(["eval", "tofu", "--model", str(nan), "--data", str(LAB / "data"), "--out", str(out), *words, *more])
    entry = read(out / "TOFU_EVAL.json")["forget_Q_A_gibberish"]
    assert entry["agg_value"] is None and BAD_LOGITS in entry["reason"]


def test_trajectories(tmp_path: Path) -> None:
    model = broken(DIFFUSION / "models" / "full", tmp_path / "model", float("nan"))
    out, data = tmp_path / "out", str(DIFFUSION / "data")
    flags = ["--limit", "2", "--quiet"]
    assert main(["eval", "tofu_trajectory", "--model", str(model), "--data", data, "--out", str(out), *flags]) == 2
    entry = read(next(out.glob("*_EVAL.json")))["trajectory_metrics"]
    assert entry["agg_value"] is None and BAD_LOGITS in entry["reason"]
    assert not numbers(entry["step_distribution"]) and not numbers(entry["reference_by_step"])
    assert main(["verify", str(out)]) == 0


def test_texts_of_a_diffusion_model(tmp_path: Path) -> None:
    model = broken(DIFFUSION / "models" / "full", tmp_path / "model", float("nan"))
    out, flags = tmp_path / "out", ["--metrics", "forget_Q_A_ROUGE", "--limit", "2", "--quiet"]
    data = str(DIFFUSION / "data")
    flags += ["++eval.tofu.metrics.forget_Q_A_ROUGE.generation_args.max_new_tokens=16"]
    assert main(["eval", "tofu", "--model", str(model), "--data", data, "--out", str(out), *flags]) == 2
    assert BAD_LOGITS in read(out / "TOFU_EVAL.json")["forget_Q_A_ROUGE"]["reason"]


@pytest.mark.parametrize("who", ["unlearned", "retain"])
def test_depth(nan: Path, tmp_path: Path, who: str) -> None:
    models = {name: str(LAB / "models" / name) for name in ("unlearned", "full", "retain")} | {who: str(nan)}
    flags = ["--unlearned", models["unlearned"], "--full", models["full"], "--retain-model", models["retain"]]
    more = ["--forget", str(LAB / "data" / "forget.jsonl"), "--limit", "2", "--baselines", "cka,logit_lens,fisher"]
    out = tmp_path / "out"
    assert main(["depth", *flags, *more, "--plots", "--out", str(out), "--quiet"]) == 2
    summary = read(out / "summary.json")
    assert summary["avg_uds"] is None and BAD_LOGITS in summary["reason"] and summary["profile"] == []
    assert set(summary["baselines"].values()) == {None}
    assert all(entry["reason"] for entry in read(out / "baselines.json").values())
    assert not numbers(read(out / "results.json"))
    assert main(["verify", str(out)]) == 0


def test_collapse(nan: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"who is {x}", "response": f"<think>one {x}</think> y", "group": x} for x in "abc"]
    file = tmp_path / "rollouts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    assert main(["collapse", str(file), "--model", str(nan), "--out", str(out), "--quiet"]) == 2
    step = read(out / "metrics.json")["steps"][0]
    assert "no finite log-probability" in json.dumps(step)
    assert not [k for k in step.get("metrics", {}) if "/mi" in k or "retrieval" in k]


TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
{more}
metadata: {{version: 1.0}}
"""
CHOICE = 'doc_to_choice: "{{choices}}"\ndoc_to_target: label\nmetric_list: [{metric: acc}]'
TEXT = (
    'doc_to_target: "{{question}}"\ngeneration_kwargs: {until: ["."], max_gen_toks: 4}\n'
    "metric_list: [{metric: exact_match}]"
)


@pytest.mark.parametrize("lab", [LAB, DIFFUSION], ids=["causal", "diffusion"])
def test_the_harness(lab: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("lm_eval")
    model = broken(lab / "models" / "full", tmp_path / "model", float("nan"))
    data = tmp_path / "rows.jsonl"
    rows = [{"question": f"who is {x}?", "choices": ["a man", "a dog"], "label": 0} for x in "ab"]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for name, kind, more in (("choose", "multiple_choice", CHOICE), ("say", "generate_until", TEXT)):
        (tasks / f"{name}.yaml").write_text(TASK.format(name=name, data=data, kind=kind, more=more))
    out = tmp_path / "out"
    words = ["--tasks", "choose,say", "--include-path", str(tasks), "--out", str(out), "--quiet"]
    assert main(["eval", "lm_eval", "--model", str(model), *words]) == 2
    assert read(out / "LMEval_SUMMARY.json") == {}
    details = read(out / "LMEval_EVAL.json")
    for entry in details.values():
        assert set(entry["metrics"].values()) == {None} and BAD_LOGITS in entry["reason"]
        assert not [v for row in entry["value_by_index"].values() for k, v in row.items() if k != "target" and v]
    assert BAD_LOGITS in caplog.text


# ---- privleak -----------------------------------------------------------------------------------------------------


def test_privleak_has_no_value_where_nothing_can_be_related_to() -> None:
    assert vectors.privleak(1.0, 1.0) == 0.0  # the retain model against itself
    assert np.isnan(vectors.privleak(0.64, 1.0))
    assert np.isnan(vectors.rel_diff(0.64, 0.0))
    draws = vectors.privleak(np.array([0.5, 0.5, 1.0]), np.array([0.5, 1.0, 1.0]))
    assert draws[0] == 0 and np.isnan(draws[1]) and draws[2] == 0
    assert vectors.privleak(0.25, 0.999) == pytest.approx(74900, rel=1e-6)  # large, and honest


@pytest.fixture
def compared(tmp_path: Path) -> tuple[Path, Path]:
    """A run and the retain logs it was compared with."""
    logs = tmp_path / "retain"
    flags = ["--data", str(LAB / "data"), "--limit", "10", "--quiet", "--metrics", "privleak,forget_quality"]
    assert main(["eval", "tofu", "--model", str(LAB / "models" / "retain"), "--out", str(logs), *flags]) == 0
    run, file = tmp_path / "run", logs / "TOFU_EVAL.json"
    more = ["--out", str(run), "--retain-logs", str(file)]
    assert main(["eval", "tofu", "--model", str(LAB / "models" / "unlearned"), *more, *flags]) == 0
    return run, file


def test_changed_retain_logs_are_named_and_an_auc_of_1_gives_no_privleak(
    compared: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    run, file = compared
    assert main(["score", str(run)]) == 0
    assert "changed since" not in caplog.text
    logs = read(file)
    logs["mia_min_k"]["agg_value"] = 1.0
    file.write_text(json.dumps(logs))
    assert main(["score", str(run)]) == 0
    assert f"retain logs {file} have changed since the run was made" in caplog.text
    results = read(run / "TOFU_EVAL.json")
    assert results["privleak"]["agg_value"] is None and "AUC is 1" in results["privleak"]["reason"]
    assert any("changed since" in note for note in results["forget_quality"]["notes"])
    assert "privleak" not in read(run / "TOFU_SUMMARY.json")
    assert main(["verify", str(run)]) == 0


def test_a_token_that_the_models_code_forbids_leaves_other_metrics_whole(tmp_path: Path) -> None:
    """-inf at a label: no likelihood, but nothing else is lost; and a change of the model is still noticed."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import vestige

    place = LAB / "models" / "unlearned"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(place).eval(), AutoTokenizer.from_pretrained(place)
    sign = 1.0

    def forbid(_module: Any, _given: Any, logits: Any) -> Any:
        logits = sign * logits
        logits[..., tokenizer.eos_token_id] = float("-inf")
        return logits

    model.lm_head.register_forward_hook(forbid)

    def memorised() -> Any:
        names = ["forget_Q_A_Prob", "mia_loss", "exact_memorization"]
        more: dict[str, Any] = {"metrics": names, "limit": 4, "progress": False, "tokenizer": tokenizer}
        return vestige.evaluate(model, "tofu", data=LAB / "data", out=tmp_path / str(sign), **more)

    first = memorised()
    assert BAD_LOGITS in first["forget_Q_A_Prob"].reason and BAD_LOGITS in first["mia_loss"].reason
    assert not any("packed scoring" in note for note in first.notes)
    sign = -1.0
    second = memorised()
    assert second["exact_memorization"].agg_value != first["exact_memorization"].agg_value
