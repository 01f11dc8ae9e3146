"""verl's dumps of rollouts and validations, and RAGEN's, which verl's writer makes too.

    {input, output, gts, score, step, uid?}    one row per response; chat markers were lost in decoding

Two things must be read from what is left. verl 0.9 names each row `<group>_<session>_<index>`: the prompt it belongs
to, the sample of that prompt, and which of the sample's outputs. And a response may hold a whole conversation, told
apart by lines that say `user` or `assistant`: only the assistant's turns can be reasoning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vestige.collapse.reasoning import Rollout
from vestige.collapse.rollouts_rows import native
from vestige.data.rows import Row
from vestige.errors import UserError

_UID = re.compile(r"(?P<group>.+)_(?P<session>\d+)_(?P<index>\d+)", re.S)
_PADDING = re.compile(r"pad[0-9a-f]{32}_\d+_\d+")  # rows that fill a batch: one token each, nobody's rollouts
_ROLE_LINE = re.compile(r"^(system|user|tool|assistant)\n", re.M)
# Who may speak after whom. A line that is just the word "user" inside a user's text begins nothing.
_AFTER = {"": ("system", "user"), "system": ("user",), "user": ("assistant",), "tool": ("tool", "assistant")}
_AFTER["assistant"] = ("user", "tool")


def verl(rows: Sequence[Row], source: str) -> list[Rollout]:
    """The turns of a dump. Rows without a name of their own belong to the group of their prompt."""
    names = _names(rows)
    more: Counter[str] = Counter()  # turns beyond the first of earlier outputs of a session
    out: list[Rollout] = []
    for number, row in enumerate(rows):
        uid = row.get("uid")
        if isinstance(uid, str) and _PADDING.fullmatch(uid):
            continue
        group = {"group_id": row.get("group_id", uid)}
        name = names.get(number)
        if name is not None:
            group = {"group_id": name["group"], "trajectory_id": f"{name['group']}_{name['session']}"}
        for base in native({**row, **group}, f"{source} row {number + 1}", number):
            turns = _turns(base)
            start = base.turn if name is None else int(name["index"]) + more[base.trajectory]
            out += [replace(t, turn=start + n) for n, t in enumerate(turns)]
            more[base.trajectory] += len(turns) - 1
    return out


def _names(rows: Sequence[Row]) -> dict[int, re.Match[str]]:
    """Row -> group, session, index; nothing if the uids are names of groups, which several rows share."""
    found = [_UID.fullmatch(str(row.get("uid") or "")) for row in rows]
    keys = Counter((row.get("step"), row.get("uid")) for row in rows)
    if not rows or max(keys.values()) > 1:
        return {}
    named = {n: match for n, match in enumerate(found) if match}
    return named if len(named) == len(rows) else {}


@dataclass(frozen=True)
class ConversationPart:
    """What one speaker says: characters [start, end) of a text, without the line that names the speaker."""

    role: str
    start: int
    end: int


def parts_of(text: str, first: str = "") -> list[ConversationPart]:
    """A conversation decoded without its markers, by speaker. `first`: who speaks before any name is given.

    >>> text = "user\\nHi\\nassistant\\nuser\\n"
    >>> [(p.role, text[p.start : p.end]) for p in parts_of(text)]
    [('user', 'Hi'), ('assistant', ''), ('user', '')]
    """
    role, start, out = first, 0, []
    for line in _ROLE_LINE.finditer(text):
        if line[1] not in _AFTER[role] or (not role and line.start() != 0):
            continue
        if role:
            out.append(ConversationPart(role, start, _without_newline(text, start, line.start())))
        role, start = line[1], line.end()
    if role:
        out.append(ConversationPart(role, start, _without_newline(text, start, len(text)) if out else len(text)))
    return out


def _without_newline(text: str, start: int, end: int) -> int:
    """Templates write a newline behind each turn; it is nobody's."""
    return end - 1 if end > start and text[end - 1] == "\n" else end


def _turns(base: Rollout) -> list[Rollout]:
    """The assistant's turns: of the whole conversation without an input, else of what the output holds."""
    text = base.response or ""
    if base.prompt is None or base.prompt.strip() or not text.strip():
        parts = [p for p in parts_of(text, "assistant") if p.role == "assistant"]
        return [
            replace(base, prompt=(base.prompt or "") + text[: p.start], response=text[p.start : p.end]) for p in parts
        ]
    parts = parts_of(text)
    spoken = [n for n, p in enumerate(parts) if p.role == "assistant"]
    if not spoken:
        raise UserError(
            f"{base.where}: the input is empty, and the output is not a conversation whose turns begin with lines "
            "'user' and 'assistant'; write the rollouts in the native format (docs/collapse.md)."
        )
    messages = [{"role": p.role, "content": text[p.start : p.end]} for p in parts]
    # Messages for a tokenizer with a chat template: it puts back the markers that decoding lost.
    return [
        replace(base, prompt=text[: parts[n].start], messages=tuple(messages[:n]), response=messages[n]["content"])
        for n in spoken
    ]
