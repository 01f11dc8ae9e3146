"""Losses and loops that make unlearned checkpoints."""

from vestige.unlearn.loop import ChatRow, Training, finetune, unlearn
from vestige.unlearn.methods import METHODS

__all__ = ["METHODS", "ChatRow", "Training", "finetune", "unlearn"]
