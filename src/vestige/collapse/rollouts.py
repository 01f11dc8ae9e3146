"""Rollouts from files: our own JSONL, and what RAGEN, verl, TRL and slime write. The format is found by content.

    load_rollouts         the turns of one file, with what its format has lost
    rows_to_rollouts      the same for rows that are already read
    read_native           one row of our own format: one turn, or a whole trajectory of messages
    number_duplicates     gives trajectories that share a name names of their own

Every reader returns `Rollout`s, one per turn. A row reader takes (row, where, number): `where` names file and row in
errors, and a trajectory without a name is called "row NUMBER".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from vestige.collapse.reasoning import Rollout
from vestige.data.chat import Ids
from vestige.data.rows import Row, read_file
from vestige.errors import UserError, named, reraise_ours, unknown_name
from vestige.guard import check_zip

# What a reader of the numbers must know about the file that they came from.
LOSSES = {
    "native": "",
    "verl": "verl decodes without special tokens: chat markers are gone from the prompt, and turns in an output are "
    "told apart by lines that are just the name of a role; prompts are equal texts, not token ids",
    "trl": "TRL logs only the last generation batch of a logging step, completions decoded without special tokens; "
    "prompts are equal texts or messages, not token ids",
    "ragen-jsonl": "RAGEN's JSONL has neither the system prompt nor the 'Turn / State / actions left' frame, so "
    "prompts are approximate; rewards printed into later states were removed",
    "ragen-history": "prompts are rebuilt by RAGEN's rules; warnings and truncation of the rollout are not in them",
    "ragen-table": "RAGEN's reasoning is stripped text, tokenised again without its surroundings",
    "slime": "",
}
FORMATS = tuple(LOSSES)

PROMPT = ("prompt", "input", "query")
RESPONSE = ("response", "output", "completion", "generated")
GROUP = ("group_id", "group_index", "uid", "prompt_id")
TRAJECTORY = ("trajectory_id", "custom_id", "request_id", "index", "env_id")


@dataclass(frozen=True)
class Loaded:
    """The turns of one file, and what its format is and has lost."""

    rollouts: tuple[Rollout, ...]
    format: str
    source: str

    @property
    def loss(self) -> str:
        return LOSSES[self.format]


def load_rollouts(path: str | Path, format: str = "auto", prompt_template: str = "raw") -> Loaded:
    """All turns of one file. `prompt_template` "chatml-restore" puts back the markers that decoding removed."""
    file = Path(path)
    if format not in ("auto", "ragen-pickle", *FORMATS):
        raise unknown_name("rollout format", format, ("auto", *FORMATS))
    if prompt_template not in ("raw", "chatml-restore"):
        raise unknown_name("prompt template", prompt_template, ("raw", "chatml-restore"))
    if not file.is_file():
        raise UserError(f"Rollout file {file} does not exist; check the path.")
    if format == "ragen-pickle" or file.suffix in (".pkl", ".pickle"):
        # A pickle is a program. The two lines make rows of RAGEN's arrays.
        load = f"import json, pickle; table = pickle.load(open({file.name!r}, 'rb')).non_tensor_batch"
        write = (
            f"open({file.name + '.jsonl'!r}, 'w').writelines(json.dumps(dict(zip(table, row)), "
            "default=lambda array: array.tolist()) + '\\n' for row in zip(*table.values()))"
        )
        raise UserError(
            f"{file} is a pickle, which may run any program when it is read, so it is not read here; if you trust it, "
            f"convert it to {file.name}.jsonl with two lines of Python, where verl is installed: `{load}` and "
            f"`{write}`."
        )
    if format == "auto" and file.suffix == ".pt":
        format = "slime"
    if format == "slime":
        rollouts = read_slime(file)
    else:
        rows = read_file(file)
        if not rows:
            raise UserError(f"{file} holds no rows; give a file with at least one turn.")
        format = detect_format(rows[0], file) if format == "auto" else format
        rollouts = rows_to_rollouts(rows, format, str(file))
    if prompt_template == "chatml-restore":
        rollouts = [restore_chatml(r) for r in rollouts]
    return Loaded(tuple(number_duplicates(rollouts)), format, str(file))


def detect_format(row: Mapping[str, Any], file: Path) -> str:
    """The format of a file of rows, by the names in its first row."""
    names = set(row)
    if names & {"first_turn_prompt_ids", "all_turns_prompt_ids", "messages_list"}:
        return "ragen-table"
    if "history" in names:
        return "ragen-table" if names & {"env_ids", "group_ids"} else "ragen-history"
    if {"custom_id", "messages", "metadata"} <= names:
        return "ragen-jsonl"
    if {"prompt", "completion"} <= names and file.suffix == ".parquet":
        return "trl"
    return "verl" if {"input", "output"} <= names else "native"


def rows_to_rollouts(rows: Sequence[Row], format: str, source: str = "rows") -> list[Rollout]:
    if format == "verl":
        return read_verl(rows, source)
    readers: dict[str, Callable[[Row, str, int], list[Rollout]]] = {
        "native": read_native,
        "trl": read_native,  # TRL's completions table has names that our own format knows
        "ragen-jsonl": read_ragen_jsonl,
        "ragen-history": read_ragen_history,
        "ragen-table": read_ragen_table,
    }
    read = readers[format]
    return [r for number, row in enumerate(rows) for r in read(row, f"{source} row {number + 1}", number)]


def number_duplicates(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Trajectories that share a name get a number: several samples of one data row often carry that row's name.

    >>> [r.trajectory for r in number_duplicates([Rollout("a"), Rollout("a"), Rollout("a", turn=1)])]
    ['a', 'a#2', 'a']
    """
    count: Counter[tuple[int | None, str, int]] = Counter()
    numbered = []
    for r in rollouts:
        key = (r.step, r.trajectory, r.turn)
        count[key] += 1
        numbered.append(r if count[key] == 1 else replace(r, trajectory=f"{r.trajectory}#{count[key]}"))
    return numbered


