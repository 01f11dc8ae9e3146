"""Which tokens are the reasoning, and which are all that stood before it.

    Rollout (a turn as a file has it) --Extractor--> Turn (x: tokens before the reasoning, z: the reasoning's tokens)

The open tag belongs to x, the close tag to neither. Tokens are the file's own ids, else those of its text: prompt and
response each tokenised whole, because a model starts to write behind the prompt's last token. A token that straddles
the front of the reasoning is x's (many vocabularies join `>` and the newline behind it), one that straddles its end is
nobody's. A turn without usable reasoning keeps its place with an empty z and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vestige.data.chat import Encoder, Ids, Template
from vestige.data.datasets import cannot_fit
from vestige.errors import UserError, reraise_ours, unknown_name

Messages = tuple[Mapping[str, str], ...]

# Why a turn has no reasoning.
EMPTY, UNCLOSED, UNTAGGED, NO_RESPONSE = "empty reasoning", "close tag missing", "no reasoning tags", "no response"
NO_PROMPT = "no prompt"
TOO_LONG = "longer than the model reads"

TOKENIZATIONS = ("exact", "separate")
# What RAGEN deletes from a reasoning before it tokenises it.
RAGEN_MARKERS = ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class Rollout:
    """One turn as a file has it. Of prompt, ids win over messages, messages win over text (unless the tokenizer has no
    chat template)."""

    trajectory: str
    turn: int = 0
    prompt: str | None = None
    messages: Messages | None = None  # everything before the response
    prompt_ids: Ids | None = None
    response: str | None = None
    response_ids: Ids | None = None
    reasoning_ids: Ids | None = None  # ready to use: then prompt_ids is x and nothing is looked for
    group: str | None = None
    step: int | None = None
    reward: float | None = None
    think_in_prompt: bool | None = None  # the open tag was forced before the response
    where: str = ""  # file and line, for people


@dataclass(frozen=True)
class Turn:
    """One turn in tokens: x stood before the reasoning z. An empty z has a problem."""

    x: Ids
    z: Ids
    group: str | None = None
    turn: int = 0
    trajectory: str = ""
    problem: str = ""
    where: str = ""


@dataclass(frozen=True)
class Trajectory:
    """The turns of one rollout in order, those without reasoning included."""

    name: str
    turns: tuple[Turn, ...]

    @property
    def valid(self) -> tuple[Turn, ...]:
        return tuple(t for t in self.turns if t.z)


@dataclass(frozen=True)
class Reasoning:
    """How reasoning is found in a response."""

    open: str = "<think>"
    close: str = "</think>"
    pattern: str | None = None  # a regular expression instead of tags; its first group is the reasoning
    mode: str = "tags"  # | whole: the whole response is reasoning
    unclosed: str = "drop"  # | keep: a response that was cut off counts up to its end
    tokenization: str = "exact"  # | separate: x and z tokenised each for itself, z stripped
    parity: str = ""  # | ragen: markers deleted too, x always ends in the open tag

    def __post_init__(self) -> None:
        for name, known in (
            ("mode", ("tags", "whole")),
            ("unclosed", ("drop", "keep")),
            ("tokenization", TOKENIZATIONS),
            ("parity", ("", "ragen")),
        ):
            if getattr(self, name) not in known:
                raise unknown_name(f"reasoning {name}", str(getattr(self, name)), [k for k in known if k])
        if self.mode == "tags" and self.pattern is None and not (self.open and self.close):
            raise UserError("The reasoning tags must not be empty; give an open and a close tag.")
        try:
            groups = re.compile(self.pattern or "()").groups
        except re.error as error:
            raise UserError(
                f"The reasoning pattern is not a regular expression: {error}; check --reasoning-pattern."
            ) from None
        if groups < 1:
            raise UserError("The reasoning pattern needs a group (...) around the reasoning.")


@dataclass(frozen=True)
class TextSpan:
    """Where the reasoning is in a response: characters [start, end); what is before start belongs to x."""

    start: int
    end: int
    problem: str = ""


def find_span(response: str, how: Reasoning, opened: bool = False) -> TextSpan:
    """The first reasoning of a response. `opened`: the prompt already ends in the open tag.

    >>> find_span("<think>so</think> 4", Reasoning())
    TextSpan(start=7, end=9, problem='')
    >>> find_span("so</think> 4", Reasoning(), opened=True)
    TextSpan(start=0, end=2, problem='')
    >>> find_span("4", Reasoning()).problem
    'no reasoning tags'
    """
    if how.mode == "whole":
        return TextSpan(0, len(response), "" if response.strip() else EMPTY)
    if how.pattern is not None:
        found = re.search(how.pattern, response, re.DOTALL)
        return _checked(response, found.start(1), found.end(1)) if found else TextSpan(0, 0, UNTAGGED)
    leading = len(response) - len(response.lstrip())
    at = response.find(how.open)
    # A response may repeat the tag its prompt was forced to end with; a later one is part of the reasoning then.
    if opened and at != leading:
        start = 0
    elif at >= 0:
        start = at + len(how.open)
    else:
        return TextSpan(0, 0, UNTAGGED)
    end = response.find(how.close, start)
    if end < 0:
        if how.unclosed == "drop":
            return TextSpan(start, start, UNCLOSED)
        end = len(response)
    return _checked(response, start, end)


def _size(rollout: Rollout) -> tuple[int, int]:
    """Characters of a turn's texts, and how many tokens it has at most: ids as they are, texts by their bytes."""
    texts = [str(m.get("content") or "") for m in rollout.messages or ()] if rollout.prompt_ids is None else []
    texts += [rollout.prompt or ""] if rollout.prompt_ids is None and rollout.messages is None else []
    ids = [*(rollout.prompt_ids or ()), *(rollout.reasoning_ids or ())]
    if rollout.reasoning_ids is None:
        texts += [rollout.response or ""] if rollout.response_ids is None else []
        ids += rollout.response_ids or ()
    return sum(map(len, texts)), len(ids) + sum(len(t.encode("utf-8", "replace")) for t in texts)


