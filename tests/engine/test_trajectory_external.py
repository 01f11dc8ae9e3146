"""`logits_source: external`: recorded logits are read row by row, and what does not fit is said."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from diffusion_tools import save_lab_bert
from vestige.adapters.trajectory_tensors import generated_windows, save_windows
from vestige.cli import main
from vestige.errors import UserError
from vestige.metrics.trajectory import sigma
from vestige.models.args import ModelArgs
from vestige.models.load import load_model
from vestige.runs.files import load_rows

KEY = "eval.trajectory_test.metrics.trajectory_metrics"
CONFIG = f"{KEY}.trajectory_config"
LENGTH, STEPS = 6, 3


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lab_bert(tmp_path_factory.mktemp("bert"), positions=256)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rows ask the same and answer the same; a third asks the same and answers otherwise."""
    place = tmp_path_factory.mktemp("rows")
    asked = "Where was the author born?"
    said = [(asked, "In a small town."), (asked, "In a small town."), (asked, "By the sea."), ("Who?", "Nobody.")]
    lines = [json.dumps({"question": q, "answer": a}) for q, a in said]
    (place / "forget.jsonl").write_text("\n".join(lines))
    return place


@pytest.fixture(scope="module")
def windows(bert: Path) -> list[tuple[torch.Tensor, np.ndarray]]:
    vocab = load_model(ModelArgs(path=str(bert))).model.config.vocab_size
    generator = torch.Generator().manual_seed(3)
    fixed = np.array([0, 1, 1, 2, 0, 2])
    return [(torch.randn(vocab, LENGTH, STEPS, generator=generator), np.roll(fixed, i)) for i in range(4)]


def run(bert: Path, rows: Path, file: Path, out: Path, *more: str) -> int:
    return main([
        "eval", "trajectory_test", "--model", str(bert), "--data", str(rows), "--out", str(out), "--quiet",
        f"{CONFIG}.sampler_kwargs.max_new_tokens={LENGTH}", f"{CONFIG}.sampler_kwargs.steps={STEPS}",
        f"+{CONFIG}.logits_source=external", f"+{CONFIG}.logits_path={file}", f"+{CONFIG}.store_per_sample=true",
        f"{CONFIG}.sampler_kwargs.trajectory_sample_interval=1", "stats.resamples=0", *more,
    ])  # fmt: skip


def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(out.glob("*_EVAL.json")).read_text())["trajectory_metrics"]
    return found


def test_each_row_is_scored_with_its_own_logits(bert: Path, rows: Path, windows: Any, tmp_path: Path) -> None:
    """Every row's probability and exact memorisation by hand, from its own window."""
    assert save_windows(tmp_path / "logits.safetensors", windows) == 4
    assert run(bert, rows, tmp_path / "logits.safetensors", tmp_path / "run") == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    kept = load_rows(tmp_path / "run" / "evidence" / "examples.json.gz")
    examples = next(iter(kept[k] for k in manifest["data_of"]["trajectory_metrics"].values())).examples
    found = result(tmp_path / "run")["value_by_index"]
    assert len(found) == 4
    for (logits, fixed), example in zip(windows, examples, strict=True):
        labels = torch.tensor(example[0].target.labels[:LENGTH])
        for along in ("steps", "fixation_end"):
            source = torch.as_tensor(sigma(along, fixed, STEPS))
            for s in range(STEPS):
                at = logits[:, torch.arange(len(labels)), source[s, : len(labels)]].T.double()
                p = float(torch.log_softmax(at, -1)[torch.arange(len(labels)), labels].mean().exp())
                got = found[example[0].index]["full"]["trajectories"][along][f"step_{s}"]
                assert got["probability"] == pytest.approx(p, rel=1e-5)
    one, two = (found[i]["full"]["trajectories"]["steps"]["step_0"]["probability"] for i in ("0", "1"))
    assert one != two


def test_what_differs_and_does_no_harm_is_noted(bert: Path, rows: Path, windows: Any, tmp_path: Path) -> None:
    save_windows(tmp_path / "logits.safetensors", windows)
    more = "--limit", "2", f"{CONFIG}.sampler_kwargs.steps=5"
    assert run(bert, rows, tmp_path / "logits.safetensors", tmp_path / "run", *more) == 0
    notes = " ".join(json.loads((tmp_path / "run" / "manifest.json").read_text())["notes"])
    assert "has 4 windows, of which the first 2 were read" in notes
    assert "has 3 passes, sampler_kwargs.steps is 5" in notes


def test_a_samplers_output_becomes_such_a_file(tmp_path: Path) -> None:
    """Right-padded prompts of unequal length; a position that was never decided stays so."""
    torch.manual_seed(0)
    out = SimpleNamespace(
        logits_history=[torch.randn(2, 7, 11) for _ in range(3)],
        fixation_steps=torch.tensor([[0, 0, 0, 0, 1, 2, -1], [0, 0, 1, 2, 0, 0, 0]]),
    )
    made = generated_windows(out.logits_history, out.fixation_steps, prompt_lens=[3, 2])
    assert [tuple(r.shape) for r, _ in made] == [(11, 4, 3)] * 2
    assert [f.tolist() for _, f in made] == [[0, 1, 2, -1], [1, 2, 0, 0]]
    assert torch.equal(made[1][0][:, 0, 2], out.logits_history[2][1, 2])
    save_windows(tmp_path / "w.safetensors", made)
    with pytest.raises(UserError, match=r"written as \.safetensors"):
        save_windows(tmp_path / "w.pt", made)
    with pytest.raises(UserError, match="No window"):
        save_windows(tmp_path / "e.safetensors", [])
    with pytest.raises(UserError, match=r"3 fixation steps; give R \[V, L, S\]"):
        save_windows(tmp_path / "e.safetensors", [(made[0][0], [0, 1, 2])])


