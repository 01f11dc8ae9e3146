"""A result tree of the unlearning-depth-score project, in the files that its scripts write.

runs/ep5/<axis>/<model>/summary.json, and ep10 likewise
runs/meta_eval/faithfulness/results.json                model -> {pool: P or N, metrics}
runs/meta_eval/robustness/{quant,relearn}/results.json  model -> {metrics_before, metrics_after_quant (_relearn)}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.meta.axes import FLOOR, SOURCES, UDS_ENDS, Methods, facts_of, from_models
from vestige.meta.faithfulness import RESAMPLES, judge_pools
from vestige.meta.files import meta_eval_json
from vestige.meta.pools import (
    ATTACKS,
    IN_FILE,
    AttackedModel,
    Attacks,
    ModelNumbers,
    as_number,
    compared_with_retain,
    entry_error,
    joined,
    read_attacks,
    read_file,
    read_pools,
    schema_numbers,
    similarity,
)
from vestige.meta.robustness import Cut, judge_attacks
from vestige.metrics.cards import CHAT, ENTITY, short
from vestige.runs.run import Number

# The folders of an epoch that are read, and how their models were asked.
_FOLDERS = {"memorization": CHAT, "privacy": CHAT, "utility": CHAT, "gen_rouge": CHAT, "uds": ENTITY}
RESULTS = "results.json"
_MODES = ("quant", "relearn")  # as the project's folders and keys call the attacks


def _summary_numbers(summary: Path, folder: str) -> dict[str, Number]:
    """The numbers of one summary.json, by short names."""
    data = read_file(summary)
    values: dict[str, Any] = {}
    if folder == "memorization":
        values = {k.removeprefix("avg_"): v for k, v in data.items() if k.startswith("avg_") and k != "avg_mem"}
    elif folder == "privacy":
        for attack, body in _section(data, "attacks", summary).items():
            name = short(f"mia_{attack}")
            if not isinstance(body, Mapping):
                raise UserError(f"{summary}: the attack {attack} has no AUC; copy the file again.")
            keys = ("auc", "retain_auc", "s_mia")
            auc, retain, stored = (as_number(body.get(key), f"{key} of {attack} in {summary}") for key in keys)
            values[name] = auc
            # The stored likeness serves only where there are not both AUCs.
            values[f"s_{name}"] = stored if auc is None or retain is None else similarity(auc, retain)
    elif folder == "uds":
        values = {"uds": data.get("avg_uds", data.get("avg_udr"))}  # the second is the score's former name
    else:
        values = _section(data, "metrics", summary)
    if folder == "utility":
        # Real authors' and world facts' probabilities are shares among options here, under the plain names.
        shares = {"ra_Q_A_Prob": "ra_Q_A_Prob_normalised", "wf_Q_A_Prob": "wf_Q_A_Prob_normalised"}
        values = {shares.get(key, key): value for key, value in values.items()}
        values[SOURCES["fluency"]] = data.get("fluency")
    protocol = _FOLDERS[folder]
    return {short(k): Number(as_number(v, f"{k} in {summary}"), protocol) for k, v in values.items()}


def _section(data: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    """A part of a summary; scripts that were interrupted leave it out, or null."""
    section = data.get(key) or {}
    if not isinstance(section, Mapping):
        raise UserError(f"{path}: `{key}` is not a mapping, as the project's scripts write it; copy the file again.")
    return dict(section)


@dataclass
class ResultTree:
    """The models of a tree by (epoch, name), and what was passed over."""

    root: Path
    models: dict[tuple[str, str], ModelNumbers] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def read(self) -> tuple[Path, ...]:
        """Every file a number came from."""
        return tuple(Path(s) for m in self.models.values() for s in m.sources)


def is_root(path: Path) -> bool:
    """Does the directory hold ep*/ with at least one of the folders that are read?"""
    return path.is_dir() and any(_axes_of(e) for e in epochs_of(path))


def is_epoch(path: Path) -> bool:
    return _epoch_name(path) and bool(_axes_of(path))


def _epoch_name(path: Path) -> bool:
    return path.is_dir() and path.name.startswith("ep") and path.name[2:].isdigit()


def root_of(path: Path) -> Path | None:
    """The directory that holds ep*/: the path itself or its runs/; None without such a tree."""
    return next((place for place in (path, path / "runs") if is_root(place)), None)


def is_legacy(path: Path) -> bool:
    """The project keeps superseded runs in folders of this name and forbids reading them."""
    return path.name.lower().startswith("legacy")


def _legacy_note(root: Path) -> str:
    """One line that names the legacy folders of a tree and among its models, which are not read; empty without any."""
    # The project moves superseded runs into such folders at every level.
    places = [root]
    for epoch in epochs_of(root):
        places += [epoch, *_axes_of(epoch)]
    legacy = sorted(p for place in places for p in place.iterdir() if p.is_dir() and is_legacy(p))
    names = ", ".join(p.relative_to(root).as_posix() for p in legacy)
    return f"legacy folders are not read: {names}" if names else ""


def other_folders(root: Path) -> list[Path]:
    """Folders of the epochs that hold no kind of result known here."""
    inner = (p for e in epochs_of(root) for p in e.iterdir())
    return sorted(p for p in inner if p.is_dir() and p.name not in _FOLDERS and not is_legacy(p))


def epochs_of(root: Path) -> list[Path]:
    found = [p for p in root.glob("ep*") if _epoch_name(p)]
    return sorted(found, key=lambda p: int(p.name[2:]))


def _axes_of(epoch: Path) -> list[Path]:
    return [epoch / axis for axis in _FOLDERS if (epoch / axis).is_dir()]


def read_tree(path: Path) -> ResultTree:
    """Every model's numbers. Folders called legacy are skipped, and named; so is a folder without a summary."""
    root = root_of(path)
    if root is None:
        raise UserError(f"{path} holds no ep*/ folder with {', '.join(_FOLDERS)}; give the runs directory.")
    out = ResultTree(root)
    if note := _legacy_note(root):
        out.notes.append(note)
    if unknown := sorted({p.name for p in other_folders(root)}):
        out.notes.append(f"folders that are not read: {', '.join(unknown)} (known: {', '.join(_FOLDERS)})")
    for epoch in epochs_of(root):
        summaries: dict[str, list[Path]] = {}
        for axis in _axes_of(epoch):
            for place in sorted(p for p in axis.iterdir() if p.is_dir() and not is_legacy(p)):
                if (place / "summary.json").is_file():
                    summaries.setdefault(place.name, []).append(place / "summary.json")
                else:
                    out.notes.append(f"{place.relative_to(root).as_posix()} has no summary.json")
        for name, files in sorted(summaries.items()):
            numbers = joined((_summary_numbers(f, f.parents[1].name) for f in files), f"{name} in {epoch}")
            facts = {**facts_of(name), "epoch": epoch.name}
            out.models[epoch.name, name] = ModelNumbers(name, numbers, tuple(map(str, files)), facts)
    return out


