"""Runs on disk: evidence, scores, manifest, locks, resume."""
