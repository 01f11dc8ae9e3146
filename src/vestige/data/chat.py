"""From questions and answers to token ids. No other code tokenises an answer.

prompt ids = template(system?, few-shot turns, question, generation prompt)
full ids   = template(system?, few-shot turns, question, answer), end token appended if it is not there
labels     = full[len(prompt):]

There is one definition, because an answer tokenised in two ways has two likelihoods: depth, collapse and stress use it
for prompts of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from vestige.errors import UserError, reraise_ours
from vestige.guard import whole_characters

log = logging.getLogger("vestige.data")

TextPair = tuple[str, str]
Ids = tuple[int, ...]
TOGETHER = 1024  # texts given to the tokenizer at once: what it says of them is far larger than their tokens


@dataclass(frozen=True)
class Template:
    """How a question becomes a prompt: the tokenizer's chat template, or plain start and end tags."""

    apply_chat_template: bool = True
    system_prompt: str | None = None
    system_prompt_with_special_tokens: str | None = None
    date_string: str | None = None  # Llama-3 templates print today's date unless told which
    user_start_tag: str = ""
    user_end_tag: str = ""
    asst_start_tag: str = ""
    asst_end_tag: str = ""
    add_special_tokens: bool = True  # tags only: let the tokenizer add its bos

    @classmethod
    def from_config(cls, args: Mapping[str, Any] | None) -> Template:
        """From a model config's `template_args`; keys it does not know are refused by name."""
        if args is not None and not isinstance(args, Mapping):
            raise UserError(f"template_args must be a mapping of settings, it is {type(args).__name__}.")
        args = dict(args or {})
        known = {f.name for f in fields(cls)}
        unknown = sorted(str(k) for k in set(args) - known - {"max_length"})
        if unknown:
            raise UserError(f"Unknown template_args: {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
        args.pop("max_length", None)
        for key, value in args.items():
            if key in ("apply_chat_template", "add_special_tokens"):
                if not isinstance(value, (bool, int)):
                    raise UserError(f"template_args.{key} must be true or false, it is {value!r}.")
            elif value is not None and not isinstance(value, str):
                raise UserError(f"template_args.{key} must be text, it is {value!r}.")
        try:
            whole_characters(args)
        except ValueError as error:
            raise UserError(f"template_args cannot be text for a model: {error}; write it in UTF-8.") from None
        for key in args:
            if key.endswith("_tag"):
                args[key] = args[key] or ""
        return cls(**args)


@dataclass(frozen=True)
class Encoded:
    """One pair in tokens: the prompt alone, and prompt with answer."""

    prompt: Ids
    full: Ids
    start: int  # where the labels begin in `full`
    cut: bool = False  # it reaches the length at which texts are cut


class Encoder:
    """Turns (question, answer) pairs into ids with one tokenizer, one template, one rule for the boundary.

    boundary "count": labels begin after as many tokens as the prompt has (what open-unlearning does).
    boundary "offsets": when prompt and full text are not tokenised alike up to the boundary, labels begin at
    the first token that reaches into the answer's characters.
    """

    def __init__(self, tokenizer: Any, template: Template, boundary: str = "count") -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.boundary = boundary
        self.mismatches = 0
        # Python makes a new number for every token it is given: four times the memory of a place in a tuple. Rows share
        # theirs.
        self._same: dict[int, int] = {}
        if template.apply_chat_template and not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "The tokenizer has no chat template; set model.template_args.apply_chat_template=false "
                "and give user_start_tag, user_end_tag, asst_start_tag, asst_end_tag instead."
            )

    def encode(
        self, pairs: Sequence[TextPair], few_shot: Sequence[TextPair] = (), max_length: int | None = None
    ) -> list[Encoded]:
        """Prompt and answer of each pair as token ids."""
        out = []
        for part in self.parts(pairs, few_shot, max_length):
            out += part
        return out

    def parts(
        self, pairs: Sequence[TextPair], few_shot: Sequence[TextPair] = (), max_length: int | None = None
    ) -> Iterator[list[Encoded]]:
        """The same, some pairs at a time: their texts and tuples take several times what a data set keeps of them."""
        cut = None if self.template.apply_chat_template else max_length  # a chat template's text is not truncated
        reached = 0
        for first in range(0, len(pairs), TOGETHER):
            part = self._encoded(pairs[first : first + TOGETHER], few_shot, cut)
            reached += sum(e.cut for e in part)
            yield part
        if reached:
            log.warning(
                "%d of %d prompts with their answers reach max_length=%d and were probably cut; raise max_length "
                "to score whole answers.", reached, len(pairs), cut,
            )  # fmt: skip

    def _encoded(self, pairs: Sequence[TextPair], few_shot: Sequence[TextPair], cut: int | None) -> list[Encoded]:
        if self.template.apply_chat_template:
            prompt_of = {q: self._chat_text(q, few_shot) for q in dict(pairs)}  # once, though several answers share it
            prompts = [prompt_of[q] for q, _ in pairs]
            fulls = [self._chat_text(q, few_shot, answer=a) for q, a in pairs]
            special = False  # the template writes its own special tokens
        else:
            prompts = [self._tagged_text(q, few_shot) for q, _ in pairs]
            fulls = [text + a for text, (_, a) in zip(prompts, pairs, strict=True)]
            special = self.template.add_special_tokens
        prompt_ids = self._ids_by_text(prompts, special, cut)
        full_ids = self._ids_by_text(fulls, special, cut)
        eos = self.tokenizer.eos_token_id
        out = []
        for prompt, full, pair in zip(prompts, fulls, pairs, strict=True):
            before, after = prompt_ids[prompt], full_ids[full]
            start = self._start(prompt, full, before, after, special, pair)
            reached = cut is not None and len(after) == cut
            if eos is not None and (not after or after[-1] != eos):
                after = (*after, eos)
            out.append(Encoded(before, after, min(start, len(after)), reached))
        return out

    def sample_prompt(self) -> str:
        """The prompt of a stand-in question: shows what the template writes around it, today's date included."""
        question = "{question}"
        return self._chat_text(question, ()) if self.template.apply_chat_template else self._tagged_text(question, ())

    def could_write_system_prompt(self) -> bool:
        """Whether the chat template would write a system prompt, and none is given."""
        if not self.template.apply_chat_template or self.template.system_prompt:
            return False
        mark = "A system prompt."
        try:
            return mark in Encoder(self.tokenizer, replace(self.template, system_prompt=mark)).sample_prompt()
        except UserError:  # a template that refuses system turns
            return False

    def _chat_text(self, question: str, few_shot: Sequence[TextPair], answer: str | None = None) -> str:
        """A conversation as the tokenizer's chat template writes it."""
        turns: list[dict[str, str]] = []
        if self.template.system_prompt:
            turns.append({"role": "system", "content": self.template.system_prompt})
        for q, a in few_shot:
            turns += [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
        turns.append({"role": "user", "content": question})
        if answer is not None:
            turns.append({"role": "assistant", "content": answer})
        extra = {"date_string": self.template.date_string} if self.template.date_string else {}
        try:
            return str(
                self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=answer is None, **extra)
            )
        except Exception as error:  # jinja's errors have many types; all mean the same to the user
            reraise_ours(error)
            raise UserError(
                f"The chat template refused the conversation: {error}; does it take a system prompt?"
            ) from None

    def _tagged_text(self, question: str, few_shot: Sequence[TextPair]) -> str:
        """A prompt between plain tags, for models without a chat template."""
        t = self.template
        text = t.system_prompt_with_special_tokens or ""
        for q, a in few_shot:
            text += t.user_start_tag + q + t.user_end_tag + t.asst_start_tag + a + t.asst_end_tag
        return text + t.user_start_tag + question + t.user_end_tag + t.asst_start_tag

    def _ids_by_text(self, texts: Sequence[str], special: bool, max_length: int | None) -> dict[str, Ids]:
        """Token ids by text: a prompt with several answers is tokenised once."""
        distinct = list(dict.fromkeys(texts))
        return dict(zip(distinct, self.tokenize(distinct, special, max_length), strict=True))

    def tokenize(self, texts: Sequence[str], special: bool, max_length: int | None = None) -> list[Ids]:
        """Plain texts to ids: the only call of the tokenizer in the project."""
        if not texts:
            return []
        cut = {"truncation": True, "max_length": max_length} if max_length else {}
        out: list[Ids] = []
        for first in range(0, len(texts), TOGETHER):
            batch = self.tokenizer(list(texts[first : first + TOGETHER]), add_special_tokens=special, **cut)
            out += [tuple(self._same.setdefault(int(i), int(i)) for i in ids) for ids in batch["input_ids"]]
        return out

    def _start(self, prompt: str, full: str, before: Ids, after: Ids, special: bool, pair: TextPair) -> int:
        """Where the labels begin in the full ids."""
        if after[: len(before)] == before:
            return len(before)
        self.mismatches += 1
        if self.mismatches == 1:
            log.warning(
                "The prompt is not a token prefix of prompt + answer for %r; %s.",
                pair,
                "split by characters" if self.boundary == "offsets" else "split by token count (as open-unlearning)",
            )
        if self.boundary != "offsets" or not getattr(self.tokenizer, "is_fast", False):
            return len(before)
        # A template may write more after the question when it asks than when it quotes the answer (<think>): the
        # answer begins where the two texts part.
        edge = 0
        while edge < min(len(prompt), len(full)) and prompt[edge] == full[edge]:
            edge += 1
        offsets = self.tokenizer(full, add_special_tokens=special, return_offsets_mapping=True)["offset_mapping"]
        for i, (_, end) in enumerate(offsets):
            if end > edge:  # the first token that reaches into the answer's characters
                return i
        return len(after)

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        return decode_texts(self.tokenizer, batch)


