"""What a plug-in may build on: the registries, and the functions and records that fill them. A stable interface.

    from vestige.plugins import attack, handler, method, metric, register_family

Names are imported from their packages on first use: importing this module imports nothing heavy. A plug-in is a
Python file that every verb which evaluates, trains or attacks takes as --plugin FILE (docs/howto.md).
"""

from __future__ import annotations

import importlib
from typing import Any

# Name -> the module that has it. `vestige.plugins` reaches many packages, and no package imports it.
NAMES = {
    # a metric: a function of evidence, the handler that applies it to rows, and what both mean
    "METRICS": "vestige.metrics.cards",
    "metric": "vestige.metrics.cards",
    "CARDS": "vestige.metrics.cards",
    "Card": "vestige.metrics.cards",
    "HANDLERS": "vestige.suites.registry",
    "handler": "vestige.suites.registry",
    "Inputs": "vestige.suites.registry",
    "Score": "vestige.types",
    "TokenStats": "vestige.types",
    "by_index": "vestige.suites.handlers.common",
    "mean_score": "vestige.suites.handlers.common",
    "one_stat": "vestige.suites.handlers.common",
    "wants_answers": "vestige.suites.handlers.common",
    "wants_texts": "vestige.suites.handlers.texts",
    # an attack
    "ATTACKS": "vestige.stress.attacks",
    "attack": "vestige.stress.attacks",
    "register": "vestige.stress.attacks",
    "WeightsAttack": "vestige.stress.attacks",
    "PromptAttack": "vestige.stress.attacks",
    "AnswersAttack": "vestige.stress.attacks",
    "Attacked": "vestige.stress.attacks",
    "Setting": "vestige.stress.attacks",
    "AttackTarget": "vestige.stress.attacks",
    # an unlearning method
    "METHODS": "vestige.unlearn.methods",
    "Method": "vestige.unlearn.methods",
    "Step": "vestige.unlearn.methods",
    "method": "vestige.unlearn.methods",
    # a diffusion family
    "FAMILIES": "vestige.models.families",
    "Family": "vestige.models.families",
    "register_family": "vestige.models.families",
    # a data set, a file format
    "DATASETS": "vestige.data.datasets",
    "READERS": "vestige.data.rows",
    "UserError": "vestige.errors",
}
__all__ = sorted(NAMES)


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"vestige.plugins has no {name}; it has {', '.join(sorted(NAMES))}")
    return getattr(importlib.import_module(NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted(NAMES)
