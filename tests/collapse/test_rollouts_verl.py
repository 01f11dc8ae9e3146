"""Dumps that verl, RAGEN and TRL wrote themselves (tests/golden/rollouts), and conversations inside an output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_rollouts import write

from conftest import GOLDEN, LAB
from vestige.cli import main
from vestige.collapse.rollouts import load_rollouts, parts_of
from vestige.errors import UserError

WRITTEN = GOLDEN / "rollouts"
FIRST, TRAJECTORY = "collapse_first_turn_sample", "collapse_trajectory_sample"


def measured(name: str, out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One of the files through the command line: its step, and its rows."""
    model = out / "model"  # the lab's model, said to read rows as long as those of these files
    shutil.copytree(LAB / "models" / "full", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    out = out / "out"
    words = ["--model", str(model), "--num-samples", "all", "--resamples", "20", "--quiet"]
    assert main(["collapse", str(WRITTEN / name), "--out", str(out), *words]) == 0
    [step] = json.loads((out / "metrics.json").read_text())["steps"]
    return step, [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def test_verl_names_group_session_and_output(tmp_path: Path) -> None:
    """uid = <group>_<session>_<index>: 8 groups of 4, not 32 groups of one."""
    loaded = load_rollouts(WRITTEN / "verl_0.9_default_dump.jsonl")
    assert len({r.group for r in loaded.rollouts}) == 8 and len({r.trajectory for r in loaded.rollouts}) == 32
    assert {r.turn for r in loaded.rollouts} == {0}
    step, _ = measured("verl_0.9_default_dump.jsonl", tmp_path)
    assert step["metrics"][f"{FIRST}/n_columns"] == 8 and step["metrics"][f"{FIRST}/n_rows"] == 26
    assert step["left_out"] == {"close tag missing": 4, "no reasoning tags": 2}


def test_later_outputs_of_a_session_are_later_turns(tmp_path: Path) -> None:
    loaded = load_rollouts(WRITTEN / "verl_multi_output.jsonl")
    found = [(r.group, r.trajectory, r.turn) for r in loaded.rollouts[:4]]
    assert found == [("aaa", "aaa_0", 0), ("aaa", "aaa_0", 1), ("aaa", "aaa_1", 0), ("aaa", "aaa_1", 1)]
    step, rows = measured("verl_multi_output.jsonl", tmp_path)
    assert step["metrics"]["collapse/first_turn_num_total"] == 4
    assert {r["turn"] for r in rows if r["label"] == FIRST} == {0}


def test_uids_that_several_rows_share_are_groups(tmp_path: Path) -> None:
    """Older verl: one uid for all samples of a prompt, whatever it looks like."""
    rows = [{"input": "Q", "output": "<think>a</think>", "step": 1, "uid": "task_1_2"}] * 3
    loaded = load_rollouts(write(tmp_path / "1.jsonl", rows))
    assert {r.group for r in loaded.rollouts} == {"task_1_2"} and len({r.trajectory for r in loaded.rollouts}) == 3


def test_rows_that_fill_a_batch_are_left_out(tmp_path: Path) -> None:
    rows = [{"input": "Q", "output": "<think>a</think>", "uid": "g_0_0"}]
    rows += [{"input": "", "output": "", "uid": f"pad{'0' * 32}_{n}_0"} for n in range(3)]
    assert [r.trajectory for r in load_rollouts(write(tmp_path / "1.jsonl", rows)).rollouts] == ["g_0"]


def test_a_conversation_is_split_into_turns(tmp_path: Path) -> None:
    """RAGEN's validation dump: the instruction's own tags (<think> [Your thoughts] </think>) are not reasoning."""
    loaded = load_rollouts(WRITTEN / "ragen_validation_dump.jsonl")
    assert len(loaded.rollouts) == 24 and [r.turn for r in loaded.rollouts[:4]] == [0, 1, 0, 1]
    first, second = loaded.rollouts[:2]
    assert [m["role"] for m in first.messages or ()] == ["system", "user"]
    assert [m["role"] for m in second.messages or ()] == ["system", "user", "assistant", "user"]
    assert (first.messages or ())[1]["content"].startswith("\nTurn 1:\nState:\n")
    assert (second.messages or ())[3]["content"].startswith("Reward:\n-0.1\n\nTurn 2:")
    assert str(first.response).startswith("<think>The question is about") and "user" not in str(first.response)
    step, rows = measured("ragen_validation_dump.jsonl", tmp_path)
    assert len(rows) == 12 + 24 and not any("[Your thoughts]" in r["reasoning"] for r in rows)
    assert all(r["reasoning"].startswith("The question is about") for r in rows)
    assert step["metrics"][f"{TRAJECTORY}/n_prompts_distinct"] == 8


def test_without_a_chat_template_the_text_is_the_prompt() -> None:
    from tokenizer_tools import byte_bpe
    from vestige.collapse.reasoning import Extractor

    tokenizer = byte_bpe("qwen2")
    rollout = load_rollouts(WRITTEN / "ragen_validation_dump.jsonl").rollouts[1]
    turn = Extractor(tokenizer).turn(rollout)
    assert tokenizer.decode(list(turn.x)).startswith("system\nYou're a helpful assistant.")
    assert tokenizer.decode(list(turn.x)).endswith("(tokens).\n\nassistant\n<think>")


def test_a_conversation_that_cannot_be_told_apart_is_refused(tmp_path: Path) -> None:
    """Llama 3's markers leave no line of their own for a role."""
    talk = "system\n\nBe brief: <think> [thoughts] </think>.user\n\nWhere?assistant\n\n<think>up</think>"
    for output in (talk, "<think>up</think>", "user\nWhere? <think> [thoughts] </think>"):
        with pytest.raises(UserError, match="row 1: the input is empty"):
            load_rollouts(write(tmp_path / "1.jsonl", [{"input": "", "output": output}]))


def test_turns_of_tools_inside_an_output(tmp_path: Path) -> None:
    output = (
        "Let me look.\nuser\nUse <think>tags</think> please\nassistant\n<think>a</think>1\ntool\n9\nassistant\nso 9"
    )
    first, second, third = load_rollouts(write(tmp_path / "1.jsonl", [{"input": "Q", "output": output}])).rollouts
    assert (first.response, first.prompt, first.turn) == ("Let me look.", "Q", 0)
    assert (second.response, second.turn) == ("<think>a</think>1", 1)
    assert second.prompt == "QLet me look.\nuser\nUse <think>tags</think> please\nassistant\n"
    assert (third.response, third.turn, third.trajectory) == ("so 9", 2, first.trajectory)


def test_only_who_may_speak_begins_a_turn() -> None:
    text = "system\nWho is\nassistant\nhere?\nuser\nthe\nuser\nor\nassistant\n<think>\nsystem\n</think>"
    assert [(p.role, text[p.start : p.end]) for p in parts_of(text)] == [
        ("system", "Who is\nassistant\nhere?"),
        ("user", "the\nuser\nor"),
        ("assistant", "<think>\nsystem\n</think>"),
    ]


def test_trl_wrote_this(tmp_path: Path) -> None:
    loaded = load_rollouts(WRITTEN / "trl_completions.parquet")
    assert loaded.format == "trl" and {r.step for r in loaded.rollouts} == {2}
    step, rows = measured("trl_completions.parquet", tmp_path)
    assert step["metrics"][f"{FIRST}/n_columns"] == 4 and step["metrics"][f"{FIRST}/n_rows"] == 16
    assert all(r["reasoning"].startswith("The question is ab") for r in rows)


def test_completions_of_several_messages_are_several_turns(tmp_path: Path) -> None:
    """TRL with tools: the completion is [assistant, tool, assistant]."""
    said = [("assistant", "<think>a</think>look"), ("tool", "9"), ("assistant", "<think>b</think>9")]
    completion = [{"role": role, "content": content} for role, content in said]
    row = {"prompt": [{"role": "user", "content": "Q"}], "completion": completion}
    first, second = load_rollouts(write(tmp_path / "r.jsonl", [row])).rollouts
    assert (first.response, first.turn, second.response, second.turn) == (said[0][1], 0, said[2][1], 1)
    assert [m["role"] for m in second.messages or ()] == ["user", "assistant", "tool"]
