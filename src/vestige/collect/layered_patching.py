"""Activation patching, the fast way: the same numbers from a fraction of the tokens.

Patching layer l changes nothing below it and nothing to the left of the patched positions. So the target runs once as
it is, keeping its keys and values; then each (layer, source) is a short row that holds only the positions from the
first patched one on. A row comes in after its layer with the source's states and goes through the blocks above it:

    block 3     row 0   row 1   row 2          all rows so far go through together: one forward of the model, in which
    block 2     row 0   row 1                  each block sees the rows below it, and where the output layer sees
    block 1     row 0                          scored positions only
    block 0     (clean prefix only)

The model's own code does the arithmetic. Before it is trusted it is compared with the plain way (collect/patch.py).

In: PatchWants and the states of each source (`collect_states`). Out: TokenStats per want and source, batch by batch.
Caller: runs/patched.py. The saving: with L layers the plain way pushes L whole sequences per source; here a row is
only the answer's few positions, and goes through L/2 blocks on average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicCache

from vestige.collect.backend import Cost
from vestige.collect.forward import logits_at
from vestige.collect.patch import (
    PatchPlan,
    States,
    hidden_of,
    layer_stats,
    padded,
    patch_bound,
    patched_plain,
    reading,
    with_hidden,
)  # fmt: skip
from vestige.collect.reduce import reduce_logits
from vestige.collect.safety import Halving, check_fit, check_tokens, free_memory
from vestige.errors import named, out_of_memory, reraise_ours
from vestige.models.attention import additive, send, without_copies
from vestige.models.kv_cache import PrefixLayer, can_replace_attention, layer_keys, separate_rows
from vestige.models.layers import find_blocks, find_sites
from vestige.numeric import distances
from vestige.types import ARRAY_FIELDS, Array, TokenStats
from vestige.wants import PatchWant

# Tokens of one forward over all layers; more sources than fit take several. Rows do not look at each other, but
# attention pays for the cells between them, which a CPU feels sooner than it gains from larger products.
ROW_TOKENS = {"cpu": 256}
ROW_TOKENS_ELSEWHERE = 1024
# Logits are the largest thing here: every row has some for each label. 256 MB on a CPU, 1 GB elsewhere.
LOGIT_CELLS = {"cpu": 1 << 26}
LOGIT_CELLS_ELSEWHERE = 1 << 28


@dataclass
class Clean:
    """The target as it is, on one batch: statistics of the labels, keys and values, and what rows carry unpatched."""

    stats: list[dict[str, Array]]
    prefix: Cache
    length: int  # columns of the prefix, the longest of the batch
    carried: dict[int, torch.Tensor]  # layer -> (batch, carried positions, width); empty when every position is patched


def row_length(want: PatchWant) -> int:
    """How many positions a row holds: from the first patched one to the last that predicts a label."""
    return want.width - want.first


@torch.inference_mode()
def clean_pass(model: Any, wants: Sequence[PatchWant], plan: PatchPlan) -> Clean:
    """One forward of the target over the batch."""
    ids = padded(wants, model.device)["input_ids"]
    width = ids.shape[1]
    scored = [np.arange(w.target.start - 1, w.width) + r * width for r, w in enumerate(wants)]
    cache = DynamicCache()
    states: dict[int, torch.Tensor] = {}
    span = max(row_length(w) for w in wants)
    # After the last patched position a row continues with the target's own states, which only this pass knows.
    partly = any(w.end < w.width for w in wants)

    def keep(layer: int, hidden: torch.Tensor) -> None:
        rows = [hidden[r, w.first : w.width] for r, w in enumerate(wants)]
        states[layer] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        assert states[layer].shape[1] == span

    sites = find_sites(model)
    reads = reading({layer: sites[layer] for layer in plan.layers}, keep) if partly else nullcontext()
    with reads, without_copies(model):
        index = torch.from_numpy(np.concatenate(scored))
        # No mask, as in `source_states`: padding is on the right, where no token looks.
        logits = logits_at(model, index, input_ids=ids, past_key_values=cache, use_cache=True)
    # Only what lies before the first patched position is the same with and without the patch. Shorter prefixes of the
    # batch have a few columns too many; the mask of `patch_layers` hides them.
    length = max(w.first for w in wants)
    layers: list[Any] = []
    for layer in cache.layers:
        keys, values = layer_keys(layer)
        # Contiguous: a view would keep the keys of the whole batch alive, answers included.
        layers.append(PrefixLayer(keys[:, :, :length].contiguous(), values[:, :, :length].contiguous()))
    stats = _reduce_by_want(logits, [w.target.labels for w in wants])
    return Clean(stats, Cache(layers=layers), length, states)


def _reduce_by_want(logits: torch.Tensor, labels: Sequence[Sequence[int]]) -> list[dict[str, Array]]:
    """Statistics of consecutive logits; `labels`: those of each want."""
    label = send(torch.tensor([token for own in labels for token in own]), logits.device)
    reduced = reduce_logits(logits, torch.arange(len(label), device=logits.device), label)
    out = []
    first = 0
    for own in labels:
        here = slice(first, first + len(own))
        out.append({name: reduced[name][here] for name in ARRAY_FIELDS})
        first = here.stop
    return out


class _LayerHooks:
    """The hooks of one forward over all rows.

    Tokens are ordered by (layer, source, position), so that the tokens a block must see are always the first ones:
    those of lower layers. What a block gets is then a slice, not a selection, and the mask made once for all tokens
    serves every block when its first rows and columns are cut out.
    """

    def __init__(
        self, plan: PatchPlan, sources: int, span: int, prefix: int, states: Callable[[int], torch.Tensor]
    ) -> None:
        self.step = sources * span  # tokens that come in at one layer
        self.order = {layer: i for i, layer in enumerate(sorted(plan.layers))}
        self.total = self.step * len(self.order)
        self.prefix = prefix
        self.states = states  # layer -> (batch, sources x span, width)

    def before(self, block: int) -> int:
        """Tokens that go through a block; never none, because models do not expect an empty input."""
        below = sum(layer < block for layer in self.order)
        return max(1, below * self.step)

    def enter(self, block: int) -> Callable[..., Any]:
        n = self.before(block)

        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # The states are already few after the first block; masks and positions were made for all tokens.
            return tuple(self.first(a, n) for a in args), {k: self.first(v, n) for k, v in kwargs.items()}

        return hook

    def leave(self, block: int) -> Callable[..., Any]:
        def hook(module: Any, args: Any, output: Any) -> Any:
            if block not in self.order:
                return output
            hidden = hidden_of(output)
            # Cut as well as joined: the one token that a block got for want of any (`before`) is dropped here.
            below = self.order[block] * self.step
            new = send(self.states(block), hidden.device).to(hidden.dtype)
            return with_hidden(output, torch.cat([hidden[:, :below], new], dim=1))

        return hook

    def first(self, x: Any, n: int) -> Any:
        """The part of an argument that belongs to the first n tokens; what has no token axis is left alone.

        Told by its shape, because names differ by architecture: masks, rotary tables and positions have an axis as long
        as all tokens. A hidden size that happens to equal it would be cut as well; `verify` would find that.
        """
        if isinstance(x, torch.Tensor):
            if x.ndim == 4 and x.shape[-2] == self.total:
                return x[..., :n, : self.prefix + n]
            if x.ndim >= 2 and x.shape[1] == self.total:
                return x[:, :n]
            if x.ndim == 1 and x.shape[0] == self.total:
                return x[:n]
            return x
        if isinstance(x, (tuple, list)):
            return type(x)(self.first(item, n) for item in x)
        if type(x) is dict:
            return {k: self.first(v, n) for k, v in x.items()}
        return x

    @contextmanager
    def on(self, model: Any) -> Iterator[None]:
        # A stack, so that an error in the middle takes away the hooks that are there: one that stayed would patch every
        # later forward of the model, and no number would show why.
        with ExitStack() as stack:
            for number, block in enumerate(find_blocks(model)):
                stack.callback(block.register_forward_pre_hook(self.enter(number), with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(self.leave(number)).remove)
            yield


@torch.inference_mode()
def patch_layers(
    model: Any, wants: Sequence[PatchWant], plan: PatchPlan, clean: Clean, sources: Sequence[States], apart: bool
) -> list[dict[str, Array]]:
    """All layers of one batch: for each want the arrays (field, layers, sources, tokens) of its labels.

    `apart`: attention takes the rows one by one (models/kv_cache.py) and needs no mask.
    """
    ordered = sorted(plan.layers)
    span = max(row_length(w) for w in wants)
    rows = len(ordered) * len(sources)
    # Shorter wants repeat their last position as padding: a valid one, whose results are not read.
    positions = np.stack([np.minimum(np.arange(span) + w.first, w.width - 1) for w in wants])
    tokens = np.stack([np.asarray(w.target.ids)[p] for w, p in zip(wants, positions, strict=True)])
    hooks = _LayerHooks(
        plan, len(sources), span, clean.length, lambda layer: _entering_states(wants, plan, clean, sources, layer, span)
    )
    # Scored tokens, want by want and row by row; the rest of a row only carries context.
    scored, labels = [], []
    for b, w in enumerate(wants):
        in_row = np.arange(w.target.start - 1 - w.first, row_length(w))
        scored.append((np.arange(rows)[:, None] * span + in_row[None]).reshape(-1) + b * rows * span)
        labels.append(list(w.target.labels) * rows)
    ids, position_ids = send(np.stack([tokens, positions]), model.device)
    # Which columns of the prefix are a want's own (batch, columns). Later ones, up to the longest prefix of the
    # batch, are positions that its row replaces.
    first = send(torch.tensor([w.first for w in wants]), model.device)
    seen = torch.arange(clean.length, device=model.device) < first[:, None]
    total = rows * span
    if apart:  # a mask of which only the shape is read: the hooks cut it as they would cut a real one
        mask = torch.zeros((), dtype=model.dtype, device=model.device)
        mask = mask.expand(len(wants), 1, total, clean.length + total)
    else:
        # A row looks at the prefix and at its own earlier tokens, never at other rows: one triangle per row along the
        # diagonal, since a row reads its own tokens from left to right, as the model did.
        at = torch.arange(total, device=model.device)
        own = (at[:, None] // span == at[None, :] // span) & (at[:, None] >= at[None, :])
        prefix = seen[:, None].expand(-1, total, -1)
        mask = additive(torch.cat([prefix, own.expand(len(seen), -1, -1)], dim=2), model.dtype)
    with hooks.on(model), separate_rows(clean.prefix, seen, span) if apart else without_copies(model):
        logits = logits_at(
            model,
            torch.from_numpy(np.concatenate(scored)),
            input_ids=ids.repeat(1, rows),
            position_ids=position_ids.repeat(1, rows),
            attention_mask=mask,
            past_key_values=clean.prefix,
            use_cache=True,
        )
    # Rows came in in the order of their layers; the caller gets them in the order in which the plan names layers.
    back = [ordered.index(layer) for layer in plan.layers]
    out = []
    for arrays in _reduce_by_want(logits, labels):
        out.append({name: arrays[name].reshape(len(ordered), len(sources), -1)[back] for name in ARRAY_FIELDS})
    return out


def _entering_states(
    wants: Sequence[PatchWant], plan: PatchPlan, clean: Clean, sources: Sequence[States], layer: int, span: int
) -> torch.Tensor:
    """What comes in after a layer: the sources' states at patched positions, the target's own at the others."""
    device = clean.carried[layer].device if clean.carried else sources[0][wants[0].key].device
    i = plan.layers.index(layer)
    rows = []
    for b, w in enumerate(wants):
        for source in sources:
            state = send(source[w.key][i], device)
            row = state.new_zeros((span, state.shape[-1]))  # zeros: padding after a shorter want, which is not read
            if clean.carried:
                row[:] = clean.carried[layer][b]
            row[: w.end - w.first] = state
            rows.append(row)
    return torch.stack(rows).reshape(len(wants), len(sources) * span, -1)


class Patcher:
    """Patches many sources into one target. `run` yields batch by batch, so that a caller can keep what is done."""

    def __init__(self, model: Any, plan: PatchPlan, cost: Cost, batch_size: int = 8, plain: bool = False) -> None:
        self.model = model
        self.plan = plan
        self.cost = cost
        self.batch_size = batch_size
        self.plain = plain
        self.apart = can_replace_attention(model)  # until the self check finds that a model does not attend as it says

    def run(
        self, wants: Sequence[PatchWant], sources: Sequence[States], done: frozenset[str] = frozenset()
    ) -> Iterator[dict[str, list[TokenStats]]]:
        """Yields {want key: the statistics for each source}, longest wants first.

        Batches are made of all `wants`, and those that are all `done` are left out: a resumed run repeats the very
        forwards of the first.
        """
        if not wants:
            return
        check_fit(self.model, max(w.width for w in wants), "A prompt with its answer")
        check_tokens(self.model, (w.target.ids for w in wants))
        # Longest first: memory runs out in the first batch or never. Ties by key, so that a resumed run batches alike.
        ordered = sorted(wants, key=lambda w: (-w.width, w.key))
        if all(w.key in done for w in ordered):
            return
        if not self.plain:
            self.verify([w for w in ordered if all(w.key in s for s in sources)], sources)
        for batch in self._batches(ordered, len(sources)):
            if any(w.key not in done for w in batch):
                yield self._one(batch, sources)

    def _batches(self, wants: Sequence[PatchWant], sources: int) -> Iterator[list[PatchWant]]:
        """At most `batch_size` wants, and no more logits than memory allows."""
        head = self.model.get_output_embeddings()
        vocab = int(getattr(head, "out_features", None) or 50_000)
        cells = LOGIT_CELLS.get(self.model.device.type, LOGIT_CELLS_ELSEWHERE)
        batch: list[PatchWant] = []
        used = 0
        for want in wants:
            # Wants are scored at every layer for every source of a forward: logits, not states, fill the memory.
            new = len(want.target.labels) * len(self.plan.layers) * self._together([want], sources) * vocab
            if batch and (len(batch) >= self.batch_size or used + new > cells):
                yield batch
                batch, used = [], 0
            batch.append(want)
            used += new
        if batch:
            yield batch

    def _together(self, wants: Sequence[PatchWant], sources: int) -> int:
        """How many sources share one forward."""
        # All sources lie in one row of the model's input, so the room for tokens is shared among layers and sources.
        span = max(row_length(w) for w in wants)
        tokens = ROW_TOKENS.get(self.model.device.type, ROW_TOKENS_ELSEWHERE)
        return max(1, min(sources, tokens // (span * len(self.plan.layers))))

    def _one(self, batch: list[PatchWant], sources: Sequence[States]) -> dict[str, list[TokenStats]]:
        out: dict[str, list[TokenStats]] = {}
        parts = [batch]
        for attempt in Halving():
            if attempt.again:
                self.cost.notes.append(f"out of memory: a batch of {attempt.size} examples was cut in two")
                half = attempt.size // 2
                parts[:1] = [parts[0][:half], parts[0][half:]]
            with attempt:
                while parts:
                    attempt.size = len(parts[0])
                    if not self.plain:
                        out |= self._fast(parts[0], sources)
                    else:
                        forwards = len(sources) * (1 + len(self.plan.layers))  # of each want
                        self.cost.score_forwards += len(parts[0]) * forwards
                        self.cost.score_tokens += sum(w.width for w in parts[0]) * forwards
                        for w in parts[0]:
                            out[w.key] = [patched_plain(self.model, w, s[w.key], self.plan) for s in sources]
                    parts.pop(0)
        return out

    def _fast(self, batch: Sequence[PatchWant], sources: Sequence[States]) -> dict[str, list[TokenStats]]:
        clean = clean_pass(self.model, batch, self.plan)
        self.cost.score_tokens += max(w.width for w in batch) * len(batch)
        self.cost.score_forwards += 1
        out: dict[str, list[TokenStats]] = {w.key: [] for w in batch}
        size = self._together(batch, len(sources))
        for start in range(0, len(sources), size):
            chunk = sources[start : start + size]  # each over the same clean pass: that is where most of the time goes
            patched = patch_layers(self.model, batch, self.plan, clean, chunk, self.apart)
            self.cost.score_forwards += 1
            for want, base, arrays in zip(batch, clean.stats, patched, strict=True):
                for j in range(len(chunk)):
                    rows = {k: np.concatenate([base[k][None], arrays[k][:, j]]) for k in ARRAY_FIELDS}
                    out[want.key].append(layer_stats(rows))
        return out

    def verify(self, ordered: Sequence[PatchWant], sources: Sequence[States]) -> None:
        """Compares the fast and the plain way on the longest want and the shortest; falls back on a mismatch.

        The longest shows a sliding window, the two together what padding does. It costs two examples, and is run each
        time: an architecture that was never tried gives right numbers slowly, not wrong ones fast.
        """
        sample = list({w.key: w for w in (ordered[0], ordered[-1])}.values())
        problem = ""
        try:
            fast = self._fast(sample, sources[:1])
            for want in sample:
                plain = patched_plain(self.model, want, sources[0][want.key], self.plan).logprob
                gap = float(distances(fast[want.key][0].logprob, plain).mean(axis=-1).max())
                # NaN models: nothing to compare.
                if not np.isnan(plain).any() and not gap <= patch_bound(self.model, want, plain[0]):
                    problem = f"scores differ by {gap:.2g}"
        except Exception as error:  # whatever a foreign architecture does with short rows, the plain way is there
            reraise_ours(error)
            if out_of_memory(error):
                free_memory()
            problem = named(error)
        if problem and self.apart:  # its attention may be all that does not fit: then keys are joined
            self.apart = False
            self.verify(ordered, sources)
        elif problem:
            self.plain = True
            self.cost.say(
                f"fast patching does not fit this model ({problem}); using one full forward per layer, slower"
            )
