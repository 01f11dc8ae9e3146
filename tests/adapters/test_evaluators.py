"""Benchmark evaluators in code: classes written for open-unlearning, and functions of scores that a suite names."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from conftest import LAB
from loops import one_test
from vestige.adapters import evaluators
from vestige.adapters.evaluators import install_import_names
from vestige.cli import main
from vestige.suites.registry import HANDLERS, POSTPROCESS

MODEL = LAB / "models" / "full"
METRICS = "forget_Q_A_Prob,forget_truth_ratio"


@pytest.fixture(autouse=True)
def forget_plugins() -> Iterator[None]:
    install_import_names()
    tables: list[dict[str, Any]] = [
        HANDLERS, POSTPROCESS, evaluators.EVALUATOR_REGISTRY, evaluators.METRICS_REGISTRY,
    ]  # fmt: skip
    before = [dict(t) for t in tables]
    POSTPROCESS.clear()  # none of them is ours: other tests' plug-ins may have left theirs
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)


def words(out: Path, *more: str, model: Path = MODEL, metrics: str = METRICS) -> list[str]:
    flags = ["--data", str(LAB / "data"), "--limit", "4", "--out", str(out), "--quiet", "--metrics", metrics]
    return ["eval", "tofu", "--model", str(model), *flags, "stats.resamples=0", *more]


def run(tmp_path: Path, code: str, handler: str, *more: str, out: str = "run", metrics: str = METRICS) -> Any:
    """The result and summary files of a run with a class from a plug-in file as its suite's handler."""
    (tmp_path / "bench.py").write_text(textwrap.dedent(code))
    plugin = ["--plugin", str(tmp_path / "bench.py"), f"eval.tofu.handler={handler}"]
    assert main(words(tmp_path / out, *plugin, *more, metrics=metrics)) == 0
    return read(tmp_path / out)


def read(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return tuple(json.loads(next(out.glob(f"*_{part}.json")).read_text()) for part in ("EVAL", "SUMMARY"))  # type: ignore[return-value]


def plain(tmp_path: Path, model: Path = MODEL, out: str = "plain", metrics: str = METRICS) -> dict[str, Any]:
    assert main(words(tmp_path / out, model=model, metrics=metrics)) == 0
    return read(tmp_path / out)[0]


def halved(tmp_path: Path, factor: float) -> Path:
    """The checkpoint that the class below makes in memory."""
    place = tmp_path / f"times{factor}"
    shutil.copytree(MODEL, place)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[-1].mlp.down_proj.weight.mul_(factor)
    model.save_pretrained(place)
    return place


PREPARES = """
import torch
from evals.base import Evaluator
from evals import _register_benchmark


class Weakened(Evaluator):
    def __init__(self, eval_cfg, **kwargs):
        super().__init__("WEAK", eval_cfg, **kwargs)

    def prepare_model(self, model):
        model = super().prepare_model(model)
        with torch.no_grad():
            model.model.layers[-1].mlp.down_proj.weight.mul_(FACTOR)
        return model


_register_benchmark(Weakened)
"""


def test_a_prepared_model_is_the_one_that_is_measured(tmp_path: Path) -> None:
    """As a checkpoint with those weights is; with changed code in the same directory, no number is kept."""
    ordinary = plain(tmp_path)
    for factor in (0.5, 0.0):
        details, summary = run(tmp_path, PREPARES.replace("FACTOR", str(factor)), "Weakened")
        expected = plain(tmp_path, halved(tmp_path, factor), f"plain{factor}")
        assert set(summary) == set(METRICS.split(","))
        for name in expected:
            assert details[name]["agg_value"] == pytest.approx(expected[name]["agg_value"], rel=1e-4)
            assert details[name]["agg_value"] != pytest.approx(ordinary[name]["agg_value"], rel=1e-4)
    assert (tmp_path / "run" / "WEAK_EVAL.json").is_file()
    # The same command again: the evidence is there, and the numbers are the same.
    again, _ = run(tmp_path, PREPARES.replace("FACTOR", "0.0"), "Weakened")
    assert again == details


def test_such_a_run_is_verified_by_its_files_and_not_scored_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, PREPARES.replace("FACTOR", "0.5"), "Weakened")
    plugin = ["--plugin", str(tmp_path / "bench.py")]
    assert main(["verify", str(tmp_path / "run"), *plugin]) == 0
    assert "made by the code of Weakened" in capsys.readouterr().out
    assert main(["score", str(tmp_path / "run"), *plugin]) == 2
    assert "evaluate the model again" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "run"), str(tmp_path / "run"), *plugin]) == 0


