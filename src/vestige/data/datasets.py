"""Data-set handlers: config + rows -> tokenised Examples.

A handler is a function (rows, args, encoder) -> (examples, many). `DATASETS` maps the names used in configs to
them; a plug-in adds its own with `DATASETS[name] = function`.

In: rows of a file or a hub data set, and the `args` of its configuration. Out: Examples. Callers: engine/prepare.py,
depth, stress and unlearn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vestige.data.chat import PREFIX, Encoded, Encoder, Ids, PrefilledEncoder, Template, TextPair
from vestige.data.clusters import AUTO, rows_fingerprint, with_clusters
from vestige.data.rows import MissingData, Row, load_rows
from vestige.errors import UserError, unknown_name
from vestige.packed_ids import Facts
from vestige.types import FACTS, IGNORE, Example, Prompt, Rows, Target

# ---- what a data-set handler works with besides its rows ---------------------------------------------------------
#
# In: settings of a run. Out: Targets and Prompts; content that several data sets share is one object. Callers:
# data/datasets.py and its plug-ins, engine/prepare.py.


@dataclass
class Context:
    """What a data-set handler works with besides its rows."""

    encoder: Encoder
    hide_token: int | None  # open-unlearning's mask hides every occurrence of this id (its pad token)
    source: str = ""
    text_only: bool = False  # the model could see pictures, but is given none here
    longest: int | None = None  # how many tokens the model was made to read, where that is known
    cluster: str = AUTO  # the column that says which rows hang together
    notes: list[str] = field(default_factory=list)  # what the user should know of the rows that were read

    # What data sets of one run have in common is kept once: they ask the same questions and read the same files.
    texts: dict[str, str] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)  # by key

    def target(self, full: Sequence[int], start: int) -> Target | None:
        if start >= len(full):
            return None
        made = Target(tuple(full), start, self._hidden(full))
        found: Target = self.records.setdefault(made.key, made)
        return found

    def prompt(self, ids: Sequence[int]) -> Prompt:
        made = Prompt(tuple(ids), self._hidden(ids))
        found: Prompt = self.records.setdefault(made.key, made)
        return found

    def text(self, text: str) -> str:
        """The same text, as it was first seen: an answer, its decoded tokens and a column of another split are one."""
        return self.texts.setdefault(text, text)

    def forget(self) -> None:
        """All data sets are made: what they share they hold themselves."""
        self.texts.clear()
        self.records.clear()

    def check_text(self, characters: int, row: int | str) -> None:
        """Refuses a text that cannot fit before it is tokenised, which alone would take long: a token stands for only
        so many characters."""
        if self.longest is not None and cannot_fit(characters, self.longest, self.encoder.tokenizer):
            raise UserError(
                f"{self.source} row {row} (counting from 0) has {characters:,} characters, more than fit into the "
                f"{self.longest:,} tokens that this model reads; shorten or drop that row."
            )

    def _hidden(self, ids: Sequence[int]) -> tuple[int, ...]:
        if self.hide_token is None:
            return ()
        return tuple(i for i, token in enumerate(ids) if token == self.hide_token)


def cannot_fit(characters: int, longest: int, tokenizer: Any) -> bool:
    """Whether so many characters are more than so many tokens, whatever they are."""
    if characters <= 4 * longest:
        return False
    vocabulary: Mapping[str, int] = getattr(tokenizer, "get_vocab", dict)()
    return characters > longest * max(map(len, vocabulary), default=characters)


# ---- Where a prompt ends and its answer begins, when all there is are `input_ids` and `labels` ----
#
# Three layouts are in use:
#
#     input_ids            labels                          the answer begins at
#     prompt + answer      IGNORE for the prompt, answer   the first label
#     prompt               prompt + answer (chat)          the first label + the prompt's length
#     prompt               IGNORE for the prompt, answer   the first label


def prompt_ids(
    input_ids: Sequence[int],
    labels: Sequence[int] | None = None,
    attended: Sequence[int] | None = None,
    prompt_only: bool = False,
) -> tuple[int, ...]:
    """The prompt's tokens, padding left out.

    `attended` tells padding from tokens.

    >>> prompt_ids([0, 11, 12, 21], [-100, -100, -100, 21], attended=[0, 1, 1, 1])
    (11, 12)
    """
    real = [True] * len(input_ids) if attended is None else [bool(a) for a in attended]
    first = first_label(input_ids, labels)
    before = tuple(t for t, keep in zip(input_ids[:first], real, strict=False) if keep)
    if before and not prompt_only:
        return before
    return tuple(t for t, keep in zip(input_ids, real, strict=True) if keep)


def generation_start(
    input_ids: Sequence[int],
    labels: Sequence[int] | None = None,
    attended: Sequence[int] | None = None,
    prompt_only: bool = False,
) -> int:
    """The index in `labels` of the answer's first token.

    `prompt_only` says that `input_ids` hold no answer. Then the labels show whether they repeat the prompt.

    >>> generation_start([11, 12], [11, 12, 21], prompt_only=True)
    2
    >>> generation_start([11, 12], [-100, -100, 21], prompt_only=True)
    2
    """
    first = first_label(input_ids, labels)
    if labels is None or (first and not prompt_only):
        return first
    prompt = prompt_ids(input_ids, labels, attended, prompt_only)
    repeated = tuple(labels[first : first + len(prompt)]) == prompt
    return first + len(prompt) if repeated else first


def first_label(input_ids: Sequence[int], labels: Sequence[int] | None) -> int:
    """The index of the first token that is scored; past the end when there is none."""
    row = [IGNORE] * len(input_ids) if labels is None else labels
    return next((i for i, label in enumerate(row) if label != IGNORE), len(row))


# ---- the handlers ------------------------------------------------------------------------------------------------

log = logging.getLogger("vestige.data")

Args = Mapping[str, Any]
Examples = list[list[Example]]


DatasetHandler = Callable[[list[Row], Args, Context], tuple[Examples, bool]]


def build_rows(name: str, config: Mapping[str, Any], context: Context, limit: int | None = None) -> Rows:
    """The data set `name` as its config describes it: {handler, args: {hf_args, question_key, ...}}."""
    handler = config.get("handler")
    if handler not in DATASETS:
        raise unknown_name("data-set handler", str(handler), DATASETS, f"(data set '{name}')")
    args = dict(config.get("args") or {})
    if "hf_args" not in args:
        raise UserError(f"Data set '{name}' has no args.hf_args; say where its rows are (path, name, split).")
    limits = [n for n in (limit, args.get("max_samples")) if n is not None]
    rows, context.source = load_rows(args["hf_args"], min(limits, default=None))
    if context.text_only:
        _refuse_pictures(name, rows)
    examples, many = DATASETS[handler](rows, args, context)
    check_lengths(examples, context)
    _report_empty(name, examples)
    facts = _facts(rows, args, context) if len(examples) == len(rows) else ()  # chunks are not rows
    found = Rows(name, tuple(map(tuple, examples)), many, context.source, rows_fingerprint(rows), facts)
    return with_clusters(found, rows, args["hf_args"], context.cluster)


def _facts(rows: Sequence[Row], args: Args, context: Context) -> Facts:
    """The columns that say what a row is about, where they hold text or lists of it."""
    names = {"question": args.get("question_key", "question"), "answer": args.get("answer_key", "answer")}

    def kept(value: Any) -> Any:
        if isinstance(value, list):
            return [context.text(v) if isinstance(v, str) else v for v in value] or None
        return context.text(value) if isinstance(value, str) and value else None

    return Facts({fact: [kept(row.get(names.get(fact, fact))) for row in rows] for fact in FACTS}, len(rows))


PICTURES = ("image", "images", "pixel_values")


def _refuse_pictures(name: str, rows: Sequence[Row]) -> None:
    """A question about a picture that the model never sees would measure nothing."""
    for i, row in enumerate(rows):
        for key in PICTURES:
            if row.get(key) is not None:
                raise UserError(
                    f"Row {i} of '{name}' has a picture ('{key}'), and this model is used with text only here; leave "
                    "those rows or that column out."
                )


def check_lengths(examples: Examples, context: Context) -> None:
    """Refuses rows that the model was not made to read. What a data set's max_length cuts is short by now.

    Before anything of theirs is computed: the cost of attention grows with the square of a row.
    """
    if context.longest is None:
        return
    for row in examples:
        for example in row:
            ids = example.target.ids if example.target is not None else example.prompt.ids
            too_long(
                max(len(ids) - 1, len(example.prompt.ids)), context.longest, f"{context.source} row {example.index}"
            )


def too_long(tokens: int, longest: int, where: str) -> None:
    if tokens > longest:
        raise UserError(
            f"{where} (counting from 0) is {tokens:,} tokens long with its prompt, but this model reads {longest:,}; "
            "shorten or drop that row, or set max_length where its data set has one."
        )


def _report_empty(name: str, examples: Examples) -> None:
    bad = [e for row in examples for e in row if e.target is None]
    if bad:
        shown = ", ".join(dict.fromkeys(e.index for e in bad[:10]))
        log.warning(
            "%s: %d answer(s) leave no target tokens and are not scored (rows %s): %s",
            name, len(bad), shown, bad[0].problem,
        )  # fmt: skip


def column(rows: Sequence[Row], key: str, source: str) -> list[Any]:
    """One column, checked: a missing column is named with those that exist, a bad row with its number."""
    have = sorted(set().union(*rows))
    if key not in have:
        rename = "; rename the one that holds it" if key in ("question", "answer", "text") else ""
        raise MissingData(f"{source} has no column '{key}'; it has: {', '.join(have)}{rename}.")
    out = []
    for number, row in enumerate(rows):
        if row.get(key) is None:
            raise UserError(
                f"{source} row {number} (counting from 0) has no value for '{key}'; fill it or drop the row."
            )
        out.append(row[key])
    return out


def texts(rows: Sequence[Row], key: str, source: str) -> list[str]:
    values = column(rows, key, source)
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise UserError(
                f"{source} row {number} (counting from 0): '{key}' must be text, it is {type(value).__name__}."
            )
    return values


def _answer_lists(rows: Sequence[Row], key: str, source: str) -> tuple[list[list[str]], bool]:
    """The answers of each row, and whether the column holds lists (ragged lists are fine)."""
    values = column(rows, key, source)
    many = any(isinstance(v, (list, tuple)) for v in values)
    out = []
    for number, value in enumerate(values):
        answers = list(value) if isinstance(value, (list, tuple)) else [value]
        if not answers or not all(isinstance(a, str) for a in answers):
            raise UserError(
                f"{source} row {number} (counting from 0): '{key}' must be text or a non-empty list of texts."
            )
        out.append(answers)
    return out, many


def question_answers(rows: list[Row], args: Args, context: Context) -> tuple[Examples, bool]:
    """QADataset: a question and one or several answers per row, through the chat template or tags."""
    question_key, answer_key = args.get("question_key", "question"), args.get("answer_key", "answer")
    questions = texts(rows, question_key, context.source)
    answers, many = _answer_lists(rows, answer_key, context.source)
    if context.encoder.template.apply_chat_template or not args.get("max_length"):  # else what is too long is cut
        for number, (question, row_answers) in enumerate(zip(questions, answers, strict=True)):
            context.check_text(len(question) + max(map(len, row_answers)), number)
    shown = args.get("few_shot_dataset_hf_args")
    few_shot = _few_shot(shown, question_key, answer_key) if shown else []
    pairs = [(q, a) for q, row_answers in zip(questions, answers, strict=True) for a in row_answers]
    flat = _read(context.encoder.parts(pairs, few_shot, args.get("max_length")), context)
    out: Examples = []
    for number, row_answers in enumerate(answers):
        index, row = context.text(str(number)), []
        for answer in row_answers:
            e, input_text, reference, label_text = next(flat)
            target = context.target(e.full, max(e.start, 1))
            row.append(
                Example(
                    index=index,
                    target=target,
                    prompt=context.prompt(e.prompt),
                    answer=context.text(answer),
                    input_text=input_text,
                    reference=reference,
                    label_text=label_text,
                    problem="" if target else "the prompt is as long as prompt and answer together",
                )
            )
        out.append(row)
    next(flat, None)  # after the last part it is told what was cut
    return out, many


def _read(parts: Iterator[list[Encoded]], context: Context) -> Iterator[tuple[Encoded, str, str, str]]:
    """Each pair with its texts: prompt, reference, labels. Some pairs at a time."""
    words = context.encoder.decode
    for part in parts:
        prompts = list(dict.fromkeys(e.prompt for e in part))
        inputs = dict(zip(prompts, map(context.text, words(prompts)), strict=True))
        conversations = words([e.full for e in part])
        labels = words([e.full[e.start :] for e in part])
        for e, conversation, label in zip(part, conversations, labels, strict=True):
            asked = inputs[e.prompt]
            yield e, asked, context.text(_remove(conversation, asked)), context.text(label)


def _remove(text: str, part: str) -> str:
    # open-unlearning replaces every occurrence, not the prefix; the dialect keeps that.
    return text.replace(part, "").strip() if part else text.strip()


def _few_shot(hf_args: Args, question_key: str, answer_key: str) -> list[TextPair]:
    rows, source = load_rows(hf_args)
    return list(zip(texts(rows, question_key, source), texts(rows, answer_key, source), strict=True))


PREFILLED = "PrefilledQADataset"


def prefilled_answers(rows: list[Row], args: Args, context: Context) -> tuple[Examples, bool]:
    """PrefilledQADataset: QADataset with the opening of an answer (answer_prefix) after every prompt."""
    encoder = PrefilledEncoder(context.encoder, str(args.get("answer_prefix") or PREFIX))
    return question_answers(rows, args, replace(context, encoder=encoder))


def completions(rows: list[Row], args: Args, context: Context) -> tuple[Examples, bool]:
    """CompletionDataset: continue `prefix` with `text`. No end token is appended; index 0 is never a label."""
    text_key, prefix_key = args.get("text_key", "text"), args.get("prefix_key", "prompt")
    bodies = texts(rows, text_key, context.source)
    has_prefix = any(prefix_key in row for row in rows)
    prefixes = texts(rows, prefix_key, context.source) if has_prefix else [""] * len(rows)
    space = " " if args.get("insert_space") else ""
    encoder = context.encoder
    fulls = encoder.tokenize([p + space + t for p, t in zip(prefixes, bodies, strict=True)], special=True)
    heads = encoder.tokenize(prefixes, special=True)
    limit = int(args.get("max_length", 2048))
    items = [(head, full[: len(head) + limit]) for head, full in zip(heads, fulls, strict=True)]
    return _plain_text(items, bodies, context), False


def _plain_text(items: list[tuple[Ids, Ids]], bodies: list[str], context: Context) -> Examples:
    encoder = context.encoder
    inputs = encoder.decode([head for head, _ in items])
    labels = encoder.decode([full[max(1, len(head)) :] for head, full in items])
    out: Examples = []
    for index, (head, full) in enumerate(items):
        target = context.target(full, max(1, len(head)))
        example = Example(
            index=str(index),
            target=target,
            prompt=context.prompt(head),
            answer=bodies[index],
            input_text=inputs[index],
            reference=_remove(labels[index], inputs[index]),
            label_text=labels[index],
            problem="" if target else "no token follows the prefix",
        )
        out.append([example])
    return out


def pretraining_chunks(rows: list[Row], args: Args, context: Context) -> tuple[Examples, bool]:
    """PretrainingDataset: all texts joined, cut into chunks of max_length tokens, each chunk re-tokenised."""
    joined = "\n\n".join(texts(rows, args.get("text_key", "text"), context.source))
    encoder, size = context.encoder, int(args.get("max_length", 2048))
    ids = encoder.tokenize([joined], special=False)[0]
    chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
    pieces = encoder.tokenizer.batch_decode([list(c) for c in chunks])
    items: list[tuple[Ids, Ids]] = [((), full) for full in encoder.tokenize(pieces, special=True)]
    return _plain_text(items, pieces, context), False


def _halves(text: str) -> tuple[str, str]:
    """The first and the second half of a text, by words.

    >>> _halves("one two three")
    ('one two', 'three')
    """
    words = text.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def whatever_fits(rows: list[Row], args: Args, context: Context) -> tuple[Examples, bool]:
    """AutoDataset: questions and answers where the columns are there, else plain text after a prompt.

    Text without a prompt is cut in the middle: the model is given the first half and judged on the second.
    """
    have = set().union(*rows)
    if args.get("question_key", "question") in have:
        return question_answers(rows, args, context)
    if args.get("text_key", "text") in have and args.get("answer_key", "answer") in ("answer", *have):
        if args.get("prefix_key", "prompt") not in have:
            key = args.get("text_key", "text")
            halves = [_halves(text) for text in texts(rows, key, context.source)]
            rows, args = [{"prompt": a, key: b} for a, b in halves], {**args, "insert_space": True}
        return completions(rows, args, context)
    return question_answers(rows, args, context)  # which names the column that is missing


def entities(rows: list[Row], args: Args, context: Context) -> tuple[Examples, bool]:
    """EntityDataset: plain questions and answers, of which only the entity's tokens are the target (depth scores)."""
    from vestige.data.spans import encode_span, read_spans

    tokenizer = context.encoder.tokenizer
    out: Examples = []
    for span in read_spans(rows, context.source):
        found = encode_span(span, tokenizer, str(args.get("tokenization", "separate")))
        target, prompt = (None, ()) if isinstance(found, str) else (found.want().target, found.prompt)
        example = Example(
            index=span.index,
            target=target,
            prompt=Prompt(tuple(prompt)),
            answer=span.answer,
            input_text=span.prompt,
            reference=span.entity,
            label_text=tokenizer.decode(list(target.labels)) if target else "",
            problem=found if isinstance(found, str) else "",
        )
        out.append([example])
    return out, False


