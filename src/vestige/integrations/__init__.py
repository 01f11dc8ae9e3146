"""Other people's software: open-unlearning's files, lm-eval, saved logits, plug-ins."""

# Evaluators that are not a list of metrics: the `handler` of an eval config -> the module whose `evaluate` runs it.
# Handlers that are not here (TOFUEvaluator, MUSEEvaluator, a user's own) are suites of metrics.
HARNESSES = {"LMEvalEvaluator": "vestige.integrations.lm_eval"}
