"""`vestige import FILE`: another tool's result file read, re-aggregated, shown, and written in our shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vestige.adapters.importers import Imported, import_results
from vestige.configs.compose import PACKAGE_DIR
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.numeric import number
from vestige.runs.directory import refuse_input_in_output
from vestige.runs.explain import metric_configs
from vestige.runs.files import read_results, result_file, write_results
from vestige.runs.manifest import kind_in
from vestige.runs.named_files import named_files
from vestige.show.tables import table


@dataclass
class Import:
    imported: Imported
    files: tuple[Path, ...] = ()


def import_file(path: Path, out: Path | None = None, retain_logs: Path | None = None) -> Import:
    """Reads `path`; writes NAME_EVAL.json and NAME_SUMMARY.json in `out`, which can then serve as retain logs."""
    configs = _configs()
    retain = _in_our_shape(retain_logs, configs) if retain_logs else None
    data = _read(path)
    imported = import_results(data, str(path), configs, retain)
    if out is None:
        return Import(imported)
    if kind_in(out) is not None:
        raise UserError(f"{out} holds a run of ours; choose another directory for the imported results.")
    names = [f"{imported.stem}_{part}.json" for part in ("EVAL", "SUMMARY")]
    refuse_input_in_output(out, {"the file": result_file(path), "--retain-logs": retain_logs}, names)
    with named_files(*(out / name for name in names)):
        return Import(imported, write_results(out, imported.stem, imported.scores, imported.scores))


@cache
def _configs() -> Any:
    """Our suites' metrics; composing them takes longer than reading most files."""
    return metric_configs([PACKAGE_DIR])


def _read(path: Path) -> Any:
    file = result_file(path)
    try:
        return read_json(file)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; give a result file or a run directory.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is not valid JSON ({error}); copy it again.") from None


def _in_our_shape(path: Path, configs: Any) -> dict[str, Any]:
    """Retain logs may be of any kind that can be imported."""
    data = read_results(result_file(path))
    return {name: s.to_json() for name, s in import_results(data, str(path), configs).scores.items()}


def show(result: Import, path: Path) -> str:
    scores = result.imported.scores
    rows = []
    for name in sorted(scores, key=lambda n: (not _headline(n), n)):
        score = scores[name]
        count = len(score.value_by_index) if score.value_by_index else ""
        rows.append([name, number(score.agg_value), str(count), _detail(name, score.extra) or score.reason])
    lines = [f"{path}  ({result.imported.kind})", "", table(rows, ["metric", "value", "rows", ""], right=(1, 2)), ""]
    lines += [f"note: {n}" for n in result.imported.notes]
    if result.files:
        lines.append(f"files: {', '.join(map(str, result.files))}")
    return "\n".join(lines).rstrip()


def _headline(name: str) -> bool:
    return name in ("forget_quality", "forget_truth_ratio", "model_utility", "privleak")


def _detail(name: str, extra: Any) -> str:
    """A p-value says nothing without its distance and its sample sizes."""
    if "ks_statistic" not in extra:
        return ""
    return f"D = {extra['ks_statistic']:.4f}, n = {extra['n']}, m = {extra['m']}, log10 p = {number(extra['log10_p'])}"
