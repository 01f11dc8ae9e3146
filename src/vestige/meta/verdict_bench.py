"""Can the verdict be trusted? Models of which the truth is known, each with the word that the verdict finds for it.

    truth.json + finished runs --> facts of each model --> words, with all tests and with outputs only --> a table

Facts are kept beside the table (verdict_facts.json): another rule can be tried on them without any run. Models of the
seeds on which the rule's constants were fixed ("tuning") are counted apart.

In: a directory with truth.json files (bench/known_models writes them), or a file of facts. Out: rows, counts and rates
as plain data. Callers: meta/run.py, bench/verdict_bench.py, tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from vestige.errors import UserError
from vestige.show.tables import table
from vestige.stats.contrast import Contrast
from vestige.store.files import read_ours
from vestige.verdict.facts import AttackCurve, AttackPoint, AuditFacts, Measure, SecretCounts
from vestige.verdict.judge import JudgeAsk, facts_in, verdict
from vestige.verdict.rule import DEEP, RULE, TITLES, VerdictRule

TRUTH, FACTS, BENCH = "truth.json", "verdict_facts.json", "verdict_bench.json"
WORDS = tuple(TITLES)
# Truths in the order of the table. Others may be given; they come after these.
TRUTHS = ("never knew", "unlearned", "half forgotten", "hidden", "knows", "over-forgotten", "ruined")


class TruthEntry(TypedDict):
    """One model of a truth.json."""

    name: str
    truth: str
    way: str
    eval: str
    depth: str
    stress: str


class TruthFile(TypedDict):
    """truth.json: what is true of each model, and where its runs are, relative to the file."""

    seed: int
    tuning: bool
    full: str
    retain: str
    models: list[TruthEntry]


@dataclass(frozen=True)
class BenchModel:
    """One model of known truth, and everything a verdict may look at."""

    name: str
    seed: int
    truth: str
    way: str
    tuning: bool
    facts: AuditFacts

    def words(self, rule: VerdictRule = RULE) -> tuple[str, str]:
        """The verdict with all tests, and with what the model puts out alone."""
        shallow = [m for m in self.facts.measures if m.test not in DEEP]
        outputs = replace(self.facts, measures=shallow, attacks=())
        return str(verdict(self.facts, rule)["word"]), str(verdict(outputs, rule)["word"])


@dataclass(frozen=True)
class BenchTarget:
    """What the bench must show: how many models of some truths may, or must, get some words."""

    text: str
    truths: tuple[str, ...]  # (): all
    words: tuple[str, ...]
    least: float = 0.0
    most: float = 1.0

    def rate(self, counts: Mapping[str, Mapping[str, int]]) -> tuple[int, int]:
        """How many have one of the words, of how many."""
        chosen = [row for truth, row in counts.items() if not self.truths or truth in self.truths]
        hits = sum(row[word] for row in chosen for word in self.words)
        return hits, sum(sum(row.values()) for row in chosen)

    def met(self, counts: Mapping[str, Mapping[str, int]]) -> bool | None:
        """None: such models are missing."""
        hits, of = self.rate(counts)
        return None if not of else self.least <= hits / of <= self.most


KNOWS = ("knows", "hidden", "ruined", "over-forgotten", "half forgotten")
TARGETS = (
    BenchTarget("know, hide, are ruined or half forgotten, and are called Forgotten", KNOWS, ("forgotten",), most=0.0),
    BenchTarget("never knew, called Forgotten", ("never knew",), ("forgotten",), least=0.8),
    BenchTarget("never knew, called Not forgotten", ("never knew",), ("not_forgotten",), most=0.0),
    BenchTarget("know, called Not forgotten", ("knows",), ("not_forgotten",), least=0.95),
    BenchTarget(
        "half forgotten, called Partly or Not forgotten", ("half forgotten",), ("partly", "not_forgotten"), least=0.9
    ),
    BenchTarget("ruined or over-forgotten, called Damaged", ("ruined", "over-forgotten"), ("damaged",), least=0.9),
    BenchTarget("any, called Cannot tell", (), ("cannot_tell",), most=0.1),
)


# ---- reading ------------------------------------------------------------------------------------------------------


def read_bench(path: Path) -> list[BenchModel]:
    """The models of a directory of truth.json files, or of a file of facts."""
    if path.is_file():
        return [_model(body) for body in read_ours(path, dict[str, Any])["models"]]
    places = sorted({*path.glob(TRUTH), *path.glob(f"*/{TRUTH}")})
    if not places:
        raise UserError(f"{path} has no {TRUTH}, nor has any folder in it; see docs/verdict.md for its form.")
    return [model for place in places for model in _judged(place)]


def _judged(file: Path) -> Iterator[BenchModel]:
    body, home = read_ours(file, TruthFile), file.parent
    for entry in body["models"]:
        ask = JudgeAsk(
            model=[home / entry["eval"]],
            full=[home / body["full"]],
            retain=[home / body["retain"]],
            depth=home / entry["depth"],
            stress=[home / entry["stress"]],
        )
        yield BenchModel(entry["name"], body["seed"], entry["truth"], entry["way"], body["tuning"], facts_in(ask))


def facts_json(models: Sequence[BenchModel]) -> dict[str, Any]:
    """The models with their facts, as they are stored."""
    return {"models": [asdict(model) for model in models]}


def _model(body: Mapping[str, Any]) -> BenchModel:
    return BenchModel(**{**body, "facts": facts_from(body["facts"])})


def facts_from(body: Mapping[str, Any]) -> AuditFacts:
    """Facts as `asdict` wrote them."""
    given = {f.name: body[f.name] for f in fields(AuditFacts) if f.name in body}
    curves = [AttackCurve(**{**c, "points": [_point(p) for p in c["points"]]}) for c in body["attacks"]]
    return AuditFacts(
        **{
            **given,
            "measures": [_measure(m) for m in body["measures"]],
            "attacks": curves,
            "utility": body["utility"] and _measure(body["utility"]),
            "fluency": [_measure(m) for m in body["fluency"]],
            "secrets": body["secrets"] and SecretCounts(**body["secrets"]),
        }
    )


def _measure(body: Mapping[str, Any]) -> Measure:
    return Measure(**{**body, "contrast": body["contrast"] and Contrast(**body["contrast"])})


def _point(body: Mapping[str, Any]) -> AttackPoint:
    return AttackPoint(**{**body, "contrast": body["contrast"] and Contrast(**body["contrast"])})


# ---- counting -----------------------------------------------------------------------------------------------------


def bench_json(models: Sequence[BenchModel], rule: VerdictRule = RULE) -> dict[str, Any]:
    """Every model's words, how often each word comes with each truth, and the rates; tuning seeds counted apart."""
    judged = [(model, *model.words(rule)) for model in models]
    rows = [
        {"seed": m.seed, "name": m.name, "truth": m.truth, "way": m.way, "tuning": m.tuning, "word": a, "outputs": b}
        for m, a, b in judged
    ]
    out: dict[str, Any] = {"rule": asdict(rule), "models": rows}
    for name, tuning in (("table", False), ("tuning", True)):
        mine = [(m.truth, deep, plain) for m, deep, plain in judged if m.tuning is tuning]
        counts = {"all_tests": _counts([x[:2] for x in mine]), "outputs_only": _counts([(t, w) for t, _, w in mine])}
        back = relearned([m for m in models if m.tuning is tuning])
        out[name] = {"models": len(mine), **counts, "rates": _rates(counts["all_tests"]), "relearned": back}
    return out