# ---- parts of a row --------------------------------------------------------------------------------------------------


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first of some names that has a value."""
    return next((row[n] for n in names if row.get(n) is not None), None)


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """A group or trajectory name: in the row, or in its metadata."""
    label = _first(row, names)
    metadata = row.get("metadata")
    if label is None and isinstance(metadata, Mapping):
        label = _first(metadata, names)
    return None if label is None else str(label)


def _base(row: Mapping[str, Any], where: str, number: int) -> Rollout:
    """A rollout with the names of its row and no text yet."""
    return Rollout(
        trajectory=_label(row, TRAJECTORY) or f"row {number}",
        group=_label(row, GROUP),
        step=_integer(row, "step", where),
        where=where,
    )


def _integer(row: Mapping[str, Any], name: str, where: str) -> int | None:
    value = row.get(name)
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: {name} must be a whole number, it is {value!r}.") from None


def _token_ids(value: Any, name: str, where: str) -> Ids | None:
    if value is None:
        return None
    try:
        ids = None if isinstance(value, (str, bytes)) else tuple(int(i) for i in value)
    except (TypeError, ValueError, OverflowError):
        ids = None
    if ids is None:
        raise UserError(f"{where}: {name} must be a list of token ids.")
    for i in ids:
        if not 0 <= i < 2**31:  # tokenizers fail on others in ways of their own
            raise UserError(f"{where}: {name} holds {i}, which is not a token id.")
    return ids


def _messages(value: Any, where: str) -> tuple[dict[str, str], ...]:
    """Chat messages, checked."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not len(value):
        raise UserError(f"{where}: messages must be a list of {{role, content}} objects.")
    messages = []
    for m in value:
        if not isinstance(m, Mapping) or not isinstance(m.get("role"), str) or not isinstance(m.get("content"), str):
            raise UserError(f"{where}: every message needs a role and a content, both text.")
        messages.append({"role": m["role"], "content": m["content"]})
    return tuple(messages)


def _assistant_turns(messages: Sequence[dict[str, str]], base: Rollout) -> list[Rollout]:
    """Every assistant message as a turn; its context is all that came before it."""
    turns: list[Rollout] = []
    for n, message in enumerate(messages):
        if message["role"] == "assistant":
            context = tuple(messages[:n])
            turns.append(replace(base, turn=len(turns), messages=context, response=message["content"]))
    return turns


# ---- our own format, and TRL's table ---------------------------------------------------------------------------------