def methods_of(tree: ResultTree, floor: float = FLOOR, baseline: str | None = None) -> Methods:
    """The axes of every model of a tree; utility is relative to the full model of the same epoch.

    An epoch without one takes the only one there is (published trees have it under ep10 alone); `baseline` names the
    epoch whose full model serves all.
    """
    full = {epoch: model for (epoch, name), model in tree.models.items() if name == "full"}
    if baseline is not None and baseline not in full:
        raise UserError(f"No full model under '{baseline}'; epochs that have one: {', '.join(full) or 'none'}.")
    serving = baseline
    if serving is None and len(full) == 1:
        serving = next(iter(full))
    notes = list(tree.notes)
    for epoch in sorted({epoch for epoch, _ in tree.models}):
        if serving is not None and epoch != serving and (baseline or epoch not in full):
            full[epoch] = full[serving]
            notes.append(f"utility_rel of {epoch} is relative to the full model of {serving}")
        elif epoch not in full:
            notes.append(
                f"{epoch} has no full model, and several others have: its models have no utility_rel (say which: "
                "--baseline EPOCH)"
            )
    # The full and the retain model are the ends of the depth score's scale, which are not measured in a tree.
    # Only in a tree that has depth scores at all: otherwise two references would be the only models with one.
    measured = any("uds" in model.numbers for model in tree.models.values())
    models = []
    for model in tree.models.values():
        if measured and model.name in UDS_ENDS and "uds" not in model.numbers:
            model = replace(model, numbers={**model.numbers, "uds": Number(UDS_ENDS[model.name], ENTITY)})
        models.append(model)
    return replace(from_models(models, full, None, floor), notes=tuple(notes), read=tree.read)


# ---- meta_eval/ --------------------------------------------------------------------------------------------------


