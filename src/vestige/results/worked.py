"""Worked examples for `vestige explain`: a made-up answer goes through the real handler, once in each dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from vestige.metrics.cards import CARDS, card_of
from vestige.metrics.dialects import Dialect
from vestige.suites.registry import HANDLERS, Evidence, Inputs
from vestige.suites.spec import DataSpec, MetricSpec, SuiteSpec
from vestige.sums import mean
from vestige.types import Example, Prompt, Rows, Score, Target, Text, TokenStats, Trace, stats
from vestige.wants import ClassifierWant, Decoding, GradientWant, PatchInto, PatchWant, Request, spoken

Line = tuple[str, Callable[[Dialect], float | None]]  # what is computed, and the computation


@dataclass
class Worked:
    """What is given, in words, and what comes out of it."""

    given: list[str]
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """A made-up answer: its words, whether each was the first choice, and its log-probability. The last is the end."""

    words: tuple[str, ...]
    hit: tuple[int, ...]
    logprob: tuple[float, ...]

    @property
    def text(self) -> str:
        return " ".join(w for w in self.words if w != END)

    @property
    def stats(self) -> TokenStats:
        mean = np.asarray([-1.0, -2.0, -1.5, -1.0, -1.0][: len(self.hit)])
        return stats(hit=self.hit, logprob=self.logprob, mean=mean, std=0.5)

    def example(self, index: int, number: int) -> Example:
        """`number` tells made-up answers apart: it is their prompt's only token."""
        target = Target((number, *range(100, 100 + len(self.words))), 1)
        return Example(str(index), target, Prompt((number,)), self.text, "", self.text, self.text)

    def show(self) -> str:
        cells = (f"{w} {p:g}{'' if h else ' miss'}" for w, h, p in zip(self.words, self.hit, self.logprob, strict=True))
        return "  ".join(f"[{c}]" for c in cells)


END = "<eos>"
LAST_MISSED = Answer(("Ada", "Byron", "wrote", END), (1, 1, 0, 0), (-0.1, -0.2, -3.0, -2.0))
END_HIT = Answer(("Ada", "Byron", "wrote", END), (1, 1, 0, 1), (-0.1, -0.2, -3.0, -0.1))
ONE_WRONG = Answer(("Ada", END), (0, 1), (-4.0, -0.1))
# For attacks: five tokens, so that leaving the end out changes how many are the lowest two fifths.
SEEN = Answer(("Ada", "Byron", "wrote", "notes", END), (1, 1, 1, 1, 0), (-0.1, -0.2, -0.4, -0.3, -3.2))
SEEN_TOO = Answer(("Lem", "Fox", "built", "clocks", END), (1, 1, 0, 1, 1), (-0.1, -0.2, -1.5, -0.2, -0.1))
FRESH = Answer(("Eve", "Moor", "sang", "hymns", END), (0, 1, 0, 0, 1), (-2.5, -0.8, -3.5, -2.0, -0.1))
FRESH_TOO = Answer(("Ira", "Vale", "ran", "mills", END), (1, 0, 1, 1, 1), (-0.3, -2.2, -0.4, -0.9, -0.1))


def spec_of(handler: str, params: Mapping[str, Any], parents: Sequence[str] = ()) -> MetricSpec:
    return MetricSpec(name=handler, handler=handler, parents={p: p for p in parents}, params=dict(params))


def _rows(answers: Sequence[Answer], first: int) -> Rows:
    return Rows("made-up", tuple((a.example(i, first + i),) for i, a in enumerate(answers)), many=False)


def _bank(rows: Rows, answers: Sequence[Answer], shift: float = 0.0) -> dict[str, TokenStats]:
    out = {}
    for row, answer in zip(rows.examples, answers, strict=True):
        assert row[0].target is not None
        t = answer.stats
        out[row[0].target.key] = replace(t, logprob=t.logprob + np.float32(shift))
    return out


def _run(handler: str, params: Mapping[str, Any], **given: Any) -> Callable[[Dialect], Score]:
    """The real handler on given inputs, as a function of the dialect."""
    spec = spec_of(handler, params, list(given.get("parents") or {}))
    filled = {"data": {}, "evidence": Evidence(), **given}
    return lambda dialect: HANDLERS[handler].score(Inputs(spec=spec, dialect=dialect, **filled))


