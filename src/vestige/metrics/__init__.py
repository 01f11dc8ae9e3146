"""Pure functions of TokenStats and Texts. No torch, no tokenizer, no model."""
