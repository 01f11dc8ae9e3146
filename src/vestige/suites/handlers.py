"""The built-in handlers: from evidence and parents to the result shapes of open-unlearning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.compare import vectors
from vestige.errors import UserError, unknown_name
from vestige.metrics import membership, memorisation, utility
from vestige.metrics.dialects import Dialect
from vestige.metrics.rouge import rouge_scores
from vestige.suites.registry import Inputs, handler
from vestige.types import Example, Rows, Score, TokenStats
from vestige.wants import ClassifierWant, Decoding, GradientWant, Request, Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

Value = dict[str, Any]
NO_TOKENS = "the answer leaves no target tokens"
BAD_LOGITS = "the model's logits are NaN or infinite"


# ---- wants -----------------------------------------------------------------------------------------------


def _targets(data: Mapping[str, Rows]) -> list[Any]:
    return [e.target for rows in data.values() for row in rows.examples for e in row if e.target]


def wants_answers(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    return Wants(answers=_targets(data))


def decoding_of(spec: MetricSpec) -> Decoding:
    return Decoding.from_config(spec.generation)


def wants_texts(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    decoding = decoding_of(spec)
    return Wants(texts=[Request(e.prompt, decoding) for rows in data.values() for row in rows.examples for e in row])


def _gradient(spec: MetricSpec, example: Example, dialect: Dialect) -> GradientWant | None:
    if example.target is None:
        return None
    p = str(spec.params.get("p", 2)).removesuffix(".0")
    return GradientWant(example.target, p, spec.handler in dialect.drop_last, dialect.gradnorm_train_mode)


def wants_gradients(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    wanted = (_gradient(spec, e, dialect) for rows in data.values() for row in rows.examples for e in row)
    return Wants(gradients=[w for w in wanted if w is not None])


def wants_reference(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    targets = _targets(data)
    path = reference_path(spec)
    return Wants(answers=targets, reference={path: targets}) if path else Wants()


def reference_path(spec: MetricSpec) -> str | None:
    path = spec.params.get("reference_model_path")
    return None if path in (None, "", "???") else str(path)


# ---- per-example values ----------------------------------------------------------------------------------


def _stats(inputs: Inputs, example: Example) -> TokenStats | None:
    """The evidence for one answer in this dialect's token set; None when there is no token to score."""
    if example.target is None:
        return None
    t = inputs.evidence.answers[example.target.key]
    if inputs.spec.handler in inputs.dialect.drop_last:
        t = t.without_last()
    return t if t.tokens else None