def _checked(response: str, start: int, end: int) -> TextSpan:
    return TextSpan(start, end, "" if response[start:end].strip() else EMPTY)


class Extractor:
    """Rollouts to turns with one tokenizer and one rule. Turns of more than `longest` tokens are left out."""

    def __init__(self, tokenizer: Any, how: Reasoning | None = None, longest: int | None = None) -> None:
        self.longest = longest
        self.tokenizer = tokenizer
        self.how = how or Reasoning()
        self.encoder = Encoder(tokenizer, Template(apply_chat_template=False))
        self._ids: dict[str, Ids] = {}
        if self.how.tokenization == "exact" and tokenizer is not None and not getattr(tokenizer, "is_fast", False):
            raise UserError("This tokenizer cannot say which characters a token covers; use --tokenization separate.")

    def trajectories(self, rollouts: Sequence[Rollout]) -> list[Trajectory]:
        """Turns by trajectory, in the order trajectories appear; turns by their number."""
        by_name: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            by_name.setdefault(rollout.trajectory, []).append(rollout)
        return [
            Trajectory(name, tuple(self.turn(r) for r in sorted(turns, key=lambda r: r.turn)))
            for name, turns in by_name.items()
        ]

    def check_lengths(self, rollouts: Sequence[Rollout], longest: int) -> None:
        """Refuses turns that the model was not made to read."""
        for rollout in rollouts:
            if what := self.too_long(rollout, longest):
                raise UserError(
                    f"{rollout.where or rollout.trajectory} {what}; shorten or drop that row, or leave out all such "
                    "rows with --skip-long."
                )

    def too_long(self, rollout: Rollout, longest: int) -> str:
        """How a turn exceeds what the model reads; empty if it does not. Only turns that could be too long are
        tokenised: a token is at least one byte, and a chat template seldom adds more than its messages have."""
        characters, size = _size(rollout)
        if 2 * size <= longest:
            return ""
        if cannot_fit(characters, longest, self.tokenizer):
            return f"has {characters:,} characters, more than fit into the {longest:,} tokens that this model reads"
        prompt, reasoning, _ = self._split(rollout)
        tokens = len(prompt) + len(reasoning) - 1
        if not reasoning or tokens <= longest:
            return ""
        return f"is {tokens:,} tokens long up to its reasoning's end, but this model reads {longest:,}"

    def turn(self, rollout: Rollout) -> Turn:
        if self.longest is not None and self.too_long(rollout, self.longest):
            return Turn((), (), rollout.group, rollout.turn, rollout.trajectory, TOO_LONG, rollout.where)
        x, z, problem = self._split(rollout)
        if not problem and not z:
            problem = EMPTY
        if not problem and not x:
            problem = NO_PROMPT
        return Turn(x, () if problem else z, rollout.group, rollout.turn, rollout.trajectory, problem, rollout.where)

    def _split(self, rollout: Rollout) -> tuple[Ids, Ids, str]:
        if rollout.reasoning_ids is not None:
            return rollout.prompt_ids or (), rollout.reasoning_ids, ""
        if rollout.response is None and rollout.response_ids is None:
            return (), (), NO_RESPONSE
        if self.how.parity == "ragen":
            return self._ragen(rollout)
        return self._exactly(rollout) if self.how.tokenization == "exact" else self._separately(rollout)

    def _exactly(self, rollout: Rollout) -> tuple[Ids, Ids, str]:
        """The response's own tokens, or those its text has, cut at the reasoning's edges."""
        prompt = self._prompt_ids(rollout)
        opened = self._opened(rollout, self._text(prompt[-16:]))
        ids, text, places = self._placed(rollout)
        span = find_span(text, self.how, opened)
        if span.problem:
            return prompt, (), span.problem
        first = next((n for n, (start, _) in enumerate(places) if start >= span.start), len(ids))
        last = next((n for n, (_, end) in enumerate(places) if end > span.end), len(ids))
        return prompt + ids[:first], ids[first:last], "" if last > first else EMPTY

    def _placed(self, rollout: Rollout) -> tuple[Ids, str, list[tuple[int, int]]]:
        """The response's tokens, its text, and which characters of it each token covers."""
        if rollout.response_ids is not None:
            return rollout.response_ids, *self._pieces(rollout.response_ids)
        text = rollout.response or ""
        whole = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = tuple(map(int, whole["input_ids"]))
        decoded, places = self._pieces(ids)
        # Offsets of byte-level tokenizers leave out spaces and newlines at a token's ends; their pieces have them.
        return ids, text, places if decoded == text else [(int(a), int(b)) for a, b in whole["offset_mapping"]]

    def _pieces(self, ids: Ids) -> tuple[str, list[tuple[int, int]]]:
        """The text of tokens decoded one by one; tokens that share a character (its bytes) cover the same ones."""
        text, places, held = "", [], []
        for n, i in enumerate(ids, start=1):
            held.append(i)
            piece = self._text(held)
            if piece.endswith("\ufffd") and len(held) < 4 and n < len(ids):  # UTF-8: at most four bytes per character
                continue
            places += [(len(text), len(text) + len(piece))] * len(held)
            text, held = text + piece, []
        return text, places

    def _separately(self, rollout: Rollout) -> tuple[Ids, Ids, str]:
        """x and z tokenised each for itself, z stripped."""
        response = rollout.response if rollout.response is not None else self._text(rollout.response_ids or ())
        given = rollout.prompt_ids
        before = self._text(given[-16:]) if given is not None else self._prompt_text(rollout)
        opened = self._opened(rollout, before)
        span = find_span(response, self.how, opened)
        moved = response[: span.start]
        if opened and self.how.mode == "tags" and self.how.pattern is None:
            moved = ""  # nothing, or the tag once more
        # The prompt's own tokens where there are some; what moves to x follows them.
        x = given + self._tokens(moved) if given is not None else self._tokens(before + moved)
        z = () if span.problem else self._tokens(response[span.start : span.end].strip())
        return x, z, span.problem

    def _ragen(self, rollout: Rollout) -> tuple[Ids, Ids, str]:
        """RAGEN's own way: markers deleted, stripped, tokenised alone; x is the prompt and the open tag."""
        response = rollout.response if rollout.response is not None else self._text(rollout.response_ids or ())
        x = rollout.prompt_ids if rollout.prompt_ids is not None else self._tokens(self._ragen_prompt(rollout))
        found = re.search(re.escape(self.how.open) + "(.*?)" + re.escape(self.how.close), response, re.DOTALL)
        if not found:
            return x, (), UNCLOSED if self.how.open in response else UNTAGGED
        text = found[1]
        for marker in RAGEN_MARKERS:
            text = text.replace(marker, "")
        return x, self._tokens(text.strip()), "" if text.strip() else EMPTY

    def _ragen_prompt(self, rollout: Rollout) -> str:
        text = self._prompt_text(replace(rollout, think_in_prompt=None))
        return text if text.endswith(self.how.open) else text + self.how.open

    def _opened(self, rollout: Rollout, before: str) -> bool:
        if self.how.mode == "whole" or self.how.pattern is not None:
            return False
        return bool(rollout.think_in_prompt) or before.rstrip().endswith(self.how.open)

    def _prompt_ids(self, rollout: Rollout) -> Ids:
        return rollout.prompt_ids if rollout.prompt_ids is not None else self._tokens(self._prompt_text(rollout))

    def _prompt_text(self, rollout: Rollout) -> str:
        """The context as text, with the open tag that was forced after it."""
        rendered = rollout.messages is not None and (self._has_template or rollout.prompt is None)
        text = self._render(rollout.messages or ()) if rendered else rollout.prompt or ""
        if rollout.think_in_prompt and not text.rstrip().endswith(self.how.open):
            text += self.how.open
        return text

    @property
    def _has_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def _render(self, messages: Messages) -> str:
        if not self._has_template:
            raise UserError("The rollouts hold messages, but the tokenizer has no chat template; give prompts instead.")
        try:
            turns = [dict(m) for m in messages]
            return str(self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # jinja's errors have many types; all mean the same to the user
            reraise_ours(error)
            raise UserError(
                f"The chat template refused the conversation: {error}; give prompts as text instead."
            ) from None

    def _tokens(self, text: str) -> Ids:
        """Through the encoder; prompts come again for every sample of a group, so they are remembered."""
        if not text:
            return ()
        if text not in self._ids:
            [self._ids[text]] = self.encoder.tokenize([text], special=False)
        return self._ids[text]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
