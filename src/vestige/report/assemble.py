"""From what was found on disk to a report: models, values, audits, axes, metrics. No model runs.

In: what report/gather.py found. Out: the content of report.json, part by part (the *_part.py modules). Callers:
report/run.py, report/verify.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.meta.axes import UDS_ENDS, Methods, from_results
from vestige.meta.files import checked_meta_eval
from vestige.meta.tree import methods_of
from vestige.numeric import number
from vestige.report import attacks_part, curves_part, depth_part, eval_part, methods_part, tree_part
from vestige.report.audits import audit, same_tests
from vestige.report.axes_part import add_axes
from vestige.report.format import Report, empty_report, plain
from vestige.report.gather import FoundRuns, source_json
from vestige.report.glossary import entry
from vestige.report.meta_part import meta_part
from vestige.report.repeated import drop_repeated, same_number
from vestige.report.roster import Entry, Met, Roster
from vestige.report.rows_part import ALL_ROWS, ROWS
from vestige.report.sound import keep_sound
from vestige.report.training_part import training
from vestige.store.comparable import UNSTATED, Number, mixtures, number_of
from vestige.store.kinds import RunSource
from vestige.stress.attacks import attack_named
from vestige.verdict.runs import Evaluated

TITLE = "Did it forget?"
MOST_AUDITS = 60  # each holds rows and distributions: a thousand of them would make no page
PARETO_X = ("uds", "privacy_floored", "forget_quality", "forget_Q_A_Prob", "forget_Prob", "forget_Q_A_ROUGE")
PARETO_Y = ("utility_rel", "model_utility", "retain_Q_A_ROUGE", "retain_ROUGE")


@dataclass(frozen=True)
class PageAsk:
    """What a report's maker may say."""

    title: str = TITLE
    full: Sequence[str] = ()
    retain: Sequence[str] = ()
    rows: int = ROWS
    unlearned: Sequence[str] = ()  # where a name says something else
    accept_mixture: bool = False  # of runs that were not measured alike


@dataclass
class PageWork:
    """A report in the making: who was met, in which runs, and which runs belong to whom."""

    found: FoundRuns
    roster: Roster
    evals: dict[str, list[RunSource]]  # model id -> evaluations
    depths: dict[str, RunSource]
    stresses: dict[str, list[tuple[RunSource, dict[str, str]]]]  # model id -> (source, ids by model | retain)
    trajectories: list[tuple[RunSource, str]]
    links: dict[str, dict[str, str]]  # model id -> role -> id, as runs say
    attacked: dict[str, dict[str, str]]  # model id -> attack -> id of the attacked copy
    attack_facts: dict[str, dict[str, Any]]  # of attacks on copies: of a sweep's, by their names in the plan
    read: dict[str, Methods] = field(default_factory=dict)  # source id -> rows of a table or a published tree
    retains: list[Entry] = field(default_factory=list)  # several that the user names: models of other training seeds
    judged: dict[str, Evaluated] = field(default_factory=dict)  # source id -> its rows, read once

    def evaluated(self, model: str) -> list[Evaluated]:
        """A model's evaluations as the judge of a verdict reads them."""
        mine = [s for s in self.evals.get(model, ()) if s.kind == "eval"]
        for s in mine:
            if s.id not in self.judged:
                self.judged[s.id] = Evaluated(s.data["results"], s.data["manifest"], s.data["stats"])
        return [self.judged[s.id] for s in mine]

    def methods_of(self, source: RunSource) -> Methods:
        """The rows of a method_results.json or of a published tree, computed once."""
        if source.id not in self.read:
            tree = source.data.get("tree")
            self.read[source.id] = methods_of(tree) if tree else from_results(source.data, str(source.path))
        return self.read[source.id]