def faithfulness_file(root: Path) -> Path | None:
    path = root / "meta_eval" / "faithfulness" / RESULTS
    return path if path.is_file() else None


def attack_files(path: Path) -> dict[str, Path]:
    """Attack -> results.json, below a tree's root, in its meta_eval/robustness, or for such a file itself."""
    if path.is_file():
        return {path.parent.name: path} if path.parent.name in _MODES and path.name == RESULTS else {}
    # The tree may be given by its top, by its runs/ folder, or by the folder of the results.
    for place in (path, path / "meta_eval" / "robustness", path / "runs" / "meta_eval" / "robustness"):
        if found := {mode: place / mode / RESULTS for mode in _MODES if (place / mode / RESULTS).is_file()}:
            return found
    return {}


def attacks_from(path: Path) -> Attacks:
    """Models before and after attacks: from a YAML file, or from the results.json of a result tree."""
    if not path.is_dir() and path.suffix != ".json":
        return read_attacks(path)
    found = attack_files(path)
    if not found:
        raise UserError(
            f"{path} holds no {{{','.join(_MODES)}}}/{RESULTS}; give meta_eval/robustness of a result tree, or a YAML "
            "list of runs (see docs/meta.md)."
        )
    return read_tree_attacks(found)


def read_tree_attacks(files: Mapping[str, Path]) -> Attacks:
    """The files of one or both attacks as one set of models; an entry that is an error is left out and named."""
    models: dict[str, dict[str, dict[str, Number]]] = {}
    left_out: dict[str, str] = {}
    places = ", ".join(map(str, files.values()))
    for mode, path in files.items():
        after = f"metrics_after_{mode}"
        for name, body in read_file(path).items():
            error = entry_error(body)
            if not error and isinstance(body, Mapping) and "metrics_before" in body and after not in body:
                # The project's script writes the file after every model; the one under way has no values yet.
                error = f"{after} is missing"
            if error:
                left_out[f"{name} ({mode})"] = error
                continue
            states = models.setdefault(name, {})
            for state, key in (("before", "metrics_before"), (ATTACKS[mode], after)):
                metrics = body.get(key) if isinstance(body, Mapping) else None
                if not isinstance(metrics, Mapping):
                    raise UserError(
                        f"{name} in {path} has no {key}; give the file as scripts/meta_eval_robustness.py writes it."
                    )
                numbers = schema_numbers(metrics, f"{name} in {path}")
                # What both files say of a model before the attacks must agree.
                states[state] = joined((states.get(state, {}), numbers), f"{name} {state} in {places}")
    if "retain" not in models:
        raise UserError(f"{places} has no entry `retain`, the yardstick of relearning.")
    attacked = {}
    for name, states in models.items():
        by_state = {state: ModelNumbers(name, numbers, (IN_FILE + places,)) for state, numbers in states.items()}
        attacked[name] = AttackedModel(name, by_state)
    retain = attacked.pop("retain")
    return compared_with_retain(Attacks(retain, tuple(attacked.values()), {}, left_out, tuple(files.values())))


@dataclass(frozen=True)
class TreeMeta:
    """What meta_eval/ of a tree says, in the schema of meta_eval.json."""

    body: Mapping[str, Any]
    notes: tuple[str, ...]


def tree_meta(root: Path, methods: Methods, attacks: Attacks | None, resamples: int = RESAMPLES) -> TreeMeta:
    """Both halves judged: thresholds come from the tree's own pools, utility_rel from its own models."""
    notes: list[str] = []
    cuts: dict[str, Cut] = {}
    body: Mapping[str, Any] = {}
    if (file := faithfulness_file(root)) is not None:
        pools = read_pools(file)
        judged = judge_pools(pools, None, resamples)
        # The tree's own pools say where a model stops looking like one that knows.
        cuts = {n: Cut(entry["threshold_m"], entry["protocol"]) for n, entry in judged.thresholds.items()}
        body = meta_eval_json(judged)
        notes += [f"{name} is left out of the pools: {why}" for name, why in pools.left_out.items()]
    if attacks is not None:
        utility = {row.name: row.published.utility_rel for row in methods.rows}
        known = utility if any(value is not None for value in utility.values()) else None
        body = meta_eval_json(judge_attacks(attacks, cuts=cuts, utility=known, resamples=resamples), body)
        notes += [f"{name} is left out of the attacks: {why}" for name, why in attacks.left_out.items()]
    return TreeMeta(body, tuple(notes))