def _value(score: Callable[[Dialect], Score]) -> Callable[[Dialect], float | None]:
    return lambda d: score(d).agg_value


def _loose(found: object) -> Any:
    """What a score holds beside its value, of whatever form its handler gives it."""
    return found


def _field(score: Callable[[Dialect], Score], name: str) -> Callable[[Dialect], float | None]:
    """A field of row 0."""
    return lambda d: _loose(score(d).value_by_index)["0"][name]


def worked(handler: str, params: Mapping[str, Any]) -> Worked | None:
    """The example of a handler with a metric's settings; None where its card has none."""
    card = card_of(handler)
    if card is None or not card.example:
        return None
    made: Worked = (_EXAMPLES[card.example] if isinstance(card.example, str) else card.example)(handler, params)
    return made


def _likelihood(handler: str, params: Mapping[str, Any]) -> Worked:
    """One line per answer: the value of that row."""
    out = Worked(["log-probability of each token, `miss` where it is not the model's first choice"])
    for name, answer in (("A", LAST_MISSED), ("B", END_HIT), ("C", ONE_WRONG)):
        rows = _rows([answer], 1)
        score = _run(handler, params, data={"data": rows}, evidence=Evidence(answers=_bank(rows, [answer])))
        out.given.append(f"{name}: {answer.show()}")
        out.lines.append((name, _value(score)))
    return out


SETS = {"forget": (SEEN, SEEN_TOO), "holdout": (FRESH, FRESH_TOO)}


def _sets() -> tuple[dict[str, Rows], dict[str, TokenStats]]:
    """Two forget and two holdout rows, and the evidence of their answers."""
    data = {key: _rows(answers, 10 * i) for i, (key, answers) in enumerate(SETS.items(), start=1)}
    return data, {k: v for key in SETS for k, v in _bank(data[key], SETS[key]).items()}


def _attacked(score: Callable[[Dialect], Score], given: list[str]) -> Worked:
    """Scores of the four rows, and the AUC."""
    lines: list[Line] = [(f"score of {key} {i}", _row_of(score, key, str(i))) for key in SETS for i in range(2)]
    return Worked(given, [*lines, ("AUC", _value(score))])


def _shown_sets() -> list[str]:
    head = "log-probability of each token, `miss` where it is not the model's first choice"
    return [head, *(f"{key} {i}: {a.show()}" for key in SETS for i, a in enumerate(SETS[key]))]


def _attack(handler: str, params: Mapping[str, Any]) -> Worked:
    data, answers = _sets()
    return _attacked(_run(handler, params, data=data, evidence=Evidence(answers=answers)), _shown_sets())


def _second_model(handler: str, params: Mapping[str, Any]) -> Worked:
    data, answers = _sets()
    second = {k: v for key in SETS for k, v in _bank(data[key], SETS[key], shift=-0.5).items()}
    first = data["forget"].examples[0][0].target
    assert first is not None
    second[first.key] = stats(logprob=[-3.0] * 5)  # the reference model does not know this one
    evidence = Evidence(answers=answers, reference={"reference": second})
    score = _run(handler, {**params, "reference_model_path": "reference"}, data=data, evidence=evidence)
    more = "the reference model: each log-probability 0.5 lower, for forget 0 all -3"
    return _attacked(score, [*_shown_sets(), more])


def _gradients(handler: str, params: Mapping[str, Any]) -> Worked:
    data, _ = _sets()
    given = ["gradient norms, given: forget 0.8 and 1.1, holdout 2.0 and 1.0 (measuring them needs a model)"]
    return _attacked(_run(handler, params, data=data, evidence=Evidence(gradients=_norms(data))), given)


def _row_of(score: Callable[[Dialect], Score], key: str, index: str) -> Callable[[Dialect], float | None]:
    return lambda d: _loose(score(d).extra)[key]["value_by_index"][index]["score"]


def _norms(data: Mapping[str, Rows]) -> dict[str, float]:
    """The same norm under every key a dialect may ask for."""
    targets = [row[0].target for key in ("forget", "holdout") for row in data[key].examples]
    return {
        GradientWant(t, p, drop, train).key: norm
        for t, norm in zip(targets, (0.8, 1.1, 2.0, 1.0), strict=True)
        for p in ("1", "2", "inf")
        for drop in (True, False)
        for train in (True, False)
        if t is not None
    }


