"""Rows of an audited model: what it says beside the reference, what it finds likely, and how attacks do on it.

In: evaluations of the model and its references, runs of attacks. Out: rows with their secret and where texts give it
away, distributions over rows, ROC curves. Caller: report/audits.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from vestige.metrics.cards import is_attack
from vestige.metrics.secrets_said import find
from vestige.metrics.secrets_said import says as says_secret
from vestige.report.gather import AttackedRow, Evaluation, Json, StressRun, finite
from vestige.types import Array
from vestige.verdict.runs import SIDE, split_of

ROWS = 400  # of a split, unless more is asked for
ALL_ROWS = 10_000  # in one report, whatever the number of models
MOST_VALUES = 1000  # of a distribution
MOST_POINTS = 200  # of a curve
LIKELY = ("probability", "extraction_strength", "exact_memorization", "truth_ratio")
SECRETS = "secrets_said"
ORDER = (
    "rows that say their secret first, then those that do after an attack, then the worst leaks; rows to keep follow, "
    "the ones most lost first"
)

Runs = Mapping[str, Sequence[Evaluation]]  # model id -> its evaluations, the audited model first


def is_side(metric: str) -> bool:
    """Is it about other wordings of the answer, which a reader does not look for first?"""
    return any(word in metric for word in SIDE)


# ---- what it says ----------------------------------------------------------------------------------------------------


def said_rows(runs: Runs, model: str, retain: str | None, most: int, attacks: Sequence[StressRun] = ()) -> Json:
    """Generations of all models beside the reference, the worst leaks first; no more than `most` of a split.

    `attacks`: runs of attacks on the model, for secrets that are told only after one.
    """
    out: list[Json] = []
    total: dict[str, int] = {}
    left_off: dict[str, int] = {}
    for split in ("forget", "retain"):
        rows = _read_rows(runs, model, split, attacks if split == "forget" else ())
        for row in rows:
            row["leak"] = leak(row["scores"], model, retain) if split == "forget" else None
        rows.sort(key=lambda row: row_rank(row, model, retain))
        total[split], left_off[split] = len(rows), max(0, len(rows) - most)
        out += rows[:most]
    return {"rows": out, "left_off": left_off, "total": total, "order": ORDER}


def row_rank(row: Json, model: str, retain: str | None) -> tuple[int, float]:
    """Secrets the model tells and the retain model does not; that both tell; that an attack brings back; others."""
    if row["leak"] is None:
        return 0, float(row["scores"].get(model, {}).get("rouge") or 0.0)
    tells = row.get("tells", {})
    told_by = {attack["who"] for attack in row.get("attacked", ())}
    if tells.get(model):
        rank = 1 if tells.get(retain) else 0
    elif "model" in told_by:
        rank = 3 if "retain" in told_by else 2
    else:
        rank = 3 if told_by else 4
    return rank, -row["leak"]


def leak(scores: Mapping[str, Mapping[str, float]], model: str, retain: str | None) -> float | None:
    """How much more of a reference a model says, or finds likely, than the retain model; without one, how much.

    >>> round(leak({"m": {"rouge": 0.9, "prob": 0.2}, "r": {"rouge": 0.3, "prob": 0.1}}, "m", "r"), 6)
    0.6
    >>> leak({"m": {"rouge": 0.1}, "r": {"rouge": 0.3}}, "m", "r"), leak({"m": {"rouge": 0.1}}, "m", None)
    (0.0, 0.1)
    """
    yardstick = scores.get(retain or "") or {}
    gains = [x - (yardstick.get(key) or 0.0) for key, x in (scores.get(model) or {}).items()]
    return min(1.0, max(0.0, *gains)) if gains else None


def _read_rows(runs: Runs, model: str, split: str, attacks: Sequence[StressRun]) -> list[Json]:
    """The audited model's rows of a split, with the other models' texts where they read the same rows."""
    run, metric = next(_text_metrics(runs.get(model, ()), split), (None, ""))
    if run is None:
        return []
    rows: dict[str, Json] = {}
    for i, row in run.results[metric].value_by_index.items():
        if isinstance(row.generation, str):
            reference, question = str(row.ground_truth or ""), str(row.input or "")
            rows[i] = {"i": i, "split": split, "question": question, "reference": reference, "texts": {}, "scores": {}}
    questions, secrets = run.rows_read(metric)
    for i, question in zip(rows, plain_questions([row["question"] for row in rows.values()]), strict=True):
        rows[i]["question"] = questions.get(i, question)
    for name in run.data_of(metric):
        if name not in run.manifest.data:
            continue
        clusters = run.manifest.data[name].clusters
        for i, place in clusters.of.items():
            if i in rows:
                rows[i].setdefault("columns", {})[str(clusters.by)] = str(clusters.names[place])
    for id, others in runs.items():
        other = next((o for o in others if same_rows(o, run, metric)), None)
        if other is not None:
            _add_texts(rows, other, metric, id)
    said = run.results.get(_metric_on_same_rows(run, metric, SECRETS))
    if said is not None:
        secrets = {i: row.secret for i, row in said.value_by_index.items() if row.secret} or secrets
    add_secrets(rows, secrets)
    add_attacks(rows, run.fingerprints(metric), attacks)
    return list(rows.values())


def _text_metrics(runs: Sequence[Evaluation], split: str) -> Iterator[tuple[Evaluation, str]]:
    """Metrics of a split that keep generations, with their runs."""
    for run in runs:
        for metric, result in run.results.items():
            if run.handler(metric) not in ("rouge", "") or split_of(metric) != split or is_side(metric):
                continue
            if any(row.generation is not None for row in result.value_by_index.values()):
                yield run, metric


def _add_texts(rows: Mapping[str, Json], run: Evaluation, metric: str, id: str) -> None:
    likely = run.results.get(_metric_on_same_rows(run, metric, "probability"))
    for i, row in run.results[metric].value_by_index.items():
        if i not in rows:
            continue
        rows[i]["texts"][id] = str(row.generation or "")
        scores = rows[i]["scores"].setdefault(id, {})
        rouge = finite(row.rougeL_recall)
        if rouge is not None:
            scores["rouge"] = rouge
        prob = finite(likely.value_by_index[i].prob) if likely and i in likely.value_by_index else None
        if prob is not None:
            scores["prob"] = prob


def _metric_on_same_rows(run: Evaluation, metric: str, handler: str) -> str:
    """The metric of a handler on the very rows whose texts a metric has; empty where there is none."""
    data = run.data_of(metric)
    for name, result in run.results.items():
        if run.handler(name) != handler or not result.value_by_index or is_side(name):
            continue
        same = run.data_of(name) == data if data else split_of(name) == split_of(metric)
        if same:
            return name
    return ""


def same_rows(a: Evaluation, b: Evaluation, metric: str) -> bool:
    """Did two runs read the same rows for a metric? By fingerprint; where there is none, by the rows' numbers."""
    if metric not in a.results or metric not in b.results:
        return False
    prints = a.fingerprints(metric), b.fingerprints(metric)
    if all(prints):
        return prints[0] == prints[1]
    return set(a.results[metric].value_by_index) == set(b.results[metric].value_by_index)


