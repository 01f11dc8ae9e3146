"""`vestige published [RUN]`: figures that were printed elsewhere, and a run set beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.configs.compose import PACKAGE_DIR
from vestige.errors import UserError, unknown_name
from vestige.guard import read_json
from vestige.show.tables import table
from vestige.store.files import read_scores, result_file
from vestige.store.kinds import read_manifest
from vestige.sums import number

FORGET_ROWS = {"forget01": 40, "forget05": 200, "forget10": 400}  # of TOFU's splits
ARROW = "this run"


def load_published() -> dict[str, Any]:
    return dict(read_json(PACKAGE_DIR / "published_tofu.json"))


def published_table(
    summary: Mapping[str, float | None] | None = None,
    models: Sequence[str] = (),
    split: str | None = None,
    suite: str | None = None,
    cautions: Sequence[str] = (),
) -> str:
    """The published figures of the chosen models and splits, one table each; `summary` as a row of its own on top."""
    published = load_published()
    tables = _chosen(published, models, suite)
    blocks = []
    for entry in tables:
        for name, figures in _by_split(entry["rows"]).items():
            if split is None or name == split:
                blocks.append(f"{entry['model']}, {name}\n{_one_table(figures, summary)}")
    if not blocks:
        splits = {row["split"] for entry in tables for row in entry["rows"]}
        raise unknown_name("split", str(split), splits)
    notes = [f"caution: {c}" for c in cautions] + _disagreements(published, tables, split)
    return "\n\n".join([*blocks, "\n".join([*notes, f"source: {published['source']}", _setup(published["setup"])])])


def _chosen(published: Mapping[str, Any], models: Sequence[str], suite: str | None) -> list[Mapping[str, Any]]:
    """The tables asked for: by any part of the model's name, and by suite."""
    tables = [t for t in published["repro"] if suite is None or t["suite"] == suite]
    if not tables:
        raise UserError(f"No published figures for suite '{suite}'; there are some for tofu and muse.")
    for name in models:
        if not any(name.lower() in t["model"].lower() for t in tables):
            raise unknown_name("model with published figures", name, [t["model"] for t in tables])
    return [t for t in tables if not models or any(m.lower() in t["model"].lower() for m in models)]


def _by_split(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, str]]]:
    """Split -> method -> metric -> the figure as printed."""
    out: dict[str, dict[str, dict[str, str]]] = {}
    for r in rows:
        out.setdefault(r["split"], {}).setdefault(r["method"], {})[r["metric"]] = r["printed"]
    return out


def _one_table(figures: Mapping[str, Mapping[str, str]], summary: Mapping[str, float | None] | None) -> str:
    metrics = list(dict.fromkeys(m for row in figures.values() for m in row))
    rows = [[method, *(row.get(m, "-") for m in metrics)] for method, row in figures.items()]
    if summary is not None:
        rows.insert(0, [ARROW, *(number(summary.get(m)) for m in metrics)])
    return table(rows, ["method", *metrics], right=tuple(range(1, len(metrics) + 1)))


def _disagreements(published: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], split: str | None) -> list[str]:
    """Where the same project prints another figure in its leaderboard."""
    models = {t["model"] for t in tables}
    first = {
        (t["model"], r["method"], r["split"], r["metric"]): r["printed"] for t in published["repro"] for r in t["rows"]
    }
    out = []
    for t in published["leaderboard"]:
        for r in t["rows"]:
            printed = first.get((t["model"], r["method"], r["split"], r["metric"]))
            shown = t["model"] in models and split in (None, r["split"])
            if shown and printed is not None and printed != r["printed"]:
                words = f"{r['metric']} of {r['method']} ({t['model']}, {r['split']})"
                out.append(f"note: {words} is {printed} in its reproduction page, {r['printed']} in its leaderboard")
    return out


def _setup(setup: Mapping[str, Any]) -> str:
    keys = ("hardware", "effective_batch_size", "epochs", "learning_rate", "optimizer")
    return f"setup:  {', '.join(f'{k} {setup[k]}' for k in keys)}; {setup['note']}"


def published(run: Path | None, models: Sequence[str], split: str | None) -> str:
    """For the command line: the figures alone, or with a run's own numbers on top."""
    if run is None:
        return published_table(None, models, split)
    results = read_scores(result_file(run))
    summary = {m: body.get("agg_value") for m, body in results.items()}
    directory = run if run.is_dir() else run.parent
    manifest = read_manifest(directory) if (directory / "manifest.json").is_file() else None
    suite = manifest["config"]["suite"] if manifest else ("muse" if "retain_knowmem_ROUGE" in summary else "tofu")
    return published_table(summary, models, split, suite, _cautions(manifest, split))


def _cautions(manifest: Mapping[str, Any] | None, split: str | None) -> list[str]:
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
    if forget and not forget & set(FORGET_ROWS.values()):
        out.append(f"the run has {max(forget)} forget rows; TOFU's splits have 40, 200 and 400 (p-values depend on n)")
    elif split in FORGET_ROWS and forget and FORGET_ROWS[split] not in forget:
        out.append(f"the run has {max(forget)} forget rows, {split} has {FORGET_ROWS[split]}")
    return out