def read_native(row: Row, where: str, number: int) -> list[Rollout]:
    """Our own format: one turn, or a trajectory if there are only messages."""
    reward = row.get("reward")
    base = replace(
        _base(row, where, number),
        turn=_integer(row, "turn", where) or 0,
        reward=float(reward) if isinstance(reward, (int, float)) else None,
        think_in_prompt=row.get("think_in_prompt"),
    )
    # A prompt is text, token ids, or messages; so is a response. Other tools have other names for them.
    prompt, response, messages = _first(row, PROMPT), _first(row, RESPONSE), row.get("messages")
    prompt_ids = _token_ids(row.get("prompt_ids"), "prompt_ids", where)
    response_ids = _token_ids(row.get("response_ids"), "response_ids", where)
    if isinstance(prompt, (list, tuple)):  # a conversational prompt, as TRL's data sets have it
        messages, prompt = messages or prompt, None
    if isinstance(response, (list, tuple)):
        replies = _messages(response, where)
        if len(replies) > 1 and messages is not None and response_ids is None:  # tools spoke in between
            before = _messages(messages, where)
            turns = _assistant_turns([*before, *replies], base)
            return [turn for turn in turns if len(turn.messages or ()) >= len(before)]
        response = replies[-1]["content"]
    if messages is None and prompt is None and prompt_ids is None:
        raise UserError(f"{where}: a turn needs prompt, messages or prompt_ids; it has {', '.join(sorted(row))}.")
    for name, text in (("prompt", prompt), ("response", response)):
        if text is not None and not isinstance(text, str):
            raise UserError(f"{where}: {name} must be text, it is {type(text).__name__}.")
    context = None if messages is None else _messages(messages, where)
    if context is not None and response is None and response_ids is None:
        turns = _assistant_turns(context, base)
        if not turns:
            raise UserError(f"{where}: messages hold no assistant turn and the response is missing; add one of them.")
        return turns
    return [
        replace(base, prompt=prompt, messages=context, prompt_ids=prompt_ids, response=response,
                response_ids=response_ids)
    ]  # fmt: skip


_CHATML_ROLE = re.compile(r"^(system|user|assistant)\n", re.M)


