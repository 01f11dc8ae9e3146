"""The built-in handlers: from evidence and parents to the result shapes of open-unlearning."""

from vestige.suites.handlers import attacks, depth, from_code, likelihood, ratios, references, said, texts, trajectory

__all__ = ["attacks", "depth", "from_code", "likelihood", "ratios", "references", "said", "texts", "trajectory"]
