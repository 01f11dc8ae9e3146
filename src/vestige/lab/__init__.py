"""The embedded default: a tiny corpus and tiny models, made here."""

from vestige.lab.diffusion import DiffusionSettings, build_diffusion_lab
from vestige.lab.models import Lab, Settings, build_lab

__all__ = ["DiffusionSettings", "Lab", "Settings", "build_diffusion_lab", "build_lab"]
