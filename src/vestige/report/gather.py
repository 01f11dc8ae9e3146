"""What a report is made of, found on disk: runs of every kind, from any mixture of directories. Nothing is computed.

A directory is known by the files in it, not by its name. What holds no run itself is looked through.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vestige.errors import UserError
from vestige.guard import read_json
from vestige.meta.checks import in_file
from vestige.meta.files import META_EVAL, METHOD_RESULTS, with_new_keys
from vestige.meta.tree import (
    ResultTree,
    attack_files,
    epochs_of,
    faithfulness_file,
    is_epoch,
    is_legacy,
    is_root,
    other_folders,
    read_tree,
    read_tree_attacks,
)
from vestige.metrics.trajectory import VIEWS
from vestige.report.format import PAGE, REPORT
from vestige.runs.manifest import read_run
from vestige.schema import misfit
from vestige.store.files import relative
from vestige.store.forms import FORMS, Curves, Spreads
from vestige.store.kinds import KINDS, META_FILES, RunSource, kind

DEEPEST = 6  # levels of directories looked through
NOT_RUNS = {"evidence", "s1_cache", "checkpoints", "attacked", "logs", "tasks", "models"}

UNFINISHED_ATTACK = (
    "the attacks in {} did not finish (or are still under way): the attacked copies measured there are not models of "
    "their own and were left out; run the same vestige stress again."
)


@dataclass
class FoundRuns:
    """Everything found, and what could not be read."""

    sources: list[RunSource] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # the problems that cost the report a run

    def of(self, *kinds: str) -> list[RunSource]:
        return [s for s in self.sources if s.kind in kinds]

    def problem(self, text: str, where: Path | str = "") -> None:
        entry = {"text": text, **({"where": str(where)} if where else {})}
        if entry not in self.problems:
            self.problems.append(entry)

    def leave_out(self, text: str, where: Path | str = "") -> None:
        """A run (or file) that is there and cannot be shown: the command says so with its status."""
        self.problem(text, where)
        if text not in self.left_out:
            self.left_out.append(text)

    def read(self, path: Path, kind: type = dict) -> Any:
        """JSON of the kind expected; otherwise a problem is noted and the file passed over."""
        try:
            data = with_new_keys(read_json(path))
        except (OSError, ValueError) as error:
            self.leave_out(f"{path.name} cannot be read ({type(error).__name__}); it was left out.", path)
            return None
        if not isinstance(data, kind):
            self.leave_out(f"{path.name} does not hold a JSON {kind.__name__}; it was left out.", path)
            return None
        return data

    def fits(self, kind: str, path: Path, data: Mapping[str, Any]) -> bool:
        """Whether a run has the form that the parts of the report rely on; if not, it is left out and named."""
        words = misfit(data, FORMS[kind]) or (_curves_misfit(data["results"]) if kind == "trajectory" else "")
        if words:
            self.leave_out(f"{path.name} was left out: it does not have the form of its kind ({kind}): {words}.", path)
        return not words


def _curves_misfit(results: Mapping[str, Any]) -> str:
    """Of a trajectory's nested values, by view or (the flat shape) without."""
    for name, body in results.items():
        nested, spread = body.get("agg_value"), body.get("step_distribution") or {}
        if isinstance(nested, Mapping):
            by_view = set(nested) <= set(VIEWS)
            words = misfit(nested, dict[str, Curves] if by_view else Curves)
            words = words or misfit(spread, dict[str, Spreads | None] if by_view else Spreads)
            if words:
                return f"{name}: {words}"
    return ""


def gather(paths: Sequence[Path]) -> FoundRuns:
    """All sources under the paths, each once."""
    found = FoundRuns()
    seen: set[str] = set()
    for path in paths:
        problems_before = len(found.problems)
        if not path.exists():
            raise UserError(f"{path} does not exist; give directories of finished runs.")
        if is_epoch(path):  # a part of the tree would give verdicts on a part of what was measured
            raise UserError(f"{path} is one epoch of a result tree; give the folder above it, which has the baselines.")
        here = list(_look(path, found, DEEPEST))
        for source in here:
            if source.id not in seen:
                found.sources.append(source)
            seen.add(source.id)
        if not here and len(found.problems) == problems_before:
            raise UserError(
                f"{path} holds no finished run: no *_EVAL.json, depth summary.json, stress.json, metrics.json of "
                f"collapse, watch.json, {META_EVAL} or {METHOD_RESULTS}."
            )
    return found


def _look(path: Path, found: FoundRuns, depth: int) -> Iterator[RunSource]:
    if path.is_file():
        yield from _in_file(path, found)
        return
    if (path / REPORT).is_file() and (path / PAGE).is_file():
        return  # a report is not one of its own sources
    if _unfinished_attack(path, found):
        return
    if is_root(path):
        yield from _in_tree(path, found, depth)
        return
    here = list(_in_directory(path, found))
    yield from here
    closed = {"eval", "trajectory", "depth", "stress", "collapse"} & {s.kind for s in here}
    if depth > 0 and not closed:
        for inner in sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")):
            if inner.name not in NOT_RUNS or (inner.name == "models" and _has_results(inner)):
                yield from _look(inner, found, depth - 1)