def restore_chatml(rollout: Rollout) -> Rollout:
    """The ChatML markers put back into a prompt that was decoded without special tokens.

    A line that is just the name of a role is read as the beginning of a turn.

    >>> restore_chatml(Rollout("t", prompt="user\\nHi\\nassistant\\n")).prompt
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    text = rollout.prompt
    if text is None or "<|im_start|>" in text or not _CHATML_ROLE.match(text):
        return rollout
    _, *parts = _CHATML_ROLE.split(text)  # role, body, role, body, ...
    *closed, (role, body) = zip(parts[::2], parts[1::2], strict=True)
    restored = ""
    for closed_role, closed_body in closed:
        text = closed_body.removesuffix("\n")
        restored += f"<|im_start|>{closed_role}\n{text}<|im_end|>\n"
    return replace(rollout, prompt=f"{restored}<|im_start|>{role}\n{body}")


# ---- RAGEN: its evaluation JSONL, its arrays as rows, its histories --------------------------------------------------

SYSTEM = "You're a helpful assistant. "
FORMAT = "<think> [Your thoughts] </think> <answer> [your answer] </answer>"
MOST_TURNS = 10_000  # of one trajectory that need not have reasoning
_LEAKED_REWARD = re.compile(r" \(reward: [^()]*\)\s*$")


def read_ragen_jsonl(row: Row, where: str, number: int) -> list[Rollout]:
    """One trajectory per line. Later states end with the reward of the action to come, which is removed."""
    messages = _messages(row.get("messages"), where)
    states = 0
    for m in messages:
        if m["role"] == "user":
            states += 1
            if states > 1:
                m["content"] = _LEAKED_REWARD.sub("", m["content"])
    return _assistant_turns(messages, _base(row, where, number))


def read_ragen_history(row: Row, where: str, number: int) -> list[Rollout]:
    """{history, env_id, group_id, env_instruction, max_tokens}: RAGEN's own record of a trajectory.

    The conversation that its model saw is rebuilt: system, then states and responses in turn, each later state after
    the reward of the action before it.
    """
    history = row.get("history")
    if not isinstance(history, Sequence) or not all(isinstance(e, Mapping) and "state" in e for e in history):
        raise UserError(f"{where}: history must be a list of states.")
    form = str(row.get("format_prompt") or FORMAT)
    messages = [{"role": "system", "content": SYSTEM + str(row.get("env_instruction") or "")}]
    reward: Any = None
    for n, entry in enumerate(history, start=1):
        if entry.get("llm_response") is None:
            break  # the state after the last action, which got no response
        text = (
            f"\nTurn {n}:\nState:\n{entry['state']}\nYou have {entry.get('actions_left')} actions left. Always output: "
            f"{form} with no extra text. Strictly follow this format. Max response length: "
            f"{row.get('max_tokens', 100)} words (tokens).\n"
        )
        messages.append({"role": "user", "content": text if n == 1 else f"Reward:\n{reward}\n{text}"})
        messages.append({"role": "assistant", "content": str(entry["llm_response"])})
        reward = entry.get("reward")
    return _assistant_turns(messages, replace(_base(row, where, number), think_in_prompt=True))


def read_ragen_table(row: Row, where: str, number: int) -> list[Rollout]:
    """A row of the arrays in RAGEN's pickle: token ids where its detector left them, else messages, else a history."""
    names = {"env_id": row.get("env_ids"), "group_id": row.get("group_ids")}
    base = _base(names, where, number)
    if "first_turn_prompt_ids" not in row and "all_turns_prompt_ids" not in row:
        if "messages_list" in row:
            return _assistant_turns(_messages(row["messages_list"], where), base)
        return read_ragen_history({"history": row.get("history"), **names}, where, number)

    def pair(prompt: Any, reasoning: Any, name: str) -> tuple[Ids, Ids]:
        x = _token_ids(prompt, f"{name}_prompt_ids", where) or ()
        return x, _token_ids(reasoning, f"{name}_reasoning_ids", where) or ()

    prompts, reasonings = row.get("all_turns_prompt_ids") or [], row.get("all_turns_reasoning_ids") or []
    if not isinstance(prompts, list) or not isinstance(reasonings, list) or len(prompts) != len(reasonings):
        raise UserError(f"{where}: all_turns_prompt_ids and all_turns_reasoning_ids must be lists of equal length.")
    # RAGEN's detector left (x, z) of every turn, of the first turn alone, or both. The first turn is among all turns
    # only if it has reasoning.
    pairs = [pair(prompt, reasoning, "all_turns") for prompt, reasoning in zip(prompts, reasonings, strict=True)]
    first = 1
    if "first_turn_prompt_ids" in row:
        first = 0
        x, z = pair(row["first_turn_prompt_ids"], row.get("first_turn_reasoning_ids"), "first_turn")
        if not z or not pairs:
            pairs.insert(0, (x, z))
    # The arrays hold turns with reasoning; those without it keep their place and say so.
    total = _integer(row, "turn_counts_total", where)
    total = len(pairs) if total is None else total
    if not 0 <= total <= len(pairs) + MOST_TURNS:
        raise UserError(f"{where}: turn_counts_total is {total}, but there are {len(pairs)} turns.")
    pairs += [((), ())] * (total - len(pairs))
    return [replace(base, turn=first + n, prompt_ids=x, reasoning_ids=z) for n, (x, z) in enumerate(pairs)]


# ---- verl ------------------------------------------------------------------------------------------------------------

# verl 0.9 names each row by the prompt it belongs to, the sample of that prompt, and which of the sample's outputs.
_UID = re.compile(r"(?P<group>.+)_(?P<session>\d+)_(?P<index>\d+)", re.S)
_PADDING = re.compile(r"pad[0-9a-f]{32}_\d+_\d+")  # rows of one token that fill a batch
_ROLE_LINE = re.compile(r"^(system|user|tool|assistant)\n", re.M)
# Who may speak after whom. A line that is just the word "user" inside a user's text begins nothing.
_AFTER = {
    "": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "tool": ("tool", "assistant"),
    "assistant": ("user", "tool"),
}


