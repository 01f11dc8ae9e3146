"""`vestige meta faithfulness|robustness|axes|verdict`: metrics put on the bench, from finished runs or plain numbers.

In: a pool file (meta/pools.py), which names runs or gives numbers. Out: the JSON files of meta/files.py. Callers:
meta/flags.py, bench/demo_meta.py. `answer_again` redoes an answer for `vestige verify`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from vestige.errors import UserError, unknown_name
from vestige.meta import files
from vestige.meta.axes import (
    FLOOR,
    MethodRow,
    Methods,
    hidden_rows,
    method_results_json,
    read_method_results,
    read_methods,
    read_utility,
)
from vestige.meta.faithfulness import RESAMPLES, judge_pools
from vestige.meta.pools import Attacks, read_pools
from vestige.meta.robustness import UTILITY_FILTER, Cut, JudgedAttacks, judge_attacks
from vestige.meta.tree import attack_files, attacks_from, faithfulness_file, methods_of, read_tree, root_of
from vestige.meta.verdict import BENCH, FACTS, bench_json, bench_lines, facts_json, read_bench
from vestige.numeric import number
from vestige.runs.directory import open_run
from vestige.runs.files import relative, write_json
from vestige.runs.manifest import kind_in, manifest, sha256
from vestige.secrets import masked
from vestige.show.tables import span, table
from vestige.types import content_key

WRITTEN = (files.META_EVAL, files.METHOD_RESULTS, files.THRESHOLDS, files.USABLE, BENCH, FACTS)


@dataclass(frozen=True)
class MetaAsk:
    """What the command line may say."""

    file: Path
    out: Path = Path("saves/meta")
    metrics: Sequence[str] | None = None
    resamples: int = RESAMPLES
    rule: str = "symmetric"
    thresholds: Path | None = None
    utility: Path | None = None
    least_utility: float = UTILITY_FILTER
    own_thresholds: bool = False
    accept_mixture: bool = False
    floor: float = FLOOR
    rows: int = 20
    baseline: str | None = None  # axes of a result tree: the epoch whose full model serves all
    use_earlier: bool = True  # take thresholds and utility_rel that an earlier command left in `out`


@dataclass(frozen=True)
class StoredQuestion:
    """How an answer was asked for, and from which files. Paths are relative to the answer: both can move together."""

    file: str
    metrics: list[str] | None
    resamples: int
    rule: str
    least_utility: float
    own_thresholds: bool
    accept_mixture: bool
    floor: float
    baseline: str | None
    thresholds: str | None  # the files that served, given or left by an earlier command
    utility: str | None
    models: dict[str, list[str]]  # set of models -> their names
    read: dict[str, str]  # every file a number came from -> its sha256

    def ask(self, place: Path) -> MetaAsk:
        """The same question, asked again in a directory."""
        same = {key: value for key, value in asdict(self).items() if key not in ("models", "read")}
        for key in ("file", "thresholds", "utility"):
            same[key] = None if same[key] is None else place / same[key]
        return MetaAsk(**same, out=place, use_earlier=False)


@dataclass(frozen=True)
class Answer:
    """An answer: the files it fills, the models it speaks of, and what is shown of it."""

    files: Mapping[str, Any]
    models: Mapping[str, Sequence[str]]  # set of models -> their names
    head: str
    table: str
    notes: Sequence[str]

    def page(self, written: Sequence[Path] = ()) -> str:
        """What a terminal shows: the table between its headline and its notes."""
        lines = [self.head, "", self.table, "", *(f"note: {note}" for note in self.notes)]
        if written:
            lines.append(f"files: {', '.join(map(str, written))}")
        return "\n".join(lines).rstrip()


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
    if not ask.file.exists():
        raise UserError(f"{ask.file} does not exist; write a YAML list of runs (see docs/meta.md).")
    answer = QUESTIONS[what](ask)
    # Several questions share a directory and its manifest. In the directory of another run (a sweep's, say) the answer
    # is one more result of that run, and what its manifest says stays.
    kind = kind_in(ask.out) or "meta"
    with open_run(ask.out, kind, WRITTEN) as run:
        config = run.facts.get("config")
        questions = config.get("questions") if isinstance(config, Mapping) else None
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(ask).items()}
        for name, body in answer.files.items():
            write_json(ask.out / name, body)
        asked = {**(questions if isinstance(questions, Mapping) else {}), what: settings}
        run.finish(manifest("meta", masked({"questions": asked})) if kind == "meta" else None)
    return answer.page([ask.out / name for name in answer.files])


def _stored_question(
    ask: MetaAsk,
    models: Mapping[str, Sequence[str]],
    read: Iterable[Path],
    thresholds: Path | None = None,
    utility: Path | None = None,
) -> dict[str, Any]:
    """The question, the models it was answered for, and every file it was answered from, as it is stored."""
    helpers = [path for path in (thresholds, utility) if path is not None]
    stored = StoredQuestion(
        file=relative(ask.file, ask.out),
        metrics=None if ask.metrics is None else list(ask.metrics),
        resamples=ask.resamples,
        rule=ask.rule,
        least_utility=ask.least_utility,
        own_thresholds=ask.own_thresholds,
        accept_mixture=ask.accept_mixture,
        floor=ask.floor,
        baseline=ask.baseline,
        thresholds=None if thresholds is None else relative(thresholds, ask.out),
        utility=None if utility is None else relative(utility, ask.out),
        models={part: list(names) for part, names in models.items()},
        read={relative(path, ask.out): sha256(path) for path in dict.fromkeys([*read, *helpers])},
    )
    return asdict(stored)


def read_question(stored: Any) -> StoredQuestion | None:
    """A stored question; None where a file (of somebody else) has none."""
    try:
        return msgspec.convert(stored, StoredQuestion)
    except msgspec.ValidationError:
        return None


def named(path: Path) -> str:
    """A file's path with a digest of its content: another content, another source."""
    try:
        return f"{path} ({content_key(path.read_bytes())[:12]})"
    except OSError:
        raise UserError(f"{path} cannot be read; give an existing file.") from None


