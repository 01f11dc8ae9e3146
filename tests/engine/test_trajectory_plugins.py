"""A metric that runs a model itself, as a child of `trajectory_metrics`: each step's logits are its model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diffusion_tools import save_lab_bert
from vestige.cli import main
from vestige.suites.registry import HANDLERS

KEY = "eval.trajectory_test.metrics.trajectory_metrics"
CONFIG = f"{KEY}.trajectory_config"
LENGTH, STEPS = 6, 3
PLUGIN = """
import numpy as np
import torch
from torch.utils.data import DataLoader
from evals.metrics.base import unlearning_metric
from evals.metrics.utils import run_batchwise_evals


def geometric_means(model, batch):
    with torch.no_grad():
        out = model(**{k: v for k, v in batch.items() if k != "index"})
    found = torch.log_softmax(out.logits[:, :-1].double(), -1)
    labels = batch["labels"][:, 1:]
    chosen = found.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    counted = labels != -100
    means = (chosen * counted).sum(-1) / counted.sum(-1)
    return [{"score": float(m.exp())} for m in means]


@unlearning_metric(name="probability_again")
def probability_again(model, **kwargs):
    loader = DataLoader(kwargs["data"], batch_size=kwargs["batch_size"], collate_fn=kwargs["collators"])
    rows = run_batchwise_evals(model, loader, geometric_means, {}, "probability")
    return {"agg_value": np.mean([r["score"] for r in rows.values()]), "value_by_index": rows}


@unlearning_metric(name="texts_again")
def texts_again(model, **kwargs):
    rows = {}
    for item in kwargs["data"]:
        batch = kwargs["collators"]([item])
        out = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"])
        rows[item["index"]] = {"text": kwargs["tokenizer"].decode(out[0, len(item["input_ids"]):])}
    return {"agg_value": len({r["text"] for r in rows.values()}), "value_by_index": rows}


@unlearning_metric(name="asks_of_others")
def asks_of_others(model, **kwargs):
    return {"agg_value": float(model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum())}
"""


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lab_bert(tmp_path_factory.mktemp("bert"), positions=256)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rows ask the same and answer the same; a third asks the same and answers otherwise."""
    place = tmp_path_factory.mktemp("rows")
    asked = "Where was the author born?"
    said = [(asked, "In a small town."), (asked, "In a small town."), (asked, "By the sea."), ("Who?", "Nobody.")]
    (place / "forget.jsonl").write_text("\n".join(json.dumps({"question": q, "answer": a}) for q, a in said))
    return place


@pytest.fixture(autouse=True)
def forget_plugins() -> Iterator[None]:
    before = dict(HANDLERS)
    yield
    HANDLERS.clear()
    HANDLERS.update(before)


def run(bert: Path, rows: Path, tmp_path: Path, *more: str, metrics: str = "probability,probability_again") -> Any:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "again.py").write_text(PLUGIN)
    assert main([
        "eval", "trajectory_test", "--model", str(bert), "--data", str(rows), "--out", str(tmp_path / "run"),
        "--quiet", "--plugin", str(tmp_path / "again.py"), f"{KEY}.metrics=[{metrics}]",
        f"{CONFIG}.sampler_kwargs.max_new_tokens={LENGTH}", f"{CONFIG}.sampler_kwargs.steps={STEPS}",
        f"{CONFIG}.sampler_kwargs.trajectory_sample_interval=1", f"+{CONFIG}.store_per_sample=true",
        "stats.resamples=0", *more,
    ]) == 0  # fmt: skip
    return result(tmp_path / "run")


def result(out: Path) -> Any:
    return json.loads(next(out.glob("*_EVAL.json")).read_text())["trajectory_metrics"]


def check_equal(found: Any, views: int = 2) -> int:
    """The plug-in's curve is the built-in one's, at every step of every trajectory in every view."""
    assert len(found["agg_value"]) == views
    count = 0
    for along in found["agg_value"].values():
        assert len(along) == 4
        for curves in along.values():
            assert None not in curves["probability"]
            assert curves["probability_again"] == pytest.approx(curves["probability"], rel=1e-5)
            count += len(curves["probability"])
    for row in found["value_by_index"].values():
        assert len(row) == views
        for steps in (steps for view in row.values() for steps in view["trajectories"].values()):
            assert all(s["probability_again"] == pytest.approx(s["probability"], rel=1e-5) for s in steps.values())
    return count


def test_a_plugin_has_the_built_in_metrics_value_at_every_step(bert: Path, rows: Path, tmp_path: Path) -> None:
    found = run(bert, rows, tmp_path)
    assert check_equal(found) == 2 * 4 * STEPS
    curve = found["agg_value"]["full"]["steps"]["probability_again"]
    assert len({round(v, 9) for v in curve}) > 1  # the steps differ, so that equal curves say something
    # Scored again without a model, and verified: the same bytes.
    before = next((tmp_path / "run").glob("*_EVAL.json")).read_bytes()
    plugin = ["--plugin", str(tmp_path / "again.py")]
    assert main(["score", str(tmp_path / "run"), *plugin]) == 0
    assert next((tmp_path / "run").glob("*_EVAL.json")).read_bytes() == before
    assert main(["verify", str(tmp_path / "run"), *plugin]) == 0


@pytest.mark.parametrize("more", [
    (f"{CONFIG}.logit_alignment=causal",),
    (f"{CONFIG}.sampler_kwargs.trajectory_sample_interval=3", f"{CONFIG}.sampler_kwargs.steps=6"),
    (f"{CONFIG}.sampler_kwargs.trajectory_sample_interval=3", f"+{CONFIG}.fixation_steps_count=passes"),
    (f"+{CONFIG}.sampler_kwargs.sampler=bd3lm", f"+{CONFIG}.sampler_kwargs.block_size=3"),
    ("eval.trajectory_test.batch_size=1",),
])  # fmt: skip
def test_it_does_so_in_other_settings(bert: Path, rows: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    assert check_equal(run(bert, rows, tmp_path, *more))


def test_a_metric_may_read_rows_about_their_own_token(bert: Path, rows: Path, tmp_path: Path) -> None:
    """`logit_alignment: same_position` moves the rows by one place, and the result says where they are."""
    child = "{probability_again:{},moved:{handler:probability_again,logit_alignment:same_position}}"
    found = run(bert, rows, tmp_path, f"{KEY}.metrics={child}")
    curves = found["agg_value"]["full"]["steps"]
    assert curves["moved"] != pytest.approx(curves["probability_again"], rel=1e-3)
    notes = " ".join(found["notes"])
    assert "probability_again: run by the metric itself on the logits of each step: a row of logits is one row" in notes
    assert "moved: run by the metric itself on the logits of each step: a row of logits is at its token" in notes


def test_texts_of_a_step_and_questions_about_other_rows(bert: Path, rows: Path, tmp_path: Path) -> None:
    found = run(bert, rows, tmp_path, metrics="texts_again,asks_of_others")
    assert all(v >= 1 for v in found["agg_value"]["full"]["steps"]["texts_again"])
    assert "no row has the tokens it was asked about" in found["reasons"]["asks_of_others"]
