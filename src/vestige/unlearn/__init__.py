"""Makes checkpoints: training, unlearning methods and their losses, and evaluation of a model while it trains.

- losses: every method's formula, as plain functions of tensors
- objectives: ChatRow; Causal, MaskedDiffusion: from rows to a batch, from a batch to logits and a loss
- methods: METHODS, Method, Step: which forward passes a method needs, and the loss made of them
- lesson: Lesson: rows to learn, or to forget by a method; TrainingWork: the loss of one batch
- recipe: TrainingRecipe, Lora: how to train
- trainer: train(loaded, lesson, out, recipe): on transformers' Trainer, resumable to the same bytes
- loop: finetune, unlearn: the plain loop of the lab's tiny models
- config, run: `vestige train` and `vestige unlearn`: training_config -> TrainConfig -> run_training
- watch: Callback, Watch: evaluations of the live model (vestige.Callback, vestige.Watch)
- live: LiveEvaluator: one such evaluation, by one process or by several together
- looks: Look: what it found; watch.json and training.json as kinds of runs

    train(load_model(args), Lesson(rows, "NPO", retain=others), Path("out"), TrainingRecipe(epochs=5))
"""
