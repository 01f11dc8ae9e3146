"""Runs that were not measured alike are not combined in silence, and what is missing has its real reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import DATA, FULL, RETAIN, SYSTEM, UNLEARNED, copy_tree, python, read_json, vestige

from published_tree import published_tree

METRICS = "forget_Q_A_Prob,mia_loss,mia_min_k,privleak,forget_quality"
RAW = "model.template_args.apply_chat_template=false"
Run = Callable[..., Path]


def evaluate(model: Path, place: Path, *more: object, status: int = 0, limit: int = 6) -> Any:
    words = ("--model", model, "--data", DATA, "--limit", limit, "--cluster", "none", "--out", place, "--quiet")
    metrics = () if "--metrics" in more else ("--metrics", METRICS)
    return vestige("eval", "tofu", *words, *metrics, *more, status=status)


def written(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(run / "TOFU_EVAL.json")
    return found


# ---- chat and raw prompts ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def retain(shared: Run) -> Path:
    """The retain model with its chat template."""
    return shared("conventions-retain", lambda place: evaluate(RETAIN, place))


@pytest.fixture(scope="module")
def chat(shared: Run, retain: Path) -> Path:
    """The unlearned model, measured as the retain model was."""
    return shared("conventions-chat", lambda place: evaluate(UNLEARNED, place, "--retain-logs", retain))


@pytest.fixture(scope="module")
def raw(shared: Run, retain: Path) -> Path:
    """The unlearned model without a chat template, against chat logs: a mixture that was accepted."""
    words = (RAW, "--retain-logs", retain, "--accept-mixture")
    return shared("conventions-raw", lambda place: evaluate(UNLEARNED, place, *words))


DIFFERENT: dict[str, tuple[tuple[object, ...], list[str]]] = {
    "template": ((RAW,), ["raw", "chat"]),
    "system prompt": (("--system-prompt", "Be brief."), ["Be brief."]),
    "precision": (("--dtype", "bfloat16"), ["bfloat16", "float32"]),
    "rows": (("--limit", 5), ["different rows"]),
}


@pytest.mark.parametrize("aspect", DIFFERENT)
def test_retain_logs_that_were_measured_otherwise_are_refused(aspect: str, retain: Path, tmp_path: Path) -> None:
    more, sides = DIFFERENT[aspect]
    words = ("--retain-logs", retain, "--metrics", "privleak", *more)
    error = evaluate(UNLEARNED, tmp_path / "run", *words, status=2).error
    assert [word for word in (*sides, "run", str(retain), "--accept-mixture") if word not in error] == []
    assert not (tmp_path / "run" / "TOFU_EVAL.json").exists()


def test_an_accepted_mixture_is_noted_in_the_result(raw: Path, chat: Path, retain: Path) -> None:
    for metric in ("privleak", "forget_quality"):
        notes = " ".join(written(raw)[metric]["notes"])
        assert "accepted mixture" in notes and "raw" in notes and str(retain) in notes
        assert "accepted mixture" not in str(written(chat)[metric].get("notes"))
    assert any("mia_loss" in note and "accepted mixture" in note for note in read_json(raw / "manifest.json")["notes"])
    before = written(raw)
    vestige("score", raw)
    assert written(raw) == before
    vestige("verify", raw)


def test_scoring_again_with_other_retain_logs_is_checked_too(raw: Path, chat: Path, retain: Path) -> None:
    """The mixture that a run was made with is accepted, another one is not."""
    assert "--accept-mixture" in vestige("score", chat, "--retain-logs", raw, status=2).error
    assert "mixture" in vestige("score", chat, "--retain-logs", raw, "--accept-mixture").out
    assert "mixture" not in vestige("score", chat, "--retain-logs", retain).out


def test_another_dialect_of_the_retain_logs_is_no_mixture(retain: Path, tmp_path: Path) -> None:
    words = ("--retain-logs", retain, "--metrics", "privleak", "--dialect", "strict")
    assert "re-scored" in evaluate(UNLEARNED, tmp_path / "run", *words).err
    assert written(tmp_path / "run")["privleak"]["agg_value"] is not None


def test_results_of_other_tools_state_no_template_and_are_allowed(retain: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "TOFU_EVAL.json"
    theirs.write_text((retain / "TOFU_EVAL.json").read_text())
    evaluate(UNLEARNED, tmp_path / "run", "--retain-logs", theirs, "--metrics", "privleak", RAW)
    assert written(tmp_path / "run")["privleak"]["agg_value"] is not None


def test_compare_refuses_a_mixture(raw: Path, chat: Path, retain: Path) -> None:
    error = vestige("compare", retain, raw, status=2).error
    assert [word for word in ("raw", "chat", retain.name, raw.name, "--accept-mixture") if word not in error] == []
    alike = vestige("compare", retain, chat, "--metrics", "forget_Q_A_Prob").out
    mixed = vestige("compare", retain, raw, "--metrics", "forget_Q_A_Prob", "--accept-mixture").out
    assert "accepted mixture" in mixed and "accepted mixture" not in alike
    script = """
