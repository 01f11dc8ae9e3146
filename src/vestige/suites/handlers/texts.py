"""What the model says: overlap with the reference, a classifier's opinion, secrets, repetition, likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from vestige.errors import UserError, unknown_name
from vestige.metrics.dialects import Dialect
from vestige.metrics.memorisation import probability
from vestige.suites.handlers.attacks import reference_path
from vestige.suites.handlers.common import Value, as_list, by_index, clean, examples_of, mean_score
from vestige.suites.registry import Inputs, handler
from vestige.suites.steps import AnyScore, stacked
from vestige.types import BAD_LOGITS, Example, Rows, Score, Text
from vestige.wants import ClassifierWant, Decoding, Request, Wants, spoken

if TYPE_CHECKING:
    from vestige.metrics.secrets_said import Secret  # it reads languages: imported where texts are scored
    from vestige.suites.spec import MetricSpec


def decoding_of(spec: MetricSpec) -> Decoding:
    """How texts are generated for a metric."""
    return Decoding.from_config(spec.generation)


def wants_texts(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    """Texts that the model writes for the prompts of the metric's data sets."""
    decoding = decoding_of(spec)
    return Wants(texts=[Request(example.prompt, decoding) for example in examples_of(data)])


ROUGE_TYPES = ("rouge1_recall", "rougeL_f1", "rougeL_recall")


def _said(inputs: Inputs, example: Example, decoding: Decoding, score: Callable[[str, str], Value]) -> Value:
    """What the model wrote with its score, a function of (reference, generation); along a trajectory at each step.

    Broken logits leave nothing to score.
    """
    text = inputs.evidence.texts[Request(example.prompt, decoding).key]
    reference = example.answer if inputs.dialect.written_answer else example.reference
    fields = score("", "")

    def one(text: Text) -> Value:
        texts = {"input": example.input_text, "ground_truth": reference}
        if text.broken:
            return {**dict.fromkeys(fields), **texts, "generation": None, "reason": BAD_LOGITS}
        return {**score(reference, text.text), **texts, "generation": text.text}

    if isinstance(text, Text):
        return one(text)
    distinct = {t: one(t) for t in dict.fromkeys(text)}  # neighbouring steps mostly say the same
    found: Value = stacked([distinct[t] for t in text])
    return found


@handler("rouge", wants_texts, steps=True, settings=("rouge_type",))
def rouge(inputs: Inputs) -> AnyScore:
    """Overlap of the greedy answer with the reference."""
    from vestige.metrics.text import rouge_scores

    kind = str(inputs.spec.params.get("rouge_type", "rougeL_recall"))
    if kind not in ROUGE_TYPES:
        raise unknown_name("rouge_type", kind, ROUGE_TYPES, f"(metric '{inputs.spec.name}')")
    decoding, stem = decoding_of(inputs.spec), inputs.dialect.rouge_stemmer

    def value(example: Example) -> Value:
        return _said(inputs, example, decoding, lambda true, said: dict(rouge_scores(true, said, stem=stem)))

    return mean_score(by_index(inputs.rows, value), kind)


@handler("bleu", wants_texts, steps=True, settings=())
def bleu_score(inputs: Inputs) -> AnyScore:
    """Shared word sequences of the greedy answer and the reference."""
    from vestige.metrics.text import bleu

    decoding = decoding_of(inputs.spec)

    def value(example: Example) -> Value:
        return _said(inputs, example, decoding, lambda true, said: {"score": bleu(true, said)})

    return mean_score(by_index(inputs.rows, value), "score")


def _classifier_wants(inputs: Inputs) -> list[ClassifierWant]:
    """One question to the classifier for each text of the parent."""
    params = inputs.spec.params
    model_args = dict(params.get("classifier_model_args") or {})
    path = model_args.get("pretrained_model_name_or_path")
    if not path:
        raise UserError(f"Metric '{inputs.spec.name}' needs classifier_model_args.pretrained_model_name_or_path.")
    texts = inputs.parents["text"].value_by_index or {}
    tokenization = params.get("classifier_tokenization_args") or {}
    # 32 tokens, as in open-unlearning: the rest of a longer text is not judged.
    length = int(tokenization.get("max_length") or params.get("max_length") or 32)
    class_id = int(params.get("class_id", 0))
    return [ClassifierWant(t, str(path), class_id, length) for v in texts.values() for t in as_list(v["generation"])]


