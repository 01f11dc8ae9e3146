"""Finding a transformer's parts by their structure: the list of blocks, and attention and MLP inside a block.

Nothing here goes by the model's name. The list of blocks is the ModuleList as long as the configuration says the model
has layers. What is found is tried out before it is used (collect/patch.py), so a wrong guess is refused, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.models.args import text_config

COMPONENTS = ("block", "attn", "mlp", "mid", "mid_norm")
ATTENTION_WORDS = ("attn", "attention")
MLP_WORDS = ("mlp", "feed_forward", "feedforward", "ffn")


@dataclass(frozen=True)
class Site:
    """A place in a model where a hidden state can be read and replaced.

    `output`: what the module gives out. `stream`: what it takes, for everybody else who reads it, too. `input`: what it
    takes, for this module alone.
    """

    module: Any
    where: str = "output"


def find_blocks(model: Any) -> list[Any]:
    """The blocks in order, whatever wraps the model (an adapter, a head)."""
    import torch

    depth = getattr(text_config(getattr(model, "config", None)), "num_hidden_layers", None)
    lists: list[Any] = [
        m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and depth is not None and len(m) == depth
    ]
    if not lists:
        raise UserError(
            f"{type(model).__name__} has no list of {depth} blocks, so layers cannot be patched; "
            "a depth score needs a transformer whose blocks are a ModuleList."
        )
    # Lists of something smaller (adapters, experts) may happen to be as long; the blocks hold most of the weights.
    blocks: Any = max(lists, key=lambda module: sum(p.numel() for p in module.parameters()))
    return list(blocks)


def find_sites(model: Any, component: str = "block") -> list[Site]:
    """For each block the place to patch: its output, its attention's or MLP's output, or the stream between the two.

    `mid` is that stream. `mid_norm` is only what the norm in front of the MLP reads of it (the skip connection keeps
    the old state), which is what published code calls mid.
    """
    if component not in COMPONENTS:
        raise unknown_name("component", component, COMPONENTS)
    blocks = find_blocks(model)
    if component == "block":
        return [Site(block) for block in blocks]
    if component in ("mid", "mid_norm"):
        return [Site(_second_norm(block), "stream" if component == "mid" else "input") for block in blocks]
    words = ATTENTION_WORDS if component == "attn" else MLP_WORDS
    return [Site(_child(block, words, component)) for block in blocks]


def _child(block: Any, words: tuple[str, ...], what: str) -> Any:
    """The child of a block that is its attention or its MLP, by the words every library uses for them."""
    matching = []
    for name, child in block.named_children():
        names = f"{name} {type(child).__name__}".lower()
        has_weights = next(child.parameters(), None) is not None  # a dropout after it bears its name, too
        if has_weights and not _is_norm(child) and any(word in names for word in words):
            matching.append(child)
    if len(matching) != 1:
        children = ", ".join(f"{n} ({type(c).__name__})" for n, c in block.named_children())
        raise UserError(f"{type(block).__name__} has no single part that is its {what}; it has: {children}.")
    return matching[0]


def _second_norm(block: Any) -> Any:
    """The norm in front of the MLP. A block that runs attention and MLP side by side has no stream between them."""
    norms = []
    for name, child in block.named_children():
        # A norm after the MLP (post_feedforward) works on what the MLP gives out, not on the stream.
        if not _is_norm(child) or "post_feedforward" in name:
            continue
        if "pre_feedforward" in name or "pre_ffn" in name:
            return child
        norms.append(child)
    if len(norms) != 2 or getattr(block, "use_parallel_residual", False):
        raise UserError(
            f"{type(block).__name__} has no residual stream between attention and MLP that could be patched (mid); "
            "use component attn or mlp."
        )
    return norms[1]


def _is_norm(module: Any) -> bool:
    return "norm" in type(module).__name__.lower()