OWN_LOOP = """
import torch
from evals.base import Evaluator


class Ladder(Evaluator):
    "Measures one metric at several strengths of an edit, and reports all of them."

    def __init__(self, eval_cfg, **kwargs):
        super().__init__("LADDER", eval_cfg, **kwargs)

    def evaluate(self, model, output_dir=None, overwrite=None, **kwargs):
        output_dir = output_dir or self.eval_cfg.output_dir
        weight = model.model.layers[-1].mlp.down_proj.weight
        logs = {}
        for step in (1.0, 0.5, 0.0):
            weight.data.mul_(step)  # no version counter sees this
            found = {}
            self.metrics["forget_Q_A_Prob"](
                model, metric_name="forget_Q_A_Prob", cache=found, tokenizer=kwargs["tokenizer"],
                template_args=kwargs["template_args"], **self.eval_cfg.metrics["forget_Q_A_Prob"])
            logs[f"prob_{step}"] = found["forget_Q_A_Prob"]
        self.save_logs(logs, self.get_logs_file_path(output_dir))
        return {name: entry["agg_value"] for name, entry in logs.items()}
"""


def test_evaluate_of_its_own_may_change_the_model_between_metrics(tmp_path: Path) -> None:
    """The class is not registered anywhere: at home that line is in another file."""
    details, summary = run(tmp_path, OWN_LOOP, "Ladder", metrics="forget_Q_A_Prob")
    assert set(details) == set(summary) == {"prob_1.0", "prob_0.5", "prob_0.0"}
    assert summary["prob_1.0"] == pytest.approx(
        plain(tmp_path, metrics="forget_Q_A_Prob")["forget_Q_A_Prob"]["agg_value"], rel=1e-5
    )
    for factor in (0.5, 0.0):
        expected = plain(tmp_path, halved(tmp_path, factor), f"p{factor}", metrics="forget_Q_A_Prob")
        assert summary[f"prob_{factor}"] == pytest.approx(expected["forget_Q_A_Prob"]["agg_value"], rel=1e-4)
    assert len({round(v, 6) for v in summary.values()}) == 3


REPORTS = """
import csv
import os
from evals.tofu import TOFUEvaluator


class Reporting(TOFUEvaluator):
    def __init__(self, eval_cfg, **kwargs):
        super().__init__(eval_cfg, **kwargs)
        self.name = "REPORT"

    def load_metrics(self, metrics_cfg):
        return {name: metric for name, metric in super().load_metrics(metrics_cfg).items() if name != "privleak"}

    def summarize(self, logs):
        found = super().summarize(logs)
        found["worst"] = max(found.values()) if found else None
        found["forget_Q_A_Prob"] = round(found["forget_Q_A_Prob"], 1)
        return found

    def save_logs(self, logs, file):
        super().save_logs(logs, file)
        with open(os.path.splitext(file)[0] + ".csv", "w", newline="") as f:
            csv.writer(f).writerows(sorted(logs.items()))
"""


def test_collection_summary_and_reporting_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    details, summary = run(tmp_path, REPORTS, "Reporting", metrics=f"{METRICS},privleak")
    expected = plain(tmp_path)
    assert "privleak" not in summary and "privleak" not in details
    assert summary["worst"] == pytest.approx(max(expected[m]["agg_value"] for m in METRICS.split(",")), rel=1e-5)
    assert summary["forget_Q_A_Prob"] == round(expected["forget_Q_A_Prob"]["agg_value"], 1)
    assert "computed by Reporting" in details["forget_Q_A_Prob"]["notes"][0]
    truth = expected["forget_truth_ratio"]["agg_value"]
    assert details["forget_truth_ratio"]["agg_value"] == pytest.approx(truth, rel=1e-5)
    assert "worst" in (tmp_path / "run" / "REPORT_SUMMARY.csv").read_text()
    assert "worst" in capsys.readouterr().out  # in the table, as any other metric
    # The model was not touched: its evidence is the one that any run of it has.
    names = {p.name for d in ("run", "plain") for p in (tmp_path / d / "evidence").glob("answers-*")}
    assert len(names) == 1
    assert main(["verify", str(tmp_path / "run"), "--plugin", str(tmp_path / "bench.py")]) == 0


KNOWS = """
from evals.base import Evaluator


class Knows(Evaluator):
    def __init__(self, eval_cfg, **kwargs):
        super().__init__("KNOWS", eval_cfg, **kwargs)

    def load_logs_from_file(self, file):
        return {**super().load_logs_from_file(file), **EXTRA}
"""


