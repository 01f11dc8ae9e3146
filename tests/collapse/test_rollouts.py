"""Rollout files: every format, what it loses, reasoning spans, and files that are broken or hostile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from collapse_tools import golden, history_rows, tokenizer, trajectories
from vestige.collapse.reasoning import EMPTY, NO_RESPONSE, UNCLOSED, UNTAGGED, Extractor, Reasoning, Rollout, find_span
from vestige.collapse.rollouts import load_rollouts, rows_to_rollouts
from vestige.errors import UserError

CHAT = [{"role": "user", "content": "Where is the box?"}]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def text(ids: tuple[int, ...]) -> str:
    return str(tokenizer().decode(list(ids)))


def turn(rollout: Rollout, **how: Any) -> Any:
    return Extractor(tokenizer(), Reasoning(**how)).turn(rollout)


@pytest.mark.parametrize(
    ("response", "opened", "how", "expected"),
    [
        ("<think>go up</think>Up", False, {}, "go up"),
        ("  \n<think>go up</think>Up", False, {}, "go up"),
        ("Well. <think>go up</think>Up", False, {}, "go up"),
        ("go up</think>Up", True, {}, "go up"),
        ("<think>go up</think>Up", True, {}, "go up"),
        ("go <think>up</think>Up", True, {}, "go <think>up"),
        ("<think>a</think><think>b</think>", False, {}, "a"),
        ("<think>go up", False, {"unclosed": "keep"}, "go up"),
        ("<|channel|>go up<|final|>Up", False, {"open": "<|channel|>", "close": "<|final|>"}, "go up"),
        ("why: go up. Up", False, {"pattern": r"why: (.*?)\."}, "go up"),
        ("go up", False, {"mode": "whole"}, "go up"),
    ],
)
def test_spans(response: str, opened: bool, how: dict[str, Any], expected: str) -> None:
    span = find_span(response, Reasoning(**how), opened)
    assert not span.problem and response[span.start : span.end] == expected


@pytest.mark.parametrize(
    ("response", "problem"),
    [("<think>go up", UNCLOSED), ("Up", UNTAGGED), ("<think> \n </think>", EMPTY), ("</think>Up", UNTAGGED)],
)
def test_spans_that_are_not_there(response: str, problem: str) -> None:
    assert find_span(response, Reasoning()).problem == problem
    made = turn(Rollout("t", messages=tuple(CHAT), response=response))
    assert made.z == () and made.problem == problem


def test_x_and_z_are_the_text_and_nothing_else() -> None:
    for how in ({"tokenization": "exact"}, {"tokenization": "separate"}):
        made = turn(Rollout("t", messages=tuple(CHAT), response="Well. <think> go up</think>Up"), **how)
        prompt = tokenizer().apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
        assert text(made.x).startswith(prompt + "Well. <think>")
        assert text(made.z).strip() == "go up"
    exact = turn(Rollout("t", messages=tuple(CHAT), response="<think> go up</think>"))
    joint = tokenizer()(prompt + "<think> go up", add_special_tokens=False)["input_ids"]
    assert list(exact.x + exact.z) == joint


def test_a_tag_forced_by_the_prompt() -> None:
    made = turn(Rollout("t", prompt="Q<think>\n", response="go up</think>Up"))
    assert (text(made.x), text(made.z)) == ("Q<think>\n", "go up")
    forced = turn(Rollout("t", messages=tuple(CHAT), response="go up</think>Up", think_in_prompt=True))
    assert text(forced.x).endswith("<think>") and text(forced.z) == "go up"


def test_ids_are_used_as_they_are() -> None:
    """A tokenisation nobody would choose (byte by byte) must survive."""
    plain = tokenizer()
    letters = [plain.encode(c, add_special_tokens=False)[0] for c in "<think>go up</think>Up"]
    prompt = tuple(plain.encode("Where?", add_special_tokens=False))
    made = turn(Rollout("t", prompt_ids=prompt, response_ids=tuple(letters), response="ignored"))
    assert made.x == prompt + tuple(letters[:7]) and made.z == tuple(letters[7:12])
    assert text(made.z) == "go up"
    # Without exact ids the text would be tokenised otherwise.
    assert turn(Rollout("t", prompt="Where?", response="<think>go up</think>")).z != made.z
    separate = turn(Rollout("t", prompt_ids=prompt, response_ids=tuple(letters)), tokenization="separate")
    assert text(separate.z) == "go up" and separate.z != made.z


def test_native_turns_trajectories_and_aliases(tmp_path: Path) -> None:
    talk = [*CHAT, {"role": "assistant", "content": "<think>a</think>1"}, {"role": "user", "content": "And?"}]
    talk += [{"role": "assistant", "content": "<think>b</think>2"}]
    rows = [
        {"messages": talk, "trajectory_id": "m", "group_id": 3, "step": 4},
        {"query": "Q", "generated": "<think>c</think>", "metadata": {"group_id": "g"}, "env_id": 9, "turn": 1},
        {"prompt": CHAT, "completion": [{"role": "assistant", "content": "<think>d</think>"}]},
        {"prompt_ids": [5, 6], "response_ids": [7, 8]},
    ]
    loaded = load_rollouts(write(tmp_path / "r.jsonl", rows))
    assert loaded.format == "native" and loaded.loss == ""
    a, b, c, d, e = loaded.rollouts
    assert (a.turn, b.turn, a.group, b.step, b.messages) == (0, 1, "3", 4, tuple(talk[:3]))
    assert (c.prompt, c.group, c.trajectory, c.turn) == ("Q", "g", "9", 1)
    assert d.messages == tuple(CHAT) and d.response == "<think>d</think>"
    assert (e.prompt_ids, e.response_ids, e.trajectory) == ((5, 6), (7, 8), "row 3")
    made = Extractor(tokenizer()).trajectories(loaded.rollouts)
    assert [len(m.turns) for m in made] == [2, 1, 1, 1]


def test_a_turn_without_a_response_is_counted() -> None:
    assert turn(Rollout("t", prompt="Q")).problem == NO_RESPONSE


def test_ragen_jsonl_without_its_leak(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "state 0 (reward: 9.0)"},
        {"role": "assistant", "content": "<think>a</think>"},
        {"role": "user", "content": "state 1 (reward: 1.0)"},
        {"role": "assistant", "content": "<think>b</think>"},
        {"role": "user", "content": "final (reward: -0.1)"},
    ]
    row = {"custom_id": "7", "messages": messages, "metadata": {"env_id": 7, "group_id": 2, "num_turns": 2}}
    loaded = load_rollouts(write(tmp_path / "r.jsonl", [row]))
    assert loaded.format == "ragen-jsonl" and "system prompt" in loaded.loss
    first, second = loaded.rollouts
    assert (first.group, first.trajectory) == ("2", "7")
    assert first.messages == (messages[0],)  # the first state never has one: what looks like it is the state's own
    assert second.messages is not None and second.messages[-1]["content"] == "state 1"


def test_ragen_rows_with_ids(tmp_path: Path) -> None:
    e = golden()["extracted"]["A"]
    names = ("first_turn_prompt_ids", "first_turn_reasoning_ids", "all_turns_prompt_ids", "all_turns_reasoning_ids")
    names += ("group_ids", "env_ids", "turn_counts", "turn_counts_total")
    rows = [dict(zip(names, row, strict=True)) for row in zip(*(e[n] for n in names), strict=True)]
    loaded = load_rollouts(write(tmp_path / "val_rollouts.jsonl", rows))
    assert loaded.format == "ragen-table"
    made = Extractor(None).trajectories(loaded.rollouts)
    for ours, theirs in zip(made, trajectories("A"), strict=True):
        assert [(t.x, t.z, t.group) for t in ours.valid] == [(t.x, t.z, t.group) for t in theirs.valid]
        assert len(ours.turns) == len(theirs.turns) and bool(ours.turns[0].z) == bool(theirs.turns[0].z)


class Hostile:
    def __init__(self, call: Any, *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> Any:
        return (self.call, self.args)


def test_slime(tmp_path: Path) -> None:
    samples = [
        {"group_index": 4, "index": 0, "tokens": [1, 2, 3, 4, 5], "response_length": 2, "reward": 1.0},
        {"group_index": 4, "index": 1, "tokens": [1, 2, 3, 4, 5, 6, 7], "response_length": 5, "reward": 0.0,
         "loss_mask": [1, 1, 0, 1, 1]},
    ]  # fmt: skip
    file = tmp_path / "rollout_3.pt"
    torch.save({"rollout_id": 3, "samples": samples}, file)
    loaded = load_rollouts(file)
    a, b, c = loaded.rollouts
    assert (loaded.format, a.step, a.group) == ("slime", 3, "4")
    assert (a.prompt_ids, a.response_ids) == ((1, 2, 3), (4, 5))
    assert (b.prompt_ids, b.response_ids, b.turn) == ((1, 2), (3, 4), 0)
    assert (c.prompt_ids, c.response_ids, c.turn) == ((1, 2, 3, 4, 5), (6, 7), 1)
    torch.save({"samples": [Hostile(os.system, "true")]}, file)
    with pytest.raises(UserError, match="plain data"):
        load_rollouts(file)


def test_histories_are_found_by_content(tmp_path: Path) -> None:
    loaded = load_rollouts(write(tmp_path / "r.jsonl", history_rows("A")))
    assert loaded.format == "ragen-history"
    assert len(loaded.rollouts) == len(rows_to_rollouts(history_rows("A"), "ragen-history")) == 36