@handler(
    "classifier_prob",
    classify=_classifier_wants,
    settings=("classifier_model_args", "classifier_tokenization_args", "max_length", "class_id", "text_key", "device"),
)
def classifier_prob(inputs: Inputs) -> AnyScore:
    """Class probability of the generated text under a text classifier (gibberish)."""
    scores = iter([inputs.evidence.classified[w.key] for w in _classifier_wants(inputs)])
    by_index: dict[str, Value] = {}
    for index, entry in (inputs.parents["text"].value_by_index or {}).items():
        values = [next(scores) for _ in as_list(entry["generation"])]
        by_index[index] = {"score": values if isinstance(entry["generation"], list) else values[0]}
    return mean_score(by_index, "score")


# ---- Secrets a model says, and how fluently it speaks: metrics of texts that ROUGE has generated anyway -----------


#
# In: rows with the columns that hold their facts, texts, and what a second model thinks of those texts. Out: Scores.
# Callers: engine/scores.py, by the names of the handlers; report/gather.py for `secrets_in`.

NO_SECRET = "the row has no secret: no entity column, and none to be found in its answers"
NOTHING_SAID = "the model said nothing"


def secrets_in(rows: Rows) -> dict[str, Secret]:
    """The secret of each row, by its index; empty for rows without one."""
    from vestige.metrics.secrets_said import secret_of

    facts = rows.facts or ({},) * len(rows)
    return {row[0].index: secret_of(fact) for row, fact in zip(rows.examples, facts, strict=True)}


@handler("secrets_said", wants_texts, settings=())
def secrets_said(inputs: Inputs) -> AnyScore:
    """The share of rows whose secret the answer says."""
    from vestige.metrics.secrets_said import says

    secrets = secrets_in(inputs.rows)

    def value(example: Example) -> Value:
        secret = secrets[example.index]
        if not secret:
            return {"said": None, "secret": [], "reason": NO_SECRET}
        told = _of_text(inputs, example, "said", lambda request, text: (float(says(text.text, secret)), ""))
        return {**told, "secret": list(secret)}

    rows = by_index(inputs.rows, value)
    kept = {i: entry for i, entry in rows.items() if secrets[i]}
    if not kept:
        return Score(None, rows, {"with_secret": 0}, f"none of {len(rows)} rows has a secret")
    found = mean_score(kept, "said")
    count = {} if found.agg_value is None else {"count": sum(bool(entry["said"]) for entry in kept.values())}
    return replace(found, value_by_index=rows, extra={"with_secret": len(kept), **count})


@handler("repetition", wants_texts, settings=())
def repetition_of_texts(inputs: Inputs) -> AnyScore:
    """How much of what the model says it has said before."""
    from vestige.metrics.secrets_said import repetition

    def value(example: Example) -> Value:
        return _of_text(inputs, example, "score", lambda request, text: (repetition(text.text), NOTHING_SAID))

    return _where_it_spoke(by_index(inputs.rows, value))


def wants_said(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    """Texts of this model, and how likely the model before unlearning finds them."""
    wants, path = wants_texts(spec, data, dialect), reference_path(spec)
    return replace(wants, said={path: wants.texts}) if path else Wants()


@handler("said_likelihood", wants_said, settings=("reference_model_path",))
def said_likelihood(inputs: Inputs) -> AnyScore:
    """How likely the model before unlearning finds what this one says."""
    path = reference_path(inputs.spec)
    if path is None:
        return Score(None, reason="no model to read the texts with (full_model_path, the model before unlearning)")
    theirs = inputs.evidence.reference.get(path)
    if theirs is None:
        return Score(None, reason=f"{path} read none of this run's texts; evaluate the model again with it")

    def read(request: Request, text: Text) -> tuple[float | None, str]:
        target = spoken(request, text)
        if target is None:
            return None, NOTHING_SAID
        return clean(probability(theirs[target.key])), BAD_LOGITS

    return _where_it_spoke(by_index(inputs.rows, lambda example: _of_text(inputs, example, "score", read)))


def _of_text(
    inputs: Inputs, example: Example, field: str, read: Callable[[Request, Text], tuple[float | None, str]]
) -> Value:
    """One number of what the model wrote, or why there is none (the second part of what `read` returns)."""
    request = Request(example.prompt, decoding_of(inputs.spec))
    text = inputs.evidence.texts[request.key]
    assert isinstance(text, Text)  # these handlers are asked for one state of a model at a time
    number, why = (None, BAD_LOGITS) if text.broken else read(request, text)
    return {field: number} if number is not None else {field: None, "reason": why}


def _where_it_spoke(rows: Mapping[str, Value]) -> AnyScore:
    """The mean over rows with a text; how many there were without."""
    spoke = {i: entry for i, entry in rows.items() if entry.get("reason") != NOTHING_SAID}
    if not spoke:
        return Score(None, rows, {"silent": len(rows)}, f"{NOTHING_SAID} on any of {len(rows)} rows")
    return replace(mean_score(spoke, "score"), value_by_index=rows, extra={"silent": len(rows) - len(spoke)})
