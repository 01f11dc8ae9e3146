"""Whether numbers of several runs may be combined: one check for every verb that does so.

Two numbers of one metric are comparable when the rows were put to both models in the same way (chat template, system
prompt, date), by the same definitions, on the same rows and at the same precision. What a run does not record is not
compared: results of other tools state none of this.

    manifest, metric --number_of--> Number --mixture--> one sentence, or nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vestige.errors import UserError
from vestige.store.kinds import data_fingerprints
from vestige.types import MIXTURE

UNSTATED = "not stated"


@dataclass(frozen=True)
class Number:
    """One metric of one model, and how it was measured."""

    value: float | None
    protocol: str = UNSTATED
    rows: frozenset[str] = frozenset()  # fingerprints of the data sets, where they are known
    handler: str = ""
    definition: Mapping[str, Any] = field(default_factory=dict)  # the metric's settings, its data's and its parents'
    prompt: str = ""  # what the template wrote around a stand-in question, where it is known
    vocabulary: str = ""  # of the tokenizer: models of other families have templates of their own
    precision: str = ""  # of the weights; empty where it is not known, or quantised


def number_of(manifest: Mapping[str, Any], metric: str, value: float | None = None) -> Number:
    """A metric's number as the manifest of its run describes it."""
    return Number(
        value,
        protocol_of(manifest),
        data_fingerprints(manifest, metric),
        prompt=str(manifest.get("prompt") or ""),
        vocabulary=str((manifest.get("tokenizer") or {}).get("vocabulary") or ""),
        precision=precision_of(manifest),
    )


def protocol_of(manifest: Mapping[str, Any]) -> str:
    """How a run put its rows to the model: chat or raw, the fixed parts of the prompt, the dialect of definitions.

    A setting that the chat template does not print (most print no date) is left out.

    >>> protocol_of({"template": {"apply_chat_template": True}, "dialect": {"name": "strict"}})
    'chat, dialect strict'
    >>> protocol_of({})
    'not stated'
    """
    if "template" not in manifest:
        return UNSTATED
    template = manifest["template"]
    parts = ["chat" if template.get("apply_chat_template") else "raw"]
    # Not the date: it matters where the template prints it, and then the prompts themselves differ.
    fixed = ("system_prompt", "system_prompt_with_special_tokens")
    tags = () if template.get("apply_chat_template") else ("user_start_tag", "asst_start_tag")
    prompt = manifest.get("prompt")
    for key in (*fixed, *tags):
        text = str(template.get(key) or "")
        if text and (prompt is None or text.strip() in prompt):
            parts.append(f"{key.replace('_', ' ')} {text!r}")
    dialect = (manifest.get("dialect") or {}).get("name")
    return ", ".join([*parts, *([f"dialect {dialect}"] if dialect else [])])


def precision_of(manifest: Mapping[str, Any]) -> str:
    """The precision of a run's weights.

    A quantised model is the same model under an attack, and is compared with itself and its references on purpose.
    """
    model = manifest.get("model") or {}
    return "" if model.get("quantization") else str(model.get("dtype") or "")


def mixture(numbers: Mapping[str, Number], metric: str) -> str:
    """Why the numbers of a metric (by model) are not comparable, naming the first two sides; empty if they are."""
    first = next(iter(numbers.values()), Number(None))
    prompts = {name: n.prompt for name, n in numbers.items() if n.vocabulary == first.vocabulary}
    aspects = (
        ("mixes protocols: {} is '{}', {} is '{}'", {name: n.protocol for name, n in numbers.items()}),
        ("mixes prompts: {} was asked {!r}, {} {!r}", prompts),
        ("mixes precisions: {} has weights in {}, {} in {}", {name: n.precision for name, n in numbers.items()}),
    )
    for words, stated in aspects:
        if sides := _two_sides(stated):
            return f"{metric} {words.format(*sides)}"
    if sides := _two_sides({name: n.rows for name, n in numbers.items()}):
        return f"{metric} of {sides[0]} and of {sides[2]} was measured on different rows"
    return ""


def _two_sides(stated: Mapping[str, Any]) -> tuple[str, Any, str, Any] | None:
    """The first model that states something, and the first that states something else."""
    known = [(name, value) for name, value in stated.items() if value]
    for name, value in known:
        if value != known[0][1]:
            return *known[0], name, value
    return None


def refuse_mixture(found: str, accept: bool) -> str:
    """The note of an accepted mixture; empty where there is none. A mixture that is not accepted is refused."""
    if not found:
        return ""
    if not accept:
        raise UserError(f"{found}; evaluate both in the same way, or accept the mixture with --accept-mixture.")
    return f"{MIXTURE}{found}"


def mixtures(measured: Iterable[tuple[str, Mapping[str, Number]]], accept: bool) -> list[str]:
    """The notes of every accepted mixture, each once with the metrics that it concerns.

    `measured`: a metric, and its numbers by model.
    """
    metrics_by_reason: dict[str, list[str]] = {}
    for metric, numbers in measured:
        if found := mixture(numbers, metric):
            refuse_mixture(found, accept)
            metrics_by_reason.setdefault(found.removeprefix(metric), []).append(metric)
    return [f"{MIXTURE}{', '.join(metrics)}{reason}" for reason, metrics in metrics_by_reason.items()]
