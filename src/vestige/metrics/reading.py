"""Numbers in words: what a value says about whether the model still knows. The words are on the handlers' cards."""

from __future__ import annotations

import math

from vestige.metrics.cards import Bands, card_of

Interval = tuple[float, float]


def reading(
    handler: str,
    value: float | None,
    aggregator: str = "",
    against_reference: bool = True,
    interval: Interval | None = None,
) -> str:
    """A value in words. Words that the interval does not bear out are not given.

    >>> reading("mia_loss", 0.99)
    'an attacker recognises forget rows: still known'
    >>> reading("mia_loss", None)
    ''
    >>> reading("privleak", 1.0, interval=(-100.0, 100.0)).startswith("not decided")
    True
    """
    card = card_of(handler)
    if value is None or math.isnan(value):
        return ""
    if card is not None and (card.attack or card.aggregators):  # these are never against a stand-in for a reference
        against_reference = True
    variant = card.aggregators.get(aggregator) if card else None
    read = variant.reading if variant else card.reading if card else None
    words = read(value) if read else ""
    if isinstance(read, Bands) and interval is not None:
        words = _between(read, *interval)
    return words if against_reference else f"{words} (against 0.5, no retain model)"


def _between(read: Bands, low: float, high: float) -> str:
    """The words of both ends: one band, two that touch, or so many that these rows do not decide."""
    first, last = read.place(low), read.place(high)
    words = read.bands[first][1], read.bands[last][1]
    if last - first < 2:
        return words[0] if first == last else f"{words[0]}, or {words[1]}"
    return f"not decided by these rows: from '{words[0]}' to '{words[1]}'"