PLUGIN = """
import numpy as np
from torch.utils.data import DataLoader
from evals.metrics.base import unlearning_metric
from evals.metrics.utils import evaluate_probability, run_batchwise_evals


@unlearning_metric(name="theirs_here")
def theirs_here(model, **kwargs):
    loader = DataLoader(kwargs["data"], batch_size=2, collate_fn=kwargs["collators"])
    scores = run_batchwise_evals(model, loader, evaluate_probability, {}, "probability")
    return {"agg_value": np.mean([s["prob"] for s in scores.values()]), "value_by_index": scores}
"""


def test_a_causal_plugin_reads_a_diffusion_model_in_its_place(bert: Path, rows: Path, tmp_path: Path) -> None:
    """Row t - 1 of what the metric is handed is the mask predictor's row t: the probability by hand, token by token."""
    (tmp_path / "theirs.py").write_text(PLUGIN)
    group = tmp_path / "configs" / "eval" / "tofu_metrics"
    group.mkdir(parents=True)
    for name, extra in (("moved", ""), ("own", "logit_alignment: same_position")):
        head = f"# @package eval.tofu.metrics.mine\nhandler: theirs_here\n{extra}\n"
        (group / "mine.yaml").write_text(head + "datasets: {TOFU_QA_forget: {}}\n")
        args = ["eval", "tofu", "--model", str(bert), "--data", str(rows), "--out", str(tmp_path / name), "--quiet"]
        more = ["--plugin", str(tmp_path / "theirs.py"), "--config-dir", str(tmp_path / "configs"), "--metrics", "mine"]
        assert main([*args, *more, "stats.resamples=0"]) == 0
    found = {n: json.loads((tmp_path / n / "TOFU_EVAL.json").read_text())["mine"] for n in ("moved", "own")}
    kept = load_rows(tmp_path / "moved" / "evidence" / "examples.json.gz")
    model = load_model(ModelArgs(path=str(bert))).model.eval()
    for row in next(iter(kept.values())).examples:
        target = row[0].target
        assert target is not None
        with torch.inference_mode():
            logp = torch.log_softmax(model(input_ids=torch.tensor([target.ids])).logits[0].double(), -1)
        own = [float(logp[t, target.ids[t]]) for t in range(target.start, len(target.ids))]
        got = found["moved"]["value_by_index"][row[0].index]["prob"]
        assert got == pytest.approx(np.exp(np.mean(own)), rel=1e-3)
    assert "moved by one place" in found["moved"]["notes"][0] and "moved" not in found["own"]["notes"][0]
    assert found["own"]["agg_value"] != pytest.approx(found["moved"]["agg_value"], rel=1e-2)


def test_both_prompt_conventions_from_a_users_own_tokens(bert: Path, tmp_path: Path) -> None:
    """Labels that mark the prompt, and prompts alone with the conversation as labels: one evaluation, equal numbers."""
    prompt, answer = [11, 12, 13], [21, 22, 23, 24]
    layouts = {
        "marked": {"input_ids": [0, *prompt, *answer], "labels": [-100] * 4 + answer, "attention_mask": [0] + [1] * 7},
        "prompt": {"input_ids": prompt, "labels": prompt + answer},
        "completion": {"input_ids": prompt, "labels": [-100] * 3 + answer},
    }
    group = tmp_path / "configs" / "eval" / "tofu_metrics"
    group.mkdir(parents=True)
    values = {}
    for name, row in layouts.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
        args = f"{{hf_args: {{path: '{tmp_path / name}.jsonl'}}, predict_with_generate: {name != 'marked'}}}"
        (group / "mine.yaml").write_text(
            "# @package eval.tofu.metrics.mine\nhandler: trajectory_metrics\nmetrics: [probability, rouge]\n"
            "trajectory_config: {sampler_kwargs: {steps: 2, max_new_tokens: 4}}\n"
            f"datasets: {{own: {{handler: TokenDataset, args: {args}}}}}\n"
        )
        command = ["eval", "tofu", "--model", str(bert), "--out", str(tmp_path / name), "--quiet", "--metrics", "mine"]
        assert main([*command, "--config-dir", str(tmp_path / "configs"), "stats.resamples=0"]) == 0
        found = json.loads((tmp_path / name / "TOFU_EVAL.json").read_text())["mine"]
        assert found["trajectory_step_metadata"]["prompt_len_by_index"] == {"0": 3}
        values[name] = found["agg_value"]["full"]["steps"]["probability"]
    assert values["marked"] == values["prompt"] == values["completion"] and len(values["marked"]) == 2
