"""The Python face: `vestige.evaluate(model, "tofu", data=DIR) -> Result`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from vestige.engine.evaluate import Outcome, evaluate_config
from vestige.engine.friendly import Ask, to_run
from vestige.engine.harness import report
from vestige.engine.stored import suite_from_manifest
from vestige.errors import UserError, unknown_name
from vestige.integrations.plugins import load_plugins
from vestige.show.tables import summary
from vestige.types import Score
from vestige.writing import lasting


class Result:
    """The scores of one evaluation. `print(result)` is the table; `result["forget_Q_A_Prob"]` is one Score."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.directory = outcome.directory

    @property
    def scores(self) -> Mapping[str, Score]:
        """Every metric and parent."""
        return self.outcome.scores

    @property
    def summary(self) -> dict[str, float | None]:
        """The asked-for metrics' values."""
        return {name: self.scores[name].agg_value for name in self.outcome.top}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % intervals of all metrics that have one (of forget_quality: of its KS distance)."""
        ends = {name: stat["interval"] for name, stat in self.outcome.stats.items()}
        return {name: (e[0], e[1]) for name, e in ends.items() if e}

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self.outcome.manifest

    def __getitem__(self, name: str) -> Score:
        if name not in self.scores:
            raise unknown_name("metric", name, self.scores)
        return self.scores[name]

    def rows(self, metric: str) -> list[dict[str, Any]]:
        """One metric's per-row values as a list of records (attacks: forget and holdout rows, told apart by `set`)."""
        score = self[metric]
        if score.value_by_index is not None:
            return [{"index": i, **v} for i, v in score.value_by_index.items()]
        sets = {k: v for k, v in score.extra.items() if isinstance(v, Mapping) and "value_by_index" in v}
        return [{"set": k, "index": i, **r} for k, v in sets.items() for i, r in v["value_by_index"].items()]

    def to_pandas(self, metric: str | None = None) -> Any:
        """The summary, or one metric's rows, as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas needs pandas; run `pip install 'vestige[pandas]'` or use .rows().") from None
        if metric is not None:
            return pandas.DataFrame(self.rows(metric)).set_index("index")
        return pandas.DataFrame({"value": self.summary})

    def __repr__(self) -> str:
        if "harness" in self.manifest:
            return report(self.outcome).strip()
        suite = suite_from_manifest(self.manifest)
        head = f"{self.manifest['model']['name']}  (dialect {self.outcome.dialect}; files in {self.directory})"
        table = summary(suite.metrics, self.outcome.top, self.scores, self.outcome.retain, self.outcome.stats)
        return f"{head}\n{table}"


def _as_text(paths: str | Path | Sequence[str | Path] | None) -> str | list[str] | None:
    if paths is None or isinstance(paths, (str, Path)):
        return None if paths is None else str(paths)
    return [str(p) for p in paths]


def evaluate(  # noqa: PLR0913 - keywords that users know
    model: Any,
    suite: str = "tofu",
    *,
    tokenizer: Any = None,
    data: str | Path | None = None,
    retain_logs: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    metrics: Sequence[str] | str | None = None,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Evaluates a checkpoint (a path or hub id) or a model in memory (with its `tokenizer`).

    `metrics` is a list of names or "all"; `settings` are the other fields of `Ask` (dialect, system_prompt, limit,
    reference_model, overrides=[...], ...). Without `out` the files go to a temporary directory. A training run may call
    this between two steps: random state and the model's train or eval modes are afterwards as they were before.
    """
    known = {f.name for f in fields(Ask)} - {"suite", "model", "data", "retain_logs", "out", "metrics", "progress"}
    for name in settings:
        if name not in known:
            raise unknown_name("setting of evaluate()", name, known)
    if isinstance(settings.get("plugins"), (str, Path)):
        settings["plugins"] = [str(settings["plugins"])]
    load_plugins(settings.get("plugins", ()))
    live = None if isinstance(model, (str, Path)) else model
    if live is not None and tokenizer is None:
        raise UserError("A model in memory needs its tokenizer: evaluate(model, suite, tokenizer=tokenizer).")
    if live is None and tokenizer is not None:
        settings["tokenizer"] = str(tokenizer)
    chosen = metrics.split(",") if isinstance(metrics, str) else metrics
    ask = Ask(
        suite=suite,
        model="in-memory" if live is not None else str(model),
        data=None if data is None else str(data),
        retain_logs=_as_text(retain_logs),
        out=str(out if out is not None else lasting()),
        metrics=chosen,
        progress=progress,
        **settings,
    )
    from vestige.integrations.undisturbed import undisturbed
    from vestige.models.load import wrap_model

    with undisturbed(live):
        return Result(evaluate_config(to_run(ask), None if live is None else wrap_model(live, tokenizer)))