def assemble(found: FoundRuns, ask: PageAsk, base: Path) -> tuple[Report, PageWork]:
    """The report, but for what needs stored evidence (report/run.py adds that). `base`: where it will lie."""
    keep_sound(found)
    work = PageWork(found, Roster(), {}, {}, {}, [], {}, {}, {})
    _meet_all(work)
    named = work.roster.name_roles(ask.full, ask.retain, ask.unlearned)
    work.retains = named if len(named) > 1 else []
    _sweep_copies(work)
    _quantised_copies(work)
    report = empty_report(ask.title)
    entries = work.roster.entries
    for model, sources in work.evals.items():
        _take(work, model, [(eval_part.values(s), s) for s in sources])
    for model, source in work.depths.items():
        _take(work, model, [(depth_part.values(source), source)])
        for role, id in work.links.get(model, {}).items():
            one = work.roster.by_id(id)
            if one is not None and role in UDS_ENDS:
                one.values.setdefault("uds", depth_part.end(role, source))
    for note in mixtures(_measured(work), ask.accept_mixture):
        found.problem(note)
    _methods(work)
    add_axes(work)
    report["models"] = [e.to_json() for e in entries]
    report["metrics"] = _metrics(work)
    report["columns"] = _columns(work)
    report["trajectories"] = [t for s, m in work.trajectories for t in curves_part.trajectories(s, m)]
    report["training"] = [training(s) for s in found.of("watch")]
    report["collapse"] = [c for s in found.of("collapse") for c in curves_part.collapse(s)]
    report["audits"] = _audits(work, ask)
    report["meta"] = _meta(work, report["models"])
    report["pareto"] = _pareto(report["models"])
    report["protocols"] = sorted({str(v["protocol"]) for e in entries for v in e.values.values() if v.get("protocol")})
    _complete_metrics(report, work)
    drop_repeated(report)
    told = {s.id: [e.id for e in entries if s.id in e.sources] for s in found.sources}
    report["sources"] = [source_json(s, base, told[s.id]) for s in found.sources]
    report["problems"] = found.problems
    return dict(plain(report)), work


# ---- who is who ---------------------------------------------------------------------------------------------------


def _meet_all(work: PageWork) -> None:
    """Runs that know weights first: whatever has only a name can then join them."""
    planned = {s.path.resolve() for s in work.found.of("sweep")}
    for source in sorted(work.found.of("eval", "trajectory"), key=lambda s: not s.data["manifest"]):
        in_sweep = bool(source.data["task"]) or any(p in planned for p in source.path.resolve().parents)
        one = work.roster.meet(eval_part.met(source, in_sweep), source.id)
        one.provenance = one.provenance or eval_part.provenance(source)
        work.evals.setdefault(one.id, []).append(source)
        if source.kind == "trajectory":
            work.trajectories.append((source, one.id))
    for source in work.found.of("depth"):
        _meet_depth(work, source)
    for source in work.found.of("stress"):
        ids = {who: work.roster.meet(met, source.id).id for who, met in attacks_part.met(source).items()}
        if "model" in ids:
            work.stresses.setdefault(ids["model"], []).append((source, ids))
            if "retain" in ids:
                work.links.setdefault(ids["model"], {}).setdefault("retain", ids["retain"])
    for source in work.found.of("sweep"):
        retain = source.data["plan"].get("retain")
        for e in work.roster.entries:
            if retain and e.name == retain:
                e.role = e.role or "retain"


def _meet_depth(work: PageWork, source: RunSource) -> None:
    ids = {role: work.roster.meet(met, source.id).id for role, met in depth_part.met(source).items()}
    mine = ids["unlearned"]
    if mine in work.depths:
        first = work.depths[mine]
        scores = [depth_part.values(s)["uds"]["v"] for s in (first, source)]
        if scores[0] != scores[1]:
            both = f"{first.path} and {source.path}"
            work.found.problem(f"{both} are depth runs of one model with different scores; the first is shown.")
    work.depths.setdefault(mine, source)
    work.links[mine] = {r: ids[r] for r in ("full", "retain") if r in ids and ids[r] != mine}


