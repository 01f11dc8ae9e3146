"""`vestige meta faithfulness|robustness|axes|verdict`: metrics put on the bench, from finished runs or plain numbers.

In: a pool file (meta/pools.py), which names runs or gives numbers. Out: the JSON files of meta/files.py. Callers:
meta/flags.py, bench/demo_meta.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.meta import files
from vestige.meta.asked import MetaAsk, asked_json, named
from vestige.meta.axes import FLOOR, erased
from vestige.meta.bench import AttackVerdict, BenchAsk, Judged, PoolVerdict, judge_attacks, judge_pools
from vestige.meta.kind import answering
from vestige.meta.methods import MethodRow, Methods, hidden, read_methods
from vestige.meta.numbers import ModelNumbers
from vestige.meta.pools import Attacks, read_pools
from vestige.meta.tree import methods_of, read_tree, root_of
from vestige.meta.tree_meta import attack_files, attacks_from, faithfulness_file
from vestige.meta.verdict_bench import BENCH, FACTS, bench_json, bench_lines, facts_json, read_bench
from vestige.numeric import number
from vestige.show.tables import span, table


@dataclass(frozen=True)
class Made:
    """An answer: the files it fills, the models it speaks of, and what is shown of it."""

    files: Mapping[str, Any]
    models: Mapping[str, Sequence[str]]  # set of models -> their names
    head: str
    table: str
    notes: Sequence[str]


def meta(what: str, ask: MetaAsk) -> str:
    """One question answered; returns what is printed."""
    if what not in QUESTIONS:
        raise unknown_name("question of vestige meta", what, QUESTIONS)
    if not 0 < ask.floor < 1:
        raise UserError(f"--floor is {ask.floor:g}; give a number between 0 and 1.")
    if ask.resamples < 0:
        raise UserError(f"--resamples is {ask.resamples}; give 0 (no intervals) or more.")
    if ask.accept_mixture and what == "axes":
        raise UserError("--accept-mixture is for thresholds and overall verdicts; an axis is never made of a mixture.")
    if not ask.file.exists():  # before --out is made
        raise UserError(f"{ask.file} does not exist; write a YAML list of runs (see docs/meta.md).")
    made = QUESTIONS[what](ask)
    with answering(ask.out, what, vars(ask)):
        return _written(made, ask.out)


def _written(made: Made, out: Path) -> str:
    places = [files.write(out, name, body) for name, body in made.files.items()]
    return _page(made.head, made.table, made.notes, places)


# ---- faithfulness ------------------------------------------------------------------------------------------------


def _faithfulness(ask: MetaAsk) -> Made:
    pools = read_pools(ask.file)
    judged = judge_pools(pools, ask.metrics, ask.resamples)
    sources = {"pools": named(ask.file), "positive": _origins(pools.positive), "negative": _origins(pools.negative)}
    sources |= {"left_out": dict(pools.left_out)} if pools.left_out else {}
    body = files.meta_eval_json(judged, _before(ask.out), sources, ask.accept_mixture)
    names = {"positive": [m.name for m in pools.positive], "negative": [m.name for m in pools.negative]}
    body["asked"] = {**body["asked"], "faithfulness": asked_json(ask, names, pools.read)}
    head = f"faithfulness: {len(pools.positive)} models that know (P), {len(pools.negative)} that do not (N)"
    apart = _mixtures(body)
    failed = [
        f"{name} is left out: its entry is an error ({why.splitlines()[0]})" for name, why in pools.left_out.items()
    ]
    made = {files.META_EVAL: body, files.THRESHOLDS: files.thresholds_json(judged)}
    notes = [*failed, *_faithful_notes(judged), *apart]
    return Made(made, names, head, _faithful_table(judged.pools), notes)


def _faithful_table(verdicts: Mapping[str, PoolVerdict]) -> str:
    rows = []
    for name, v in verdicts.items():
        t = v.result.threshold
        cut = v.direction.raw(t.m) if t else None
        rows.append(
            [
                name,
                number(v.result.auc),
                span({"interval": v.result.interval}),
                number(v.p_mean),
                number(v.n_mean),
                v.direction.knows,
                number(cut),
                number(t.accuracy if t else None),
                v.protocol,
            ]
        )
    heads = ["metric", "AUC", "95 % interval", "P mean", "N mean", "knows", "threshold", "accuracy", "protocol"]
    return table(rows, heads, right=(1, 2, 3, 4, 6, 7))


def _faithful_notes(judged: Judged) -> list[str]:
    out = []
    for name, v in judged.pools.items():
        out += [f"{name}: {v.result.reason}"] if v.result.reason else []
        out += [f"{name}: {note}" for note in v.result.notes]
        out += [f"{name}: no value of {', '.join(v.result.missing)}"] if v.result.missing else []
        out += (
            [f"{name}: threshold {v.result.threshold.note}"] if v.result.threshold and v.result.threshold.note else []
        )
    return [*out, *_skipped(judged)]


# ---- robustness --------------------------------------------------------------------------------------------------


def _robustness(ask: MetaAsk) -> Made:
    attacks = attacks_from(ask.file)
    whole = [ask.file] if ask.file.is_file() else attacks.read
    found: dict[str, Any] = {"attacks": ", ".join(named(f) for f in whole)}
    thresholds = _beside(ask, ask.thresholds, files.THRESHOLDS)
    if thresholds:
        found["thresholds"] = named(thresholds)
    utility = _utility(ask, attacks, found)
    how = BenchAsk(
        ask.rule,
        files.read_thresholds(thresholds) if thresholds else {},
        files.read_threshold_protocols(thresholds) if thresholds else {},
        utility,
        ask.least_utility,
        ask.own_thresholds,
        ask.accept_mixture,
        ask.resamples,
    )
    judged = judge_attacks(attacks, how, ask.metrics)
    body = files.meta_eval_json(judged, _before(ask.out), found, ask.accept_mixture)
    used = {"thresholds": thresholds, "utility": _beside(ask, ask.utility, files.METHOD_RESULTS)}
    names = [m.name for m in attacks.models]
    body["asked"] = {**body["asked"], "robustness": asked_json(ask, {"models": names}, attacks.read, used)}
    usable = files.usable_json(judged, utility, ask.least_utility, names, found)
    head = (
        f"robustness ({ask.rule}): {len(names)} unlearned models, {usable['counts']['utility_pass_only']} still useful"
    )
    notes = [
        *(f"{name} is left out: {why.splitlines()[0]}" for name, why in attacks.left_out.items()),
        *_robust_notes(judged, utility),
        *([found["utility_made_of"]] if "utility_made_of" in found else []),
        *_of_protocols(judged, how, body),
    ]
    made = {files.META_EVAL: body, files.USABLE: usable}
    return Made(made, {"models": names}, head, _robust_table(judged.attacks, body["overall"]), notes)


def _of_protocols(judged: Judged, how: BenchAsk, body: Mapping[str, Any]) -> list[str]:
    """Thresholds that do not say how they were measured, and verdicts whose halves do not belong together."""
    used = dict.fromkeys(v.filtered_by for v in judged.attacks.values() if v.threshold is not None)
    silent = [n for n in used if n not in how.measured]
    out = (
        [f"no protocol is stated for the thresholds of {', '.join(silent)}: taken to be the models'"] if silent else []
    )
    return [*out, *_mixtures(body)]


def _mixtures(body: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {why}" for name, why in body["notes"].items() if name.startswith(files.MIXED)]


def _utility(ask: MetaAsk, attacks: Attacks, found: dict[str, Any]) -> dict[str, float | None] | None:
    """utility_rel by model: what the pool file says, else what a method_results.json says; None when neither does."""
    said = {m.name: m.utility_rel for m in attacks.models if m.utility_rel is not None}
    path = _beside(ask, ask.utility, files.METHOD_RESULTS)
    if path is None:
        return {m.name: said.get(m.name) for m in attacks.models} if said else None
    found["utility"] = named(path)
    read, made_of = files.read_utility(path)
    found |= {"utility_made_of": made_of} if made_of else {}
    known = {**read, **said}
    if not any(m.name in known for m in attacks.models):
        example = attacks.models[0].name if attacks.models else "none"
        raise UserError(
            f"{path} names no model of {ask.file} (such as {example}); give the entries its names (`model:`)."
        )
    return {m.name: known.get(m.name) for m in attacks.models}


def _robust_table(verdicts: Mapping[str, AttackVerdict], overall: Mapping[str, float | None]) -> str:
    rows = []
    for name, v in verdicts.items():
        r = v.result
        other = next(iter(v.others.values()))
        rows.append(
            [
                name,
                str(len(r.kept)),
                number(r.relearning),
                number(r.quantization),
                number(r.agg),
                span({"interval": r.intervals.get("agg")}),
                number(other.agg),
                number(overall.get(name)),
                v.filtered_by or "none",
                v.protocol,
            ]
        )
    other_name = next((next(iter(v.others)) for v in verdicts.values()), "")
    heads = [
        "metric",
        "kept",
        "R",
        "Q",
        "HM",
        "95 % interval",
        f"HM {other_name}",
        "overall",
        "threshold of",
        "protocol",
    ]
    return table(rows, heads, right=(1, 2, 3, 4, 5, 6, 7))


def _robust_notes(judged: Judged, utility: Mapping[str, float | None] | None) -> list[str]:
    out = [] if utility is not None else ["no utility_rel was given: useless models are not left out"]
    without = [n for n, v in judged.attacks.items() if v.threshold is None]
    if without:
        out.append(f"no threshold for {', '.join(without)}: models that still know are not left out")
    if why := _emptied(judged):
        out.append(why)
    for name, v in judged.attacks.items():
        out += [f"{name}: {part}: {why}" for part, why in v.result.reasons.items() if v.result.kept]
    return [*out, *_skipped(judged)]


def _emptied(judged: Judged) -> str:
    """Which filter leaves metrics without a single model, said once for all of them."""
    empty = {n: v.result.left_out for n, v in judged.attacks.items() if not v.result.kept}
    if not empty:
        return ""
    reasons = Counter(why for left in empty.values() for why in left.values())
    said = "; ".join(f"{why} ({count} of {reasons.total()})" for why, count in reasons.most_common())
    whose = "every metric" if len(empty) == len(judged.attacks) else ", ".join(empty)
    return f"the filters leave no model for {whose}: {said or 'no model was given'}"


# ---- axes --------------------------------------------------------------------------------------------------------


def _axes(ask: MetaAsk) -> Made:
    if ask.file.is_dir():
        methods = methods_of(read_tree(ask.file), ask.floor, ask.baseline)
    elif ask.file.suffix == ".json":
        methods = files.read_method_results(ask.file, ask.floor)
    else:
        methods = read_methods(ask.file, ask.floor)
    methods = replace(methods, notes=(*methods.notes, *hidden(methods.rows)))
    source = str(ask.file) if ask.file.is_dir() else named(ask.file)
    body = files.method_results_json(methods, ask.floor, {"models": source})
    names = {"models": [r.name for r in methods.rows]}
    replaced = ask.file.resolve() == (ask.out / files.METHOD_RESULTS).resolve()  # then nothing is left to redo it from
    body["asked"] = {} if replaced else {"axes": asked_json(ask, names, methods.read)}
    return Made({files.METHOD_RESULTS: body}, names, *_axes_page(methods, ask.floor, ask.rows))


def _axes_page(methods: Methods, floor: float, rows: int) -> tuple[str, str, list[str]]:
    ranked = sorted(methods.rows, key=lambda r: -(r.floored.overall if r.floored.overall is not None else -1.0))
    head = f"axes: {len(ranked)} models, by floored Overall"
    if rows and len(ranked) > rows:
        head += f" (the first {rows}; --rows 0 for all)"
        ranked = ranked[:rows]
    kinds = sorted(set(methods.protocols.values()))
    notes = [
        f"Overall is 0 to six decimals for {erased([r.published for r in methods.rows])} of {len(methods.rows)}: "
        f"one part cut off at 0 erases the rest. Floored counts such a part as {floor:g} and names it.",
        f"protocols: {'; '.join(kinds) or 'not stated'}" + (" (Privacy joins both kinds)" if len(kinds) > 1 else ""),
        *([methods.fallback] if methods.fallback else []),
        *methods.notes,
    ]
    return head, _axes_table(ranked), notes


def _axes_table(rows: Sequence[MethodRow]) -> str:
    cells = []
    for r in rows:
        a = r.published
        values = (a.mem, a.privacy_mia, r.parts.get("uds"), a.privacy, a.utility, a.utility_rel, a.overall)
        told = [f"raised {', '.join(r.floored.floored)}"] if r.floored.floored else []
        for why in a.reasons.values():  # axes that are made of others lack what these lack
            told += [one for one in why.split("; ") if one not in told]
        cells.append([r.name, *map(number, (*values, r.floored.overall)), "; ".join(told)])
    heads = [
        "model",
        "Mem",
        "MIA",
        "UDS",
        "Privacy",
        "Utility",
        "util. rel",
        "Overall",
        "floored",
        "raised, or why missing",
    ]
    return table(cells, heads, right=tuple(range(1, 9)))


def is_tree(path: Path) -> bool:
    """Is this a result tree (runs/ep*/<axis>/<model>/)?"""
    return path.is_dir() and root_of(path) is not None


def import_tree(
    path: Path, out: Path | None = None, floor: float = FLOOR, rows: int = 20, baseline: str | None = None
) -> str:
    """A result tree as method_results.json in `out`, and its meta_eval/ as meta_eval.json beside it.

    `baseline`: the epoch whose full model serves every epoch.
    """
    root = root_of(path) or path
    if out is None:
        made = _axes(MetaAsk(path, Path(), floor=floor, rows=rows, baseline=baseline))
        there = [str(f.relative_to(root)) for f in (faithfulness_file(root), *attack_files(root).values()) if f]
        more = [f"{', '.join(there)}: --out DIR judges metrics by them"] if there else []
        return _page(made.head, made.table, [*made.notes, *more], [])
    pages = [meta("axes", MetaAsk(path, out, floor=floor, rows=rows, baseline=baseline))]
    if pools := faithfulness_file(root):
        pages.append(meta("faithfulness", MetaAsk(pools, out)))
    if found := attack_files(root):
        pages.append(meta("robustness", MetaAsk(next(iter(found.values())).parents[1], out)))
    return "\n\n".join(pages)


# ---- the verdict -------------------------------------------------------------------------------------------------


def _verdict(ask: MetaAsk) -> Made:
    models = read_bench(ask.file)
    body = bench_json(models)
    shown = "table" if body["table"]["models"] else "tuning"
    apart = f"; {body['tuning']['models']} more of seeds on which the rule's constants were fixed"
    head = f"verdict: {body[shown]['models']} models of known truth{apart if shown == 'table' else ''}"
    made = {BENCH: body, FACTS: facts_json(models)}
    return Made(made, {"models": [m.name for m in models]}, head, bench_lines(body, shown), [])


# ---- shared ------------------------------------------------------------------------------------------------------


def _beside(ask: MetaAsk, given: Path | None, usual: str) -> Path | None:
    """The file asked for; else the one an earlier command left in --out, if it did."""
    path = ask.out / usual
    return given if given is not None else (path if ask.beside and path.is_file() else None)


def _before(out: Path) -> dict[str, Any] | None:
    path = out / files.META_EVAL
    return files.read_meta_eval(path) if path.is_file() else None


def _origins(models: Sequence[ModelNumbers]) -> dict[str, list[str]]:
    return {m.name: list(m.sources) for m in models}


def _skipped(judged: Judged) -> list[str]:
    return [f"{name} left alone: {why}" for name, why in judged.skipped.items()]


def _page(head: str, body: str, notes: Sequence[str], written: Sequence[Path]) -> str:
    lines = [head, "", body, "", *(f"note: {n}" for n in notes)]
    if written:
        lines.append(f"files: {', '.join(map(str, written))}")
    return "\n".join(lines).rstrip()


QUESTIONS: dict[str, Callable[[MetaAsk], Made]] = {
    "faithfulness": _faithfulness,
    "robustness": _robustness,
    "axes": _axes,
    "verdict": _verdict,
}