def tokenised(rows: list[Row], args: Args, context: Context) -> tuple[Examples, bool]:
    """TokenDataset: rows of `input_ids` and `labels` (-100: not scored), in any of the layouts of data/datasets.py.

    With `predict_with_generate` the `input_ids` are the prompt alone. `attention_mask` tells padding from tokens;
    without one every pad token of a prompt-only row is padding.
    """
    only = bool(args.get("predict_with_generate"))
    tokenizer = context.encoder.tokenizer
    words, pad = tokenizer.decode, tokenizer.pad_token_id
    ambiguous = 0
    out: Examples = []
    for i, row in enumerate(rows):
        ids, labels, mask = (_whole_numbers(row, key, i, context.source) for key in _TOKEN_COLUMNS)
        if ids is None or labels is None:
            raise UserError(f"{context.source} row {i} (counting from 0) needs input_ids and labels, lists of numbers.")
        if mask is not None and len(mask) != len(ids):
            raise UserError(f"{context.source} row {i} (counting from 0) has {len(ids)} input_ids, mask {len(mask)}.")
        if mask is None and pad in ids and (only or first_label(ids, labels) == 0):
            mask = [int(token != pad) for token in ids]
            ambiguous += pad == tokenizer.eos_token_id
        prompt = prompt_ids(ids, labels, mask, only)
        answer = [t for t in labels[generation_start(ids, labels, mask, only) :] if t != IGNORE]
        text = words(answer, skip_special_tokens=True)
        problem = "" if prompt and answer else "its labels hold no answer" if prompt else "it has no prompt"
        target = None if problem else context.target([*prompt, *answer], len(prompt))
        asked = words(list(prompt), skip_special_tokens=True)
        out.append([Example(str(i), target, context.prompt(prompt), text, asked, text, text, problem)])
    if ambiguous:
        context.notes.append(
            f"{context.source}: the pad token is also the end token ({pad}), so {ambiguous} prompt(s) lost their end "
            "tokens together with their padding; add an attention_mask column to keep them"
        )
    return out, False


_TOKEN_COLUMNS = ("input_ids", "labels", "attention_mask")


def _whole_numbers(row: Row, key: str, number: int, source: str) -> list[int] | None:
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or any(type(v) is not int for v in value):
        raise UserError(f"{source} row {number} (counting from 0): '{key}' must be a list of whole numbers.")
    return value


DATASETS: dict[str, DatasetHandler] = {
    "AutoDataset": whatever_fits,
    "QADataset": question_answers,
    PREFILLED: prefilled_answers,
    "CompletionDataset": completions,
    "PretrainingDataset": pretraining_chunks,
    "EntityDataset": entities,
    "TokenDataset": tokenised,
}


def make_context(tokenizer: Any, template: Template, mask: str, boundary: str) -> Context:
    """mask "pad-id": open-unlearning's attention mask, `ids != pad`, with pad = eos when there is none."""
    hide = None
    if mask == "pad-id":
        hide = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return Context(Encoder(tokenizer, template, boundary), hide)
