"""`vestige compare RUN published`: a run next to figures that were printed elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.configs.compose import PACKAGE_DIR
from vestige.errors import UserError
from vestige.guard import read_json
from vestige.numeric import number
from vestige.runs.files import read_scores, result_file
from vestige.runs.run import read_manifest
from vestige.show.tables import table

FORGET_ROWS = {40, 200, 400}  # of TOFU's splits


def load_published() -> dict[str, Any]:
    return dict(read_json(PACKAGE_DIR / "published_tofu.json"))


def published_table(summary: Mapping[str, float | None], suite: str, cautions: Sequence[str]) -> str:
    """The published figures of a suite, a table for each model and split; `summary` as a row of its own on top."""
    published = load_published()
    tables = [table for table in published["repro"] if table["suite"] == suite]
    if not tables:
        raise UserError(f"No published figures for suite '{suite}'; there are some for tofu and muse.")
    blocks = []
    for entry in tables:
        for name, figures in _by_split(entry["rows"]).items():
            blocks.append(f"{entry['model']}, {name}\n{_one_table(figures, summary)}")
    notes = [f"caution: {c}" for c in cautions] + _disagreements(published, tables)
    return "\n\n".join([*blocks, "\n".join([*notes, f"source: {published['source']}", _setup(published["setup"])])])


def _by_split(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, str]]]:
    """Split -> method -> metric -> the figure as printed."""
    out: dict[str, dict[str, dict[str, str]]] = {}
    for r in rows:
        out.setdefault(r["split"], {}).setdefault(r["method"], {})[r["metric"]] = r["printed"]
    return out


def _one_table(figures: Mapping[str, Mapping[str, str]], summary: Mapping[str, float | None]) -> str:
    metrics = list(dict.fromkeys(m for row in figures.values() for m in row))
    rows = [[method, *(row.get(m, "-") for m in metrics)] for method, row in figures.items()]
    rows.insert(0, ["this run", *(number(summary.get(m)) for m in metrics)])
    return table(rows, ["method", *metrics], right=tuple(range(1, len(metrics) + 1)))


def _disagreements(published: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the same project prints another figure in its leaderboard."""
    models = {t["model"] for t in tables}
    first = {
        (t["model"], r["method"], r["split"], r["metric"]): r["printed"] for t in published["repro"] for r in t["rows"]
    }
    out = []
    for t in published["leaderboard"]:
        for r in t["rows"]:
            printed = first.get((t["model"], r["method"], r["split"], r["metric"]))
            if t["model"] in models and printed is not None and printed != r["printed"]:
                words = f"{r['metric']} of {r['method']} ({t['model']}, {r['split']})"
                out.append(f"note: {words} is {printed} in its reproduction page, {r['printed']} in its leaderboard")
    return out


def _setup(setup: Mapping[str, Any]) -> str:
    keys = ("hardware", "effective_batch_size", "epochs", "learning_rate", "optimizer")
    return f"setup:  {', '.join(f'{k} {setup[k]}' for k in keys)}; {setup['note']}"


def published(run: Path) -> str:
    """For the command line: published figures with a run's own numbers on top."""
    results = read_scores(result_file(run))
    summary = {m: body.get("agg_value") for m, body in results.items()}
    directory = run if run.is_dir() else run.parent
    manifest = read_manifest(directory) if (directory / "manifest.json").is_file() else None
    suite = manifest["config"]["suite"] if manifest else ("muse" if "retain_knowmem_ROUGE" in summary else "tofu")
    return published_table(summary, suite, _cautions(manifest))


def _cautions(manifest: Mapping[str, Any] | None) -> list[str]:
    """What makes this run's numbers another kind of number than the published ones."""
    if manifest is None:
        return ["the run has no manifest: dialect, rows and precision are not known"]
    out = []
    if manifest["dialect"]["name"] != "open-unlearning":
        out.append(f"the run's dialect is {manifest['dialect']['name']}, the figures are in open-unlearning's")
    if manifest["config"].get("max_samples"):
        out.append(f"the run read only the first {manifest['config']['max_samples']} rows of each data set")
    if manifest["model"].get("dtype", "bfloat16") != "bfloat16":
        out.append(f"the run is in {manifest['model']['dtype']}; open-unlearning's default is bfloat16")
    forget = {d["rows"] for d in manifest["data"].values() if d["name"] == "TOFU_QA_forget"}
    if forget and not forget & FORGET_ROWS:
        out.append(f"the run has {max(forget)} forget rows; TOFU's splits have 40, 200 and 400 (p-values depend on n)")
    return out
