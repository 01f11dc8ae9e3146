"""Can the verdict be trusted? Models of which the truth is known, each with the word that the verdict finds for it.

    truth.json + finished runs --> facts of each model --> words, with all tests and with outputs only --> a table

Facts are kept beside the table (verdict_facts.json): another rule can be tried on them without any run. Models of the
seeds on which the rule's constants were fixed ("tuning") are counted apart.

In: a directory with truth.json files (bench/known_models writes them), or a file of facts. Out: rows, counts and rates
as plain data. Callers: meta/run.py, bench/verdict_bench.py, tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.io import decode, decode_data
from vestige.show.tables import table
from vestige.verdict.facts import AuditFacts, collect_facts
from vestige.verdict.judge import judge_facts
from vestige.verdict.rule import DEEP, RULE, TITLES, VerdictRule
from vestige.verdict.runs import read_runs

TRUTH, FACTS, BENCH = "truth.json", "verdict_facts.json", "verdict_bench.json"
WORDS = tuple(TITLES)
# Truths in the order of the table. Others may be given; they come after these.
TRUTHS = ("never knew", "unlearned", "half forgotten", "hidden", "knows", "over-forgotten", "ruined")


@dataclass(frozen=True)
class TruthEntry:
    """One model of a truth.json."""

    name: str
    truth: str
    way: str
    eval: str
    depth: str
    stress: str


@dataclass(frozen=True)
class TruthFile:
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
        return str(judge_facts(self.facts, rule)["word"]), str(judge_facts(outputs, rule)["word"])


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

    def to_json(self, counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        """The rate, and whether it is as it must be; None where such models are missing."""
        hits, of = self.rate(counts)
        asked = f"at least {self.least:.0%}" if self.least else f"at most {self.most:.0%}"
        met = self.least <= hits / of <= self.most if of else None
        return {"what": self.text, "models": hits, "of": of, "asked": asked, "met": met}


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


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FactsFile:
    models: list[BenchModel]


def read_bench(path: Path) -> list[BenchModel]:
    """The models of a directory of truth.json files, or of a file of facts."""
    if path.is_file():
        body = decode(path, dict[str, list[dict[str, Any]]])
        for model in body.get("models", []):
            # The stored facts of our own bench (tests/golden/verdict) say "" for false.
            model["facts"]["clustered"] = bool(model["facts"]["clustered"])
        return decode_data(body, _FactsFile, str(path)).models
    places = sorted({*path.glob(TRUTH), *path.glob(f"*/{TRUTH}")})
    if not places:
        raise UserError(f"{path} has no {TRUTH}, nor has any folder in it; see docs/verdict.md for its form.")
    models = []
    for file in places:
        truth, home = decode(file, TruthFile), file.parent
        for entry in truth.models:
            runs = read_runs(
                model=[home / entry.eval],
                full=[home / truth.full],
                retain=[home / truth.retain],
                depth=home / entry.depth,
                stress=[home / entry.stress],
            )
            facts = collect_facts(runs)
            models.append(BenchModel(entry.name, truth.seed, entry.truth, entry.way, truth.tuning, facts))
    return models


def facts_json(models: Sequence[BenchModel]) -> dict[str, Any]:
    """The models with their facts, as they are stored."""
    return {"models": [asdict(model) for model in models]}


# ---- counting ----------------------------------------------------------------------------------------------------


def bench_json(models: Sequence[BenchModel], rule: VerdictRule = RULE) -> dict[str, Any]:
    """Every model's words, how often each word comes with each truth, and the rates; tuning seeds counted apart."""
    rows = []
    for m in models:
        word, outputs = m.words(rule)
        facts = {"seed": m.seed, "name": m.name, "truth": m.truth, "way": m.way, "tuning": m.tuning}
        rows.append({**facts, "word": word, "outputs": outputs})
    out: dict[str, Any] = {"rule": asdict(rule), "models": rows}
    for name, tuning in (("table", False), ("tuning", True)):
        mine = [row for row in rows if row["tuning"] is tuning]
        all_tests = _counts(mine, "word")
        out[name] = {
            "models": len(mine),
            "all_tests": all_tests,
            "outputs_only": _counts(mine, "outputs"),
            "rates": [target.to_json(all_tests) for target in TARGETS],
            "relearned": relearned([m for m in models if m.tuning is tuning]),
        }
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


def _counts(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, dict[str, int]]:
    """How often each word comes with each truth."""
    pairs = [(row["truth"], row[key]) for row in rows]
    truths = {truth for truth, _ in pairs}
    order = [*(t for t in TRUTHS if t in truths), *sorted(truths - set(TRUTHS))]
    return {truth: {word: pairs.count((truth, word)) for word in WORDS} for truth in order}


# ---- showing -----------------------------------------------------------------------------------------------------


def bench_lines(body: Mapping[str, Any], part: str = "table") -> str:
    """Both tables and the rates as text."""
    mine = body[part]
    heads = ["truth", "models", *(TITLES[word].split(",")[0] for word in WORDS)]
    pages = []
    for title, key in (("With all tests", "all_tests"), ("With outputs only", "outputs_only")):
        cells = []
        for truth, row in mine[key].items():
            cells.append([truth, str(sum(row.values())), *(str(row[word] or "-") for word in WORDS)])
        pages += [f"{title}:", "", table(cells, heads, right=tuple(range(1, 8))), ""]
    met = {True: "yes", False: "NO", None: "no such model"}
    rates = [[r["what"], f"{r['models']} of {r['of']}", r["asked"], met[r["met"]]] for r in mine["rates"]]
    back = [[truth, *(f"{low:.2f} to {high:.2f}" for low, high in ends)] for truth, ends in mine["relearned"].items()]
    pages += [table(rates, ["models that", "found", "wanted", "met"], right=(1,)), ""]
    return "\n".join([*pages, table(back, ["answers relearned", "least budget", "largest budget"])])