WRAPS = """
import numpy as np
from torch.utils.data import DataLoader
from evals.base import Evaluator
from evals.metrics.base import unlearning_metric
from evals.metrics.utils import evaluate_probability, run_batchwise_evals


@unlearning_metric(name="by_hand")
def by_hand(model, **kwargs):
    loader = DataLoader(kwargs["data"], batch_size=2, collate_fn=kwargs["collators"])
    rows = run_batchwise_evals(model, loader, evaluate_probability, {}, "probability")
    return {"agg_value": np.mean([r["prob"] for r in rows.values()]), "value_by_index": rows}


class Warm:
    def __init__(self, model):
        self.model_ = model

    def __getattr__(self, name):
        return getattr(self.model_, name)

    def __call__(self, *args, **kwargs):
        out = self.model_(*args, **kwargs)
        out.logits = out.logits / 3
        return out


class Warmed(Evaluator):
    def __init__(self, eval_cfg, **kwargs):
        super().__init__("WARM", eval_cfg, **kwargs)

    def prepare_model(self, model):
        return Warm(super().prepare_model(model))
"""


def test_a_wrapped_model_is_asked_through_its_wrapper(tmp_path: Path) -> None:
    metrics = "forget_Q_A_Prob"
    config = tmp_path / "configs" / "eval" / "tofu_metrics"
    config.mkdir(parents=True)
    (config / "by_hand.yaml").write_text(
        "# @package eval.tofu.metrics.by_hand\nhandler: by_hand\n"
        "datasets: {TOFU_QA_forget: {args: {hf_args: {name: '${eval.tofu.forget_split}_perturbed'}}}}\n"
    )
    more = ["--config-dir", str(tmp_path / "configs")]
    details, _ = run(tmp_path, WRAPS, "Warmed", *more, metrics=f"{metrics},by_hand")
    assert details["by_hand"]["agg_value"] == pytest.approx(details[metrics]["agg_value"], rel=1e-4)
    assert details[metrics]["agg_value"] < 0.9 * plain(tmp_path, metrics=metrics)[metrics]["agg_value"]


BUILDS_ON_OURS = """
import numpy as np
from evals.metrics import METRICS_REGISTRY, _register_metric
from evals.metrics.base import UnlearningMetric
from evals.metrics.memorization import probability, rouge
from evals.metrics.privacy import privleak

_register_metric(rouge)
assert METRICS_REGISTRY["privleak"] is privleak


def squared(model, **kwargs):
    "The square of the probability."
    found = probability.evaluate_metric(model, "inner", **kwargs)
    rows = {i: {"score": v["prob"] ** 2} for i, v in found["value_by_index"].items()}
    return {"agg_value": np.mean([v["score"] for v in rows.values()]), "value_by_index": rows}


class Loud(UnlearningMetric):
    def evaluate_metric(self, model, metric_name, **kwargs):
        found = super().evaluate_metric(model, metric_name, **kwargs)
        return {**found, "said_by": type(self).__name__}


_register_metric(Loud(name="squared_probability", metric_fn=squared))
"""


def test_a_registered_metric_object_that_builds_on_ours(tmp_path: Path) -> None:
    config = tmp_path / "configs" / "eval" / "tofu_metrics"
    config.mkdir(parents=True)
    (config / "squared.yaml").write_text(
        "# @package eval.tofu.metrics.squared\nhandler: squared_probability\n"
        "datasets: {TOFU_QA_forget: {args: {hf_args: {name: '${eval.tofu.forget_split}_perturbed'}}}}\n"
    )
    more = ["--config-dir", str(tmp_path / "configs")]
    details, _ = run(tmp_path, BUILDS_ON_OURS, "TOFUEvaluator", *more, metrics="forget_Q_A_Prob,squared")
    ours = [row["prob"] ** 2 for row in details["forget_Q_A_Prob"]["value_by_index"].values()]
    assert details["squared"]["agg_value"] == pytest.approx(sum(ours) / len(ours), rel=1e-6)
    assert details["squared"]["said_by"] == "Loud"


NAMED = """
from evals.base import Evaluator


class OnlyNamed(Evaluator):
    def __init__(self, eval_cfg, **kwargs):
        super().__init__("NAMED", eval_cfg, **kwargs)


_register_benchmark(OnlyNamed)  # as the guide prints it: at home this line is in a module that has the name
"""


SETTINGS = """
from evals.base import Evaluator


class Settings(Evaluator):
    def __init__(self, eval_cfg, **kwargs):
        super().__init__("SET", eval_cfg, **kwargs)

    def evaluate(self, model, output_dir=None, overwrite=None, **kwargs):
        logs = {}
        for k in (0.2, 0.8):
            config = {**self.eval_cfg.metrics["mia_min_k"], "k": k}
            self.metrics["mia_min_k"](self.prepare_model(model), metric_name=f"min_{k}", cache=logs, **config)
        return {name: logs[name]["agg_value"] for name in ("min_0.2", "min_0.8")}
"""


