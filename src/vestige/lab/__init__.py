"""The embedded default: a tiny corpus, tiny models, and the demos that use them."""
