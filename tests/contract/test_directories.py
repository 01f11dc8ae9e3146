"""What is in a directory stays: results of one model and its data accumulate, others are refused.

Collapse's running means take in each step once. A full or read-only disk, a closed pipe and a wrong column are told in
one sentence on standard error.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import DATA, FULL, GOLDEN, RETAIN, UNLEARNED, Outcome, assert_same, digests, read_json

FEW = ("--limit", 4, "--cluster", "none", "--quiet", "stats.resamples=50")
PROB, ROUGE, MINK = "forget_Q_A_Prob", "forget_Q_A_ROUGE", "mia_min_k"
FILES = ("TOFU_EVAL.json", "TOFU_SUMMARY.json", "TOFU_STATS.json")


def evaluate(out: Path, *words: object, metrics: str = PROB, model: Path = FULL, status: int = 0) -> Outcome:
    few = [*words] if "--limit" in words else [*FEW, *words]
    return harness.vestige(
        "eval", "tofu", "--model", model, "--data", DATA, "--metrics", metrics, *few, "--out", out, status=status
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two metrics."""
    out = tmp_path_factory.mktemp("first") / "out"
    evaluate(out, metrics=f"{PROB},{MINK}")
    return out


# ---- results accumulate ----------------------------------------------------------------------------------------------


def test_metrics_of_one_model_accumulate(first: Path, tmp_path: Path) -> None:
    """Every file is that of one run with all metrics; what was scored before is not run again."""
    out = harness.copy_tree(first, tmp_path / "out")
    whole = f"{PROB},{MINK},{ROUGE},forget_truth_ratio"
    words = ("eval", "tofu", "--model", FULL, "--data", DATA, *FEW, "--metrics")
    shown, tokens = harness.counted(*words, f"{ROUGE},forget_truth_ratio", "--out", out)
    _, most = harness.counted(*words, whole, "--out", tmp_path / "whole")
    assert 0 < tokens < most
    for name in whole.split(","):
        assert name in shown.out
    for file in FILES:
        expected, got = read_json(tmp_path / "whole" / file), read_json(out / file)
        assert_same(expected, got)
        assert sorted(got) == sorted(expected)
    for words in (("verify", out), ("score", out), ("verify", out)):
        harness.vestige(*words)
    assert set(read_json(out / "TOFU_SUMMARY.json")) == set(whole.split(","))
    before = {file: (out / file).read_bytes() for file in FILES}
    _, again = harness.counted(*words_of(out, whole))
    assert again == 0
    assert before == {file: (out / file).read_bytes() for file in FILES}
    harness.vestige("report", out, "-o", tmp_path / "page")
    page = (tmp_path / "page" / "report.json").read_text()
    assert PROB in page and ROUGE in page


def results(folder: Path) -> dict[str, str]:
    """The files of a run by their sha256; hidden ones (locks, the journal) say who is at work."""
    return {name: digest for name, digest in digests(folder).items() if not Path(name).name.startswith(".")}


def words_of(out: Path, metrics: str) -> tuple[object, ...]:
    return ("eval", "tofu", "--model", FULL, "--data", DATA, *FEW, "--metrics", metrics, "--out", out)


def test_retain_logs_that_come_later_serve_all_metrics(tmp_path: Path) -> None:
    out, retain = tmp_path / "out", tmp_path / "retain"
    evaluate(retain, metrics=f"forget_truth_ratio,{MINK}", model=RETAIN)
    evaluate(out, metrics="forget_quality,privleak")
    assert "forget_quality" not in read_json(out / "TOFU_SUMMARY.json")
    evaluate(out, "--retain-logs", retain, metrics=PROB)
    summary = read_json(out / "TOFU_SUMMARY.json")
    assert {"forget_quality", "privleak", PROB} == set(summary)
    evaluate(out, metrics=MINK)  # the run keeps its retain model
    assert read_json(out / "TOFU_SUMMARY.json").items() >= summary.items()
    harness.copy_tree(retain, tmp_path / "moved")
    evaluate(out, "--retain-logs", tmp_path / "moved", metrics=MINK)
    evaluate(tmp_path / "other", metrics=f"forget_truth_ratio,{MINK}", model=UNLEARNED)
    refused = evaluate(out, "--retain-logs", tmp_path / "other", metrics=MINK, status=2)
    assert "retain logs" in refused.error and str(out) in refused.error
    refused = evaluate(out, "--system-prompt", "Be brief.", metrics=MINK, status=2)  # not: a mixture with the logs
    assert "holds results with another chat template or system prompt" in refused.error