def _earlier_file(ask: MetaAsk, given: Path | None, usual: str) -> Path | None:
    """The file asked for; else the one an earlier command left in --out, if it did."""
    if given is None and ask.use_earlier and (ask.out / usual).is_file():
        return ask.out / usual
    return given


def _meta_eval_before(out: Path) -> dict[str, Any] | None:
    path = out / files.META_EVAL
    return files.read_meta_eval(path) if path.is_file() else None


def _shared_notes(body: Mapping[str, Any], skipped: Mapping[str, str]) -> list[str]:
    """Metrics left alone, and verdicts whose halves or thresholds were measured in different ways."""
    notes = [f"{name} left alone: {why}" for name, why in skipped.items()]
    return notes + [f"{name}: {why}" for name, why in body["notes"].items() if name.startswith(files.MIXED)]


# ---- faithfulness ------------------------------------------------------------------------------------------------


def _faithfulness(ask: MetaAsk) -> Answer:
    """Two pools of models: how well each metric tells them apart, and the threshold that does it best."""
    pools = read_pools(ask.file)
    judged = judge_pools(pools, ask.metrics, ask.resamples)
    sources: dict[str, Any] = {"pools": named(ask.file)}
    models = {}
    for side, pool in (("positive", pools.positive), ("negative", pools.negative)):
        sources[side] = {model.name: list(model.sources) for model in pool}
        models[side] = [model.name for model in pool]
    if pools.left_out:
        sources["left_out"] = dict(pools.left_out)
    body = files.meta_eval_json(judged, _meta_eval_before(ask.out), sources, ask.accept_mixture)
    body["asked"]["faithfulness"] = _stored_question(ask, models, pools.read)
    notes = []
    for name, why in pools.left_out.items():
        notes.append(f"{name} is left out: its entry is an error ({why.splitlines()[0]})")
    rows = []
    for name, entry in judged.entries.items():
        cut = judged.thresholds.get(name, {})
        rows.append(
            [
                name,
                number(entry["auc_roc"]),
                span({"interval": entry["auc_interval"]}),
                number(entry["p_mean"]),
                number(entry["n_mean"]),
                entry["knows"],
                number(cut.get("threshold")),
                number(entry["accuracy"]),
                entry["protocol"],
            ]
        )
        remarks = [entry["reason"]] if "reason" in entry else []
        remarks += entry.get("notes", [])
        if "missing" in entry:
            remarks.append(f"no value of {', '.join(entry['missing'])}")
        if "note" in cut:
            remarks.append(f"threshold {cut['note']}")
        notes += [f"{name}: {remark}" for remark in remarks]
    notes += _shared_notes(body, judged.skipped)
    heads = ["metric", "AUC", "95 % interval", "P mean", "N mean", "knows", "threshold", "accuracy", "protocol"]
    shown = table(rows, heads, right=(1, 2, 3, 4, 6, 7))
    head = f"faithfulness: {len(pools.positive)} models that know (P), {len(pools.negative)} that do not (N)"
    written = {files.META_EVAL: body, files.THRESHOLDS: dict(judged.thresholds)}
    return Answer(written, models, head, shown, notes)