# ---- questions and secrets -------------------------------------------------------------------------------------------

_BEFORE = re.compile(r"[\n\]>:|.?!]\s*")  # what may end the words that a template puts before a question
_AFTER = re.compile(r"\n|[<\[]|(?<=[.?!])")  # what may begin those it puts after one


def plain_questions(prompts: Sequence[str]) -> list[str]:
    """Prompts without what all of them share at either end: a system prompt, examples, the names of roles.

    It is cut only where a sentence, a line or a tag ends, so that questions that begin alike stay whole.

    >>> plain_questions(["You are helpful.user Where was A born?", "You are helpful.user Where was B seen?"])
    ['user Where was A born?', 'user Where was B seen?']
    >>> plain_questions([f"system\\nBe brief.user\\n{q}assistant\\n" for q in ("Who?", "When?")])
    ['Who?', 'When?']
    >>> plain_questions(["[INST] Where is A? [/INST]", "[INST] Where is B? [/INST]"]), plain_questions(["Only one?"])
    (['Where is A?', 'Where is B?'], ['Only one?'])
    """
    different = set(prompts)
    if len(different) < 2:
        return [prompt.strip() for prompt in prompts]
    start = 0
    for match in _BEFORE.finditer(_shared_beginning(different)):
        start = match.end()
    after = _shared_beginning([prompt[start:][::-1] for prompt in different])[::-1]
    begins = _AFTER.search(after)
    length = len(after) - begins.start() if begins else 0
    return [prompt[start : len(prompt) - length].strip() or prompt.strip() for prompt in prompts]


def _shared_beginning(texts: Collection[str]) -> str:
    first, last = min(texts), max(texts)  # in alphabetical order whatever these two share, all share
    n = 0
    while n < min(len(first), len(last)) and first[n] == last[n]:
        n += 1
    return first[:n]


def add_secrets(rows: Mapping[str, Json], secrets: Mapping[str, Sequence[str]]) -> None:
    """Which texts say a row's secret, and where; the page marks those places."""
    for i, secret in secrets.items():
        if i not in rows:
            continue
        row = rows[i]
        row |= {"secret": list(secret), "tells": {}, "marks": {}}
        for who, text in {"reference": row["reference"], **row["texts"]}.items():
            places = [list(span) for span in find(text, secret)]
            if who != "reference":
                row["tells"][who] = bool(places)
            if places:
                row["marks"][who] = places


