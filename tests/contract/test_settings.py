"""Settings do what they say: a flag or a word changes one setting; one that nothing reads is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import DATA, FULL, RETAIN, UNLEARNED, copy_tree, read_json, vestige, write_rows

PROB = "forget_Q_A_Prob"
EXPERIMENT = "experiment=eval/tofu/default"
MODEL = f"model.model_args.pretrained_model_name_or_path={UNLEARNED}"
NAMES = "{path: DIR, names: {forget10: forget, forget10_perturbed: forget, holdout10: holdout}}"


def composed(*words: object) -> dict[str, Any]:
    return yaml.safe_load(vestige("eval", *words, "--cfg").out)


def value(out: Path, *words: object, metric: str = PROB) -> float:
    few = ("--metrics", metric, "stats.resamples=0", "--quiet", "--out", out)
    vestige("eval", *words, *few)
    return float(read_json(out / "TOFU_SUMMARY.json")[metric])


def test_flags_keep_the_experiments_prompt(tmp_path: Path) -> None:
    """open-unlearning's model configuration has a system prompt; --data and --limit leave it alone."""
    local = f"data.local={{locuslab/TOFU: {NAMES.replace('DIR', str(DATA))}}}"
    flags = value(tmp_path / "flags", EXPERIMENT, MODEL, "--data", DATA, "--limit", 4)
    words = value(tmp_path / "words", EXPERIMENT, MODEL, local, "data.max_samples=4")
    system = ("--system-prompt", "You are a helpful assistant.")
    plain = value(tmp_path / "plain", "tofu", "--model", UNLEARNED, "--data", DATA, "--limit", 4, *system)
    assert flags == words == plain
    assert flags > 0.5


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ((EXPERIMENT, "--dtype", "bfloat16"), ("model", "model_args", "torch_dtype")),
        (("experiment=eval/muse/default", "--model", FULL), ("model", "model_args", "pretrained_model_name_or_path")),
        (("experiment=eval/wmdp/default", "--model", FULL), ("model", "model_args", "pretrained_model_name_or_path")),
        ((EXPERIMENT, "--limit", 3), ("max_samples",)),
        ((EXPERIMENT, "--task-name", "mine"), ("task_name",)),
    ],
    ids=lambda case: " ".join(str(word) for word in case)[:40],
)
def test_a_flag_changes_one_setting_of_an_experiment(words: tuple[object, ...], changed: tuple[str, ...]) -> None:
    def flat(node: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
        if not isinstance(node, dict):
            return {path: node}
        found = {}
        for key, child in node.items():
            found |= flat(child, (*path, str(key)))
        return found

    before, after = flat(composed(words[0])), flat(composed(*words))
    different = {key for key in before | after if before.get(key) != after.get(key)}
    different -= {("output_dir",), ("settings", "output_dir")}  # named by the task
    assert different == {changed}


def test_a_suites_own_split_is_a_word() -> None:
    shown = composed("muse", "data_split=Books", "--model", FULL)
    assert shown["settings"]["data_split"] == "Books"


def test_a_folder_stands_for_a_hub_data_set(tmp_path: Path) -> None:
    folder = copy_tree(DATA, tmp_path / "dätä of mine")
    expected = value(tmp_path / "expected", "tofu", "--model", FULL, "--data", DATA, "--limit", 2)
    for number, words in enumerate(
        (
            (f"data.local={{locuslab/TOFU: {DATA}}}", "--limit", 2),
            (f"data.local={folder}", "--limit", 2),
            ("--data", folder, "+data.max_samples=2"),
        )
    ):
        assert value(tmp_path / f"{number}", "tofu", "--model", FULL, *words) == expected


def test_open_unlearnings_mia_reference_takes_the_flag(tmp_path: Path) -> None:
    """Its file leaves reference_model_path open (???)."""
    file = tmp_path / "configs" / "eval" / "tofu_metrics" / "mia_reference.yaml"
    file.parent.mkdir(parents=True)
    sets = {}
    for key, name in (("TOFU_QA_forget", "forget10"), ("TOFU_QA_holdout", "holdout10")):
        sets[key] = {"from": "TOFU_MIA", "args": {"hf_args": {"name": name}}}
    body = {"handler": "mia_reference", "reference_model_path": "???", "datasets": sets}
    file.write_text(f"# @package eval.tofu.metrics.mia_reference\n{yaml.safe_dump(body)}")
    words = ("tofu", "--model", UNLEARNED, "--data", DATA, "--limit", 4, "--reference-model", RETAIN)
    theirs = value(tmp_path / "theirs", *words, "--config-dir", tmp_path / "configs", metric="mia_reference")
    assert theirs == value(tmp_path / "ours", *words, metric="mia_reference")


METRIC = "eval.tofu.metrics.forget_Q_A_Prob"
STEPS = "eval.tofu_trajectory.metrics.trajectory_metrics"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("eval", "tofu", "--model", FULL, "--metrics", PROB, f"+{METRIC}.foo=1"), ["foo", PROB]),
        (("eval", "tofu_trajectory", "--model", FULL, f"+{STEPS}.steps=4"), ["steps", "trajectory_metrics"]),
        (("eval", "tofu_trajectory", "--model", FULL, f"{STEPS}.trajectory_config.foo=1"), ["foo", "+"]),
        (("stress", "relearn", "--mode", "relearn", "--model", FULL), ["--mode", "--model"]),
        (("sweep", "plan.yaml", "--batch_size", 3), ["--batch-size", "plan"]),
        (("collapse", "rollouts.jsonl", "--model", FULL, "num_sample=3"), ["num_sample"]),
    ],
    ids=lambda case: " ".join(str(word) for word in case)[:40],
)
def test_what_nothing_reads_is_refused(words: tuple[object, ...], named: list[str]) -> None:
    error = vestige(*words, status=2).error
    for text in named:
        assert text in error
    if words[0] == "collapse":
        assert "--cfg" not in error and "+num" not in error