# ---- robustness --------------------------------------------------------------------------------------------------


def _robustness(ask: MetaAsk) -> Answer:
    """Models before and after attacks: how far each metric still says the same of them."""
    attacks = attacks_from(ask.file)
    named_files = [ask.file] if ask.file.is_file() else attacks.read
    sources: dict[str, Any] = {"attacks": ", ".join(map(named, named_files))}
    cuts: dict[str, Cut] = {}
    thresholds = _earlier_file(ask, ask.thresholds, files.THRESHOLDS)
    if thresholds is not None:
        sources["thresholds"] = named(thresholds)
        cuts = files.read_thresholds(thresholds)
    utility_file = _earlier_file(ask, ask.utility, files.METHOD_RESULTS)
    utility = _utility(ask, attacks, utility_file, sources)
    judged = judge_attacks(
        attacks,
        ask.metrics,
        ask.rule,
        cuts,
        utility,
        ask.least_utility,
        ask.own_thresholds,
        ask.accept_mixture,
        ask.resamples,
    )
    names = [model.name for model in attacks.models]
    body = files.meta_eval_json(judged, _meta_eval_before(ask.out), sources, ask.accept_mixture)
    body["asked"]["robustness"] = _stored_question(ask, {"models": names}, attacks.read, thresholds, utility_file)
    usable = files.usable_json(judged, utility, ask.least_utility, names, sources)
    useful = usable["counts"]["utility_pass_only"]
    head = f"robustness ({ask.rule}): {len(names)} unlearned models, {useful} still useful"
    notes = [f"{name} is left out: {why.splitlines()[0]}" for name, why in attacks.left_out.items()]
    notes += _filter_notes(judged, utility)
    if "utility_made_of" in sources:
        notes.append(sources["utility_made_of"])
    # A threshold without a protocol is applied all the same: files of other people state none.
    used = dict.fromkeys(e["filtered_by"] for e in judged.entries.values() if e["threshold_m"] is not None)
    if silent := [name for name in used if not cuts[name].protocol]:
        notes.append(f"no protocol is stated for the thresholds of {', '.join(silent)}: taken to be the models'")
    notes += _shared_notes(body, judged.skipped)
    written = {files.META_EVAL: body, files.USABLE: usable}
    return Answer(written, {"models": names}, head, _robust_table(judged, body["overall"]), notes)


