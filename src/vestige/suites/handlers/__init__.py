"""The built-in handlers: from evidence and parents to the result shapes of open-unlearning."""

from vestige.suites import postprocess as postprocess  # registers the handler of scores that code adds
from vestige.suites.handlers import attacks, depth, likelihood, references, texts, trajectory

__all__ = ["attacks", "depth", "likelihood", "references", "texts", "trajectory"]
