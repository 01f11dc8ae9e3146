"""Activation patching, the plain way: one model's hidden states put in the place of another's, one layer at a time.

    states of a source model --patch into the target at layer l--> statistics of the target's labels

The result for one PatchWant is a TokenStats with a leading axis: row 0 is the target as it is, row 1 + i is the target
with the i-th layer patched. Hooks are context managers that always clean up.

In: two models, PatchWants (a target and which of its positions are patched) and a Plan. Out: TokenStats. Callers:
collect/layered_patching.py, which checks its fast way against `patched_plain`; runs/patched.py for `make_plan` and
`check_identity`; collect/patch.py and depth/baselines.py for hooks, states and the logit lens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vestige.collect.forward import logits_at
from vestige.collect.reduce import reduce_logits
from vestige.collect.safety import allowed, check_fit, check_tokens, exact
from vestige.errors import UserError, unknown_name
from vestige.models.args import precision
from vestige.models.attention import send
from vestige.models.layers import Site, find_sites
from vestige.numeric import distances
from vestige.types import ARRAY_FIELDS, Array, TokenStats
from vestige.wants import LAST_LAYERS, PatchWant

# How far a model patched with its own states may stray from itself: rounding, nothing more.
IDENTITY_TOLERANCE = {"float32": 1e-4, "float64": 1e-8}
ON_DEVICE = 1 << 29  # bytes of a source's states that stay on a GPU

States = Mapping[str, torch.Tensor]  # want key -> (layers, patched positions, width)
Read = Callable[[int, torch.Tensor], None]
Write = Callable[[int, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class PatchPlan:
    """Which layers are patched, and what is put into the last one.

    `residual`: what the source's last block gives out. `peer`: that after the source's final norm, as the published
    code does; the target then applies its own norm to it once more.
    """

    layers: tuple[int, ...]
    last_layer: str = "residual"
    component: str = "block"

    def __post_init__(self) -> None:
        if self.last_layer not in LAST_LAYERS:
            raise unknown_name("last_layer", self.last_layer, LAST_LAYERS)


def make_plan(model: Any, layers: Sequence[int] | None = None, last_layer: str = "residual") -> PatchPlan:
    """All layers of the model, or those named."""
    depth = len(find_sites(model))
    chosen = tuple(range(depth)) if layers is None else tuple(layers)
    wrong = [x for x in chosen if not 0 <= x < depth]
    if wrong or not chosen:
        raise UserError(
            f"layers: this model has layers 0 to {depth - 1}; {wrong[0] if wrong else 'none'} was asked for."
        )
    return PatchPlan(chosen, last_layer)


# ---- hooks ------------------------------------------------------------------------------------------------------


def hidden_of(output: Any) -> torch.Tensor:
    """The hidden state in what a block gives out: alone, or first of several.

    Which of the two differs between architectures and between versions of transformers, so nothing may rely on either.
    """
    return output[0] if isinstance(output, tuple) else output


def with_hidden(output: Any, hidden: torch.Tensor) -> Any:
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def hidden_input(args: Any, kwargs: Any) -> torch.Tensor:
    """The hidden state a module is given."""
    hidden: torch.Tensor = args[0] if args else next(iter(kwargs.values()))
    if hidden.ndim != 3:
        raise UserError(
            "This model's blocks reshape their hidden states, so the stream inside a block (mid) is hidden."
        )
    return hidden


@contextmanager
def reading(sites: Mapping[int, Site], read: Read) -> Iterator[None]:
    """While open, `read(layer, hidden)` is told every hidden state that passes the sites."""

    def on_output(layer: int) -> Callable[..., None]:
        return lambda module, args, output: read(layer, hidden_of(output))

    def on_input(layer: int) -> Callable[..., None]:
        return lambda module, args, kwargs: read(layer, hidden_input(args, kwargs))

    # A hook left behind would patch every later forward of this model and give wrong numbers without an error: each is
    # on the stack before the next is registered, so that all go, whatever fails.
    with ExitStack() as stack:
        for layer, site in sites.items():
            if site.where == "output":
                handle = site.module.register_forward_hook(on_output(layer))
            else:
                handle = site.module.register_forward_pre_hook(on_input(layer), with_kwargs=True)
            stack.callback(handle.remove)
        yield


@contextmanager
def writing(sites: Mapping[int, Site], write: Write) -> Iterator[None]:
    """While open, `write(layer, hidden)` gives what takes the place of the hidden states at the sites."""

    def on_output(layer: int) -> Callable[..., Any]:
        return lambda module, args, output: with_hidden(output, write(layer, hidden_of(output)))

    def on_input(layer: int, where: str) -> Callable[..., Any]:
        def change(module: Any, args: Any, kwargs: Any) -> Any:
            hidden = hidden_input(args, kwargs)
            new = write(layer, hidden)
            # In place: the tensor itself also goes around the module, as the residual that is added to its output. A
            # new tensor as the argument would patch the module's input only.
            if where == "stream":
                hidden.copy_(new)
                return None
            return ((new, *args[1:]), kwargs) if args else ((), {**kwargs, next(iter(kwargs)): new})

        return change

    with ExitStack() as stack:
        for layer, site in sites.items():
            if site.where == "output":
                handle = site.module.register_forward_hook(on_output(layer))
            else:
                handle = site.module.register_forward_pre_hook(on_input(layer, site.where), with_kwargs=True)
            stack.callback(handle.remove)
        yield


@contextmanager
def head_input(model: Any, read: Callable[[torch.Tensor], None] | None) -> Iterator[None]:
    """While open, the output layer sees one position only (logits are not wanted); `read` is told its input."""
    # Its logits would be positions x vocabulary, often more than all states together, and are thrown away. One position
    # is left, because models do not expect an empty input.
    head = model.get_output_embeddings()
    if head is None:
        raise UserError(f"{type(model).__name__} has no output layer that can be found; a depth score needs one.")

    def narrow(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if read is not None:
            read(args[0])
        return (args[0][:1, :1], *args[1:])

    handle = head.register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        handle.remove()


# ---- states of a source -----------------------------------------------------------------------------------------


def padded(wants: Sequence[PatchWant], device: Any) -> dict[str, torch.Tensor]:
    """Inputs of a batch, padded on the right. What the padding holds does not matter: no token attends to it.

    On the right, so that a position of a want is the same number in every batch, and its position id with it.
    """
    width = max(w.width for w in wants)
    ids = np.zeros((len(wants), width), np.int64)
    mask = np.zeros((len(wants), width), np.int64)
    for r, want in enumerate(wants):
        ids[r, : want.width] = want.target.ids[:-1]
        mask[r, : want.width] = 1
    sent = send(np.stack([ids, mask]), device)
    return {"input_ids": sent[0], "attention_mask": sent[1]}


@torch.inference_mode()
def source_states(
    model: Any, wants: Sequence[PatchWant], plan: PatchPlan, to_host: bool = False
) -> dict[str, torch.Tensor]:
    """The states of one batch at the patched positions, layer by layer. Nothing else is kept of the forward."""
    sites = dict(enumerate(find_sites(model, plan.component)))
    last = len(sites) - 1
    width = max(w.width for w in wants)
    # The patched positions in the flattened (batch x time) of `padded`.
    index = torch.cat([torch.arange(w.first, w.end) + r * width for r, w in enumerate(wants)])
    states: dict[int, torch.Tensor] = {}

    def keep(layer: int, hidden: torch.Tensor) -> None:
        flat = hidden.reshape(-1, hidden.shape[-1])
        states[layer] = flat.index_select(0, send(index, flat.device))

    wanted = {layer: sites[layer] for layer in plan.layers}
    normed = plan.last_layer == "peer" and plan.component == "block" and last in wanted
    if normed:  # the published code reads what goes into the output layer, which is the last state after the norm
        del wanted[last]
    with reading(wanted, keep), head_input(model, (lambda hidden: keep(last, hidden)) if normed else None):
        # No mask: padding is on the right, and no token looks to the right. Attention without one is cheaper.
        model(input_ids=padded(wants, model.device)["input_ids"], use_cache=False)
    device = torch.device("cpu") if to_host else model.device
    by_layer = [states[layer].to(model.device) for layer in plan.layers]
    stacked = torch.stack(by_layer).to(device)  # one copy for all layers
    sizes = [w.end - w.first for w in wants]
    # Copies: a slice would keep its whole batch alive.
    return {w.key: part.clone() for w, part in zip(wants, stacked.split(sizes, dim=1), strict=True)}


# ---- the plain way ----------------------------------------------------------------------------------------------


@torch.inference_mode()
def patched_plain(model: Any, want: PatchWant, states: torch.Tensor, plan: PatchPlan, rows: int = 8) -> TokenStats:
    """One full forward of the target per layer (several as the rows of a batch), and one of the target as it is.

    The yardstick for the fast way, so it stays simple: no cache, no shared positions, the model's own mask.
    """
    sites = find_sites(model, plan.component)
    states = send(states, model.device)
    jobs: list[int | None] = [None, *range(len(plan.layers))]
    parts = []
    for start in range(0, len(jobs), rows):
        chunk = jobs[start : start + rows]
        # Each row is patched at one layer only, so one forward serves several layers. None: a row that is not patched.
        row_of = {plan.layers[i]: (r, i) for r, i in enumerate(chunk) if i is not None}

        def write(layer: int, hidden: torch.Tensor, row_of: Mapping[int, tuple[int, int]] = row_of) -> torch.Tensor:
            row, i = row_of[layer]
            new = hidden.clone()  # a model may still hold the block's own output, e.g. to return hidden states
            new[row, want.first : want.end] = states[i].to(hidden.device, hidden.dtype)
            return new

        with writing({layer: sites[layer] for layer in row_of}, write):
            parts.append(_label_stats(model, [want] * len(chunk)))
    return layer_stats({name: np.concatenate([p[name] for p in parts]) for name in ARRAY_FIELDS})


def _label_stats(model: Any, wants: Sequence[PatchWant]) -> dict[str, Array]:
    """Statistics of the labels of equally long wants: arrays (wants, tokens)."""
    width = wants[0].width
    at = torch.cat([torch.arange(w.target.start - 1, width) + r * width for r, w in enumerate(wants)])
    logits = logits_at(model, at, **padded(wants, model.device), use_cache=False)
    labels = send(torch.tensor([t for w in wants for t in w.target.labels]), logits.device)
    reduced = reduce_logits(logits, torch.arange(len(labels), device=logits.device), labels)
    return {name: reduced[name].reshape(len(wants), -1) for name in ARRAY_FIELDS}


def layer_stats(arrays: Mapping[str, Array]) -> TokenStats:
    """TokenStats with a leading axis: the target as it is, then one row per patched layer."""
    n = arrays["label"].shape[-1]
    return TokenStats(**{k: arrays[k] for k in ARRAY_FIELDS}, order=np.arange(n), steps=n)


# ---- is it right for this model? --------------------------------------------------------------------------------


@torch.inference_mode()
def patch_bound(model: Any, want: PatchWant, in_a_batch: Array) -> float:
    """How far patched log-probabilities may be off on average: where rounding is coarse, by what it does to the target
    itself, in a batch (as given) and alone."""
    if precision(model) in IDENTITY_TOLERANCE:
        return IDENTITY_TOLERANCE[precision(model)]
    noise = float(np.mean(distances(_label_stats(model, [want])["logprob"][0], in_a_batch)))
    return allowed(model, noise, len(in_a_batch))


def check_identity(model: Any, want: PatchWant, name: str = "the model") -> float:
    """Patches a model with its own states, at every layer: nothing may change. Returns the largest change.

    It goes wrong when what looks like a block is not one, or when a block's output is not the whole stream.
    Blocks are found by their place in the model, not by a list of known architectures; this is what makes that safe.
    """
    # Always what blocks give out, never `peer`: there the last layer is normed twice, and would differ by definition.
    plan = make_plan(model)
    states = source_states(model, [want], plan)[want.key]
    logprob = patched_plain(model, want, states, plan).logprob
    if np.isnan(logprob[0]).any():
        raise UserError(f"{name}: the log-probabilities of the entity tokens are NaN, so nothing can be patched.")
    every = distances(logprob[1:], logprob[0])
    # Rounding, nothing more: of any token in float32; on average where one token's rounding is as large as an error.
    change = every.max(axis=-1) if exact(model) else every.mean(axis=-1)
    worst = int(change.argmax())
    if not change[worst] <= patch_bound(model, want, logprob[0]):
        raise UserError(
            f"{name} ({type(model).__name__}) cannot be patched: putting its own states back at layer "
            f"{plan.layers[worst]} changes its log-probabilities by {change[worst]:.2g}; its blocks do not carry the "
            "whole hidden state, so a depth score would be wrong."
        )
    return float(change[worst])


@torch.inference_mode()
def decode_states(model: Any, states: torch.Tensor, labels: Sequence[int]) -> Array:
    """Log-probabilities of labels when states (positions, width) go straight to the final norm and the output layer.

    The model's own code runs, with its last block's output replaced; so soft-capping and scaling are as always.
    """
    blocks = find_sites(model)
    ids = torch.zeros((len(states), 1), dtype=torch.long, device=model.device)  # one row per position: tiny attention
    last = len(blocks) - 1

    def write(layer: int, hidden: torch.Tensor) -> torch.Tensor:
        return send(states, hidden.device)[:, None].to(hidden.dtype)

    with skip_blocks(model, [b.module for b in blocks[:-1]]), writing({last: blocks[last]}, write):
        logits = model(input_ids=ids, use_cache=False).logits[:, 0]
    label = send(torch.tensor(list(labels)), logits.device)
    return reduce_logits(logits, torch.arange(len(label), device=logits.device), label)["logprob"]


@contextmanager
def skip_blocks(model: Any, blocks: Sequence[Any]) -> Iterator[None]:
    """While open, these blocks compute nothing: their weights would be read for states that are thrown away."""
    tuples: dict[int, bool] = {}
    with ExitStack() as stack:  # one token through the model shows in which form each block answers
        for i, block in enumerate(blocks):
            handle = block.register_forward_hook(lambda m, a, out, i=i: tuples.update({i: isinstance(out, tuple)}))
            stack.callback(handle.remove)
        model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device), use_cache=False)

    def through(i: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            hidden = args[0] if args else next(iter(kwargs.values()))
            return (hidden, None) if tuples[i] else hidden  # the model unpacks what it got from the real block

        return forward

    # An instance's own `forward` covers that of its class; accelerate, for one, puts its own there. Deleting ours where
    # there was none uncovers the class's, and where there was one it has to come back.
    replaced = [block.__dict__.get("forward") for block in blocks]
    try:
        for i, block in enumerate(blocks):
            block.forward = through(i)
        yield
    finally:
        for block, before in zip(blocks, replaced, strict=True):
            if before is None:
                del block.__dict__["forward"]
            else:
                block.forward = before


def collect_states(
    model: Any, wants: Sequence[PatchWant], plan: PatchPlan, batch_size: int = 8, needed: frozenset[str] | None = None
) -> Iterator[States]:
    """The source's states, batch by batch, longest first; memory is that of the patched positions.

    They stay where the model is as long as they are few, and then wait on the host: the target model comes next, and
    two models rarely fit a GPU together. `needed`: run only the batches that hold one of these.
    """
    held = 0
    ordered = sorted(wants, key=lambda w: (-w.width, w.key))
    if ordered:
        check_fit(model, ordered[0].width, "A prompt with its answer")
        check_tokens(model, (w.target.ids for w in ordered))
    for start in range(0, len(ordered), batch_size):
        batch = ordered[start : start + batch_size]
        if needed is None or any(w.key in needed for w in batch):
            states = source_states(model, batch, plan, held > ON_DEVICE)
            held += sum(t.numel() * t.element_size() for t in states.values())
            yield states


# ---------------------------------------------------------------------------------------------------------------------
# What layers look like, without patching: states read off by the output layer.
#
# Same examples and positions as patching. The states themselves (for CKA) are those of `source_states`.

LENS_ROWS = 512  # positions decoded at once


def lens_scores(model: Any, wants: Sequence[PatchWant], states: States) -> Array:
    """Mean log-probability of the labels by example and layer, when `model`'s final norm and head read the states."""
    out = []
    for want in wants:
        state = states[want.key]
        labels = want.target.labels
        layers, positions, width = state.shape
        if positions != len(labels):
            raise UserError("The logit lens needs patch_scope=span: every scored position must have its state.")
        flat = state.reshape(layers * positions, width)
        repeated = list(labels) * layers
        parts = []
        for i in range(0, len(flat), LENS_ROWS):
            parts.append(decode_states(model, flat[i : i + LENS_ROWS], repeated[i : i + LENS_ROWS]))
        out.append(np.concatenate(parts).reshape(layers, positions).astype(np.float64).mean(axis=-1))
    return np.stack(out)


def stacked_states(wants: Sequence[PatchWant], states: States) -> Array:
    """States of all examples, position after position: (layers, positions, width)."""
    return torch.cat([states[w.key].float() for w in wants], dim=1).cpu().numpy()