def _clean(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number


def _by_index(rows: Rows, value: Callable[[Example], Value]) -> dict[str, Value]:
    """One entry a row; with several answers a row, each field is the list over answers."""
    out: dict[str, Value] = {}
    for row in rows.examples:
        values = [value(e) for e in row]
        if rows.many:
            fields = dict.fromkeys(k for v in values for k in v if k != "reason")
            entry: Value = {k: [v.get(k) for v in values] for k in fields}
            reasons = [v["reason"] for v in values if v.get("reason")]
            if reasons:
                entry["reason"] = reasons[0]
        else:
            entry = values[0]
        out[row[0].index] = entry
    return out


def _mean_score(by_index: Mapping[str, Value], field: str, **extra: Any) -> Score:
    """The mean over rows (of the mean over a row's answers).

    Rows without target tokens are left out, counted and named. A row the model answered with NaN makes the whole
    mean missing: leaving it out would flatter a broken model.
    """
    rows: list[float] = []
    left_out: list[str] = []
    broken: list[str] = []
    for index, entry in by_index.items():
        values = entry[field] if isinstance(entry[field], list) else [entry[field]]
        good = [v for v in values if v is not None]
        if entry.get("reason") == BAD_LOGITS:
            broken.append(index)
        elif good:
            rows.append(float(np.mean(good)))
        if len(good) < len(values) and entry.get("reason") != BAD_LOGITS:
            left_out.append(index)
    notes = (f"{len(left_out)} row(s) with {NO_TOKENS}: {', '.join(left_out[:10])}",) if left_out else ()
    if broken:
        reason = f"{BAD_LOGITS} on {len(broken)} of {len(by_index)} rows (first: {broken[0]})"
        return Score(None, by_index, extra, reason, notes)
    if not rows:
        return Score(None, by_index, extra, "no row could be scored", notes)
    return Score(float(np.mean(rows)), by_index, extra, "", notes)


def _one_stat(inputs: Inputs, compute: Callable[[TokenStats], Mapping[str, Any]]) -> Callable[[Example], Value]:
    """A per-example value from TokenStats; missing values carry their reason, or the dialect's stand-in."""
    fields = list(compute(_DUMMY))

    def value(example: Example) -> Value:
        t = _stats(inputs, example)
        if t is None:
            stand_in = inputs.dialect.empty.get(inputs.spec.handler)
            return {**dict.fromkeys(fields, stand_in), **({} if stand_in is not None else {"reason": NO_TOKENS})}
        if np.isnan(t.logprob).any():
            return {**dict.fromkeys(fields), "reason": BAD_LOGITS}
        return {k: (v.tolist() if np.ndim(v) else float(v)) for k, v in compute(t).items()}

    return value


_DUMMY = TokenStats(
    *(np.zeros(1, np.int32) for _ in range(2)), *(np.zeros(1, np.float32) for _ in range(3)), np.zeros(1), 1
)


# ---- what the model finds likely -------------------------------------------------------------------------


@handler("probability", wants_answers)
def probability(inputs: Inputs) -> Score:
    """Length-normalised probability of the answer."""

    def compute(t: TokenStats) -> Mapping[str, Any]:
        return {"prob": memorisation.probability(t), "avg_loss": memorisation.loss(t)}

    return _mean_score(_by_index(inputs.rows, _one_stat(inputs, compute)), "prob")


@handler("probability_confidence_ordered", wants_answers)
def probability_confidence_ordered(inputs: Inputs) -> Score:
    """The same probability, with the token probabilities listed from most to least confident."""

    def compute(t: TokenStats) -> Mapping[str, Any]:
        return {
            "prob": memorisation.probability_confidence_ordered(t),
            "avg_loss": memorisation.loss(t),
            "confidence_ordered_probs": memorisation.confidence_order(t),
        }

    return _mean_score(_by_index(inputs.rows, _one_stat(inputs, compute)), "prob")


@handler("loss", wants_answers)
def loss(inputs: Inputs) -> Score:
    """Mean negative log-probability of the answer's tokens."""
    value = _one_stat(inputs, lambda t: {"score": memorisation.loss(t)})
    return _mean_score(_by_index(inputs.rows, value), "score")


@handler("exact_memorization", wants_answers)
def exact_memorization(inputs: Inputs) -> Score:
    """Share of answer tokens that are the model's first choice."""
    value = _one_stat(inputs, lambda t: {"score": memorisation.exact_memorization(t)})
    return _mean_score(_by_index(inputs.rows, value), "score")


@handler("extraction_strength", wants_answers)
def extraction_strength(inputs: Inputs) -> Score:
    """Share of the answer the model finishes without a miss."""
    floor = inputs.dialect.extraction_floor
    value = _one_stat(inputs, lambda t: {"score": memorisation.extraction_strength(t, floor)})
    return _mean_score(_by_index(inputs.rows, value), "score")


# ---- what it says ----------------------------------------------------------------------------------------

ROUGE_TYPES = ("rouge1_recall", "rougeL_f1", "rougeL_recall")


@handler("rouge", wants_texts)
def rouge(inputs: Inputs) -> Score:
    """Overlap of the greedy answer with the reference."""
    kind = str(inputs.spec.params.get("rouge_type", "rougeL_recall"))
    if kind not in ROUGE_TYPES:
        raise unknown_name("rouge_type", kind, ROUGE_TYPES, f"(metric '{inputs.spec.name}')")
    decoding = decoding_of(inputs.spec)

    def value(example: Example) -> Value:
        generation = inputs.evidence.texts[Request(example.prompt, decoding).key].text
        reference = example.answer if inputs.dialect.written_answer else example.reference
        return {
            **rouge_scores(reference, generation),
            "input": example.input_text,
            "ground_truth": reference,
            "generation": generation,
        }

    return _mean_score(_by_index(inputs.rows, value), kind)


def _classifier_wants(inputs: Inputs) -> list[ClassifierWant]:
    params = inputs.spec.params
    model_args = dict(params.get("classifier_model_args") or {})
    path = model_args.get("pretrained_model_name_or_path")
    if not path:
        raise UserError(f"Metric '{inputs.spec.name}' needs classifier_model_args.pretrained_model_name_or_path.")
    texts = inputs.parents["text"].value_by_index or {}
    length = int((params.get("classifier_tokenization_args") or {}).get("max_length", params.get("max_length", 32)))
    class_id = int(params.get("class_id", 0))
    return [ClassifierWant(t, str(path), class_id, length) for v in texts.values() for t in _as_list(v["generation"])]


def _as_list(x: Any) -> list[Any]:
    return x if isinstance(x, list) else [x]


@handler("classifier_prob", classify=_classifier_wants)
def classifier_prob(inputs: Inputs) -> Score:
    """Class probability of the generated text under a text classifier (gibberish)."""
    scores = iter([inputs.evidence.classified[w.key] for w in _classifier_wants(inputs)])
    by_index: dict[str, Value] = {}
    for index, entry in (inputs.parents["text"].value_by_index or {}).items():
        values = [next(scores) for _ in _as_list(entry["generation"])]
        by_index[index] = {"score": values if isinstance(entry["generation"], list) else values[0]}
    return _mean_score(by_index, "score")


# ---- ratios of parents -----------------------------------------------------------------------------------


def _need(inputs: Inputs, *keys: str) -> str:
    """Why the parents cannot serve, or nothing."""
    for key in keys:
        if key not in inputs.parents:
            raise UserError(f"Metric '{inputs.spec.name}' needs a parent with access_key '{key}' in pre_compute.")
        parent = inputs.parents[key]
        if parent.value_by_index is None:
            return f"its parent '{inputs.spec.parents[key]}' is missing: {parent.reason or 'no per-row values'}"
    return ""


def _pairs(inputs: Inputs) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Rows of the parents 'correct' and 'wrong', matched by index."""
    correct, wrong = (inputs.parents[k].value_by_index or {} for k in ("correct", "wrong"))
    if set(correct) != set(wrong):
        odd = sorted(set(correct) ^ set(wrong))[:5]
        raise UserError(f"Metric '{inputs.spec.name}': its parents cover different rows (first: {', '.join(odd)}).")
    return [(i, correct[i], wrong[i]) for i in correct]


def _present(entry: Mapping[str, Any], field: str) -> list[float]:
    return [v for v in _as_list(entry[field]) if v is not None]


@handler("probability_w_options")
def probability_w_options(inputs: Inputs) -> Score:
    """The truth's share of the probability of all options."""
    if missing := _need(inputs, "correct", "wrong"):
        return Score(None, reason=missing)
    by_index: dict[str, Value] = {}
    for index, right, wrong in _pairs(inputs):
        p, q = _present(right, "prob"), _present(wrong, "prob")
        if p and q:
            by_index[index] = {"prob": float(utility.probability_w_options(np.mean(p), np.asarray(q)))}
        else:
            by_index[index] = {"prob": None, "reason": right.get("reason") or wrong.get("reason") or NO_TOKENS}
    return _mean_score(by_index, "prob")


@handler("truth_ratio")
def truth_ratio(inputs: Inputs) -> Score:
    """P(wrong answers) / P(right answer)."""
    name = str(inputs.spec.params.get("aggregator", "closer_to_1_better"))
    if name not in utility.TRUTH_RATIO_AGGREGATORS:
        raise unknown_name("aggregator", name, utility.TRUTH_RATIO_AGGREGATORS, f"(metric '{inputs.spec.name}')")
    if missing := _need(inputs, "correct", "wrong"):
        return Score(None, reason=missing)
    by_index: dict[str, Value] = {}
    for index, right, wrong in _pairs(inputs):
        c, w = _present(right, "avg_loss"), _present(wrong, "avg_loss")
        if c and w:
            # Averaging losses first makes each probability the geometric mean over answers.
            ratio = utility.truth_ratio(np.mean(c), np.mean(w), prob_mean=name == "prob_mean")
            by_index[index] = {"score": float(ratio)}
        else:
            by_index[index] = {"score": None, "reason": right.get("reason") or wrong.get("reason") or NO_TOKENS}
    plain = _mean_score(by_index, "score")
    if plain.agg_value is None:
        return plain
    ratios = np.asarray([v["score"] for v in by_index.values() if v["score"] is not None])
    value = float(np.mean(utility.TRUTH_RATIO_AGGREGATORS[name](ratios)))
    return Score(value, by_index, notes=plain.notes)


@handler("hm_aggregate")
def hm_aggregate(inputs: Inputs) -> Score:
    """Harmonic mean of the parents' values (model utility)."""
    missing = [(inputs.spec.parents[k], s.reason) for k, s in inputs.parents.items() if s.agg_value is None]
    if missing:
        name, why = missing[0]
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        return Score(None, reason=f"its parent '{name}' is missing{more}: {why}")
    return Score(vectors.harmonic_mean([float(s.agg_value or 0.0) for s in inputs.parents.values()]))


# ---- comparisons with a reference run --------------------------------------------------------------------


def _scores(score: Score) -> list[float]:
    return [v["score"] for v in (score.value_by_index or {}).values() if v["score"] is not None]


@handler("ks_test")
def ks_test(inputs: Inputs) -> Score:
    """Two-sided KS p-value of the truth ratios against the retain model's (forget quality)."""
    if missing := _need(inputs, "forget"):
        return Score(None, reason=missing)
    reference = inputs.reference("retain")
    if reference is None or not reference.value_by_index:
        return Score(None, reason=_no_reference(inputs))
    mine, theirs = _scores(inputs.parents["forget"]), _scores(reference)
    if not mine or not theirs:
        return Score(None, reason="no row has a truth ratio to compare")
    test = vectors.ks(mine, theirs)
    extra = {"ks_statistic": test.distance, "n": test.n, "m": test.m, "log10_p": test.log10_p}
    return Score(test.p, extra=extra)


def _no_reference(inputs: Inputs) -> str:
    paths = [r.path for r in inputs.spec.references]
    if any(paths):
        wanted = ", ".join(m for r in inputs.spec.references for m in r.include)
        return f"the reference file {next(p for p in paths if p)} holds no {wanted}"
    return "no retain logs given (retain_logs_path / --retain-logs): evaluate the retain model first"


def _against_reference(inputs: Inputs, formula: Callable[[float, float], float]) -> Score:
    parent = inputs.parents.get("forget")
    if parent is None:
        raise UserError(f"Metric '{inputs.spec.name}' needs a parent with access_key 'forget' in pre_compute.")
    if parent.agg_value is None:
        return Score(None, reason=f"its parent '{inputs.spec.parents['forget']}' is missing: {parent.reason}")
    reference = inputs.reference("retain")
    if reference is not None and reference.agg_value is not None:
        return Score(formula(parent.agg_value, reference.agg_value))
    stand_in = float(inputs.spec.params.get("ref_value", 0.5))
    note = f"compared with ref_value {stand_in}, not with a retain model: {_no_reference(inputs)}"
    return Score(formula(parent.agg_value, stand_in), notes=(note,))


@handler("privleak")
def privleak(inputs: Inputs) -> Score:
    """Relative change of 1 - AUC against the retain model's, in per cent."""
    return _against_reference(inputs, vectors.privleak)


@handler("rel_diff")
def rel_diff(inputs: Inputs) -> Score:
    """Relative difference to the retain model's value, in per cent."""
    return _against_reference(inputs, vectors.rel_diff)


# ---- membership inference --------------------------------------------------------------------------------


def _attack(inputs: Inputs, value: Callable[[Example], Value]) -> Score:
    """AUC of an attack score, forget rows against holdout rows, with both sets' scores."""
    for key in ("forget", "holdout"):
        if key not in inputs.data:
            raise UserError(f"Metric '{inputs.spec.name}' needs a data set with access_key '{key}'.")
    parts = {key: _mean_score(_by_index(inputs.data[key], value), "score") for key in ("forget", "holdout")}
    extra: dict[str, Any] = {k: s.to_json() for k, s in parts.items()}
    reason = next((f"{k}: {s.reason}" for k, s in parts.items() if s.agg_value is None), "")
    notes = tuple(f"{k}: {n}" for k, s in parts.items() for n in s.notes)
    if reason:
        return Score(None, extra={**extra, "auc": None}, reason=reason, notes=notes)
    area = vectors.auc(*(_scores(parts[k]) for k in ("forget", "holdout")))
    return Score(area, extra={**extra, "auc": area}, notes=notes)


@handler("mia_loss", wants_answers)
def mia_loss(inputs: Inputs) -> Score:
    """Attack by loss."""
    return _attack(inputs, _one_stat(inputs, lambda t: {"score": membership.mia_loss(t)}))


@handler("mia_zlib", wants_answers)
def mia_zlib(inputs: Inputs) -> Score:
    """Attack by loss over compressed length."""

    def value(example: Example) -> Value:
        text = example.answer if inputs.dialect.written_answer else example.label_text
        return _one_stat(inputs, lambda t: {"score": membership.mia_zlib(t, text)})(example)

    return _attack(inputs, value)


def _k(inputs: Inputs) -> float:
    k = float(inputs.spec.params.get("k", 0.2))
    if not 0 < k <= 1:
        raise UserError(f"Metric '{inputs.spec.name}': k must lie in (0, 1], it is {k}.")
    return k


@handler("mia_min_k", wants_answers)
def mia_min_k(inputs: Inputs) -> Score:
    """Attack by the least likely tokens."""
    k = _k(inputs)
    return _attack(inputs, _one_stat(inputs, lambda t: {"score": membership.mia_min_k(t, k)}))


@handler("mia_min_k_plus_plus", wants_answers)
def mia_min_k_plus_plus(inputs: Inputs) -> Score:
    """Attack by the least likely tokens, standardised over the vocabulary."""
    k = _k(inputs)
    return _attack(inputs, _one_stat(inputs, lambda t: {"score": membership.mia_min_k_plus_plus(t, k)}))


@handler("mia_gradnorm", wants_gradients)
def mia_gradnorm(inputs: Inputs) -> Score:
    """Attack by the norm of the loss's gradient."""

    def value(example: Example) -> Value:
        want = _gradient(inputs.spec, example, inputs.dialect)
        norm = None if want is None else _clean(inputs.evidence.gradients[want.key])
        if norm is None:
            stand_in = inputs.dialect.empty.get("mia_gradnorm")
            return {"score": stand_in, **({} if stand_in is not None else {"reason": NO_TOKENS})}
        return {"score": membership.mia_gradnorm(norm)}

    return _attack(inputs, value)


@handler("mia_reference", wants_reference)
def mia_reference(inputs: Inputs) -> Score:
    """Attack by the loss beside a reference model's."""
    path = reference_path(inputs.spec)
    if path is None:
        return Score(None, reason="no reference model given (reference_model_path / --reference-model)")
    reference = inputs.evidence.reference[path]

    def compute(example: Example) -> Value:
        if example.target is None:
            return {"score": None, "reason": NO_TOKENS}
        mine, theirs = inputs.evidence.answers[example.target.key], reference[example.target.key]
        gap = _clean(membership.mia_reference(memorisation.loss(mine), memorisation.loss(theirs)))
        return {"score": gap} if gap is not None else {"score": None, "reason": BAD_LOGITS}

    return _attack(inputs, compute)
