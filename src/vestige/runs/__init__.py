"""Finished and unfinished runs: their directories, their evidence, and what is read from them."""
