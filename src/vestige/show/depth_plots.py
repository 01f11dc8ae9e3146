"""Pictures of a depth run, from its summary and records (summary.json, results.json): no model, no evidence.

Blue is the retain model (S1), orange the unlearned one (S2), here and in every other picture of depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vestige.errors import UserError, how_to_install
from vestige.runs.named_files import written_by
from vestige.show.paper import fit, for_print

RETAIN, UNLEARNED = "#2b6cb0", "#dd6b20"
MOST_ROWS = 60  # examples in one heat map; more would be thinner than a line


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        # Text stays text and ids do not change from run to run: equal results are equal files.
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vestige", "font.size": 9})
        import matplotlib.pyplot as plt
    except ImportError:
        raise UserError(f"Pictures need matplotlib: {how_to_install('plots')}.") from None
    return plt


def _save(figure: Any, path: Path) -> Path:
    dated = {"Date": None} if path.suffix == ".svg" else None
    box = None if fit(figure) else "tight"
    with for_print():
        written_by(path, figure.savefig, bbox_inches=box, metadata=dated)
    _pyplot().close(figure)
    return path


def draw_profile(path: Path, summary: Mapping[str, Any]) -> Path:
    """The mean drop of both stages at each layer, with 95 % bands: where the knowledge sits, and what is left of it."""
    plt = _pyplot()
    layers = [row["layer"] for row in summary["profile"]]
    figure, axes = plt.subplots(figsize=(6.4, 3.2))
    names = {"s1": ("retain → full (S1)", RETAIN), "s2": ("unlearned → full (S2)", UNLEARNED)}
    for stage, (label, colour) in names.items():
        axes.plot(layers, [row[f"{stage}_drop"] for row in summary["profile"]], "o-", color=colour, label=label, ms=3)
        bands = [row[f"{stage}_interval"] for row in summary["profile"]]
        if all(bands):
            low, high = zip(*bands, strict=True)
            axes.fill_between(layers, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.axhline(summary["delta_threshold"], color="grey", lw=0.8, ls="--", label="threshold")
    axes.axhline(0, color="grey", lw=0.5)
    axes.set_xlabel("layer whose states are taken from the other model")
    axes.set_ylabel("drop of log-probability\n(nats per token)")
    axes.set_title(_title(summary))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, path)


def _title(summary: Mapping[str, Any]) -> str:
    name = Path(str(summary["unlearn_model"])).name
    score = summary["avg_uds"]
    return f"{name}: UDS {'-' if score is None else f'{score:.3f}'} ({summary['n']} examples)"


def draw_heat_map(path: Path, summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Path:
    """Examples x layers: what the retain model lacks (left), what the unlearned one lacks (right), on one scale."""
    plt = _pyplot()
    shown = sorted(records, key=lambda r: (r["uds"] is None, r["uds"] or 0.0))
    shown = [shown[i] for i in np.unique(np.linspace(0, len(shown) - 1, min(MOST_ROWS, len(shown))).astype(int))]
    planes = [np.array([r[f"{s}_deltas"] for r in shown]) for s in ("s1", "s2")]
    top = max(float(np.abs(planes[0]).max()), 1e-6)
    height = 1.2 + 0.14 * len(shown)
    figure, both = plt.subplots(1, 2, figsize=(7.2, height), sharey=True)
    layers = summary["layers"]
    for axes, plane, title in zip(both, planes, ("retain → full (S1)", "unlearned → full (S2)"), strict=True):
        image = axes.imshow(plane, aspect="auto", cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest")
        axes.set_title(title)
        axes.set_xlabel("layer")
        step = max(1, len(layers) // 12)
        axes.set_xticks(range(0, len(layers), step), [str(x) for x in layers[::step]])
    both[0].set_yticks(range(len(shown)), [_row_name(r) for r in shown], fontsize=6)
    figure.colorbar(image, ax=list(both), label="drop (nats per token)", shrink=min(1.0, 3 / height + 0.3))
    return _save(figure, path)


def _row_name(record: Mapping[str, Any]) -> str:
    score = record["uds"]
    return f"{str(record['entity'])[:28]}  {'-' if score is None else f'{score:.2f}'}"


def draw_tokens(path: Path, summary: Mapping[str, Any], record: Mapping[str, Any]) -> Path:
    """One example, token by token: how far each entity token falls at each layer, in both stages."""
    plt = _pyplot()
    values = record["token_logprobs"]
    clean = np.array(values["full"])
    planes = [clean - np.array(values[s]) for s in ("s1", "s2")]
    top = max(float(np.abs(planes[0]).max()), 1e-6)
    words = [w.replace("\n", "\\n").replace("$", r"\$") for w in record["tokens"]]
    figure, both = plt.subplots(
        1, 2, figsize=(max(4.5, 1.6 + 0.75 * len(words)), 1.4 + 0.2 * len(planes[0])), sharey=True
    )
    for axes, plane, title in zip(both, planes, ("retain → full (S1)", "unlearned → full (S2)"), strict=True):
        image = axes.imshow(plane, aspect="auto", cmap="RdBu_r", vmin=-top, vmax=top, origin="lower")
        axes.set_xticks(range(len(words)), words, rotation=60, ha="right")
        axes.set_title(title)
    layers = summary["layers"]
    step = max(1, len(layers) // 12)
    both[0].set_yticks(range(0, len(layers), step), [str(x) for x in layers[::step]])
    both[0].set_ylabel("layer")
    figure.colorbar(image, ax=list(both), label="drop (nats)")
    question = str(record["question"])
    figure.suptitle(question if len(question) < 70 else question[:67] + "...", y=1.1)
    return _save(figure, path)


def draw_all(directory: Path, summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[Path]:
    """The three pictures of a run; the tokens are those of the example with the middle score."""
    out = [
        draw_profile(directory / "layer_profile.svg", summary),
        draw_heat_map(directory / "heat_map.svg", summary, records),
    ]
    whole = (r for r in records if r["uds"] is not None and r["token_logprobs"]["s1"] is not None)
    scored = sorted(whole, key=lambda r: r["uds"])
    if scored:
        out.append(draw_tokens(directory / "tokens.svg", summary, scored[len(scored) // 2]))
    return out
