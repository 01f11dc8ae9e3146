"""Losses and loops that make unlearned checkpoints."""

from vestige.unlearn.lesson import Lesson
from vestige.unlearn.loop import Training, finetune, unlearn
from vestige.unlearn.methods import METHODS
from vestige.unlearn.objectives import Causal, ChatRow, MaskedDiffusion, Objective

__all__ = ["METHODS", "Causal", "ChatRow", "Lesson", "MaskedDiffusion", "Objective", "Training", "finetune", "unlearn"]
