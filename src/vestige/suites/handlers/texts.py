"""What the model says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vestige.errors import UserError, unknown_name
from vestige.metrics.dialects import Dialect
from vestige.suites.handlers.common import Value, as_list, by_index, mean_score
from vestige.suites.registry import Inputs, handler
from vestige.suites.steps import Scored, stacked
from vestige.types import BAD_LOGITS, Example, Rows, Text
from vestige.wants import ClassifierWant, Decoding, Request, Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec


def decoding_of(spec: MetricSpec) -> Decoding:
    return Decoding.from_config(spec.generation)


def wants_texts(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    """Texts that the model writes for the prompts of the metric's data sets."""
    decoding = decoding_of(spec)
    return Wants(texts=[Request(e.prompt, decoding) for rows in data.values() for row in rows.examples for e in row])


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
def rouge(inputs: Inputs) -> Scored:
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
def bleu_score(inputs: Inputs) -> Scored:
    """Shared word sequences of the greedy answer and the reference."""
    from vestige.metrics.text import bleu

    decoding = decoding_of(inputs.spec)

    def value(example: Example) -> Value:
        return _said(inputs, example, decoding, lambda true, said: {"score": bleu(true, said)})

    return mean_score(by_index(inputs.rows, value), "score")


def _classifier_wants(inputs: Inputs) -> list[ClassifierWant]:
    params = inputs.spec.params
    model_args = dict(params.get("classifier_model_args") or {})
    path = model_args.get("pretrained_model_name_or_path")
    if not path:
        raise UserError(f"Metric '{inputs.spec.name}' needs classifier_model_args.pretrained_model_name_or_path.")
    texts = inputs.parents["text"].value_by_index or {}
    tokenization = params.get("classifier_tokenization_args") or {}
    length = int(tokenization.get("max_length") or params.get("max_length") or 32)
    class_id = int(params.get("class_id", 0))
    return [ClassifierWant(t, str(path), class_id, length) for v in texts.values() for t in as_list(v["generation"])]


@handler(
    "classifier_prob",
    classify=_classifier_wants,
    settings=("classifier_model_args", "classifier_tokenization_args", "max_length", "class_id", "text_key", "device"),
)
def classifier_prob(inputs: Inputs) -> Scored:
    """Class probability of the generated text under a text classifier (gibberish)."""
    scores = iter([inputs.evidence.classified[w.key] for w in _classifier_wants(inputs)])
    by_index: dict[str, Value] = {}
    for index, entry in (inputs.parents["text"].value_by_index or {}).items():
        values = [next(scores) for _ in as_list(entry["generation"])]
        by_index[index] = {"score": values if isinstance(entry["generation"], list) else values[0]}
    return mean_score(by_index, "score")
