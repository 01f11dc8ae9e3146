"""Pure functions of TokenStats and Texts. No torch, no tokenizer, no model."""

from vestige.metrics import explanations  # noqa: F401 - it fills CARDS