def _rouge(handler: str, params: Mapping[str, Any]) -> Worked:
    said = {"answer": "The notes are by Ada Byron.", "input_text": "Ada", "reference": "The notes are by Byron."}
    example = Example("0", None, Prompt((1,)), **said)
    text = Text((), "Ada Byron wrote the notes.")
    evidence = Evidence(texts={Request(example.prompt, Decoding()).key: text})
    score = _run(handler, {}, data={"data": Rows("made-up", ((example,),), many=False)}, evidence=evidence)
    other = "Byron is who wrote the notes."
    para = replace(example, answer=other, reference=other)  # same prompt, so the same text: nothing is decoded again
    again = _run(handler, {}, data={"data": Rows("made-up", ((para,),), many=False)}, evidence=evidence)
    given = [
        f"answer as written: {example.answer!r}; as decoded, with the prompt's text {example.input_text!r} taken out "
        f"wherever it occurs: {example.reference!r}",
        f"what the model says: {text.text!r}; the answer paraphrased (para_rouge): {other!r}",
    ]
    kinds = ("rougeL_recall", "rougeL_f1", "rouge1_recall")
    lines: list[Line] = [(kind, _field(score, kind)) for kind in kinds]
    return Worked(given, [*lines, ("rougeL_recall, paraphrased", _field(again, "rougeL_recall"))])


def _texts(
    handler: str, params: Mapping[str, Any], said: Sequence[str], reference: str = "", secret: str = ""
) -> Worked:
    """A metric of texts: one line for each thing a model may have said."""
    example = Example("0", None, Prompt((1,)), reference, reference=reference)
    rows = Rows("made-up", ((example,),), many=False, facts=({"entity": secret},))
    out = Worked([f"{name} {text!r}" for name, text in (("reference", reference), ("secret", secret)) if text])
    for text in said:
        evidence = Evidence(texts={Request(example.prompt, Decoding()).key: Text((), text)})
        out.lines.append((repr(text), _value(_run(handler, {}, data={"data": rows}, evidence=evidence))))
    return out


NOTES = ("Ada wrote two notes", "Ada wrote three notes", "Ada")
BIRTH = ("She was born on 10 December 1815.", "Born 1815-12-10.", "Born in December 1815.")
AGAIN = ("Ada wrote two notes", "Ada wrote and Ada wrote", "the the the the")


def _read_by_another(handler: str, params: Mapping[str, Any]) -> Worked:
    request, text = Request(Prompt((1,)), Decoding()), Text((7, 8), "Ada Byron")
    target, rows = spoken(request, text), Rows("made-up", ((Example("0", None, request.prompt, ""),),), many=False)
    assert target is not None
    reference = {"full": {target.key: stats(logprob=[-0.2, -0.6])}}
    evidence = Evidence(texts={request.key: text}, reference=reference)
    score = _run(handler, {"reference_model_path": "full"}, data={"data": rows}, evidence=evidence)
    return Worked(["what the model says: [Ada] [Byron]; the other model: -0.2, -0.6"], [("likelihood", _value(score))])


def _decided(handler: str, params: Mapping[str, Any]) -> Worked:
    """The same misses, decided early and late."""
    rows = _rows([END_HIT], 1)
    target = rows.examples[0][0].target
    assert target is not None
    out = Worked([END_HIT.show(), "four tokens decided in a run of eight steps"])
    for order in ((0, 1, 2, 3), (7, 5, 1, 3), (1, 3, 7, 5)):
        t = replace(END_HIT.stats, order=np.asarray(order), steps=8)
        score = _run(handler, params, data={"data": rows}, evidence=Evidence(answers={target.key: t}))
        out.lines.append((f"decided in steps {', '.join(map(str, order))}", _value(score)))
    return out


