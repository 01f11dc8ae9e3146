"""Numbers in words: what a value says about whether the model still knows. The words are on the handlers' cards."""

from __future__ import annotations

import math

from vestige.metrics.cards import card_of


def reading(handler: str, value: float | None, aggregator: str = "", against_reference: bool = True) -> str:
    """A value in words.

    >>> reading("mia_loss", 0.99)
    'an attacker recognises forget rows: still known'
    >>> reading("mia_loss", None)
    ''
    """
    card = card_of(handler)
    if value is None or math.isnan(value):
        return ""
    if card is not None and (card.attack or card.aggregators):  # these are never against a stand-in for a reference
        against_reference = True
    variant = card.aggregators.get(aggregator) if card else None
    read = variant.reading if variant else card.reading if card else None
    words = read(value) if read else ""
    return words if against_reference else f"{words} (against 0.5, no retain model)"
