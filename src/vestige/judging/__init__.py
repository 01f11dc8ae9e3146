"""From finished runs to the facts of a verdict. One judgement for page, terminal and bench. No model runs."""