def read_verl(rows: Sequence[Row], source: str) -> list[Rollout]:
    """verl's dumps of rollouts and validations, and RAGEN's, which verl's writer makes too.

    {input, output, gts, score, step, uid?} is one row per response; chat markers were lost in decoding. Rows without
    a name of their own belong to the group of their prompt. A response may hold a whole conversation, told apart by
    lines that say `user` or `assistant`: only the assistant's turns can be reasoning.
    """
    uids = Counter((row.get("step"), row.get("uid")) for row in rows)
    matches = [_UID.fullmatch(str(row.get("uid") or "")) for row in rows]
    # Uids that several rows share are names of groups.
    are_names = all(matches) and max(uids.values(), default=0) == 1
    more_turns: Counter[str] = Counter()  # beyond the first, of earlier outputs of a session
    rollouts: list[Rollout] = []
    for number, (row, match) in enumerate(zip(rows, matches, strict=True)):
        uid = row.get("uid")
        if isinstance(uid, str) and _PADDING.fullmatch(uid):
            continue
        named_row = {**row, "group_id": row.get("group_id", uid)}
        if are_names and match is not None:
            named_row |= {"group_id": match["group"], "trajectory_id": f"{match['group']}_{match['session']}"}
        for base in read_native(named_row, f"{source} row {number + 1}", number):
            start = base.turn
            if are_names and match is not None:
                start = int(match["index"]) + more_turns[base.trajectory]
            turns = _verl_turns(base)
            rollouts += [replace(turn, turn=start + n) for n, turn in enumerate(turns)]
            more_turns[base.trajectory] += len(turns) - 1
    return rollouts


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
    parts: list[ConversationPart] = []
    role, start = first, 0

    def end_part(end: int) -> None:
        # Templates write a newline after each turn, which belongs to neither speaker.
        if end > start and text[end - 1] == "\n":
            end -= 1
        parts.append(ConversationPart(role, start, end))

    for line in _ROLE_LINE.finditer(text):
        if line[1] not in _AFTER[role] or (not role and line.start() != 0):
            continue
        if role:
            end_part(line.start())
        role, start = line[1], line.end()
    if role and parts:
        end_part(len(text))
    elif role:
        parts.append(ConversationPart(role, start, len(text)))
    return parts


def _verl_turns(base: Rollout) -> list[Rollout]:
    """The assistant's turns: of the whole conversation without an input, else of what the output holds."""
    text = base.response or ""
    if base.prompt is None or base.prompt.strip() or not text.strip():
        turns = []
        for part in parts_of(text, "assistant"):
            if part.role == "assistant":
                prompt = (base.prompt or "") + text[: part.start]
                turns.append(replace(base, prompt=prompt, response=text[part.start : part.end]))
        return turns
    parts = parts_of(text)
    messages = [{"role": p.role, "content": text[p.start : p.end]} for p in parts]
    turns = _assistant_turns(messages, base)
    if not turns:
        raise UserError(
            f"{base.where}: the input is empty, and the output is not a conversation whose turns begin with lines "
            "'user' and 'assistant'; write the rollouts in the native format (docs/collapse.md)."
        )
    # A tokenizer with a chat template reads the messages, and puts back the markers that decoding lost; another one
    # reads the prompt.
    return [replace(turn, prompt=text[: parts[len(turn.messages or ())].start]) for turn in turns]


# ---- slime -----------------------------------------------------------------------------------------------------------


def read_slime(path: Path) -> list[Rollout]:
    """slime's debug rollouts: exact token ids. Tokens that the environment wrote (loss_mask 0) separate the turns."""
    import torch

    try:
        check_zip(path)
        data = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch has many, all with one meaning: this is not such a file, or not a safe one
        reraise_ours(error, "torch", "zipfile")
        raise UserError(f"{path} cannot be read as plain data ({named(error)[:200]}).") from None
    samples = data.get("samples") if isinstance(data, Mapping) else None
    if not isinstance(samples, list) or not samples:
        raise UserError(f"{path} has no list of samples; it is not a slime rollout.")
    step = _integer(data, "rollout_id", str(path))
    rollouts = []
    for number, sample in enumerate(samples):
        where = f"{path} sample {number + 1}"
        if not isinstance(sample, Mapping):
            raise UserError(f"{where} is not a set of named fields.")
        names = {"index": sample.get("index"), "group_index": sample.get("group_index"), "step": step}
        reward = sample.get("reward")
        base = replace(_base(names, where, number), reward=float(reward) if isinstance(reward, (int, float)) else None)
        tokens = _token_ids(sample.get("tokens"), "tokens", where) or ()
        count = _integer(sample, "response_length", where) or 0
        if not 0 <= count <= len(tokens):
            raise UserError(f"{where}: response_length is {count}, but there are {len(tokens)} tokens.")
        mask = _token_ids(sample.get("loss_mask"), "loss_mask", where) or (1,) * count
        if not count:
            rollouts.append(replace(base, prompt_ids=tokens))
            continue
        if len(mask) != count:
            raise UserError(f"{where}: loss_mask has {len(mask)} places for {count} response tokens.")
        turn, start = 0, len(tokens) - count
        for is_model, run in groupby(mask):
            end = start + len(list(run))
            if is_model:
                rollouts.append(replace(base, turn=turn, prompt_ids=tokens[:start], response_ids=tokens[start:end]))
                turn += 1
            start = end
    return rollouts