def test_the_prompt_is_shown_and_a_missing_system_prompt_is_noted(tmp_path: Path) -> None:
    words = ("eval", "tofu", "--model", FULL, "--data", DATA, "--limit", 2, "--metrics", PROB)
    without = vestige(*words, "--out", tmp_path / "without")
    given = vestige(*words, "--out", tmp_path / "given", "--system-prompt", "Be brief.")
    assert "--system-prompt" in without.out and "--system-prompt" not in given.out
    assert "Be brief." in given.out and "{question}" in without.out
    assert "Be brief." in read_json(tmp_path / "given" / "manifest.json")["prompt"]


def test_holdout_rows_that_are_forget_rows(tmp_path: Path) -> None:
    """Some are named; where all are, the AUC would be 0.5 whatever the model knows."""
    rows = {}
    for name in ("forget", "holdout"):
        lines = (DATA / f"{name}.jsonl").read_text().splitlines()[:6]
        rows[name] = [yaml.safe_load(line) for line in lines]
    for folder, holdout in (("some", [rows["forget"][1], *rows["holdout"][:5]]), ("all", rows["forget"])):
        write_rows(tmp_path / folder / "forget.jsonl", rows["forget"])
        write_rows(tmp_path / folder / "holdout.jsonl", holdout)
    words = ("eval", "tofu", "--model", FULL, "--metrics", "mia_loss,mia_zlib", "--cluster", "none")
    shown = vestige(*words, "--data", tmp_path / "some", "--out", tmp_path / "out")
    notes = [line for line in shown.out.splitlines() if "holdout.jsonl" in line and "forget rows" in line]
    assert len(notes) == 1 and "1 of 6" in notes[0]
    refused = vestige(*words, "--data", tmp_path / "all", "--out", tmp_path / "none", status=2)
    assert "holdout.jsonl" in refused.error and "forget.jsonl" in refused.error
