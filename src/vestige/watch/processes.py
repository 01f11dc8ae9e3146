"""A look at a model that several processes train: one of them evaluates, or all share the work.

    replicated (DDP)          the first process evaluates its copy while the others wait; or each collects a share
    sharded (FSDP, ZeRO-3)    the weights are gathered once into a whole copy on the first process, which evaluates it

In: the model that several processes train, with accelerate (the trainer's own, or the user's) or with torch.distributed
alone. Out: the same Look on every process. Callers: watch/callback.py and watch/loop.py. A failure on the first process
is carried to the others, so that nobody waits for a look that does not come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from vestige.errors import UserError, is_ours
from vestige.integrations.undisturbed import undisturbed
from vestige.internal import summary
from vestige.runs.team import alone
from vestige.watch.looking import Look, Looking

WRAPPERS = ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine")  # of DeepSpeed: ZeRO-1 and 2, weights whole


def look_together(
    looking: Looking,
    accelerator: Any,
    model: Any,
    tokenizer: Any,
    moment: tuple[int, float | None],
    share: bool = False,
) -> Look:
    """One look, whatever the number of processes. `moment`: steps and epochs done."""
    rank, size = _place_of(accelerator)
    sharded = is_sharded(model)  # ZeRO-3 takes the weights apart even for one process
    if size == 1 and not sharded:
        return looking.look(_plain(model), tokenizer, *moment)
    if share and not sharded:
        whole = _plain(model)
        seen: Any = looking.look(whole, tokenizer, *moment, leads=rank == 0)
        return _agreed(looking, seen, None)
    error: Exception | None = None
    words, seen = "", None
    with whole_model(model, accelerator) as found:
        if found is not None:
            try:
                with alone():
                    seen = looking.look(found, tokenizer, *moment)
            except Exception as raised:  # of the model or the suite: raised again below, when all processes know
                error = raised
                words = f"{summary(raised) if is_ours(raised) else raised}"
    return _agreed(looking, seen, error, words)


def _agreed(looking: Looking, seen: Look | None, error: Exception | None, words: str = "") -> Look:
    """The first process's look on every process, so that all of them decide alike."""
    told: list[Any] = [None if seen is None else seen.to_json(), words]
    torch.distributed.broadcast_object_list(told)  # the others wait here while the first one looks
    if error is not None:
        raise error
    if told[0] is None:
        raise UserError(f"the first process could not evaluate: {told[1]}")
    look = Look.from_json(told[0])
    looking.remember([look])
    return look


def _place_of(accelerator: Any) -> tuple[int, int]:
    """Which process this is, and of how many that train together."""
    if accelerator is not None:
        return accelerator.process_index, accelerator.num_processes
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _plain(model: Any) -> Any:
    """Without the wrapper that synchronises gradients: a forward through it would wait for the other processes."""
    model = getattr(model, "_orig_mod", model)  # torch.compile
    return model.module if type(model).__name__ in WRAPPERS else model


def is_sharded(model: Any) -> bool:
    """Whether no process holds all weights (FSDP of either version, ZeRO-3)."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return True
    return any(type(p.data).__name__ == "DTensor" or hasattr(p, "ds_id") for p in model.parameters())


@contextlib.contextmanager
def whole_model(model: Any, accelerator: Any) -> Iterator[Any]:
    """The model to evaluate on the first process; None on the others."""
    leads = _place_of(accelerator)[0] == 0
    if not is_sharded(model):
        yield _plain(model) if leads else None
        return
    weights = _gathered(model, accelerator)  # every process takes part
    if not leads:
        yield None
        return
    with undisturbed():  # building a model draws random numbers
        copy = _copy_of(_unwrapped(model, accelerator), weights)
    yield copy
    del copy, weights


def _gathered(model: Any, accelerator: Any) -> dict[str, Any]:
    """All weights in the first process's CPU memory. On a CPU the others get them too, and drop them."""
    if any(hasattr(p, "ds_id") for p in model.parameters()):  # ZeRO-3: only its own engine can
        if accelerator is None:
            raise UserError("Weights that DeepSpeed shards are gathered by accelerate: give Watch its accelerator.")
        return dict(accelerator.get_state_dict(model) or {})  # the other processes get None
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    # Asked to bring weights to the CPU that are there already, FSDP of torch 2.13 reads freed memory (SIGSEGV).
    elsewhere = any(p.device.type != "cpu" for p in model.parameters())
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=elsewhere))


def _unwrapped(model: Any, accelerator: Any) -> Any:
    if accelerator is not None:
        return accelerator.unwrap_model(model)
    model = _plain(model)
    return model.module if type(model).__name__ == "FullyShardedDataParallel" else model


def _copy_of(model: Any, weights: dict[str, Any]) -> Any:
    """A model of the same architecture in one piece, on the CPU, with these weights."""
    adapters = getattr(model, "peft_config", None)
    base = model.get_base_model() if adapters else model
    kind = next(c for c in type(base).__mro__ if not c.__name__.startswith("FSDP"))
    dtype = next((t.dtype for t in weights.values() if t.is_floating_point()), torch.float32)
    copy = kind(base.config)
    if adapters:
        from peft import get_peft_model

        copy = get_peft_model(copy, next(iter(adapters.values())))
    copy = copy.to(dtype)
    report = copy.load_state_dict({k.replace("_checkpoint_wrapped_module.", ""): v for k, v in weights.items()}, False)
    copy.tie_weights()
    tied = [name for name, tensor in copy.state_dict().items() if _same_elsewhere(copy, name, tensor, weights)]
    absent = [name for name in report.missing_keys if name not in tied]
    if absent or report.unexpected_keys:
        strange = [*absent, *report.unexpected_keys][0]
        raise UserError(f"The gathered weights do not fit the model ('{strange}'); evaluate its saved checkpoint.")
    return copy.eval()


def _same_elsewhere(copy: Any, name: str, tensor: Any, weights: dict[str, Any]) -> bool:
    """Tied to a tensor that was loaded."""
    places = {t.data_ptr() for n, t in copy.state_dict().items() if n != name and n in weights}
    return tensor.data_ptr() in places
