"""Makes checkpoints: training, unlearning methods and their losses."""