OTHERS: dict[str, tuple[tuple[object, ...], str]] = {
    "model": (("--model", UNLEARNED), "model"),
    "precision": (("--dtype", "float16"), "precision"),
    "system prompt": (("--system-prompt", "Be brief."), "system prompt"),
    "template": (("model.template_args.apply_chat_template=false",), "template"),
    "dialect": (("--dialect", "strict"), "dialect"),
    "limit": ((*FEW, "--limit", 3), "--limit 4"),
    "rows": (("--data", "rows"), "rows"),
    "fewer files": (("--data", "fewer"), "rows"),
    "setting of the metric": ((f"++eval.tofu.metrics.{MINK}.k=0.9",), "k: 0.4, now 0.9"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_results_of_something_else_are_refused(name: str, first: Path, tmp_path: Path) -> None:
    """Nothing changes, and the sentence names both ways out. --overwrite leaves only the new results."""
    out = harness.copy_tree(first, tmp_path / "out")
    rows = harness.read_rows(DATA / "forget.jsonl")
    harness.write_rows(tmp_path / "rows" / "forget.jsonl", [{**rows[0], "answer": "Nobody knows."}, *rows[1:]])
    harness.write_rows(tmp_path / "rows" / "holdout.jsonl", harness.read_rows(DATA / "holdout.jsonl"))
    harness.write_rows(tmp_path / "fewer" / "forget.jsonl", rows)
    words, named = OTHERS[name]
    command = ("eval", "tofu", "--model", FULL, "--data", DATA, *FEW, *words, "--metrics", f"{MINK},{ROUGE}")
    before = results(out)
    refused = harness.vestige(*command, "--out", out, cwd=tmp_path, status=2)
    for word in (named, str(out), "--overwrite", "--out"):
        assert word in refused.error
    assert results(out) == before
    if name in ("model", "limit"):
        harness.vestige(*command, "--out", out, "--overwrite", cwd=tmp_path)
        assert set(read_json(out / "TOFU_EVAL.json")) == {MINK, ROUGE}
        harness.vestige("verify", out)


def test_suites_do_not_share_a_directory(first: Path, tmp_path: Path) -> None:
    out = harness.copy_tree(first, tmp_path / "out")
    before = results(out)
    muse = (
        "eval",
        "muse",
        "--model",
        FULL,
        "--data",
        DATA / "muse",
        *FEW,
        "--metrics",
        "forget_knowmem_ROUGE",
        "--out",
        out,
    )
    refused = harness.vestige(*muse, status=2)
    assert "tofu" in refused.error and str(out) in refused.error
    assert results(out) == before


# ---- collapse: each step counts once, rows that are too long ---------------------------------------------------------

COLLAPSE = ("--model", GOLDEN / "collapse" / "tiny", "--resamples", 0, "--num-samples", "all", "--quiet")


def write_steps(path: Path, steps: Iterable[int], more: Iterable[dict[str, Any]] = ()) -> Path:
    """Six rollouts of each step; later steps say more."""
    rows: list[dict[str, Any]] = []
    for step in steps:
        for number in range(6):
            text = f"<think>I see state {number // 2}, so I {'go' if number % 2 else 'wait'}{' on' * step}.</think>Up"
            asked = [{"role": "user", "content": f"State {number // 2}"}]
            rows.append({"messages": asked, "response": text, "group_id": number // 2, "step": step})
    return harness.write_rows(path, [*rows, *more])


def collapse_steps(out: Path) -> dict[int, dict[str, float]]:
    found = {}
    for step in read_json(out / "metrics.json")["steps"]:
        found[step["step"]] = {name: value for name, value in step["metrics"].items() if "timing" not in name}
    return found


def test_windows_of_steps_that_overlap_count_each_step_once(tmp_path: Path) -> None:
    def measure(name: str, steps: Iterable[int], means: str) -> dict[int, dict[str, float]]:
        file = write_steps(tmp_path / f"{name}.jsonl", steps)
        words = (*COLLAPSE, "--ema", tmp_path / means, "--out", tmp_path / name)
        harness.vestige("collapse", file, *words)
        return collapse_steps(tmp_path / name)

    whole = measure("whole", range(1, 7), "whole.json")
    slow = "collapse_first_turn_sample/mi_zscore_ema"
    assert len({values[slow] for values in whole.values()}) == 6
    for name, steps in (("early", [1, 2, 3, 4]), ("late", [3, 4, 5, 6]), ("middle", [2, 4, 5]), ("again", [6])):
        found = measure(name, steps, "windows.json")
        assert_same({str(step): whole[step] for step in steps}, {str(step): found[step] for step in steps}, least=50)
        harness.vestige("verify", tmp_path / name)
        harness.vestige("score", tmp_path / name)
        harness.vestige("verify", tmp_path / name)
    for key in ("per_token", "per_seq"):
        assert_same(read_json(tmp_path / "whole.json")[key], read_json(tmp_path / "windows.json")[key])


def test_rollouts_that_are_too_long_are_left_out_on_request(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "State 0"}]
    long = {"messages": asked, "response": f"<think>{'on and ' * 5000}</think>Up", "group_id": 0, "step": 1}
    file = write_steps(tmp_path / "rollouts.jsonl", [1], [long])
    refused = harness.vestige("collapse", file, *COLLAPSE, "--out", tmp_path / "out", status=2)
    assert "--skip-long" in refused.error and "row 7" in refused.error
    shown = harness.vestige("collapse", file, *COLLAPSE, "--skip-long", "--out", tmp_path / "out").out
    assert "1 of 7 turns left out: 1 x longer than the model reads" in shown
    assert list(read_json(tmp_path / "out" / "metrics.json")["steps"][0]["left_out"].values()) == [1]
    file = write_steps(tmp_path / "short.jsonl", [1])
    harness.vestige("collapse", file, *COLLAPSE, "--out", tmp_path / "short")
    short = collapse_steps(tmp_path / "short")[1]
    measured = {name: value for name, value in short.items() if name.startswith("collapse_first_turn_sample/")}
    assert_same(measured, collapse_steps(tmp_path / "out")[1], least=20)
    harness.vestige("verify", tmp_path / "out")


# ---- messages and flags ----------------------------------------------------------------------------------------------


def test_the_reason_for_no_value_is_told_on_standard_error(tmp_path: Path) -> None:
    refused = evaluate(tmp_path / "out", "eval.tofu.question_key=frage", status=2)
    assert "frage" in refused.error and "forget.jsonl" in refused.error
    same = [{"messages": [{"role": "user", "content": "One"}], "response": f"<think>I {n}.</think>"} for n in range(4)]
    file = harness.write_rows(tmp_path / "rollouts.jsonl", [{**row, "step": 1} for row in same])
    words = ("collapse", file, *COLLAPSE, "--cross-columns", "distinct", "--out", tmp_path / "collapse")
    assert "one and the same prompt" in harness.vestige(*words, status=2).error


def test_unlearn_takes_a_folder_of_data(tmp_path: Path) -> None:
    """As with the files in it, and with the folder for evaluations while training."""

    def shown(*words: object) -> str:
        few = ("--method", "GradDiff", "--model", FULL, "--out", tmp_path / "out", "--quiet")
        return harness.vestige("unlearn", *few, *words, "--cfg").out

    files = ("--forget", DATA / "forget.jsonl", "--retain", DATA / "retain.jsonl")
    assert shown("--data", DATA) == shown(*files)
    watching = ("--metrics", PROB, "--keep-best", f"{PROB}=-1")
    assert shown("--data", DATA, *watching) == shown(*files, "--eval-data", DATA, *watching)
    twice = harness.vestige("unlearn", "--model", FULL, "--data", DATA, *files, "--out", tmp_path / "out", status=2)
    assert "--data" in twice.error and "--forget" in twice.error
    (tmp_path / "none").mkdir()
    words = ("unlearn", "--model", FULL, "--data", tmp_path / "none", "--out", tmp_path / "out")
    assert "forget.jsonl" in harness.vestige(*words, status=2).error
    one = harness.write_rows(tmp_path / "rows" / "forget.jsonl", harness.read_rows(DATA / "forget.jsonl")[:2])
    few = ("--method", "GradAscent", "--epochs", 1, "--batch-size", 2, "--accumulation", 1, "--quiet")
    harness.vestige("unlearn", "--model", FULL, "--data", one.parent, *few, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").is_file()