PREFIX = "Sure, here is the answer:"  # the opening of the published jailbreak


class PrefilledEncoder(Encoder):
    """Ends every prompt with the opening of an answer. It belongs to the prompt: it is neither scored nor trained."""

    def __init__(self, encoder: Encoder, opening: str = PREFIX) -> None:
        super().__init__(encoder.tokenizer, encoder.template, encoder.boundary)
        self.opening = opening

    def _encoded(self, pairs: Sequence[TextPair], few_shot: Sequence[TextPair], cut: int | None) -> list[Encoded]:
        [more] = self.tokenize([self.opening], special=False)
        return [
            Encoded((*e.prompt, *more), (*e.full[: e.start], *more, *e.full[e.start :]), e.start + len(more), e.cut)
            for e in super()._encoded(pairs, few_shot, cut)
        ]


def decode_texts(tokenizer: Any, batch: Sequence[Sequence[int]]) -> list[str]:
    """Ids to text, special tokens left out, with the clean-up of spaces before punctuation.

    transformers 5 skips that clean-up for BPE tokenizers; open-unlearning's numbers were made with it.
    """
    if not batch:
        return []
    texts = tokenizer.batch_decode(
        [list(ids) for ids in batch], skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return [clean_up(text) for text in texts]


_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def clean_up(text: str) -> str:
    """Removes the space before punctuation and English clitics.

    >>> clean_up("It 's here , now .")
    "It's here, now."
    """
    for spaced in _SPACED:
        text = text.replace(spaced, spaced.strip())
    return text


# The tag before an answer ends in a new line, not a space: a space would be glued to the answer's first word, and
# the prompt's tokens would not be a prefix of the whole.
PLAIN_TAGS = {
    "user_start_tag": "Question: ",
    "user_end_tag": "\n",
    "asst_start_tag": "Answer:\n",
    "asst_end_tag": "\n\n",
}


def make_template(args: Mapping[str, Any], tokenizer: Any, notes: list[str]) -> Template:
    """The template of a config; `auto` takes the tokenizer's own, or plain tags (said) when it has none."""
    args = dict(args)
    if args.get("apply_chat_template") == "auto":
        args["apply_chat_template"] = bool(getattr(tokenizer, "chat_template", None))
        if not args["apply_chat_template"]:
            system = args.pop("system_prompt", None)
            args |= PLAIN_TAGS
            if system:
                args["system_prompt_with_special_tokens"] = system
            notes.append("the tokenizer has no chat template: prompts read 'Question: ...', 'Answer:' and a new line")
    return Template.from_config(args)
