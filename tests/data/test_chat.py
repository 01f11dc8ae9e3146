"""From questions and answers to token ids: templates, tags, boundaries, plain text, hidden tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models_tools import tiny_tokenizer
from vestige.data.chat import Encoder, Template, clean_up
from vestige.data.datasets import build_rows, make_context
from vestige.types import Example, Rows

BOS, EOS = 0, 1
# Turn ends are </s> = EOS, as in Llama-3; the date is printed when given.
CHATML = (
    "{{ bos_token }}{% if date_string is defined %}[{{ date_string }}]{% endif %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NEWLINE = CHATML.replace("</s>{% endfor %}", "</s>\n{% endfor %}")  # Qwen-like: something follows the last end
NO_END = CHATML.replace("</s>{% endfor %}", "|{% endfor %}")
TAGS = {
    "apply_chat_template": False, "user_start_tag": "Q: ", "user_end_tag": "\n", "asst_start_tag": "A:\n",
    "asst_end_tag": "\n\n",
}  # fmt: skip
SHOTS = [("the cat?", "sat"), ("a dog?", "ate")]


def tokenizer(template: str | None = CHATML, **changes: Any) -> Any:
    made = tiny_tokenizer()
    made.chat_template = template
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def encoder(template: str | None = CHATML, boundary: str = "count", **args: Any) -> Encoder:
    return Encoder(tokenizer(template), Template.from_config(args), boundary)


def rows(
    tmp_path: Path, data: list[dict[str, Any]], handler: str = "QADataset", mask: str = "length",
    boundary: str = "count", template: dict[str, Any] | None = None, tok: Any = None, **args: Any,
) -> Rows:  # fmt: skip
    place = tmp_path / "rows.jsonl"
    place.write_text("".join(json.dumps(r) + "\n" for r in data), encoding="utf-8")
    context = make_context(tok or tokenizer(), Template.from_config(template), mask, boundary)
    return build_rows("data", {"handler": handler, "args": {"hf_args": {"path": str(place)}, **args}}, context)


def only(made: Rows) -> Example:
    ((example,),) = made.examples
    return example


# ---- chat templates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [CHATML, NEWLINE, NO_END])
@pytest.mark.parametrize("shots", [[], SHOTS])
@pytest.mark.parametrize("args", [{}, {"system_prompt": "you forget"}, {"date_string": "10 Apr 2025"}])
def test_equals_apply_chat_template(template: str, shots: list[Any], args: dict[str, str]) -> None:
    made = encoder(template, **args)
    tok = made.tokenizer
    pairs = [("what did the dog forget?", "the small cat"), ("what?", ""), ("what?", "a mat")]
    for (question, answer), got in zip(pairs, made.encode(pairs, shots), strict=True):
        chat = [{"role": "system", "content": args["system_prompt"]}] if "system_prompt" in args else []
        for q, a in shots:
            chat += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
        chat.append({"role": "user", "content": question})
        extra = {"date_string": args["date_string"]} if "date_string" in args else {}
        as_ids = {"tokenize": True, "return_dict": False, **extra}
        prompt = tok.apply_chat_template(chat, add_generation_prompt=True, **as_ids)
        full = tok.apply_chat_template([*chat, {"role": "assistant", "content": answer}], **as_ids)
        assert list(got.prompt) == prompt
        assert list(got.full) == full + ([] if full[-1] == EOS else [EOS])
        assert got.start == len(prompt)
        assert (full[-1] == EOS) == (template == CHATML)
    assert made.mismatches == 0


# ---- tags -----------------------------------------------------------------------------------------------------


def test_tags_with_few_shots_and_system_text() -> None:
    made = encoder(None, **TAGS, system_prompt_with_special_tokens="<s>you forget\n")
    (got,) = made.encode([("what?", "the mat")], SHOTS)
    before = "<s>you forget\nQ: the cat?\nA:\nsat\n\nQ: a dog?\nA:\nate\n\nQ: what?\nA:\n"
    assert list(got.prompt) == made.tokenizer(before)["input_ids"]
    assert list(got.full) == [*made.tokenizer(before + "the mat")["input_ids"], EOS]
    assert made.tokenizer.decode(got.full[got.start :]) == "the mat</s>"  # no end tag behind the last answer
    assert got.full[0] == BOS


# ---- the boundary ---------------------------------------------------------------------------------------------


def test_a_template_that_asks_with_more_than_it_quotes() -> None:
    """Reasoning models: the prompt opens <think>, the answer as history does not have it."""
    template = CHATML.replace("<assistant>{% endif %}", "<assistant><think>and think{% endif %}")
    pair = ("what?", "the small cat sat on the mat and the dog ate a mat today")
    (by_count,), (by_text,) = (encoder(template, b).encode([pair]) for b in ("count", "offsets"))
    decode = encoder().tokenizer.decode
    assert decode(by_text.full[by_text.start :]) == pair[1] + "</s>"
    assert by_count.start == len(by_count.prompt)
    assert decode(by_count.full[by_count.start :]) == " mat today</s>"  # the peer loses most of the answer


# ---- question and answer rows ---------------------------------------------------------------------------------


def test_an_example_carries_what_scoring_needs(tmp_path: Path) -> None:
    made = rows(tmp_path, [{"question": "what?", "answer": "the cat , sat ."}])
    example = only(made)
    assert not made.many
    assert example.index == "0"
    assert example.target is not None
    assert example.target.ids[: example.target.start] == example.prompt.ids
    assert example.target.labels[-1] == EOS
    assert example.answer == "the cat , sat ."
    assert example.input_text == "<user>what?<assistant>"
    assert example.label_text == "the cat, sat."  # cleaned up, special tokens left out
    # The peer's reference: prompt and answer decoded, the prompt's text replaced.
    assert example.reference == "the cat, sat."
    assert example.target.hidden == example.prompt.hidden == ()


# ---- plain text -----------------------------------------------------------------------------------------------


def test_completion(tmp_path: Path) -> None:
    data = [{"prompt": "the small", "text": "cat sat on the mat"}]
    for space in (False, True):
        tok = tokenizer()
        example = only(rows(tmp_path, data, "CompletionDataset", tok=tok, insert_space=space))
        full = tok("the small" + " " * space + "cat sat on the mat")["input_ids"]
        assert example.target is not None
        assert list(example.target.ids) == full  # no end token
        assert list(example.prompt.ids) == tok("the small")["input_ids"]
        assert example.target.start == len(example.prompt.ids)
        assert example.answer == "cat sat on the mat"
        assert example.reference == example.label_text.strip() == "cat sat on the mat"


def test_pretraining_chunks(tmp_path: Path) -> None:
    data = [{"text": "the cat sat on the mat"}, {"text": "a dog ate"}]
    tok = tokenizer()
    ids = tok("the cat sat on the mat\n\na dog ate")["input_ids"]
    made = rows(tmp_path, data, "PretrainingDataset", tok=tok, max_length=4)
    assert len(made) == -(-len(ids) // 4)
    for i, (example,) in enumerate(made.examples):
        chunk = ids[4 * i : 4 * i + 4]
        assert example.answer == tok.decode(chunk)
        if example.target:
            assert list(example.target.ids) == tok(tok.decode(chunk))["input_ids"]
            assert example.target.start == 1
    assert len(rows(tmp_path, data, "PretrainingDataset", tok=tok, max_length=len(ids))) == 1


# ---- hidden tokens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", [None, "</s>"])
def test_the_peers_mask_hides_turn_ends_when_pad_is_eos(tmp_path: Path, pad: str | None) -> None:
    data = [{"question": "what?", "answer": "the mat"}]
    tok = tokenizer() if pad is None else tokenizer(pad_token=pad)
    example = only(rows(tmp_path, data, mask="pad-id", tok=tok, template={"system_prompt": "you forget"}))
    target, prompt = example.target, example.prompt
    assert target is not None
    assert prompt.hidden == tuple(i for i, t in enumerate(prompt.ids) if t == EOS)
    assert len(prompt.hidden) == 2  # the ends of the system and of the user turn
    assert target.hidden == (*prompt.hidden, len(target.ids) - 1)
    strict = only(rows(tmp_path, data, mask="length", tok=tok, template={"system_prompt": "you forget"}))
    assert strict.target is not None
    assert strict.target.ids == target.ids
    assert strict.target.hidden == strict.prompt.hidden == ()


# ---- decoding -------------------------------------------------------------------------------------------------


def test_clean_up_as_in_transformers_4() -> None:
    spaced = "I do n't know , he 's gone . They 've left ; we 're ' quoted ' ! Is it ? I 'm"
    assert clean_up(spaced) == "I don't know, he's gone. They've left ; we're'quoted '! Is it? I'm"
    assert clean_up("do not touch") == "do not touch"
