"""Rollouts from rows: our own JSONL (a turn or a whole trajectory per line) and TRL's table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vestige.collapse.reasoning import Rollout
from vestige.data.chat import Ids
from vestige.data.rows import Row
from vestige.errors import UserError

PROMPT = ("prompt", "input", "query")
RESPONSE = ("response", "output", "completion", "generated")
GROUP = ("group_id", "group_index", "uid", "prompt_id")
TRAJECTORY = ("trajectory_id", "custom_id", "request_id", "index", "env_id")


def first_of(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first of some names that has a value."""
    return next((row[n] for n in names if row.get(n) is not None), None)


def label_of(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """A group or trajectory name: in the row, or in its metadata."""
    found = first_of(row, names)
    meta = row.get("metadata")
    if found is None and isinstance(meta, Mapping):
        found = first_of(meta, names)
    return None if found is None else str(found)


def integer(value: Any, name: str, where: str) -> int | None:
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: {name} must be a whole number, it is {value!r}.") from None


def token_ids(value: Any, name: str, where: str) -> Ids | None:
    if value is None:
        return None
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        ids = tuple(int(i) for i in value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: {name} must be a list of token ids.") from None
    return checked_ids(ids, name, where)


def checked_ids(ids: Ids, name: str, where: str) -> Ids:
    """Token ids are counted from 0 and fit in 32 bits; tokenizers fail on others in ways of their own."""
    wrong = next((i for i in ids if not 0 <= i < 2**31), None)
    if wrong is not None:
        raise UserError(f"{where}: {name} holds {wrong}, which is not a token id.")
    return ids


def messages_of(value: Any, where: str) -> tuple[dict[str, str], ...]:
    """Chat messages, checked."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not len(value):
        raise UserError(f"{where}: messages must be a list of {{role, content}} objects.")
    out = []
    for m in value:
        if not isinstance(m, Mapping) or not isinstance(m.get("role"), str) or not isinstance(m.get("content"), str):
            raise UserError(f"{where}: every message needs a role and a content, both text.")
        out.append({"role": m["role"], "content": m["content"]})
    return tuple(out)


def assistant_turns(messages: Sequence[dict[str, str]], base: Rollout) -> list[Rollout]:
    """Every assistant message as a turn; its context is all that came before it."""
    at = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    return [
        replace(base, turn=t, messages=tuple(messages[:n]), response=messages[n]["content"]) for t, n in enumerate(at)
    ]


def native(row: Row, where: str, number: int) -> list[Rollout]:
    """Our own format: one turn, or a trajectory if there are only messages."""
    reward = row.get("reward")
    base = Rollout(
        trajectory=label_of(row, TRAJECTORY) or f"row {number}",
        turn=integer(row.get("turn"), "turn", where) or 0,
        group=label_of(row, GROUP),
        step=integer(row.get("step"), "step", where),
        reward=float(reward) if isinstance(reward, (int, float)) else None,
        think_in_prompt=row.get("think_in_prompt"),
        where=where,
    )
    response, response_ids = first_of(row, RESPONSE), token_ids(row.get("response_ids"), "response_ids", where)
    prompt, prompt_ids = first_of(row, PROMPT), token_ids(row.get("prompt_ids"), "prompt_ids", where)
    messages = row.get("messages")
    if isinstance(prompt, (list, tuple)):  # a conversational prompt, as TRL's data sets have it
        messages, prompt = messages or prompt, None
    if isinstance(response, (list, tuple)):
        said = messages_of(response, where)
        if len(said) > 1 and messages is not None and response_ids is None:  # tools spoke in between
            before = messages_of(messages, where)
            return [t for t in assistant_turns([*before, *said], base) if len(t.messages or ()) >= len(before)]
        response = said[-1]["content"]
    if messages is None and prompt is None and prompt_ids is None:
        raise UserError(f"{where}: a turn needs prompt, messages or prompt_ids; it has {', '.join(sorted(row))}.")
    for name, text in (("prompt", prompt), ("response", response)):
        if text is not None and not isinstance(text, str):
            raise UserError(f"{where}: {name} must be text, it is {type(text).__name__}.")
    if messages is not None and response is None and response_ids is None:
        turns = assistant_turns(messages_of(messages, where), base)
        if not turns:
            raise UserError(f"{where}: messages hold no assistant turn and the response is missing; add one of them.")
        return turns
    context = None if messages is None else messages_of(messages, where)
    return [
        replace(base, prompt=prompt, messages=context, prompt_ids=prompt_ids, response=response,
                response_ids=response_ids)
    ]  # fmt: skip


def trl(row: Row, where: str, number: int) -> list[Rollout]:
    """TRL's completions table."""
    return native(row, where, number)


_ROLE_LINE = re.compile(r"^(system|user|assistant)\n", re.M)


def restored(rollout: Rollout) -> Rollout:
    """The ChatML markers put back into a prompt that was decoded without special tokens.

    A line that is just the word of a role is taken for the beginning of a turn.

    >>> restored(Rollout("t", prompt="user\\nHi\\nassistant\\n")).prompt
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    text = rollout.prompt
    if text is None or "<|im_start|>" in text:
        return rollout
    starts = list(_ROLE_LINE.finditer(text))
    if not starts or starts[0].start() != 0:
        return rollout
    out = ""
    for n, found in enumerate(starts):
        last = n == len(starts) - 1
        body = text[found.end() : len(text) if last else starts[n + 1].start()]
        out += f"<|im_start|>{found[1]}\n"
        out += body if last else body.removesuffix("\n") + "<|im_end|>\n"
    return replace(rollout, prompt=out)
