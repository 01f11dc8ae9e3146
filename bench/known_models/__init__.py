"""Tiny models of which it is known what they know: pools for `vestige meta`, and models for the verdict's bench."""