def test_metrics_may_be_called_with_other_settings(tmp_path: Path) -> None:
    _, summary = run(tmp_path, SETTINGS, "Settings", metrics="mia_min_k")
    plain(tmp_path, metrics="mia_min_k")
    for k in (0.2, 0.8):
        assert main(["score", str(tmp_path / "plain"), f"mia_min_k.k={k}"]) == 0
        found = read(next((tmp_path / "plain" / "scores").glob(f"*{k}")))[1]
        assert found["mia_min_k"] == pytest.approx(summary[f"min_{k}"])
    assert summary["min_0.2"] != summary["min_0.8"]


@pytest.mark.parametrize(("body", "said"), [
    ("raise RuntimeError('no such thing')", "failed in evaluate at line 7 of"),
    ("return {'x': object()}", "a score is a number"),
    ("return None", "reported nothing"),
])  # fmt: skip
def test_mistakes_of_a_class_are_one_sentence(
    tmp_path: Path, body: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "from evals.base import Evaluator\n\n\nclass Wrong(Evaluator):\n"
    head += "    def __init__(self, c): super().__init__('W', c)"
    (tmp_path / "bench.py").write_text(f"{head}\n    def evaluate(self, model, **kwargs):\n        {body}\n")
    plugin = ["--plugin", str(tmp_path / "bench.py"), "eval.tofu.handler=Wrong"]
    assert main(words(tmp_path / "run", *plugin)) == 2
    assert said in capsys.readouterr().err


# ---- our own form: a function of scores -----------------------------------------------------------------------------

FUNCTION = """
from vestige.suites.registry import postprocess
from vestige.types import Score


@postprocess
def overall(scores):
    asked = [scores[m].agg_value for m in ("forget_Q_A_Prob", "forget_truth_ratio")]
    return {"overall": sum(asked) / WEIGHT, "forget_Q_A_Prob": asked[0] / 2, "why": Score(None, reason="no reason")}
"""


def with_function(tmp_path: Path, code: str, verb: str = "eval", *more: str) -> int:
    (tmp_path / "scores.py").write_text(code)
    plugin = ["--plugin", str(tmp_path / "scores.py")]
    if verb == "eval":
        return main(words(tmp_path / "run", "+eval.tofu.postprocess=overall", *plugin, *more))
    return main([verb, str(tmp_path / "run"), *plugin, *more])


def test_a_suite_names_a_function_of_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More scores and other ones; changed code leaves no stale number, in `eval`, `score` and `verify`."""
    ordinary = plain(tmp_path)
    asked = [ordinary[m]["agg_value"] for m in METRICS.split(",")]
    assert with_function(tmp_path, FUNCTION.replace("WEIGHT", "2")) == 0
    details, summary = read(tmp_path / "run")
    assert summary["overall"] == pytest.approx(sum(asked) / 2)
    assert summary["forget_Q_A_Prob"] == pytest.approx(asked[0] / 2)
    assert f"the metric's own value is {asked[0]}" in details["forget_Q_A_Prob"]["notes"][0]
    assert "why" not in summary and details["why"]["reason"] == "no reason"
    assert with_function(tmp_path, FUNCTION.replace("WEIGHT", "2"), "verify") == 0
    capsys.readouterr()
    assert with_function(tmp_path, FUNCTION.replace("WEIGHT", "4"), "verify") == 1
    assert "overall" in capsys.readouterr().out
    assert with_function(tmp_path, FUNCTION.replace("WEIGHT", "4"), "score") == 0
    assert read(tmp_path / "run")[1]["overall"] == pytest.approx(sum(asked) / 4)
    assert with_function(tmp_path, FUNCTION.replace("WEIGHT", "8")) == 0
    assert read(tmp_path / "run")[1]["overall"] == pytest.approx(sum(asked) / 8)


@one_test(("code", "said"), [
    ("", "Unknown function of scores 'overall'"),
    ("def overall(scores): return scores['forgotten']", "failed at line 3: KeyError: 'forgotten' (scores at hand: "),
    ("def overall(scores): return 3", "must return a dict of scores, not int"),
    ("def overall(scores): return {'x': 'high'}", "a score is a number"),
])  # fmt: skip
def test_mistakes_with_a_function(tmp_path: Path, code: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    head = "from vestige.suites.registry import postprocess\n"
    assert with_function(tmp_path, f"{head}@postprocess\n{code}\n" if code else "\n") == 2
    assert said in capsys.readouterr().err