def relearned(models: Sequence[BenchModel]) -> dict[str, list[list[float]]]:
    """By truth, the least and the most that comes back with the smallest and with the largest budget of relearning.

    It checks that truths are true: hidden knowledge must come back faster than a model that never knew can learn.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for m in models:
        curve = next((c for c in m.facts.attacks if c.teaches and c.points), None)
        if curve is not None:
            found.setdefault(m.truth, []).append((curve.points[0].value, curve.points[-1].value))
    return {t: [[min(v), max(v)] for v in zip(*found[t], strict=True)] for t in TRUTHS if t in found}


def _counts(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    there = {truth for truth, _ in pairs}
    order = [*(t for t in TRUTHS if t in there), *sorted(there - set(TRUTHS))]
    return {truth: {word: pairs.count((truth, word)) for word in WORDS} for truth in order}


def _rates(counts: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    out = []
    for target in TARGETS:
        hits, of = target.rate(counts)
        asked = f"at least {target.least:.0%}" if target.least else f"at most {target.most:.0%}"
        out.append({"what": target.text, "models": hits, "of": of, "asked": asked, "met": target.met(counts)})
    return out


# ---- showing ------------------------------------------------------------------------------------------------------


def bench_lines(body: Mapping[str, Any], part: str = "table") -> str:
    """Both tables and the rates as text."""
    mine = body[part]
    pages = []
    for title, key in (("With all tests", "all_tests"), ("With outputs only", "outputs_only")):
        pages += [f"{title}:", "", table(*_cells(mine[key]), right=tuple(range(1, 8))), ""]
    met = {True: "yes", False: "NO", None: "no such model"}
    rows = [[r["what"], f"{r['models']} of {r['of']}", r["asked"], met[r["met"]]] for r in mine["rates"]]
    back = [[truth, *(f"{low:.2f} to {high:.2f}" for low, high in ends)] for truth, ends in mine["relearned"].items()]
    rates = table(rows, ["models that", "found", "wanted", "met"], right=(1,))
    return "\n".join([*pages, rates, "", table(back, ["answers relearned", "least budget", "largest budget"])])


def _cells(counts: Mapping[str, Mapping[str, int]]) -> tuple[list[list[str]], list[str]]:
    heads = ["truth", "models", *(TITLES[w].split(",")[0] for w in WORDS)]
    rows = [[truth, str(sum(row.values())), *(str(row[w] or "-") for w in WORDS)] for truth, row in counts.items()]
    return rows, heads
