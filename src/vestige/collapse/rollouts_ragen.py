"""RAGEN's rollouts: the evaluation JSONL, its arrays as rows, histories turned back into its detector's prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vestige.collapse.reasoning import Rollout
from vestige.collapse.rollouts_rows import GROUP, TRAJECTORY, assistant_turns, integer, label_of, messages_of, token_ids
from vestige.data.rows import Row
from vestige.errors import UserError

SYSTEM = "You're a helpful assistant. "
FORMAT = "<think> [Your thoughts] </think> <answer> [your answer] </answer>"
MOST_TURNS = 10_000  # of one trajectory that need not have reasoning
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


def ragen_table(row: Row, where: str, number: int) -> list[Rollout]:
    """A row of the arrays in RAGEN's pickle: token ids where its detector left them, else messages, else a history."""
    trajectory = f"row {number}" if row.get("env_ids") is None else str(row["env_ids"])
    group = None if row.get("group_ids") is None else str(row["group_ids"])
    base = Rollout(trajectory=trajectory, group=group, where=where)
    if "first_turn_prompt_ids" in row or "all_turns_prompt_ids" in row:
        return turns_of_ids(row, base)
    if "messages_list" in row:
        return assistant_turns(messages_of(row["messages_list"], where), base)
    names = {"env_id": trajectory} if group is None else {"env_id": trajectory, "group_id": group}
    return ragen_history({"history": row.get("history"), **names}, where, number)


def turns_of_ids(row: Row, base: Rollout) -> list[Rollout]:
    """Turns with reasoning as they stand; turns without it as places that say so."""
    where = base.where
    pairs = []
    if "all_turns_prompt_ids" in row:
        prompts, reasonings = row["all_turns_prompt_ids"] or [], row.get("all_turns_reasoning_ids") or []
        if not isinstance(prompts, list) or not isinstance(reasonings, list) or len(prompts) != len(reasonings):
            raise UserError(f"{where}: all_turns_prompt_ids and all_turns_reasoning_ids must be lists of equal length.")
        for prompt, reasoning in zip(prompts, reasonings, strict=True):
            x = token_ids(prompt, "all_turns_prompt_ids", where) or ()
            z = token_ids(reasoning, "all_turns_reasoning_ids", where) or ()
            pairs.append((x, z))
    first = 1
    if "first_turn_prompt_ids" in row:
        first = 0
        x = token_ids(row["first_turn_prompt_ids"], "first_turn_prompt_ids", where) or ()
        z = token_ids(row.get("first_turn_reasoning_ids"), "first_turn_reasoning_ids", where) or ()
        if not z or not pairs:
            pairs.insert(0, (x, z))
    total = integer(row.get("turn_counts_total"), "turn_counts_total", where)
    total = len(pairs) if total is None else total
    if not 0 <= total <= len(pairs) + MOST_TURNS:
        raise UserError(f"{where}: turn_counts_total is {total}, but there are {len(pairs)} turns.")
    pairs += [((), ())] * (total - len(pairs))
    return [replace(base, turn=first + n, prompt_ids=x, reasoning_ids=z) for n, (x, z) in enumerate(pairs)]