def add_attacks(rows: Mapping[str, Json], fingerprints: Sequence[str], attacks: Sequence[StressRun]) -> None:
    """After which attacks each secret is told, and by whom (the model, its control). Other rows are not looked at."""
    for run in attacks:
        for who, by_folder in run.evaluations.items():
            for folder, evaluated in by_folder.items():
                attack = _attack_of(folder, run.rows)
                if attack is None:
                    continue
                data, data_of = (evaluated.manifest.get(key) or {} for key in ("data", "data_of"))
                for metric, result in evaluated.results.items():
                    keys = (data_of.get(metric) or {}).values()
                    if sorted(str(data[key]["fingerprint"]) for key in keys if key in data) != list(fingerprints):
                        continue
                    for i, entry in (result.get("value_by_index") or {}).items():
                        text = entry.get("generation")
                        if i in rows and isinstance(text, str) and says_secret(text, rows[i].get("secret") or ()):
                            told = rows[i].setdefault("attacked", [])
                            if {**attack, "who": who} not in told:
                                told.append({**attack, "who": who})


def _attack_of(folder: str, rows: Sequence[AttackedRow]) -> Json | None:
    """The attack and budget whose evaluation is in a folder; nothing for the one before any attack."""
    attack, _, number = folder.rpartition("-")
    budgets = []
    sampled = []  # attacks that draw samples have a folder for each sample, not for each budget
    for row in rows:
        if row.attack == attack and row.budget is not None:
            if "seeds" in row.settings:
                sampled.append(row.budget)
            elif f"{row.budget:g}" == number:
                budgets.append(row.budget)
    if sampled:
        return {"attack": attack, "budget": max(sampled)}
    return {"attack": attack, "budget": budgets[0]} if budgets else None


# ---- what it finds likely --------------------------------------------------------------------------------------------


def distributions(runs: Runs) -> list[Json]:
    """Distributions over rows: forget rows beside rows to keep, or beside fresh ones."""
    out: list[Json] = []
    for id, evaluations in runs.items():
        seen = set()
        for run in evaluations:
            for metric in run.results:
                splits = _splits(run, metric)
                if splits.get("forget") and metric not in seen:
                    seen.add(metric)
                    what = "the metric's value of each row"
                    if is_attack(run.handler(metric)):
                        what = "the attack's score of each row: low is familiar"
                    out.append({"metric": metric, "model": id, "what": what, "splits": splits})
    return out


def _splits(run: Evaluation, metric: str) -> dict[str, list[float]]:
    result, handler = run.results[metric], run.handler(metric)
    if is_attack(handler):
        sets = {"forget": result.forget.column("score"), "holdout": result.holdout.column("score")}
        return {name: _thinned(values) for name, values in sets.items() if values}
    not_of_forget_rows = split_of(metric) == "retain" or is_side(metric) or metric.startswith(("ra_", "wf_"))
    if handler not in LIKELY or not_of_forget_rows:
        return {}
    name = "prob" if handler == "probability" else "score"
    out = {"forget": _thinned(result.column(name))}
    counterpart = metric.lower().replace("forget", "retain")
    for other in run.results:
        if other.lower() == counterpart and other != metric:
            if run.handler(other) == handler:
                out["retain"] = _thinned(run.results[other].column(name))
            break
    return out


def _thinned(values: Sequence[float]) -> list[float]:
    """No more than MOST_VALUES of them, evenly over their order: the shape stays."""
    if len(values) <= MOST_VALUES:
        return list(values)
    ordered = np.sort(np.asarray(values, float))
    places = np.linspace(0, len(ordered) - 1, MOST_VALUES).astype(int)
    return [float(v) for v in ordered[places]]


def roc_curves(runs: Runs) -> list[Json]:
    """A ROC curve for each membership attack and model."""
    out = []
    for id, evaluations in runs.items():
        for run in evaluations:
            for metric, result in run.results.items():
                forget, holdout = result.forget.column("score"), result.holdout.column("score")
                if not is_attack(run.handler(metric)) or not forget or not holdout:
                    continue
                fpr, tpr = roc(np.array(forget), np.array(holdout))
                curve: Json = {"metric": metric, "model": id, "fpr": fpr, "tpr": tpr, "auc": finite(result.agg_value)}
                interval = run.stat(metric).interval
                if interval:
                    curve["lo"], curve["hi"] = interval
                out.append({**curve, "n": [len(forget), len(holdout)]})
    return out


def roc(forget: Array, holdout: Array) -> tuple[list[float], list[float]]:
    """False and true positive rates when rows with a score up to t are called "trained on", for rising t.

    >>> roc(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    cuts = np.unique(np.concatenate([forget, holdout]))
    if len(cuts) > MOST_POINTS:
        cuts = cuts[np.unique(np.linspace(0, len(cuts) - 1, MOST_POINTS).astype(int))]
    rates = []
    for scores in (holdout, forget):
        share = np.searchsorted(np.sort(scores), cuts, side="right") / len(scores)
        rates.append([0.0, *share.tolist()])
    return rates[0], rates[1]
