"""RAGEN's rollouts: the evaluation JSONL, and histories turned back into the prompts its detector uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vestige.collapse.reasoning import Rollout
from vestige.collapse.rollouts_rows import GROUP, TRAJECTORY, assistant_turns, integer, label_of, messages_of
from vestige.data.rows import Row
from vestige.errors import UserError

SYSTEM = "You're a helpful assistant. "
FORMAT = "<think> [Your thoughts] </think> <answer> [your answer] </answer>"
_LEAKED_REWARD = re.compile(r" \(reward: [^()]*\)\s*$")


def ragen_jsonl(row: Row, where: str, number: int) -> list[Rollout]:
    """One trajectory per line. The reward of the action to come is printed behind later states: taken out."""
    messages = messages_of(row.get("messages"), where)
    cleaned, seen = [], 0
    for m in messages:
        if m["role"] == "user":
            seen += 1
        late = m["role"] == "user" and seen > 1
        cleaned.append({**m, "content": _LEAKED_REWARD.sub("", m["content"])} if late else m)
    base = Rollout(
        trajectory=label_of(row, TRAJECTORY) or f"row {number}",
        group=label_of(row, GROUP),
        step=integer(row.get("step"), "step", where),
        where=where,
    )
    return assistant_turns(cleaned, base)


def state_block(number: int, state: str, actions_left: Any, max_tokens: Any, form: str = FORMAT) -> str:
    """What a user message says of one state."""
    return (
        f"\nTurn {number}:\nState:\n{state}\nYou have {actions_left} actions left. Always output: {form} with no extra "
        f"text. Strictly follow this format. Max response length: {max_tokens} words (tokens).\n"
    )


def history_messages(
    history: Sequence[Mapping[str, Any]], instruction: str, max_tokens: Any, form: str = FORMAT
) -> list[dict[str, str]]:
    """The conversation behind a history: system, then states and responses in turn, rewards before later states."""
    messages = [{"role": "system", "content": SYSTEM + instruction}]
    reward: Any = None
    for n, entry in enumerate(history, start=1):
        if entry.get("llm_response") is None:
            break  # the state after the last action: nobody answered it
        text = state_block(n, entry["state"], entry.get("actions_left"), max_tokens, form)
        messages.append({"role": "user", "content": text if n == 1 else f"Reward:\n{reward}\n{text}"})
        messages.append({"role": "assistant", "content": str(entry["llm_response"])})
        reward = entry.get("reward")
    return messages


def ragen_history(row: Row, where: str, number: int) -> list[Rollout]:
    """{history, env_id, group_id, env_instruction, max_tokens}: RAGEN's own record of a trajectory."""
    history = row.get("history")
    if not isinstance(history, Sequence) or not all(isinstance(e, Mapping) and "state" in e for e in history):
        raise UserError(f"{where}: history must be a list of states.")
    form = str(row.get("format_prompt") or FORMAT)
    messages = history_messages(history, str(row.get("env_instruction") or ""), row.get("max_tokens", 100), form)
    base = Rollout(
        trajectory=label_of(row, TRAJECTORY) or f"row {number}",
        group=label_of(row, GROUP),
        step=integer(row.get("step"), "step", where),
        think_in_prompt=True,
        where=where,
    )
    return assistant_turns(messages, base)
