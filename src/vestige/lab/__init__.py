"""The embedded default: a tiny corpus and tiny models, made here."""