import sys, vestige
found = vestige.compare_runs(*sys.argv[1:], metrics="forget_Q_A_Prob", accept_mixture=True)
print(found.notes, found.differences)
try:
    vestige.compare_runs(*sys.argv[1:])
except vestige.UserError as error:
    print("refused:", error)
"""
    printed = python(script, retain, raw).out
    assert "accepted mixture" in printed and "refused: " in printed


def test_a_report_refuses_a_mixture(raw: Path, chat: Path, retain: Path, tmp_path: Path) -> None:
    error = vestige("report", retain, raw, "-o", tmp_path / "report", status=2).error
    assert [word for word in ("raw", "chat", "retain", "unlearned", "--accept-mixture") if word not in error] == []
    vestige("table", retain, raw, status=2)
    assert "accepted mixture" in vestige("report", retain, raw, "-o", tmp_path / "report", "--accept-mixture").out
    problems = [problem["text"] for problem in read_json(tmp_path / "report" / "report.json")["problems"]]
    assert any("accepted mixture" in problem and "forget_Q_A_Prob" in problem for problem in problems)
    vestige("verify", tmp_path / "report")
    assert "accepted mixture" not in vestige("report", retain, chat, "-o", tmp_path / "alike").out


# ---- a quantised model ---------------------------------------------------------------------------------------------


def test_a_quantised_depth_run_is_the_same_model_under_an_attack(tmp_path: Path) -> None:
    words = ("--unlearned", UNLEARNED, "--full", FULL, "--retain-model", RETAIN, "--data", DATA, "--limit", 2)
    words = (*words, "--layers", "3", "--s1-cache", tmp_path / "s1", "--cluster", "none", "--quiet")
    vestige("depth", *words, "--out", tmp_path / "q16")
    vestige("depth", *words, "--out", tmp_path / "q4", "--quantization", "4bit")
    out = vestige("report", tmp_path / "q16", tmp_path / "q4", "-o", tmp_path / "report").out
    report = read_json(tmp_path / "report" / "report.json")
    models = {model["id"]: model for model in report["models"]}
    (audit,) = report["audits"]
    assert models[audit["model"]]["name"] == "unlearned" and "(4bit)" not in out
    (copy,) = (model for model in models.values() if "4bit" in model["name"])
    assert copy["role"] == "other" and "quantise" in copy["method"]
    (attack,) = (curve for curve in audit["attacks"] if curve["metric"] == "uds")
    uds = [read_json(tmp_path / run / "summary.json")["avg_uds"] for run in ("q16", "q4")]
    assert [attack["before"], *attack["values"]] == uds


# ---- plug-ins, and folders given twice -----------------------------------------------------------------------------

PLUGIN = '''
"""The least likely token of an answer."""
from vestige.plugins import by_index, handler, mean_score, metric, one_stat, wants_answers

@metric(knows="low", source="a test")
def worst_token(t):
    """Minus the log-probability of the least likely token."""
    return -t.logprob.min(axis=-1)

@handler("worst_token", wants_answers)
def score(inputs):
    """The least likely token of the answer."""
    return mean_score(by_index(inputs.rows, one_stat(inputs, lambda t: {"score": worst_token(t)})), "score")
'''
FILES = """
# @package eval.tofu.metrics.forget_worst_token
handler: worst_token
datasets:
  TOFU_QA_forget: {args: {hf_args: {name: "${eval.tofu.forget_split}_perturbed"}}}
