"""Settings of trajectory metrics: parents, reports of some passes only, the guide's defaults, what retain logs serve.

Values along the path are checked in test_trajectories.py; here two ways to ask for the same thing are compared, or a
value with one that is computed from the file itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import read_json, vestige

LAB = harness.GOLDEN / "lab_diffusion"
NPO = LAB / "models" / "npo"
KEY = "eval.tofu_trajectory.metrics.trajectory_metrics"
CONFIG = f"{KEY}.trajectory_config"
SAMPLER = f"{CONFIG}.sampler_kwargs"
ROWS = {"forget": 3, "holdout": 3, "retain": 2, "real_authors": 2, "world_facts": 2}
STEPS, LENGTH = 4, 24

GAP = """
from evals.metrics.base import unlearning_metric

@unlearning_metric(name="gap")
def gap(model, **kwargs):
    parents = kwargs["pre_compute"]
    return {"agg_value": parents["high"]["agg_value"] - parents["low"]["agg_value"]}
"""


@pytest.fixture(scope="session")
def data(shared: Callable[..., Path]) -> Path:
    def build(place: Path) -> None:
        for name, count in ROWS.items():
            rows = harness.read_rows(LAB / "data" / f"{name}.jsonl")[:count]
            harness.write_rows(place / f"{name}.jsonl", rows)

    return shared("trajectory-settings-data", build)


def run(data: Path, out: Path, *words: object, model: str = "npo") -> dict[str, Any]:
    """The trajectory metric of an evaluation with few passes, each of which is reported."""
    settings = (
        f"{SAMPLER}.steps={STEPS}",
        f"{SAMPLER}.max_new_tokens={LENGTH}",
        f"{SAMPLER}.trajectory_sample_interval=1",
    )
    always = ("--data", data, "--quiet", "--cluster", "none", "stats.resamples=0", *settings)
    vestige("eval", "tofu_trajectory", "--model", LAB / "models" / model, *always, *words, "--out", out)
    found: dict[str, Any] = read_json(out / "TOFU_EVAL.json")["trajectory_metrics"]
    return found


def every_curve(found: dict[str, Any], metric: str) -> list[list[float]]:
    """Its curves in all views along all trajectories."""
    return [curves[metric] for view in found["agg_value"].values() for curves in view.values()]


# ---- parents ---------------------------------------------------------------------------------------------------------

SHORT = {"probability": {"access_key": "correct"}}, {"probability": {"access_key": "wrong"}}
NAMED = {"forget_Q_A_PARA_Prob": {"access_key": "correct"}}, {"forget_Q_A_PERT_Prob": {"access_key": "wrong"}}
LISTED = [{"metric": "probability", "access_key": key} for key in ("correct", "wrong")]
WAYS = {"named": NAMED[0] | NAMED[1], "short_correct": SHORT[0] | NAMED[1], "short_wrong": NAMED[0] | SHORT[1]}


def written(value: object) -> str:
    """A value of the command line: Hydra takes no quotes around keys."""
    return json.dumps(value).replace('"', "")


@pytest.fixture(scope="session")
def parents(shared: Callable[..., Path], data: Path) -> Path:
    """Truth ratios whose parents are named in every way, and a plug-in metric that has only parents."""

    def build(place: Path) -> None:
        metrics: dict[str, Any] = {"suites": {"handler": "truth_ratio"}}
        for name, way in {**WAYS, "listed": LISTED}.items():
            metrics[name] = {"handler": "truth_ratio", "pre_compute": way}
        high, low = {"forget_Q_A_PARA_Prob": {"access_key": "high"}}, {"forget_Q_A_Prob": {"access_key": "low"}}
        metrics["gap"] = {"pre_compute": high | low}
        metrics |= {"forget_Q_A_PARA_Prob": {}, "forget_Q_A_Prob": {}}
        place.mkdir()
        (place / "gap.py").write_text(GAP)
        run(data, place / "run", f"{KEY}.metrics={written(metrics)}", "--plugin", place / "gap.py")

    return shared("trajectory-parents", build)


@pytest.mark.parametrize("way", [*WAYS, "listed"])
def test_parents_mean_the_same_however_they_are_named(way: str, parents: Path) -> None:
    found = read_json(parents / "run" / "TOFU_EVAL.json")["trajectory_metrics"]
    expected = every_curve(found, "suites")
    assert every_curve(found, way) == expected
    assert len({value for curve in expected for value in curve}) > 4


def test_a_plugin_that_reads_only_its_parents_has_a_value(parents: Path) -> None:
    found = read_json(parents / "run" / "TOFU_EVAL.json")["trajectory_metrics"]
    for view in found["agg_value"].values():
        for curves in view.values():
            pairs = zip(curves["forget_Q_A_PARA_Prob"], curves["forget_Q_A_Prob"], strict=True)
            assert curves["gap"] == pytest.approx([high - low for high, low in pairs])


# ---- a report of some passes only ------------------------------------------------------------------------------------

REPORTS: dict[str, tuple[str, ...]] = {
    "every": (f"+{CONFIG}.store_per_sample=true",),
    "captures": (f"{SAMPLER}.trajectory_sample_interval=8",),
    "passes": (f"{SAMPLER}.trajectory_sample_interval=8", f"+{CONFIG}.fixation_steps_count=passes"),
    "guide": (f"{SAMPLER}.trajectory_sample_interval=null", f"{CONFIG}.guide_defaults=true"),
}


@pytest.fixture(scope="session")
def reports(shared: Callable[..., Path], data: Path) -> Path:
    """One model and the same rows: every pass reported, every eighth token in both readings, and the guide's way."""

    def build(place: Path) -> None:
        for name, words in REPORTS.items():
            views = (f"{CONFIG}.include_views=[full]",) if name == "guide" else ()
            run(data, place / name, f"{KEY}.metrics=[probability,rouge,truth_ratio]", *words, *views)

    return shared("trajectory-reports", build)