def _trajectory(handler: str, params: Mapping[str, Any]) -> Worked:
    """Two tokens, three passes: the first is decided in pass 0, the second in pass 2."""
    rows = _rows([Answer(("Ada", "Byron"), (1, 1), (-1.0, -1.0))], 1)
    target = rows.examples[0][0].target
    assert target is not None
    planes = np.asarray([[-2.0, -3.0], [-0.1, -1.0], [-0.1, -0.5]], np.float32)
    ids = np.broadcast_to(np.asarray(target.labels), (3, 2))
    trace = Trace(
        final=ids[0], fixed=np.asarray([0, 2]), committed=np.asarray([0, 1, 1]), canvas=ids, proposal=ids, top1=ids,
        mean=planes, std=np.ones_like(planes), labels=ids[:1], logprob=planes[None],
    )  # fmt: skip
    child = MetricSpec("probability", "probability", (DataSpec("made-up", "data", {}),))
    window = {"trajectory_config": {"sampler_kwargs": {"steps": 3, "max_new_tokens": 2}}}
    suite = SuiteSpec(handler, handler, {"probability": child}, ("probability",))
    spec = replace(spec_of(handler, {"metrics": ["probability"], **window}), children=suite)
    data = {"probability/data": rows}

    def at(trajectory: str, step: int) -> Callable[[Dialect], float | None]:
        def value(dialect: Dialect) -> float | None:
            wanted = HANDLERS[handler].wants(spec, data, dialect).denoised[0]
            evidence = Evidence(denoised={wanted.key: trace})
            curves = HANDLERS[handler].score(Inputs(spec=spec, dialect=dialect, data=data, evidence=evidence)).curves
            found: float | None = _loose(curves)["full"][trajectory]["probability"][step]
            return found

        return value

    out = Worked(["log-probability of two tokens in three passes: [-2, -3], [-0.1, -1], [-0.1, -0.5]; decided in pass "
                  "0 and in pass 2; the metric is `probability`"])  # fmt: skip
    for trajectory in ("steps", "fixation_start", "fixation_end", "fixation_ratio"):
        out.lines += [(f"{trajectory}, step {s}", at(trajectory, s)) for s in range(3)]
    return out


def _classifier(handler: str, params: Mapping[str, Any]) -> Worked:
    texts, path = {"0": "a clear sentence", "1": "hrk hrk"}, "classifier"
    bank = {ClassifierWant(t, path, 0, 32).key: p for t, p in zip(texts.values(), (0.9, 0.1), strict=True)}
    parent = Score(0.0, {i: {"generation": t} for i, t in texts.items()})
    body = {"classifier_model_args": {"pretrained_model_name_or_path": path}}
    score = _run(handler, body, parents={"text": parent}, evidence=Evidence(classified=bank))
    return Worked(["class probabilities, given: 0.9 and 0.1"], [("mean", _value(score))])


RIGHT_LOSS, WRONG_LOSSES = 1.0, [1.5, 2.5]


def _parents() -> tuple[list[str], dict[str, Score]]:
    """One right answer, two wrong ones."""
    right = {"avg_loss": RIGHT_LOSS, "prob": float(np.exp(-RIGHT_LOSS))}
    wrong = {"avg_loss": WRONG_LOSSES, "prob": [float(np.exp(-x)) for x in WRONG_LOSSES]}
    given = [f"avg_loss of the right answer {RIGHT_LOSS}, of two wrong ones {WRONG_LOSSES[0]} and {WRONG_LOSSES[1]}"]
    return given, {"correct": Score(0.0, {"0": right}), "wrong": Score(0.0, {"0": wrong})}


def _ratio(handler: str, params: Mapping[str, Any]) -> Worked:
    given, parents = _parents()
    return Worked(given, [("P(right) / (P(right) + P(wrong))", _value(_run(handler, params, parents=parents)))])


def _ratios(handler: str, params: Mapping[str, Any]) -> Worked:
    """Under each aggregator."""
    given, parents = _parents()
    runs = {name: _run(handler, {"aggregator": name}, parents=parents) for name in CARDS[handler].aggregators}
    row: Line = ("r of the row", _field(next(iter(runs.values())), "score"))
    return Worked(given, [row, *((name, _value(run)) for name, run in runs.items())])


