"""Pictures for print: the width of a column, and fonts that a publisher accepts.

In: a matplotlib figure. Out: the same at the asked width; letters keep their size in points. Callers:
show/trajectory_plots.py for every picture, report/flags.py for `vestige plot --width`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from vestige.errors import UserError

COLUMNS = {"column": 3.25, "page": 6.75}  # inches: of a two-column page, and of its text
LEAST, MOST = 1.0, 30.0
LETTERS = 7.0  # points, at most: below the text of a paper, above what is hard to read
_WIDTH: list[float | None] = [None]  # while a command with --width draws


def width_of(said: str | None) -> float | None:
    """
    >>> width_of("column"), width_of("5.5"), width_of(None)
    (3.25, 5.5, None)
    """
    if said is None or said in COLUMNS:
        return COLUMNS.get(said or "")
    try:
        inches = float(said)
    except ValueError:
        inches = 0.0
    if not LEAST <= inches <= MOST:
        raise UserError(f"--width is {said}; write column, page, or inches from {LEAST:g} to {MOST:g}.")
    return inches


@contextmanager
def at_width(inches: float | None) -> Iterator[None]:
    """Every picture that is saved inside has this width; its height keeps the proportion."""
    before = _WIDTH[0]
    _WIDTH[0] = inches
    try:
        yield
    finally:
        _WIDTH[0] = before


def fit(figure: Any) -> bool:
    """Brings a figure to the asked width; False where none was asked for."""
    if _WIDTH[0] is None:
        return False
    wide, high = figure.get_size_inches()
    figure.set_size_inches(_WIDTH[0], max(high * _WIDTH[0] / wide, 0.6 * _WIDTH[0]))
    figure.set_layout_engine("constrained")
    for text in figure.findobj(lambda one: hasattr(one, "set_fontsize")):
        text.set_fontsize(min(text.get_fontsize(), LETTERS))
    return True


def for_print() -> AbstractContextManager[Any]:
    """Fonts whole in the file: TrueType in a PDF (publishers refuse Type 3), outlines in the SVG of a paper."""
    import matplotlib

    settings: Any = {"pdf.fonttype": 42, **({"svg.fonttype": "path"} if _WIDTH[0] is not None else {})}
    return matplotlib.rc_context(settings)