def report(reports: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = read_json(reports / name / "TOFU_EVAL.json")["trajectory_metrics"]
    return found


def test_reported_steps_have_the_values_of_a_report_of_every_pass(reports: Path) -> None:
    """With `fixation_steps_count=passes`, along every trajectory, the last pass among them."""
    every, some = report(reports, "every"), report(reports, "passes")
    decided = every["trajectory_step_metadata"]["step_values"]
    kept = some["trajectory_step_metadata"]["step_values"]
    assert kept[-1] == decided[-1] and len(kept) < len(decided)
    for view, trajectories in every["agg_value"].items():
        for along, curves in trajectories.items():
            for metric, curve in curves.items():
                expected = [curve[decided.index(count)] for count in kept]
                assert some["agg_value"][view][along][metric] == expected, (view, along, metric)


def test_the_result_names_what_fixation_steps_count(reports: Path) -> None:
    names = [report(reports, name)["trajectory_step_metadata"]["fixation_steps_count"] for name in REPORTS]
    assert names == ["passes", "captures", "passes", "captures"]
    curves = {name: report(reports, name)["agg_value"]["full"] for name in ("captures", "passes")}
    assert curves["captures"]["steps"]["probability"] == curves["passes"]["steps"]["probability"][:3]
    ends = [by_trajectory["fixation_end"]["probability"][-1] for by_trajectory in curves.values()]
    assert ends[0] != ends[1]


def test_values_of_rows_name_their_view(reports: Path) -> None:
    found = report(reports, "every")
    rows = found["value_by_index"]
    assert len(rows) == ROWS["forget"] and all(set(row) == {"full", "eos"} for row in rows.values())
    for view, trajectories in found["agg_value"].items():
        for along, curves in trajectories.items():
            for step, mean in enumerate(curves["probability"]):
                values = [row[view]["trajectories"][along][f"step_{step}"]["probability"] for row in rows.values()]
                assert sum(values) / len(values) == pytest.approx(mean)


def test_the_guides_defaults_are_one_setting(reports: Path) -> None:
    """Interval 8, no level of views where there is one, values of rows."""
    found, same = report(reports, "guide"), report(reports, "captures")
    assert found["trajectory_step_metadata"]["trajectory_sample_interval"] == 8
    assert found["agg_value"] == same["agg_value"]["full"]
    assert found["step_distribution"] == same["step_distribution"]["full"]
    row = found["value_by_index"]["0"]
    assert row["view"] == "full" and set(row["trajectories"]) == set(same["agg_value"]["full"])


# ---- retain logs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def compared(shared: Callable[..., Path], data: Path) -> Path:
    """A retain model's trajectory (`retain`), its last step in the form of an ordinary log, and a run next to each."""

    def build(place: Path) -> None:
        asked = {"forget_quality": {}, "privleak": {}, "truth_ratio": {"aggregator": "true_better"}}
        metrics = f"{KEY}.metrics={written(asked)}"
        retain = run(data, place / "retain", metrics, model="retain")
        steps = retain["reference_by_step"]["full"]["steps"]
        (place / "ordinary.json").write_text(json.dumps({name: values[-1] for name, values in steps.items()}))
        steps["mia_min_k"][1] = {"agg_value": 1.0}
        (place / "perfect.json").write_text(json.dumps({"trajectory_metrics": retain}))
        run(data, place / "by_step", metrics, "--retain-logs", place / "retain")
        run(data, place / "at_the_end", metrics, "--retain-logs", place / "ordinary.json")
        run(data, place / "perfect", metrics, "--retain-logs", place / "perfect.json", model="retain")

    return shared("trajectory-compared", build)


def test_an_ordinary_retain_log_serves_the_last_step(compared: Path) -> None:
    every, last = report(compared, "by_step"), report(compared, "at_the_end")
    assert any("last step" in note for note in last["notes"])
    for metric in ("forget_quality", "privleak"):
        expected, got = (found["agg_value"]["full"]["steps"][metric] for found in (every, last))
        assert None not in expected and got == [*[None] * (STEPS - 1), expected[-1]]
        reasons = last["reasons_by_step"]["full"]["steps"][metric]
        assert reasons[-1] is None and all("ordinary run" in reason for reason in reasons[:-1])
    assert "reasons_by_step" not in every
    assert vestige("verify", compared / "at_the_end").status == 0


def test_a_step_without_privleak_has_the_reason(compared: Path) -> None:
    """The retain model's AUC at step 1 is 1: nothing is relative to 1 - AUC."""
    found = report(compared, "perfect")
    privleak = found["agg_value"]["full"]["steps"]["privleak"]
    reasons = found["reasons_by_step"]["full"]["steps"]["privleak"]
    assert [number for number, value in enumerate(privleak) if value is None] == [1]
    assert "AUC is 1" in reasons[1] and reasons[0] is None


def test_a_distribution_before_the_aggregator_is_named(compared: Path) -> None:
    found = report(compared, "by_step")
    assert set(found["before_aggregator"]) == {"truth_ratio"}
    assert "true_better" in found["before_aggregator"]["truth_ratio"]
    mean = found["step_distribution"]["full"]["steps"]["truth_ratio"]["mean"]
    assert mean != pytest.approx(found["agg_value"]["full"]["steps"]["truth_ratio"])


# ---- in Python, and settings that are not listed ---------------------------------------------------------------------


def test_a_printed_trajectory_is_a_table(compared: Path) -> None:
    shown = harness.python(
        "import sys, vestige\n"
        "found = vestige.load_run(sys.argv[1])['trajectory_metrics']\n"
        "print(found)\n"
        "assert len(found.curves['full']['steps']['privleak']) == 4",
        compared / "by_step",
    ).out
    assert len(shown) < 5000
    assert [text for text in ("privleak", "fixation_start", "step 0", "step 3") if text not in shown] == []


ABSENT = "eval.tofu.metrics.trajectory_metrics.trajectory_config.logits_source"


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "tofu", "+eval.tofu.metrics.trajectory_metrics.handler=trajectory_metrics"),
        ("eval", "tofu", "--metrics", "trajectory_metrics"),
        ("eval", "tofu_trajectory"),
    ],
)
def test_a_setting_that_is_not_listed_needs_a_plus(words: tuple[str, ...], data: Path) -> None:
    """The metric exists, so nothing is said against it."""
    absent = ABSENT.replace("tofu", words[1])
    refused = vestige(*words, "--model", NPO, "--data", data, f"{absent}=external", status=2).error
    assert f"+{absent}=" in refused and "no metric" not in refused


def test_metric_files_of_another_package_are_named(tmp_path: Path, data: Path) -> None:
    """A benchmark of one's own lists tofu_metrics, whose files fill eval.tofu."""
    file = tmp_path / "configs" / "eval" / "bench.yaml"
    file.parent.mkdir(parents=True)
    lines = ["# @package eval.bench", "defaults: [{tofu_metrics: [forget_Q_A_Prob]}]", "handler: BENCHEvaluator"]
    file.write_text("\n".join([*lines, "metrics: {}", "output_dir: ${paths.output_dir}", "forget_split: forget10\n"]))
    words = ("--config-dir", tmp_path / "configs", "--model", NPO, "--out", tmp_path / "run")
    refused = vestige("eval", "bench", *words, status=2).error
    assert [text for text in ("eval.tofu", "@package", "forget_Q_A_Prob") if text not in refused] == []
