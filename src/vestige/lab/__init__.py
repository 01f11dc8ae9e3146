"""The embedded default: a tiny corpus and tiny models, made here."""

from vestige.lab.models import Lab, Settings, build_lab

__all__ = ["Lab", "Settings", "build_lab"]
