"""Did the model forget? Facts from finished runs, the rule, and the words."""