"""


def test_verify_names_a_missing_plugin(tmp_path: Path) -> None:
    plugin = tmp_path / "worst_token.py"
    plugin.write_text(PLUGIN)
    config = tmp_path / "configs" / "eval" / "tofu_metrics" / "forget_worst_token.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(FILES.lstrip())
    words = ("--plugin", plugin, "--config-dir", tmp_path / "configs")
    evaluate(FULL, tmp_path / "run", *words, "--metrics", "forget_worst_token", limit=2)
    without = vestige("verify", tmp_path / "run").out
    assert "wrong" not in without and "--plugin" in without and str(plugin) in without
    assert "--plugin" not in vestige("verify", tmp_path / "run", "--plugin", plugin).out
    for verb in ("score", "compare"):
        runs = (tmp_path / "run",) * (2 if verb == "compare" else 1)
        assert f"--plugin {plugin}" in vestige(verb, *runs, status=2).error


def test_a_folder_inside_another_is_a_source_once(chat: Path, tmp_path: Path) -> None:
    pools = tmp_path / "pools.yaml"
    pools.write_text(
        "protocol: chat\npositive: [{model: a, values: {em: 0.9}}]\nnegative: [{model: b, values: {em: 0.1}}]\n"
    )
    sweep = copy_tree(chat, tmp_path / "sweep" / "run").parent
    vestige("meta", "faithfulness", pools, "--out", sweep / "meta", "--resamples", 0)
    for runs in ((sweep, sweep / "meta"), (sweep / "meta", sweep)):
        vestige("report", *runs, "-o", tmp_path / "report")
        assert len(read_json(tmp_path / "report" / "report.json")["sources"]) == 2
    (tmp_path / "empty").mkdir()
    assert "empty" in vestige("report", sweep, tmp_path / "empty", "-o", tmp_path / "report", status=2).error


# ---- axes ----------------------------------------------------------------------------------------------------------

PARTS = {"es": 0.2, "em": 0.5, "paraprob": 0.1, "truth_ratio": 0.4, "uds": 0.8}
UTILITY = {f"{rows}_Q_A_ROUGE": 0.6 for rows in ("retain", "ra", "wf")}
UTILITY |= {f"{rows}_Truth_Ratio": 0.6 for rows in ("retain", "ra", "wf")}
UTILITY |= dict.fromkeys(("retain_Q_A_Prob", "ra_Q_A_Prob_normalised", "wf_Q_A_Prob_normalised"), 0.6)
ATTACKS = dict.fromkeys(("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp"), 0.5)


def axes(place: Path, **changes: dict[str, float]) -> tuple[str, dict[str, Any]]:
    """The axes of a full and an unlearned model; `changes`: of their numbers."""
    numbers = {**PARTS, **UTILITY, **ATTACKS}
    full = {"values": {**numbers, **changes.get("full", {})}}
    half = {**numbers, **{name: value / 2 for name, value in UTILITY.items()}, **changes.get("half", {})}
    body = {"protocol": "chat", "full": full, "retain": {"values": numbers}}
    body["models"] = [{"model": "full", **full}, {"model": "half", "values": half}]
    place.mkdir()
    (place / "models.yaml").write_text(json.dumps(body))
    out = vestige("meta", "axes", place / "models.yaml", "--out", place / "meta", "--quiet").out
    result = read_json(place / "meta" / "method_results.json")
    rows = {row["model"]: row for row in result["models"]}
    rows["half"]["printed notes"] = result["notes"]
    return out, rows["half"]


def test_axes_without_a_fluency_classifier_fall_back_to_the_model_utility(tmp_path: Path) -> None:
    out, row = axes(tmp_path / "plain")
    assert (row["utility"], row["utility_rel"]) == pytest.approx((0.3, 0.5))
    assert row["overall"] == pytest.approx(3 / (1 / row["mem"] + 1 / row["privacy"] + 1 / 0.5))
    assert "fluency was not measured" in out and "fluency was not measured" in " ".join(row["printed notes"])
    again = vestige("meta", "axes", tmp_path / "plain" / "meta" / "method_results.json", "--out", tmp_path / "again")
    assert "fluency was not measured" in again.out
    (read,) = [r for r in read_json(tmp_path / "again" / "method_results.json")["models"] if r["model"] == "half"]
    assert read["overall"] == pytest.approx(row["overall"])
    vestige("verify", tmp_path / "plain" / "meta")
    fluent = {"full": {"fluency": 0.9}, "half": {"fluency": 0.9}}
    out, row = axes(tmp_path / "fluent", **fluent)
    assert row["utility"] == pytest.approx(2 / (1 / 0.3 + 1 / 0.9)) and "fluency was not measured" not in out


def test_what_an_axis_lacks_is_the_part_that_was_not_measured(tmp_path: Path) -> None:
    """One definition for all: where one model has a fluency, those without have no Utility."""
    _, row = axes(tmp_path / "full", full={"fluency": 0.9})
    assert row["overall"] is None and "no fluency" in row["reasons"]["overall"]
    _, row = axes(tmp_path / "half", half={"fluency": 0.9})
    assert row["utility_rel"] is None and "full model" in row["reasons"]["utility_rel"]
    assert "no fluency" in row["reasons"]["overall"] and row["utility"] is not None


def test_a_report_of_plain_runs_has_a_utility(shared: Run, tmp_path: Path) -> None:
    def build(place: Path) -> None:
        for model in (FULL, RETAIN, UNLEARNED):
            words = ("--metrics", "model_utility,mia_loss", "--system-prompt", SYSTEM)
            evaluate(model, place / model.name, *words, limit=2)

    runs = shared("conventions-plain", build)
    vestige("report", runs, "-o", tmp_path / "report")
    models = {model["name"]: model["values"] for model in read_json(tmp_path / "report" / "report.json")["models"]}
    utility = {name: values["model_utility"]["v"] for name, values in models.items()}
    expected = min(1.0, utility["unlearned"] / utility["full"])
    assert models["unlearned"]["utility_rel"]["v"] == pytest.approx(expected)
    assert "fluency" in models["unlearned"]["utility_rel"]["note"]


def test_the_ends_of_the_depth_score_in_an_imported_tree(tmp_path: Path) -> None:
    """As published: full has UDS 0, retain 1, and both have an Overall, although no folder holds these scores."""
    vestige("import", published_tree(tmp_path), "--out", tmp_path / "out", "--quiet")
    rows = {row["model"]: row for row in read_json(tmp_path / "out" / "method_results.json")["models"]}
    assert (rows["full"]["uds"], rows["retain"]["uds"]) == (0, 1)
    assert rows["full"]["overall"] == pytest.approx(0, abs=1e-9) and rows["retain"]["overall"] > 0.5
    vestige("verify", tmp_path / "out")


# ---- the retain column ---------------------------------------------------------------------------------------------


def test_a_metric_that_compares_with_nothing_has_a_retain_column(retain: Path, tmp_path: Path) -> None:
    out = evaluate(UNLEARNED, tmp_path / "run", "--retain-logs", retain, "--metrics", "mia_loss").out
    head, _, line = out[out.index("metric") :].splitlines()[:3]
    assert "retain" in head.split() and f"{written(retain)['mia_loss']['agg_value']:.4f}" in line.split()
    words = ("--retain-logs", tmp_path / "nowhere", "--metrics", "mia_loss")
    assert "nowhere" in evaluate(UNLEARNED, tmp_path / "other", *words, status=2).error


def test_too_few_clusters_are_noted_once_for_all_files(tmp_path: Path) -> None:
    shown = vestige("eval", "tofu", "--model", UNLEARNED, "--data", DATA, "--limit", 2, "--out", tmp_path).out
    (note,) = [line for line in shown.splitlines() if "--cluster none" in line]
    assert "forget.jsonl has 1 cluster (author)" in note and "retain.jsonl has 1 cluster" in note


def test_tables_fit_the_screen(unlearned_run: Path, tmp_path: Path) -> None:
    """Readings of wide intervals are long; they continue on further lines."""
    shown = vestige("score", copy_tree(unlearned_run, tmp_path / "run")).out
    widths = [len(line) for line in shown.splitlines() if line.strip() and not line.strip("- ")]
    assert widths and max(widths) <= 120