def _sweep_copies(work: PageWork) -> None:
    """Attacked copies of a sweep, a killed one's too, are not models of their own: they say what comes back."""
    attacks = [str(a) for s in work.found.of("sweep") for a in s.data["plan"].get("attacks") or ()]
    attacks += [str(a) for s in work.found.of("eval", "trajectory") if (a := s.data["task"].get("attack"))]
    for copy in work.roster.entries:
        name, attack = attacks_part.attacked_name(copy.name, attacks)
        of = next((e for e in work.roster.entries if attack and e.name == name), None)
        if of is not None:
            copy.role, copy.method = "other", attack
            work.attacked.setdefault(of.id, {})[attack] = copy.id
            work.attack_facts[attack] = _facts_of(work, attack)


def _quantised_copies(work: PageWork) -> None:
    """A model that was read in fewer bits is the same model under an attack, where it was measured as it is, too."""
    by_weights = {e.weights: e for e in work.roster.entries}
    swept = {id for copies in work.attacked.values() for id in copies.values()}
    for copy in work.roster.entries:
        weights, _, bits = copy.weights.partition("-")
        of = by_weights.get(weights)
        if bits and of is not None and copy.id not in swept:
            attack = f"quantise {bits}"
            copy.role, copy.method = "other", attack
            work.attacked.setdefault(of.id, {})[attack] = copy.id
            work.attack_facts[attack] = attack_named("quantise").facts()


def _facts_of(work: PageWork, attack: str) -> dict[str, Any]:
    """What the sweep, or the note beside a run of it, says of an attack."""
    plans = [s.data["plan"] for s in work.found.of("sweep")]
    said = [(plan.get("attack_facts") or {}).get(attack) for plan in plans]
    tasks = [s.data["task"] for s in work.found.of("eval", "trajectory")]
    said += [task.get("attack_facts") for task in tasks if task.get("attack") == attack]
    return next((facts for facts in said if facts), {})


# ---- values -------------------------------------------------------------------------------------------------------


def _take(work: PageWork, model: str, parts: Sequence[tuple[Mapping[str, Mapping[str, Any]], RunSource]]) -> None:
    """A model's values; where two runs measure the same, the one with more rows.

    Another value by another dialect is to be expected: the number says so in a note. By the same one it is a problem.
    """
    one = work.roster.by_id(model)
    assert one is not None
    for values, source in parts:
        twice: list[str] = []
        for key, new in values.items():
            old = one.values.get(key)
            if old is None or old["v"] is None:
                one.values[key] = dict(new)
            elif new["v"] is not None and not same_number(new["v"], old["v"]):
                better = (new.get("n") or 0) > (old.get("n") or 0)
                shown, other = (new, old) if better else (old, new)
                one.values[key] = dict(shown)
                if old.get("dialect") != new.get("dialect"):
                    one.values[key]["note"] = f"another run has {number(other['v'])} by dialect {other.get('dialect')}"
                else:
                    twice.append(key)
        if twice:
            work.found.problem(
                f"{one.name} was measured in more than one run, with different values of {', '.join(twice)}; "
                "the run with more rows (else the first) is shown.",
                source.path,
            )


def _measured(work: PageWork) -> Iterator[tuple[str, dict[str, Number]]]:
    """How the models of a family measured each metric; other families may have other rows and templates."""
    sources = {source.id: source for source in work.found.sources}
    by_family: dict[tuple[str, str], dict[str, Number]] = {}
    for model in work.roster.entries:
        for metric, shown in model.values.items():
            protocol = shown.get("protocol") or UNSTATED
            if shown["v"] is None or protocol == UNSTATED:
                continue
            manifest = sources[shown["source"]].data.get("manifest") or {}
            number = number_of(manifest, metric) if manifest else Number(None, protocol)
            by_family.setdefault((metric, eval_part.family(manifest)), {})[model.name] = number
    for (metric, _), numbers in by_family.items():
        yield metric, numbers


def _methods(work: PageWork) -> None:
    for source in work.found.of("methods"):
        try:
            methods = work.methods_of(source)
        except UserError as error:
            work.found.leave_out(str(error), source.path)
            continue
        for text in methods.notes:
            work.found.problem(text, source.path)
        for m in methods_part.models(methods, source.id, tree_part.raw_values(source)):
            one = work.roster.meet(Met(m["name"], role=m["role"]), source.id)
            one.role = one.role or m["role"]
            one.method, one.epoch = one.method or m["method"], one.epoch or m["epoch"]
            one.settings = one.settings or m["settings"]
            _take(work, one.id, [(m["values"], source)])


