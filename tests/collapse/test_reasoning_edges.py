"""Where reasoning begins and ends in tokens, with tokenizers that join tags and line breaks."""

from __future__ import annotations

from typing import Any

import pytest

from tokenizer_tools import RULES, byte_bpe
from vestige.collapse.reasoning import Extractor, Reasoning, Rollout, Turn

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
# (end of the prompt, response, reasoning that must be found)
CASES = [
    ("assistant:", "<think>\ngo up.</think>up", "go up"),  # `>` joins the newline, `.` joins `</`
    ("assistant:", "<think>\n\ngo up\n</think>up", "go up\n"),
    ("assistant:", "<think>go up.\n</think>up", None),
    ("<think>", "\ngo up.</think>up", "\ngo up"),  # the newline is the response's first token
    ("<think>\n", "go up.</think>up", "go up"),
    ("<think>", "<think>\ngo up</think>", "go up"),
    ("assistant: ", "the box <think>\ngo up</think>", "go up"),
    ("assistant:", "<think>\ngo é up ü</think>up", "go é up ü"),  # characters of two tokens
]


def ids_of(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def turns_of(tokenizer: Any, prompt: str, response: str) -> dict[str, Turn]:
    """The same turn as text, as ids (a prompt's tokens, then the response's), and half and half."""
    extractor = Extractor(tokenizer)
    given, written = ids_of(tokenizer, prompt), ids_of(tokenizer, response)
    return {
        "text": extractor.turn(Rollout("t", prompt=prompt, response=response)),
        "ids": extractor.turn(Rollout("t", prompt_ids=given, response_ids=written)),
        "prompt ids": extractor.turn(Rollout("t", prompt_ids=given, response=response)),
        "response ids": extractor.turn(Rollout("t", prompt=prompt, response_ids=written)),
    }


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("prompt", "response", "expected"), CASES)
def test_text_and_ids_give_the_same_tokens(rule: str, prompt: str, response: str, expected: str | None) -> None:
    tokenizer = byte_bpe(rule)
    made = turns_of(tokenizer, prompt, response)
    text = made["text"]
    for how, turn in made.items():
        assert (turn.x, turn.z, turn.problem) == (text.x, text.z, ""), how
    assert ids_of(tokenizer, prompt) == text.x[: len(ids_of(tokenizer, prompt))]
    shown = tokenizer.decode(list(text.z))
    assert ">" not in shown and "<" not in shown
    if expected is not None:
        assert shown == expected
    # Nothing between x and z is lost: together they are the beginning of what the model saw and wrote.
    whole = ids_of(tokenizer, prompt) + ids_of(tokenizer, response)
    assert text.x + text.z == whole[: len(text.x) + len(text.z)]


@pytest.mark.parametrize("rule", RULES)
def test_the_open_tag_does_not_leak_into_the_reasoning(rule: str) -> None:
    tokenizer = byte_bpe(rule)
    joined = ids_of(tokenizer, ">\n")
    assert len(joined) == 1  # the rule and the merges join them, as the real vocabularies do
    turn = turns_of(tokenizer, "Where?", "<think>\ngo up.\n</think>up")["text"]
    assert turn.x[-1:] == joined and turn.z[:1] != joined
    assert tokenizer.decode(list(turn.z)) == "go up.\n"


@pytest.mark.parametrize("rule", RULES)
def test_a_template_that_opens_the_tag(rule: str) -> None:
    """The generation prompt ends in the tag and a newline, which are one token."""
    tokenizer = byte_bpe(rule, TEMPLATE + "{{ '<think>\\n' }}")
    turn = Extractor(tokenizer).turn(
        Rollout("t", messages=({"role": "user", "content": "Where?"},), response="go up.</think>up")
    )
    assert tokenizer.decode(list(turn.x)).endswith("assistant:<think>\n")
    assert tokenizer.decode(list(turn.z)) == "go up"


@pytest.mark.parametrize("rule", RULES)
def test_a_tag_that_is_one_token(rule: str) -> None:
    """Qwen 3 has <think> as a token of its own: the newline behind it is reasoning, for text and for ids."""
    tokenizer = byte_bpe(rule, special=("<think>", "</think>"))
    made = turns_of(tokenizer, "Where?", "<think>\ngo up.\n</think>\nup")
    assert {turn.z for turn in made.values()} == {ids_of(tokenizer, "\ngo up.\n")}


@pytest.mark.parametrize("rule", RULES)
def test_tags_that_end_in_a_space(rule: str) -> None:
    """Offsets leave out the space before a word; the word straddles the boundary all the same."""
    tokenizer = byte_bpe(rule)
    how = Reasoning(open="Because: ", close=" So")
    response = "Because: go up the box So up"
    by_text = Extractor(tokenizer, how).turn(Rollout("t", prompt="Where?", response=response))
    by_ids = Extractor(tokenizer, how).turn(Rollout("t", prompt="Where?", response_ids=ids_of(tokenizer, response)))
    assert (by_text.x, by_text.z) == (by_ids.x, by_ids.z)
    assert tokenizer.decode(list(by_text.z)) == " up the box"
