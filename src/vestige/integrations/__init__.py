"""Other people's software: open-unlearning's files, lm-eval, saved logits, plug-ins."""