def _metrics(work: PageWork) -> dict[str, Any]:
    """Definitions of every metric that some model has."""
    out: dict[str, Any] = {}
    for sources in work.evals.values():
        for s in sources:
            for metric in s.data["results"]:
                settings = eval_part.settings_of(s, metric)
                if metric not in out or not out[metric]["formula"]:
                    handler, aggregator = eval_part.handler_of(s, metric), str(settings.get("aggregator") or "")
                    out[metric] = entry(metric, handler, aggregator)
    keys = dict.fromkeys(k for e in work.roster.entries for k in e.values)
    return {k: out.get(k) or entry(k) for k in keys}


def _complete_metrics(report: Report, work: PageWork) -> None:
    """Metrics that only curves name."""
    named = [t["metric"] for t in report["trajectories"]]
    named += [c["metric"] for a in report["audits"] for c in a["attacks"]]
    for key in named:
        report["metrics"].setdefault(key, entry(key, key))


def _columns(work: PageWork) -> list[str]:
    """Axes first, then what the runs were asked for, then the rest, but for metrics that only serve others."""
    entries = work.roster.entries
    sources = [s for mine in work.evals.values() for s in mine]
    have = {k for e in entries for k, v in e.values.items() if v["v"] is not None}
    asked = dict.fromkeys(m for s in sources for m in eval_part.top(s))
    serving = {m for s in sources for m in s.data["results"]} - set(asked)
    rest = dict.fromkeys(k for e in entries for k in e.values if k not in serving)
    return [c for c in dict.fromkeys([*methods_part.COLUMNS, *asked, *rest]) if c in have]


# ---- parts --------------------------------------------------------------------------------------------------------


def _audits(work: PageWork, ask: PageAsk) -> list[dict[str, Any]]:
    """One for each unlearned model with rows, layers or attacks; those with most to show come first."""
    everyone = [e for e in work.roster.entries if _evidence(work, e)]
    by_role = ([e for e in everyone if e.role == role] for role in ("unlearned", "full", "other"))
    chosen = next((found for found in by_role if found), [])
    if not chosen:
        return []
    chosen.sort(key=lambda e: -_evidence(work, e))
    if len(chosen) > MOST_AUDITS:
        left = len(chosen) - MOST_AUDITS
        work.found.problem(f"{left} models are in the tables only: no more than {MOST_AUDITS} are audited row by row.")
        chosen = chosen[:MOST_AUDITS]
    rows = max(1, min(ask.rows, ALL_ROWS // (2 * len(chosen)))) if ask.rows == ROWS else ask.rows
    if rows < ask.rows:
        work.found.problem(
            f"{len(chosen)} models are audited: {rows} rows of a split are kept of each (--rows N for more)."
        )
    out = [audit(work, e, rows) for e in chosen]
    same_tests(out, {e.id: e.name for e in chosen})
    return out


def _evidence(work: PageWork, e: Entry) -> int:
    has_values = bool(work.evals.get(e.id))
    return int(has_values) + (e.id in work.depths) + (e.id in work.stresses)


def _meta(work: PageWork, models: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    sources = sorted(work.found.of("meta"), key=lambda s: "tree" in s.data)  # a finished file before a tree's values
    if len(sources) > 1:
        work.found.problem(f"there are {len(sources)} sources of meta-evaluation; {sources[0].path} is shown.")
    for source in sources[:1]:
        try:
            data = tree_part.meta_data(source, work.found) if "tree" in source.data else source.data
            return meta_part(checked_meta_eval(data, source.path), models, source.id)
        except UserError as error:
            work.found.leave_out(str(error), source.path)
    return None


def _pareto(models: Sequence[Mapping[str, Any]]) -> dict[str, str] | None:
    have = {k for m in models for k, v in m["values"].items() if v["v"] is not None}
    x, y = (next((k for k in keys if k in have), None) for keys in (PARETO_X, PARETO_Y))
    return {"x": x, "y": y} if x and y else None