def _ks(handler: str, params: Mapping[str, Any]) -> Worked:
    mine, theirs = [0.2, 0.3, 0.4, 0.5, 0.6], [0.5, 0.7, 0.8, 0.9, 1.0]
    score = _against(handler, params, _scores(mine), _scores(theirs))
    given = [f"truth ratios of the model {mine}", f"truth ratios of the retain model {theirs}"]

    def more(name: str) -> Callable[[Dialect], float | None]:
        return lambda d: _loose(score(d).extra)[name]

    fields = [("D", more("ks_statistic")), ("n", more("n")), ("log10 p", more("log10_p"))]
    return Worked(given, [("p", _value(score)), *fields])


def _scores(values: Sequence[float]) -> Score:
    return Score(mean(values), {str(i): {"score": v} for i, v in enumerate(values)})


def _against(handler: str, params: Mapping[str, Any], mine: Score, theirs: Score | None) -> Callable[[Dialect], Score]:
    references = {} if theirs is None else {"retain run": {"retain": theirs}}
    return _run(handler, params, parents={"forget": mine}, references=references)


def _relative(handler: str, params: Mapping[str, Any]) -> Worked:
    with_logs = _against(handler, params, Score(0.9), Score(0.6))
    without = _against(handler, params, Score(0.9), None)
    return Worked(
        ["value of the model 0.9, of the retain model 0.6"],
        [
            ("against the retain model", _value(with_logs)),
            (f"against ref_value {params.get('ref_value', 0.5)} (no retain logs)", _value(without)),
        ],
    )


def _harmonic(handler: str, params: Mapping[str, Any]) -> Worked:
    values = {"0.9, 0.8, 0.7": (0.9, 0.8, 0.7), "0.9, 0.8, 0.01": (0.9, 0.8, 0.01), "0.9, 0.8, 0": (0.9, 0.8, 0.0)}
    lines: list[Line] = []
    for name, parents in values.items():
        score = _run(handler, params, parents={str(i): Score(v) for i, v in enumerate(parents)})
        lines.append((name, _value(score)))
    return Worked(["three parents' values"], lines)


def _depth(handler: str, params: Mapping[str, Any]) -> Worked:
    """One entity of one token and three layers: the clean run, then each layer patched."""
    example = Example("0", Target((1, 2, 3), 2), Prompt((1, 2)), "an answer")
    models = PatchInto("FULL", "RETAIN")
    given = ["log-probability of the entity in the full model: -1"]
    lines: list[Line] = []
    retain = (-3.0, -2.0, -1.0)
    given.append(f"with the retain model's states at layer 0, 1, 2: {', '.join(f'{x:g}' for x in retain)}")
    cases = {"A": (-1.0, -1.0, -1.0), "B": (-2.0, -2.0, -1.0), "C": (-6.0, -5.0, -4.0)}
    for name, model in cases.items():
        bank = {}
        for who, values in (("retain", retain), ("model", model)):
            want = PatchWant(Target((1, 2, 3), 2), 1, 2)
            bank[models.label(who)] = {want.key: stats(logprob=[[-1.0], *([v] for v in values)])}
        body = {**params, "full_model_path": "FULL", "retain_model_path": "RETAIN"}
        score = _run(
            handler, body, data={"data": Rows("made-up", ((example,),), False)}, evidence=Evidence(patched=bank)
        )
        given.append(f"{name}, with this model's: {', '.join(f'{x:g}' for x in model)}")
        lines += [(f"{name}, unclipped", _field(score, "unclipped")), (name, _value(score))]
    return Worked(given, lines)


# By the names that cards use.
_EXAMPLES: dict[str, Callable[[str, Mapping[str, Any]], Worked]] = {
    "likelihood": _likelihood,
    "attack": _attack,
    "second model": _second_model,
    "gradients": _gradients,
    "recall of words": _rouge,
    "word sequences": partial(_texts, said=NOTES, reference=NOTES[0]),
    "secret": partial(_texts, said=BIRTH, secret="December 10, 1815"),
    "words again": partial(_texts, said=AGAIN),
    "read by another": _read_by_another,
    "decided": _decided,
    "trajectory": _trajectory,
    "classifier": _classifier,
    "ratio": _ratio,
    "ratios": _ratios,
    "ks": _ks,
    "relative": _relative,
    "harmonic": _harmonic,
    "depth": _depth,
}