def _utility(
    ask: MetaAsk, attacks: Attacks, path: Path | None, sources: dict[str, Any]
) -> dict[str, float | None] | None:
    """utility_rel by model: what the pool file says, else what a method_results.json says; None when neither does."""
    known: dict[str, float | None] = {}
    for model in attacks.models:
        if model.utility_rel is not None:
            known[model.name] = model.utility_rel
    if path is None and not known:
        return None
    if path is not None:
        sources["utility"] = named(path)
        read, made_of = read_utility(path)
        if made_of:
            sources["utility_made_of"] = made_of
        known = {**read, **known}
        if not any(m.name in known for m in attacks.models):
            example = attacks.models[0].name if attacks.models else "none"
            raise UserError(
                f"{path} names no model of {ask.file} (such as {example}); give the entries its names (`model:`)."
            )
    return {m.name: known.get(m.name) for m in attacks.models}


def _robust_table(judged: JudgedAttacks, overall: Mapping[str, float | None]) -> str:
    """One line per metric; the other rule is shown next to the chosen one, because published numbers use both."""
    rows = []
    other_name = ""
    for name, entry in judged.entries.items():
        ((other_name, other),) = entry["other_rules"].items()
        rows.append(
            [
                name,
                str(entry["n_models"]),
                number(entry["relearning"]),
                number(entry["quantization"]),
                number(entry["agg"]),
                span({"interval": entry["intervals"].get("agg")}),
                number(other["agg"]),
                number(overall.get(name)),
                entry["filtered_by"] or "none",
                entry["protocol"],
            ]
        )
    heads = ["metric", "kept", "R", "Q", "HM", "95 % interval", f"HM {other_name}", "overall"]
    return table(rows, [*heads, "threshold of", "protocol"], right=(1, 2, 3, 4, 5, 6, 7))


def _filter_notes(judged: JudgedAttacks, utility: Mapping[str, float | None] | None) -> list[str]:
    """What the filters did, or could not do, to the set of models that R and Q are read from."""
    notes = []
    if utility is None:
        notes.append("no utility_rel was given: useless models are not left out")
    if without := [name for name, entry in judged.entries.items() if entry["threshold_m"] is None]:
        notes.append(f"no threshold for {', '.join(without)}: models that still know are not left out")
    empty = [name for name, kept in judged.kept.items() if not kept]
    if empty:  # which filter leaves a metric without a single model, said once for all of them
        reasons = Counter(why for name in empty for why in judged.left_out[name].values())
        words = "; ".join(f"{why} ({count} of {reasons.total()})" for why, count in reasons.most_common())
        whose = "every metric" if len(empty) == len(judged.kept) else ", ".join(empty)
        notes.append(f"the filters leave no model for {whose}: {words or 'no model was given'}")
    for name, entry in judged.entries.items():
        if judged.kept[name]:
            notes += [f"{name}: {part}: {why}" for part, why in entry.get("reasons", {}).items()]
    return notes


# ---- axes --------------------------------------------------------------------------------------------------------


def _axes(ask: MetaAsk) -> Answer:
    """Models to rank: from a result tree, from a method_results.json, or from runs that a YAML file names."""
    if ask.file.is_dir():
        methods = methods_of(read_tree(ask.file), ask.floor, ask.baseline)
    elif ask.file.suffix == ".json":
        methods = read_method_results(ask.file, ask.floor)
    else:
        methods = read_methods(ask.file, ask.floor)
    methods = replace(methods, notes=(*methods.notes, *hidden_rows(methods.rows)))
    source = str(ask.file) if ask.file.is_dir() else named(ask.file)
    body = method_results_json(methods, ask.floor, {"models": source})
    names = {"models": [row.name for row in methods.rows]}
    # Where the file replaces what it was made from, nothing is left to redo it from.
    # `vestige meta axes out/method_results.json --out out` computes the axes again in place.
    replaced = ask.file.resolve() == (ask.out / files.METHOD_RESULTS).resolve()
    body["asked"] = {} if replaced else {"axes": _stored_question(ask, names, methods.read)}
    ranked = sorted(methods.rows, key=lambda row: -(-1.0 if row.floored.overall is None else row.floored.overall))
    head = f"axes: {len(ranked)} models, by floored Overall"
    if ask.rows and len(ranked) > ask.rows:
        head += f" (the first {ask.rows}; --rows 0 for all)"
        ranked = ranked[: ask.rows]
    return Answer({files.METHOD_RESULTS: body}, names, head, _axes_table(ranked), _axes_notes(methods, ask.floor))


