"""The modules that files written for open-unlearning import (`evals.base`, `evals.metrics.memorization`, ...)."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import vestige.suites.handlers  # noqa: F401 - registers those named below
from vestige.integrations import evals_utils, evaluators
from vestige.integrations.evaluators import METRICS_REGISTRY, Evaluator, MUSEEvaluator, TOFUEvaluator, UnlearningMetric
from vestige.types import IGNORE

MEMORISATION = ("probability", "probability_w_options", "rouge", "truth_ratio", "extraction_strength",
                "exact_memorization")  # fmt: skip
PRIVACY = ("ks_test", "privleak", "rel_diff")
UTILITY = ("hm_aggregate", "classifier_prob")
MIA = ("mia_loss", "mia_min_k", "mia_min_k_plus_plus", "mia_gradnorm", "mia_zlib", "mia_reference")
HELPERS = ("aggregate_to_1D", "dict_transpose", "eval_text_similarity", "evaluate_probability", "run_batchwise_evals",
           "tokenwise_logprobs", "tokenwise_vocab_logprobs")  # fmt: skip

# What the files of that framework find beside them in the module they are part of.
REGISTERS: dict[str, Any] = {
    "_register_metric": evaluators.register_metric,
    "_register_evaluator": evaluators.register_evaluator,
    "_register_benchmark": evaluators.register_evaluator,
}


def _modules() -> dict[str, dict[str, Any]]:
    """Module -> what can be imported from it."""

    def ours(*names: str) -> dict[str, Any]:
        return {name: METRICS_REGISTRY[name] for name in names}

    objects = {
        "UnlearningMetric": UnlearningMetric,
        "unlearning_metric": evaluators.unlearning_metric,
        "logger": logging.getLogger("metrics"),
    }
    every = ours(*MEMORISATION, *PRIVACY, *UTILITY, *MIA)
    metrics = {"METRICS_REGISTRY": METRICS_REGISTRY, "get_metrics": evaluators.get_metrics, **objects, **every}
    benchmarks = {"Evaluator": Evaluator, "TOFUEvaluator": TOFUEvaluator, "MUSEEvaluator": MUSEEvaluator}
    known = {"EVALUATOR_REGISTRY": evaluators.EVALUATOR_REGISTRY, "BENCHMARK_REGISTRY": evaluators.EVALUATOR_REGISTRY}
    helpers = {name: getattr(evals_utils, name) for name in HELPERS}
    return {
        "evals": {**known, **benchmarks, **REGISTERS},
        "evals.base": {**benchmarks, "get_metrics": evaluators.get_metrics, "logger": evaluators.logger},
        "evals.tofu": benchmarks,
        "evals.muse": benchmarks,
        "evals.metrics": {**metrics, **REGISTERS},
        "evals.metrics.base": objects,
        "evals.metrics.utils": {**helpers, "IGNORE_INDEX": IGNORE},
        "evals.metrics.memorization": {**ours(*MEMORISATION), **objects, **helpers},
        "evals.metrics.privacy": {**ours(*PRIVACY), **objects},
        "evals.metrics.utility": {**ours(*UTILITY), **objects},
        "evals.metrics.mia": ours(*MIA),
    }


def install_import_names() -> None:
    """Lets plug-in files say `from evals.metrics.base import unlearning_metric`, as they do at home."""
    if "evals" in sys.modules:
        return
    for name, content in _modules().items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, module)