def _in_tree(root: Path, found: FoundRuns, depth: int) -> Iterator[RunSource]:
    """A published result tree: its summaries are one source, its depth runs are read one by one, legacy is left alone.

    What else lies in it (meta_eval/, folders of other kinds) is looked through as everywhere.
    """
    try:
        tree = read_tree(root)
    except UserError as error:
        found.leave_out(f"the result tree {root.name} was left out: {error}", root)
        return
    yield RunSource("methods", root, tree.read, {"tree": tree})
    epochs = epochs_of(root)
    yield from _meta_of_tree(tree, found)
    depths = sorted(p for e in epochs for p in (e / "uds").glob("*/"))
    rest = sorted(p for p in root.iterdir() if p.is_dir() and p not in epochs and not p.name.startswith("."))
    for inner in (*depths, *other_folders(root), *rest):
        if depth > 0 and not is_legacy(inner) and inner.name not in NOT_RUNS:
            yield from _look(inner, found, depth - 1)


def _meta_of_tree(tree: ResultTree, found: FoundRuns) -> Iterator[RunSource]:
    attacked = attack_files(tree.root)
    behind = [f for f in (faithfulness_file(tree.root), *attacked.values()) if f is not None]
    try:
        attacks = read_tree_attacks(attacked) if attacked else None
    except UserError as error:
        found.leave_out(f"robustness of the result tree was left out: {error}", tree.root)
        return
    if behind:
        yield RunSource("meta", tree.root / "meta_eval", tuple(behind), {"tree": tree, "attacks": attacks})


def _unfinished_attack(path: Path, found: FoundRuns) -> bool:
    """A `vestige stress` that was killed, or is still at work: the evaluations inside are of attacked copies.

    A stress.json of a run before is left out as well: the evaluations beside it may be of another model by now.
    """
    try:
        run = read_run(path)
    except UserError:
        return False  # vestige verify reports it
    unfinished = run is not None and run.kind == "stress" and run.unfinished
    if unfinished:
        found.leave_out(UNFINISHED_ATTACK.format(path.name), path)
    return unfinished


def _has_results(path: Path) -> bool:
    return any(path.glob("*/*_EVAL.json"))


def _in_file(path: Path, found: FoundRuns) -> Iterator[RunSource]:
    if path.name not in META_FILES and any(known.shows(path) for known in KINDS.values()):
        if not _unfinished_attack(path.parent, found):
            yield from _in_directory(path.parent, found)
        return
    yield from _taken(in_file(path, found.read), found)


def _in_directory(path: Path, found: FoundRuns) -> Iterator[RunSource]:
    """What every kind of run has to show of a directory; most directories hold one kind."""
    for known in KINDS.values():
        if known.seen_in(path):
            yield from _taken(kind(known.name).gather(path, found.read), found)


def _taken(gathered: Iterable[RunSource], found: FoundRuns) -> Iterator[RunSource]:
    """Those that have the form that the parts of the report rely on. (Meta and methods are checked by these parts.)"""
    for one in gathered:
        for text in one.problems:
            found.problem(text, one.path)
        if one.kind not in FORMS or found.fits(one.kind, one.path, one.data):
            yield one


def traces_of(paths: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """When each JSON file under the paths last changed, and its size: a cheap way to see that runs moved on."""
    out = {}
    for path in paths:
        for file in [path] if path.is_file() else _json_files(path, DEEPEST + 2):
            try:
                told = file.stat()
            except OSError:
                continue  # it went away between listing and looking
            out[str(file)] = told.st_mtime_ns, told.st_size
    return out


def _json_files(path: Path, depth: int) -> Iterator[Path]:
    for inner in path.iterdir():
        if inner.name.startswith(".") or (inner.name in NOT_RUNS and inner.name != "models"):
            continue
        if inner.suffix == ".json" and inner.name != REPORT:
            yield inner
        elif depth > 0 and inner.is_dir():
            yield from _json_files(inner, depth - 1)


# ---- sources in the report ---------------------------------------------------------------------------------------


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def source_json(source: RunSource, base: Path, models: Sequence[str]) -> dict[str, Any]:
    """A source as the report names it: relative paths, and a digest of every file."""
    files = [{"path": relative(f, source.directory), "sha256": digest(f)} for f in source.files]
    whole = hashlib.sha256("\n".join(f"{f['sha256']}  {f['path']}" for f in files).encode()).hexdigest()
    return {
        "id": source.id,
        "path": relative(source.path, base),
        "kind": source.kind,
        "files": files,
        "sha256": whole,
        "models": list(models),
        "facts": dict(source.facts),
    }