def _axes_notes(methods: Methods, floor: float) -> list[str]:
    """What a reader must know before comparing the numbers with published ones."""
    kinds = sorted(set(methods.protocols.values()))
    joins = " (Privacy joins both kinds)" if len(kinds) > 1 else ""
    notes = [
        f"Overall is 0 to six decimals for {methods.erased} of {len(methods.rows)}: one part cut off at 0 erases the "
        f"rest. Floored counts such a part as {floor:g} and names it.",
        f"protocols: {'; '.join(kinds) or 'not stated'}{joins}",
    ]
    if methods.fallback:
        notes.append(methods.fallback)
    return [*notes, *methods.notes]


def _axes_table(rows: Sequence[MethodRow]) -> str:
    """One line per model, with the parts that were raised to the floor, or why an axis is missing."""
    cells = []
    for row in rows:
        axes = row.published
        values = (
            axes.mem, axes.privacy_mia, row.parts.get("uds"), axes.privacy, axes.utility, axes.utility_rel,
            axes.overall, row.floored.overall,
        )  # fmt: skip
        remarks = [f"raised {', '.join(row.floored.floored)}"] if row.floored.floored else []
        for why in axes.reasons.values():  # axes that are made of others lack what these lack
            remarks += [one for one in why.split("; ") if one not in remarks]
        cells.append([row.name, *map(number, values), "; ".join(remarks)])
    heads = ["model", "Mem", "MIA", "UDS", "Privacy", "Utility", "util. rel", "Overall", "floored"]
    return table(cells, [*heads, "raised, or why missing"], right=tuple(range(1, 9)))


def is_tree(path: Path) -> bool:
    """Is this a result tree (runs/ep*/<axis>/<model>/)?"""
    return path.is_dir() and root_of(path) is not None


def import_tree(
    path: Path, out: Path | None = None, floor: float = FLOOR, rows: int = 20, baseline: str | None = None
) -> str:
    """A result tree as method_results.json in `out`, and its meta_eval/ as meta_eval.json next to it.

    `baseline`: the epoch whose full model serves every epoch. Without `out` the table is only shown.
    """
    root = root_of(path) or path
    pools, attacks = faithfulness_file(root), attack_files(root)
    if out is None:
        answer = _axes(MetaAsk(path, Path(), floor=floor, rows=rows, baseline=baseline))
        more = [str(file.relative_to(root)) for file in (pools, *attacks.values()) if file is not None]
        notes = [f"{', '.join(more)}: --out DIR judges metrics by them"] if more else []
        return replace(answer, notes=[*answer.notes, *notes]).page()
    pages = [meta("axes", MetaAsk(path, out, floor=floor, rows=rows, baseline=baseline))]
    if pools is not None:
        pages.append(meta("faithfulness", MetaAsk(pools, out)))
    if attacks:
        pages.append(meta("robustness", MetaAsk(next(iter(attacks.values())).parents[1], out)))
    return "\n\n".join(pages)


# ---- the verdict -------------------------------------------------------------------------------------------------


def _verdict(ask: MetaAsk) -> Answer:
    """Models of known truth: which word the verdict finds for each."""
    models = read_bench(ask.file)
    body = bench_json(models)
    head = f"verdict: {body['tuning']['models']} models of known truth"
    part = "tuning"
    if body["table"]["models"]:
        part = "table"
        more = body["tuning"]["models"]
        head = f"verdict: {body['table']['models']} models of known truth; {more} more of seeds on which the rule's "
        head += "constants were fixed"
    names = {"models": [model.name for model in models]}
    return Answer({BENCH: body, FACTS: facts_json(models)}, names, head, bench_lines(body, part), [])


QUESTIONS: dict[str, Callable[[MetaAsk], Answer]] = {
    "faithfulness": _faithfulness,
    "robustness": _robustness,
    "axes": _axes,
    "verdict": _verdict,
}
