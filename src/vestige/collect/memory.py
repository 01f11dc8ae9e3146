"""Running out of memory: how it shows, and what frees some."""

from __future__ import annotations

import gc

import torch

# How it shows: what a handler that waits for it catches, and then asks out_of_memory about.
SIGNS = (MemoryError, RuntimeError)


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # The CPU allocator and MPS raise a plain RuntimeError; their texts are all there is to go by.
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def free_memory(gone: bool = False) -> None:
    """Gives back what nothing refers to. `gone`: the caller has seen its object go, so that on a CPU nothing is left
    to look for (looking through all that torch and transformers made takes a quarter of a second)."""
    gpu = torch.cuda.is_available()
    if gpu or not gone:
        gc.collect()
    if gpu:
        torch.cuda.empty_cache()
