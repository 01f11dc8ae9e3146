"""Trajectory metrics through the command line's road: composed, collected, scored, written, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertForMaskedLM

from diffusion_tools import save_lab_bert
from loops import one_test
from vestige import read_evidence
from vestige.engine.config import compose_runs, make_config
from vestige.engine.evaluate import evaluate_config
from vestige.errors import UserError
from vestige.metrics.memorisation import probability
from vestige.metrics.trajectory import follow, in_text_order, window
from vestige.runs.files import load_rows
from vestige.types import Trace

LAB = Path(__file__).parents[1] / "golden" / "lab"
DATA = LAB / "data"
SAMPLER = "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs"
TRAJECTORY = [
    "eval=tofu",
    "+eval.tofu.metrics.trajectory_metrics=_global_.eval.metrics.trajectory_metrics",
    "+eval.tofu.metrics.trajectory_metrics.handler=trajectory_metrics",
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lab_bert(tmp_path_factory.mktemp("bert"), positions=256)


def ask(bert: Path, out: Path, *overrides: str, suite: str = "tofu_trajectory", **more: Any) -> dict[str, Any]:
    short = [
        f"eval.{suite}.metrics.trajectory_metrics.trajectory_config.sampler_kwargs.{k}"
        for k in ("steps=4", "max_new_tokens=8")
    ]
    return dict(
        suite=suite, model=str(bert), data=str(DATA), out=str(out), limit=3, progress=False,
        overrides=[*short, "stats.resamples=0", *overrides], **more,
    )  # fmt: skip


def metric(directory: Path, stem: str = "TOFU") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / f"{stem}_EVAL.json").read_text())["trajectory_metrics"]
    return found


@pytest.fixture(scope="module")
def finished(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    interval = (
        "eval.tofu_trajectory.metrics.trajectory_metrics.trajectory_config.sampler_kwargs.trajectory_sample_interval=1"
    )
    evaluate_config(make_config(**ask(bert, out, interval)))
    return out


def test_the_curve_is_the_ordinary_metric_on_the_planes(finished: Path) -> None:
    """Straight from the stored traces, without handlers: the mean over rows of p at each step."""
    manifest = json.loads((finished / "manifest.json").read_text())
    traces: dict[str, Trace] = dict(read_evidence(finished, "denoised"))
    key = manifest["data_of"]["trajectory_metrics"]["probability/TOFU_QA_forget"]
    rows = load_rows(finished / "evidence" / "examples.json.gz")[key]
    curves = []
    for row in rows.examples:
        assert row[0].target is not None
        want = window(row[0].target.labels, 8)
        # Its paraphrase and wrong answers are watched beside it, where they differ from it in the window.
        found = [(t, k) for t in traces.values() for k, row in enumerate(t.labels) if tuple(row) == want]
        mine = [(t, k) for t, k in found if len(t.labels) > 1]
        assert len(mine) == 1
        curves.append(probability(in_text_order(follow(mine[0][0], "fixation_end").stats(mine[0][1]))))
    got = metric(finished)["agg_value"]["full"]["fixation_end"]["probability"]
    assert got == pytest.approx(np.mean(curves, axis=0).tolist(), abs=1e-9)


@pytest.mark.processors
def test_extraction_strength_has_one_definition(finished: Path) -> None:
    """In text order it depends on the trajectory; in decision order it does not, and has a name of its own."""
    views = metric(finished)["agg_value"]["full"]
    decided = [along["extraction_strength_decided"] for along in views.values()]
    assert all(curve == decided[0] for curve in decided)
    assert any(along["extraction_strength"] != along["extraction_strength_decided"] for along in views.values())


def test_a_step_without_a_value_in_the_reference_gets_none(bert: Path, finished: Path, tmp_path: Path) -> None:
    logs = json.loads((finished / "TOFU_EVAL.json").read_text())
    for by_trajectory in logs["trajectory_metrics"]["reference_by_step"].values():
        for metrics in by_trajectory.values():
            metrics["mia_min_k"][1] = {"agg_value": None}
    (tmp_path / "logs.json").write_text(json.dumps(logs))
    more = (
        f"{SAMPLER}.trajectory_sample_interval=1",
        "eval.tofu_trajectory.metrics.trajectory_metrics.metrics=[privleak]",
    )
    evaluate_config(make_config(**ask(bert, tmp_path / "run", *more, retain_logs=str(tmp_path / "logs.json"))))
    curve = metric(tmp_path / "run")["agg_value"]["full"]["steps"]["privleak"]
    assert curve[1] is None and curve[0] == curve[2] == pytest.approx(0.0, abs=1e-6)


def test_the_ordinary_suite_runs_on_a_diffusion_model(bert: Path, tmp_path: Path) -> None:
    """Likelihoods by the bound, with their standard error; texts by the sampler."""
    names = ["forget_Q_A_Prob", "forget_Q_A_ROUGE", "forget_Q_A_Prob_confidence_ordered"]
    short = "+eval.tofu.metrics.forget_Q_A_ROUGE.generation_args.max_new_tokens=8"
    run = make_config(
        model=str(bert), data=str(DATA), out=str(tmp_path), limit=2, metrics=names, progress=False, overrides=[short]
    )
    evaluate_config(run)
    found = json.loads((tmp_path / "TOFU_EVAL.json").read_text())
    assert found["forget_Q_A_Prob"]["monte_carlo_standard_error"] > 0
    assert all(v["avg_loss_standard_error"] > 0 for v in found["forget_Q_A_Prob"]["value_by_index"].values())
    assert found["forget_Q_A_Prob_confidence_ordered"]["agg_value"] != found["forget_Q_A_Prob"]["agg_value"]
    assert all("generation" in v for v in found["forget_Q_A_ROUGE"]["value_by_index"].values())
    assert any("lower bound" in n for n in json.loads((tmp_path / "manifest.json").read_text())["notes"])


# ---- configuration ------------------------------------------------------------------------------------------------


def children(*overrides: str) -> list[str]:
    run = compose_runs([*TRAJECTORY, "model=LLaDA-8B-Instruct", "task_name=x", *overrides])[0]
    return list(run.suite.metrics["trajectory_metrics"].children.metrics)  # type: ignore[union-attr]


def test_a_bare_handler_inherits_metrics_and_data() -> None:
    assert {"probability", "rouge", "truth_ratio", "forget_Q_A_PERT_Prob"} <= set(children())


def test_metrics_as_a_list_and_as_a_mapping() -> None:
    key = "+eval.tofu.metrics.trajectory_metrics.metrics"
    assert children(f"{key}=[probability]") == ["probability"]
    assert children(f"{key}={{truth_ratio:{{aggregator:true_better}}}}")[-1] == "truth_ratio"


@one_test(
    ("overrides", "words"),
    [
        (["metrics=[]"], "metrics"),
        (["metrics=7"], "int"),
        (["metrics=[probabilty]"], "'probability'"),
        (["trajectory_config.logit_alignment=sideways"], "logit_alignment"),
        (["trajectory_config.include_views=[all]"], "view"),
        (["trajectory_config.trajectories=[sideways]"], "'sideways'"),
        (["trajectory_config.sampler_kwargs.remasking=enthropy"], "low_confidence"),
        (["trajectory_config.sampler_kwargs.steps=0"], "steps must be"),
        (["trajectory_config.sampler_kwargs.stepz=3"], "'steps'"),
        (["trajectory_config.include_view=full"], "'include_views'"),
        (["trajectory_config.eos_token_id=end"], "eos_token_id"),
        (["trajectory_config.sampler_kwargs=7"], "sampler_kwargs must hold settings"),
        (["trajectory_config.sampler_kwargs.seed=x"], "seed must be"),
        (["trajectory_config.sampler_kwargs.trajectory_sample_interval=0"], "trajectory_sample_interval must be"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(overrides: list[str], words: str, bert: Path, tmp_path: Path) -> None:
    said = [f"++eval.tofu.metrics.trajectory_metrics.{o}" for o in overrides]
    with pytest.raises(UserError) as error:
        run = make_config(
            model=str(bert), data=str(DATA), out=str(tmp_path), limit=1, overrides=[*TRAJECTORY[1:], *said]
        )
        evaluate_config(run)
    assert words in str(error.value)


# ---- the guide's own commands -------------------------------------------------------------------------------------


def test_two_models_are_told_apart(bert: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:  # type: ignore[type-arg]
    """Curves are numbers too: a difference of runs must not be called none."""
    from vestige.cli import main

    other = tmp_path / "other"
    model = BertForMaskedLM.from_pretrained(bert)
    torch.manual_seed(5)
    torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight)
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "model")
    every = f"{SAMPLER}.trajectory_sample_interval=1"
    evaluate_config(make_config(**ask(tmp_path / "model", other, every)))
    assert main(["diff", str(finished), str(other)]) == 0
    said = capsys.readouterr().out
    assert "in no number" not in said and "trajectory_metrics: probability (" in said
    assert main(["compare", str(finished), str(other)]) == 0
    assert "curves over denoising steps" in capsys.readouterr().out
    assert main(["plan", "tofu", "--model", str(bert), "--data", str(DATA), "--trajectory-views", "both"]) == 0
    assert "windows to denoise  160 prompts" in capsys.readouterr().out


def test_the_seed_reaches_the_sampler_unless_it_has_its_own() -> None:
    def seed(*overrides: str) -> int | None:
        run = compose_runs(["eval=trajectory_test", "model=LLaDA-8B-Instruct", "task_name=x", *overrides])[0]
        params = run.suite.metrics["trajectory_metrics"].params  # type: ignore[union-attr]
        found: int | None = params["trajectory_config"]["sampler_kwargs"].get("seed")
        return found

    key = "+eval.trajectory_test.metrics.trajectory_metrics.trajectory_config.sampler_kwargs.seed"
    assert seed("seed=7") == 7
    assert seed("seed=7", f"{key}=3") == 3
