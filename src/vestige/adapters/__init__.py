"""Other people's software: their file formats, Python interfaces, servers, trainers and trackers.

open_unlearning     `@unlearning_metric` functions run unchanged: run_live, TorchRows, Collator, CausalRows
evaluators          open-unlearning's evaluator classes, registries and import names (`evals.*`)
importers           result files of open-unlearning and TOFU as our Scores: import_results
trajectory_tensors  saved logits as whole tensors, under the trajectory guide's names: trajectories_from_logits
plugins             a user's own Python files: load_plugins, plugin_digests
servers             the client of vLLM and other OpenAI-compatible servers: ServerArgs, find_servers, ModelServer
server_checks       what every answer of a server must satisfy
served_model        a served model as a backend of `collect`: ServedModel, ServedAnswers
trainers            callbacks in somebody else's trainer: TrainerGuest, log_metrics, log_table
preserve_state      evaluating a model that is being trained, without a trace
lm_eval             tasks of lm-evaluation-harness, in process or served (lm_eval_*.py: its parts)
step_model          a step of a denoising path as the model of an `@unlearning_metric` function
trackers            a finished run in W&B, MLflow, TensorBoard, on the hub
"""

# Evaluators that are not a list of metrics: the `handler` of an eval config -> the module whose `evaluate` runs it.
# Handlers that are not here (TOFUEvaluator, MUSEEvaluator, a user's own) are suites of metrics.
HARNESSES = {"LMEvalEvaluator": "vestige.adapters.lm_eval"}
