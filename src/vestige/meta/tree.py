"""A result tree of the unlearning-depth-score project: runs/ep5/<axis>/<model>/summary.json, and ep10 likewise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from vestige.errors import UserError
from vestige.meta.axes import FLOOR, similarity
from vestige.meta.methods import SOURCES, UDS_ENDS, Methods, facts_of, from_models
from vestige.meta.numbers import ModelNumbers, Number, joined, read_file
from vestige.metrics.cards import CHAT, ENTITY, short
from vestige.schema import check_form

TreeValues = dict[str, Any]


class _Attack(TypedDict, total=False):
    auc: float | None
    retain_auc: float | None
    s_mia: float | None


class _Summary(TypedDict, total=False):
    attacks: dict[str, _Attack] | None
    metrics: dict[str, Any] | None


def _memorization(data: Mapping[str, Any]) -> TreeValues:
    return {k.removeprefix("avg_"): v for k, v in data.items() if k.startswith("avg_") and k != "avg_mem"}


def _privacy(data: Mapping[str, Any]) -> TreeValues:
    """Raw AUCs, and their likeness to the retain model's from both AUCs; the stored one where there are not both."""
    out: TreeValues = {}
    for attack, body in (data.get("attacks") or {}).items():
        name = short(f"mia_{attack}")
        auc, retain = body.get("auc"), body.get("retain_auc")
        out[name] = auc
        out[f"s_{name}"] = body.get("s_mia") if auc is None or retain is None else similarity(auc, retain)
    return out


def _utility(data: Mapping[str, Any]) -> TreeValues:
    """Real authors' and world facts' probabilities are shares among options here, under the plain names."""
    shares = {"ra_Q_A_Prob": "ra_Q_A_Prob_normalised", "wf_Q_A_Prob": "wf_Q_A_Prob_normalised"}
    values = {shares.get(k, k): v for k, v in (data.get("metrics") or {}).items()}
    return {**values, SOURCES["fluency"]: data.get("fluency")}


def _depth(data: Mapping[str, Any]) -> TreeValues:
    return {"uds": data.get("avg_uds", data.get("avg_udr"))}  # the second is the score's former name


READERS: dict[str, tuple[Callable[[Mapping[str, Any]], TreeValues], str]] = {
    "memorization": (_memorization, CHAT),
    "privacy": (_privacy, CHAT),
    "utility": (_utility, CHAT),
    "gen_rouge": (lambda data: dict(data.get("metrics") or {}), CHAT),
    "uds": (_depth, ENTITY),
}


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


def legacy_of(root: Path) -> list[Path]:
    """The legacy folders of a tree: its own, and those among the models."""
    places = [root, *(a for e in epochs_of(root) for a in (e, *_axes_of(e)))]
    return sorted(p for place in places for p in place.iterdir() if p.is_dir() and is_legacy(p))


def legacy_words(root: Path) -> str:
    """One line that says what was not read; empty if there is nothing of the kind."""
    found = [p.relative_to(root).as_posix() for p in legacy_of(root)]
    return f"legacy folders are not read: {', '.join(found)}" if found else ""


def other_folders(root: Path) -> list[Path]:
    """Folders of the epochs that hold no kind of result known here."""
    inner = (p for e in epochs_of(root) for p in e.iterdir())
    return sorted(p for p in inner if p.is_dir() and p.name not in READERS and not is_legacy(p))


def epochs_of(root: Path) -> list[Path]:
    found = [p for p in root.glob("ep*") if _epoch_name(p)]
    return sorted(found, key=lambda p: int(p.name[2:]))


def _axes_of(epoch: Path) -> list[Path]:
    return [epoch / axis for axis in READERS if (epoch / axis).is_dir()]


def read_tree(path: Path) -> ResultTree:
    """Every model's numbers. Folders called legacy are skipped, and named; so is a folder without a summary."""
    root = root_of(path)
    if root is None:
        raise UserError(f"{path} holds no ep*/ folder with {', '.join(READERS)}; give the runs directory.")
    out = ResultTree(root)
    out.notes += [words] if (words := legacy_words(root)) else []
    if kinds := sorted({p.name for p in other_folders(root)}):
        out.notes.append(f"folders that are not read: {', '.join(kinds)} (known: {', '.join(READERS)})")
    for epoch in epochs_of(root):
        found: dict[str, list[tuple[dict[str, Number], str]]] = {}
        for axis in _axes_of(epoch):
            for place in sorted(p for p in axis.iterdir() if p.is_dir() and not is_legacy(p)):
                summary = place / "summary.json"
                if not summary.is_file():
                    out.notes.append(f"{place.relative_to(root).as_posix()} has no summary.json")
                    continue
                found.setdefault(place.name, []).append((_numbers(summary, axis.name), str(summary)))
        for name, parts in sorted(found.items()):
            numbers = joined((p[0] for p in parts), f"{name} in {epoch}")
            out.models[epoch.name, name] = ModelNumbers(
                name, numbers, tuple(p[1] for p in parts), {"epoch": epoch.name, **facts_of(name)}
            )
    return out


def _numbers(summary: Path, axis: str) -> dict[str, Number]:
    read, protocol = READERS[axis]
    data = read_file(summary)
    check_form(data, _Summary, str(summary))
    values = read(data)
    wrong = next((k for k, v in values.items() if v is not None and not isinstance(v, (int, float))), None)
    if wrong is not None:
        raise UserError(f"{summary}: {wrong} is {values[wrong]!r}; a number or null was expected.")
    return {short(k): Number(None if v is None or v != v else float(v), protocol) for k, v in values.items()}


def _with_end(model: ModelNumbers) -> ModelNumbers:
    """The full and the retain model with their depth score, which is an end of its scale and not measured in a tree."""
    end = UDS_ENDS.get(model.name)
    if end is None or "uds" in model.numbers:
        return model
    return replace(model, numbers={**model.numbers, "uds": Number(end, ENTITY)})


def methods_of(tree: ResultTree, floor: float = FLOOR, baseline: str | None = None) -> Methods:
    """The axes of every model of a tree; utility is relative to the full model of the same epoch.

    An epoch without one takes the only one there is (published trees have it under ep10 alone); `baseline` names the
    epoch whose full model serves all.
    """
    full = {epoch: m for (epoch, name), m in tree.models.items() if name == "full"}
    if baseline is not None and baseline not in full:
        raise UserError(f"No full model under '{baseline}'; epochs that have one: {', '.join(full) or 'none'}.")
    serving = baseline or (next(iter(full)) if len(full) == 1 else None)
    lent = [e for e in sorted({e for e, _ in tree.models}) if serving and (baseline or e not in full) and e != serving]
    full |= {epoch: full[str(serving)] for epoch in lent}
    borrowed = [f"utility_rel of {epoch} is relative to the full model of {serving}" for epoch in lent]
    measured = any("uds" in model.numbers for model in tree.models.values())
    models = [_with_end(model) if measured else model for model in tree.models.values()]
    rows = from_models(models, full, None, floor)
    epochs = {epoch for epoch, _ in tree.models}
    missing = [
        f"{e} has no full model, and several others have: its models have no utility_rel (say which: --baseline EPOCH)"
        for e in sorted(epochs - set(full))
    ]
    return replace(rows, notes=(*tree.notes, *borrowed, *missing), read=tree.read)
