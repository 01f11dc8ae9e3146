"""Losses and loops that make unlearned checkpoints."""
