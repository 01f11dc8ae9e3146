"""How an answer of `vestige meta` was asked for, and from which files: kept in it for `vestige verify` to redo.

Paths are relative to the directory of the answer: it can move together with its runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from vestige.errors import UserError
from vestige.meta.axes import FLOOR
from vestige.meta.faithfulness import RESAMPLES
from vestige.meta.robustness import UTILITY_FILTER
from vestige.runs.manifest import sha256
from vestige.schema import misfit
from vestige.store.files import relative
from vestige.types import content_key


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
    beside: bool = True  # take thresholds and utility_rel that an earlier command left in `out`


_PLAIN = ("resamples", "rule", "least_utility", "own_thresholds", "accept_mixture", "floor", "baseline")


class _Asked(TypedDict):
    file: str
    metrics: list[str] | None
    resamples: int
    rule: str
    least_utility: float
    own_thresholds: bool
    accept_mixture: bool
    floor: float
    baseline: str | None
    thresholds: str | None
    utility: str | None
    models: dict[str, list[str]]
    read: dict[str, str]


def asked_json(
    ask: MetaAsk,
    models: Mapping[str, Sequence[str]],
    read: Iterable[Path],
    used: Mapping[str, Path | None] | None = None,
) -> dict[str, Any]:
    """The question, the models it was answered for, and every file it was answered from, by sha256.

    `used`: the thresholds and the utility that served.
    """
    helpers = {"thresholds": None, "utility": None, **(used or {})}
    files = dict.fromkeys([*read, *(p for p in helpers.values() if p is not None)])
    return {
        "file": relative(ask.file, ask.out),
        "metrics": None if ask.metrics is None else list(ask.metrics),
        **{key: getattr(ask, key) for key in _PLAIN},
        **{key: None if p is None else relative(p, ask.out) for key, p in helpers.items()},
        "models": {part: list(names) for part, names in models.items()},
        "read": {relative(p, ask.out): sha256(p) for p in files},
    }


def ask_again(asked: Any, place: Path) -> MetaAsk | None:
    """The question an answer in `place` was made by; None where it does not say."""
    if misfit(asked, _Asked):
        return None
    said: dict[str, Any] = {key: asked[key] for key in _PLAIN}
    said |= {key: None if asked[key] is None else place / asked[key] for key in ("thresholds", "utility")}
    return MetaAsk(place / asked["file"], place, asked["metrics"], **said, beside=False)


def named(path: Path) -> str:
    """A file's path with a digest of its content: another content, another source."""
    try:
        return f"{path} ({short_digest(path)})"
    except OSError:
        raise UserError(f"{path} cannot be read; give an existing file.") from None


def short_digest(path: Path) -> str:
    return content_key(path.read_bytes())[:12]
