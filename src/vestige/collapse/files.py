"""The files of a collapse run: numbers, rows, matrices, the manifest, and a picture where there are several steps.

Comes in: what `collapse/run.py` measured. Goes out: files that `collapse/kind.py` scores again and verifies.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige import __version__
from vestige.collapse.detector import Measured, SampledRows
from vestige.errors import UserError
from vestige.metrics.collapse import row_table
from vestige.models.load import LoadedModel
from vestige.runs.directory import write_bytes
from vestige.runs.files import write_json
from vestige.runs.manifest import manifest
from vestige.secrets import masked

if TYPE_CHECKING:
    from vestige.collapse.run import CollapseAsk, CollapseReport

RESULTS = ("metrics.json", "rows.jsonl", "cross.npz")
SHOWN = 200  # characters of a reasoning kept beside its row


class RolloutRows:
    """rows.jsonl, step by step: what each reasoning says, where its prompt ranks, and who beats it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, outcome: Measured, tokenizer: Any) -> None:
        for label, sample in outcome.samples.items():
            for n, (turn, row) in enumerate(zip(sample.turns, row_table(sample.cross), strict=True)):
                text = tokenizer.decode(list(turn.z)) if tokenizer is not None else ""
                about = {"trajectory": turn.trajectory, "turn": turn.turn, "group": turn.group, "where": turn.where}
                body = {"step": outcome.step, "label": label, "row": n, **about, **row, "reasoning": text[:SHOWN]}
                self.lines.append(json.dumps(body, ensure_ascii=False) + "\n")

    def text(self) -> bytes:
        return "".join(self.lines).encode("utf-8", "surrogatepass")


def write(ask: CollapseAsk, report: CollapseReport, rows: RolloutRows) -> dict[str, Any]:
    """Writes the result files; returns what the manifest says of the run."""
    out = ask.out
    assert out is not None
    body = {
        "version": __version__,
        "settings": asdict(ask.settings) | {"temperature": ask.temperature},
        "reasoning": asdict(ask.reasoning),
        "notes": report.notes,
        "steps": [_step_json(o, report) for o in report.outcomes],
    }
    write_bytes(out / "rows.jsonl", rows.text())
    write_json(out / "metrics.json", body)
    arrays: dict[str, Any] = {}
    for o in report.outcomes:
        for label, sample in o.samples.items():
            arrays |= _arrays(f"{o.step}/{label}", sample)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_bytes(out / "cross.npz", buffer.getvalue())
    report.files = [out / "metrics.json", out / "rows.jsonl", out / "cross.npz"]
    if len(report.outcomes) > 1 and any(o.samples for o in report.outcomes):
        from vestige.show.figures import collapse_curves, save

        try:
            figure = collapse_curves(_points(report))
            report.files.append(save(figure, out / "collapse.png", dpi=110, named=False))
        except UserError as error:  # no matplotlib: the numbers are there all the same
            report.note(str(error))
    return manifest("collapse", masked(_described(ask)), models=_models(report), notes=report.notes)


def _described(ask: CollapseAsk) -> dict[str, Any]:
    """What was asked, as plain data; a model in memory goes by its name."""
    plain = {"settings": asdict(ask.settings), "reasoning": asdict(ask.reasoning), "files": [str(f) for f in ask.files]}
    plain |= {"models": [m.name if isinstance(m, LoadedModel) else str(m) for m in ask.models]}
    said = ("format", "prompt_template", "steps", "scheduled", "temperature", "skip_long", "model_args", "batch_tokens")
    return json.loads(json.dumps({**plain, **{k: getattr(ask, k) for k in said}}, default=str)) | {
        "ema": None if ask.ema is None else str(ask.ema)
    }


def _models(report: CollapseReport) -> dict[str, Any]:
    """By step: whose weights scored it, and how they were held."""
    return {str(step): {"name": report.models[step], **made} for step, made in report.made.items()}


def _points(report: CollapseReport) -> dict[str, list[tuple[int, Mapping[str, float | None]]]]:
    out: dict[str, list[tuple[int, Mapping[str, float | None]]]] = {}
    for o in report.outcomes:
        for label, sample in o.samples.items():
            out.setdefault(label, []).append((o.step, sample.metrics))
    return out


def _step_json(o: Measured, report: CollapseReport) -> dict[str, Any]:
    return {
        "step": o.step,
        "model": report.models[o.step],
        "made": report.made.get(o.step, {}),
        "format": report.formats[o.step],
        "ema": report.means[o.step],  # the running means before this step: scoring again begins with them
        "turns": o.turns,
        "left_out": o.left_out,
        "metrics": o.metrics,
        "reasons": o.reasons,
        "verdicts": {label: s.verdict for label, s in o.samples.items()},
        "notes": {label: list(s.notes) for label, s in o.samples.items() if s.notes},
        "samples": {label: _sizes(s) for label, s in o.samples.items()},
    }


def _sizes(s: SampledRows) -> dict[str, Any]:
    """Rows per prompt (K), as a histogram, and reasoning lengths."""
    _, rows = np.unique(s.cross.own_prompt, return_counts=True)
    sizes, times = np.unique(rows, return_counts=True)
    return {
        "rows_per_prompt": {str(k): int(n) for k, n in zip(sizes, times, strict=True)},
        "mean_tokens": float(s.cross.lengths.mean()),
        "max_tokens": int(s.cross.lengths.max()),
    }


def _arrays(name: str, s: SampledRows) -> dict[str, Any]:
    """The matrix, who belongs to whom, and every token: each row's (columns x tokens) values, row after row."""
    tokens = np.concatenate([t.reshape(-1) for t in s.log_probs.tokens])
    cross = s.cross
    parts = {"sums": cross.sums, "lengths": cross.lengths, "own": cross.own, "prompts": cross.prompts, "tokens": tokens}
    return {f"{name}/{key}": value for key, value in parts.items()}
