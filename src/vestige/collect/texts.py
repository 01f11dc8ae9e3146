"""Generation: each distinct prompt once, no step spent on a finished row, none on what is already known.

Up to its first miss, a greedy continuation *is* the teacher-forced reference: collect/known_prefix.py reads it off the
statistics that scoring has collected, as a proof or as a draft that the prefill confirms. Decoding
starts after it. Rows leave the batch the moment they finish.

In: Requests (a prompt, how to decode) and what is known of each. Out: Texts, batch by batch. Caller: runs/collect.py.
With a cache many rows at a time, or plainly, one row and no cache, for architectures that the first does not fit: the
tokens are the same. The first texts are read both ways before the cache is trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from vestige.collect.answers import default_limits, vocabulary
from vestige.collect.backend import Cost, Detokenise, StopRule, penalty_of
from vestige.collect.forward import logits_at, tree_attention, tree_mask
from vestige.collect.next_token import Chooser, choose
from vestige.collect.reduce import chosen_logprob
from vestige.collect.safety import Halving, check_fit, check_tokens, learned_positions
from vestige.collect.tree import Limits, pack
from vestige.errors import UserError, named, out_of_memory, reraise_ours
from vestige.models.args import precision
from vestige.models.attention import additive, padding_mask, send, without_copies
from vestige.models.batch_budget import DEFAULT_BUDGET
from vestige.models.kv_cache import SlotCache
from vestige.types import BROKEN, Array, Target, Text, content_key
from vestige.wants import Request

AHEAD = 64  # steps for which a cache has room before it is made again
LIKELY = 16  # tokens after a prompt whose log-probabilities are compared before packed prompts are trusted
CHECKED = 32  # tokens of a text that are compared with the plain way
# How far their log-probabilities may differ on average. A wrong mask or position is off by far more.
TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-3, 0.15


class TextCollector:
    """Runs one model's requests. `run` yields finished texts batch by batch, so that a caller can keep them."""

    def __init__(
        self, model: Any, detokenise: Detokenise, eos: frozenset[int], end_text: str, cost: Cost,
        max_rows: int = DEFAULT_BUDGET.rows, max_columns: int = DEFAULT_BUDGET.cells, limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.cost = cost
        self.max_rows, self.max_columns = max_rows, max_columns
        self.vocab = vocabulary(model)
        self.limits = limits or default_limits(model.device.type == "cuda")  # of a prefill
        self.max_rows_in_memory = max_rows  # falls when memory runs out, and stays down; batches keep their rows
        self.positions = learned_positions(model) or math.inf
        self.packed: bool | None = None  # whether prompts may be packed; not tried yet
        # `end_text` is what the end token decodes to; a text is cut there, as the peer does.
        self.stop_rule = StopRule(detokenise, eos, end_text, self.positions)
        self.verified = False  # until some texts were read both ways
        self.plain = False  # once they differed

    def batches(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Requests grouped for decoding: alike in length, so that left padding is small; longest first."""
        # Longest first: if memory runs out, then in the first batch. Ties by key: a resumed run must group alike, since
        # the other rows of its batch decide the last bits of a text's logits, and those now and then a token.
        order = sorted(requests, key=lambda r: (-len(r.prompt.ids), r.key))
        out: list[list[Request]] = []
        for request in order:
            # The cache is allocated for the longest text that may come: rows x columns is its size.
            columns = len(request.prompt.ids) + request.decoding.max_new_tokens
            room = max(1, min(self.max_rows, self.max_columns // columns))
            if not out or len(out[-1]) >= room:
                out.append([])
            out[-1].append(request)
        return out

    def run(
        self,
        requests: Sequence[Request],
        proven: Mapping[str, Sequence[int]],
        done: frozenset[str] = frozenset(),
        drafts: Mapping[str, Sequence[int]] | None = None,
    ) -> Iterator[dict[str, Text]]:
        """Yields {request key: Text}. Batches wholly in `done` are skipped; composition never depends on `done`.

        `proven` tokens are taken as they are; `drafts` (of requests without a proof) are what the model confirms.
        """
        if all(r.key in done for r in requests):
            return
        if not all(r.prompt.ids for r in requests):
            raise UserError("A prompt has no tokens, so there is nothing to continue; give that row a prefix.")
        check_fit(self.model, max(r.prompt.attended for r in requests), "A prompt")
        check_tokens(self.model, (r.prompt.ids for r in requests))
        short = sum(r.prompt.attended + r.decoding.max_new_tokens - 1 > self.positions for r in requests)
        if short:
            self.cost.say(f"{short} text(s) may end early: this model has only {int(self.positions)} positions")

        drafts = drafts or {}
        rows = {r.key: self._begin(r, proven.get(r.key, ()), drafts.get(r.key, ())) for r in requests}
        complete: list[Any] = []  # teacher forcing has shown them to the end
        unfinished: list[Any] = []
        for row in rows.values():
            (complete if self._over(row) else unfinished).append(row)
        if any(row.request.key not in done for row in complete):
            yield self._texts(complete)
        for batch in self.batches([row.request for row in unfinished]):
            if not all(r.key in done for r in batch):
                yield self._texts(self._decode_in_memory([rows[r.key] for r in batch]))

    def _begin(self, request: Request, known: Sequence[int], draft: Sequence[int]) -> TextRow:
        """A row that starts after what is known."""
        if draft and not known:
            # Fed to the model: not the end token, and so few that one more token and its position have room.
            fed = [t for t in draft if t not in self.stop_rule.eos]
            room = min(request.decoding.max_new_tokens - 1, self.positions - request.prompt.attended)
            return TextRow(request, (), fed[: max(0, int(room))])
        return TextRow(request, self.stop_rule.begin(request, known))

    def _over(self, row: TextRow) -> bool:
        return self.stop_rule.over(row.request, row.tokens)

    def _texts(self, rows: Sequence[TextRow]) -> dict[str, Text]:
        for row in rows:
            self.cost.tokens_produced += len(row.tokens)
            self.cost.tokens_proven += row.proven
        return self.stop_rule.texts((row.request, row.tokens, row.proven) for row in rows)

    def _decode_in_memory(self, rows: list[TextRow]) -> list[TextRow]:
        """Decodes the rows together; when memory runs out, half as many at a time from then on."""
        finished: list[TextRow] = []
        for attempt in Halving():
            if attempt.again:
                self.max_rows_in_memory = attempt.size // 2
                self.cost.say(f"out of memory: generating {self.max_rows_in_memory} texts at a time")
                # Rows of this part have tokens already, and generators have moved on: what is unfinished starts over.
                rows = [r.fresh() for r in rows]
            with attempt:
                while rows:
                    part = rows[: self.max_rows_in_memory]
                    attempt.size = len(part)
                    finished += self._decode(part)
                    rows = rows[len(part) :]
        return finished

    def _decode(self, rows: list[TextRow]) -> list[TextRow]:
        """The cached way, once it has been seen to agree with the plain way on first texts; else the plain way."""
        if self.plain:
            return self._decode_plain(rows)
        try:
            finished = self._decode_cached(rows)
            problem = "" if self.verified else self._disagreement(finished)
        except UserError:
            raise
        except Exception as error:  # whatever a foreign architecture does with a cache, the plain way is there
            if out_of_memory(error):
                raise
            reraise_ours(error)  # a bug of ours must not pass for a slow architecture
            problem = named(error)
        # Rows of one length have no padding between them; the check goes on until it has seen some.
        self.verified = self.verified or len({r.begin for r in rows}) > 1
        if not problem:
            return finished
        self.plain = True
        self.cost.say(f"cached generation does not fit this model ({problem}); generating without a cache, slower")
        return self._decode_plain([r.fresh() for r in rows])

    @torch.inference_mode()
    def _disagreement(self, rows: Sequence[TextRow]) -> str:
        """Reads two texts again without a cache; their tokens must be as likely as they were with one.

        They are the longest fresh one and the one with most padding in front. Log-probabilities are compared, not
        tokens: near a tie rounding may choose another token though nothing is wrong, and the texts part from there.
        """
        rows = [row for row in rows if not row.broken]  # NaN agrees with nothing, whichever way it was made
        if not rows:
            return ""
        longest = max(rows, key=lambda r: len(r.tokens) - len(r.known))
        most_padded = min(rows, key=lambda r: r.begin)
        gaps = []
        for row in {longest, most_padded}:
            # One forward over prompt and text gives all log-probabilities at once. The last token is not an input.
            known = len(row.known)
            decoded = row.tokens[known:][:CHECKED]
            if not decoded:  # proven to its end
                gaps.append(0.0)
                continue
            probe = TextRow(row.request, row.tokens[: known + len(decoded) - 1])
            first = len(row.request.prompt.ids) + known - 1
            logits = self._plain_logits(probe, torch.arange(first, first + len(decoded)))
            plain = chosen_logprob(logits, torch.tensor(decoded))
            cached = torch.stack(row.logprobs[:CHECKED]).to(plain.device)
            gaps.append(float((plain - cached).abs().mean()))
        if max(gaps) > self._tolerance():
            return f"log-probabilities differ by {max(gaps):.2g} on average"
        return ""

    def _tolerance(self) -> float:
        return TOLERANCE if precision(self.model) in ("float32", "float64") else LOW_PRECISION_TOLERANCE

    @torch.inference_mode()
    def _decode_cached(self, rows: list[TextRow]) -> list[TextRow]:
        finished, active, cache = self._prefill(rows)
        if cache is None:
            return finished
        # The mask is made once with room for all that may be written; a step takes the first columns of it.
        length = cache.get_seq_length()
        room = max(r.request.decoding.max_new_tokens for r in active)
        mask_on_host = torch.ones((len(active), length + room), dtype=torch.long)
        for i, row in enumerate(active):
            start = length - row.begin
            mask_on_host[i, :start] = 0
            mask_on_host[i, [start + h for h in row.request.prompt.hidden]] = 0
        mask = send(mask_on_host, self.model.device)
        while True:
            # From the back: the row that moves into a freed slot is one that was looked at already. Cache, mask and
            # list must move alike, since a row is known by its slot alone.
            for slot in range(len(active) - 1, -1, -1):
                if self._over(active[slot]):
                    finished.append(active[slot])
                    cache.drop(slot)
                    active[slot], mask[slot] = active[-1], mask[len(active) - 1]
                    active.pop()
            if not active:
                return finished
            if cache.full:
                # Columns in front that only rows had which are finished now go, too.
                first = cache.get_seq_length() - max(len(r.inputs) - 1 for r in active)
                cache.resize(first, cache.get_seq_length() - first + self._steps_of_room(active))
                mask = mask[: len(active), first:]
            # Positions count attended tokens, not columns: padding and hidden tokens take up columns and have none.
            last = [r.tokens[-1] for r in active]
            position = [r.request.prompt.attended + len(r.tokens) - 1 for r in active]
            inputs = send(torch.tensor([last, position]), self.model.device)[..., None]
            seen = mask[: len(active), : cache.get_seq_length() + 1]
            self.cost.decode_row_steps += len(active)
            self.cost.decode_forwards += 1
            with without_copies(self.model):
                logits = logits_at(
                    self.model, torch.arange(len(active), device=inputs.device), input_ids=inputs[0],
                    position_ids=inputs[1], attention_mask=padding_mask(seen, self.model), past_key_values=cache,
                    use_cache=True,
                )  # fmt: skip
            self._choose(active, logits)
            del logits  # before the next step makes its own

    def _prefill(self, rows: list[TextRow]) -> tuple[list[TextRow], list[TextRow], SlotCache | None]:
        """Runs the prompts, what is proven to follow and what is drafted; picks each row's next token.

        Returns the rows that are finished with that, the others, and their keys. All rows end at one column, so that
        each step appends to all at the same place.
        """
        finished: list[TextRow] = []
        active: list[TextRow] = []
        cache: SlotCache | None = None
        length = max(len(r.positions) for r in rows)
        room = self._steps_of_room(rows)
        for prefill in self._prefills(rows):
            self.cost.prefill_tokens += prefill.tokens
            self._confirm(prefill)
            places = []
            for row, place in zip(prefill.rows, prefill.places, strict=True):
                if self._over(row):
                    finished.append(row)
                    continue
                # What was drafted and not confirmed is left out: its keys belong to another text.
                places.append(place[: row.begin])
                active.append(row)
            if places:
                cache = cache or SlotCache(len(prefill.keys.layers), len(rows), length + room)
                cache.admit(prefill.keys, places, length)
        return finished, active, cache

    def _steps_of_room(self, rows: Sequence[TextRow]) -> int:
        """For how many steps the cache gets room at a time."""
        return min(AHEAD, max(r.request.decoding.max_new_tokens - len(r.tokens) for r in rows))

    def _prefills(self, rows: Sequence[TextRow]) -> Iterator[Prefill]:
        """Packed forwards, once the first of them has been seen to agree with plain ones; else padded ones."""
        if self.packed is not False:
            prefills = prefill_packed(self.model, rows, self.limits, self.vocab)
            if self.packed is None:
                first = self._first_packed(prefills)
                self.packed = first is not None
                if first is not None:
                    yield first
            if self.packed:
                yield from prefills
                return
        yield from prefill_padded(self.model, rows, self.limits, self.vocab)

    def _first_packed(self, prefills: Iterator[Prefill]) -> Prefill | None:
        """The first packed forward; None where this model does not give the same logits as one prompt at a time."""
        try:
            prefill = next(prefills)
        except UserError:
            raise
        except Exception as error:  # whatever a foreign architecture does with a tree mask, padding is there
            if out_of_memory(error):
                raise
            reraise_ours(error)
            return None
        every = range(len(prefill.rows))
        longest = max(every, key=lambda i: len(prefill.places[i]))
        last = max(every, key=lambda i: prefill.places[i][-1])  # most others stand before it
        gaps = []
        for i in {longest, last}:
            row = prefill.rows[i]
            plain = self._plain_logits(row, torch.tensor([row.begin - 1]))
            likely = plain[0].topk(min(LIKELY, plain.shape[-1])).indices  # several: in bfloat16 one may be far off
            packed = prefill.logits[int(prefill.reads[i][0])]
            packed_logprob = chosen_logprob(packed.expand(len(likely), -1), likely)
            plain_logprob = chosen_logprob(plain.expand(len(likely), -1), likely)
            gaps.append(float((packed_logprob - plain_logprob).abs().mean()))
        return None if max(gaps) > self._tolerance() else prefill  # NaN agrees with nothing, whichever way it was made

    def _confirm(self, prefill: Prefill) -> None:
        """Appends to each row what the model confirms of its draft, and the token that it chooses next.

        A drafted token counts where it is the model's own choice after all before it, under generation's mask and
        positions. That is what decoding would have done, in one forward instead of one per token.
        """
        unfinished: list[TextRow] = []
        next_reads: list[int] = []
        for row, reads in zip(prefill.rows, prefill.reads, strict=True):
            confirmed = 0
            if row.draft:
                logits = prefill.logits[send(reads, prefill.logits.device)]
                for token, drafted in zip(choose(logits[:-1], [None] * len(row.draft)), row.draft, strict=True):
                    if token != drafted or self._over(row):
                        break
                    row.tokens.append(token)
                    confirmed += 1
                row.proven += confirmed
                self._note_logprobs([row] * confirmed, logits[:confirmed], row.tokens[len(row.tokens) - confirmed :])
            if not self._over(row):
                unfinished.append(row)
                next_reads.append(int(reads[confirmed]))
        if unfinished:
            where = send(torch.tensor(next_reads), prefill.logits.device)
            self._choose(unfinished, prefill.logits[where])

    def _choose(self, rows: Sequence[TextRow], logits: torch.Tensor) -> None:
        """Appends the next token to each row: argmax, or a seeded draw; BROKEN without a distribution."""
        choosers: list[Chooser | None] = []
        for row in rows:
            decoding = row.request.decoding
            penalty = penalty_of(self.model, decoding)
            plain = decoding.greedy and penalty == 1.0
            choosers.append(None if plain else Chooser(decoding, penalty, row.inputs, row.noise))
        tokens = choose(logits, choosers)
        for row, token in zip(rows, tokens, strict=True):
            row.tokens.append(token)
        self._note_logprobs(rows, logits, tokens)

    def _note_logprobs(self, rows: Sequence[TextRow], logits: torch.Tensor, tokens: Sequence[int]) -> None:
        """Until the cached way is trusted, the probabilities it gave are kept for `_disagreement` to compare."""
        if self.verified or min((len(row.logprobs) for row in rows), default=CHECKED) >= CHECKED:
            return
        chosen = chosen_logprob(logits, torch.tensor([max(t, 0) for t in tokens]))  # BROKEN is below 0
        for row, logprob in zip(rows, chosen, strict=True):  # where the model is, until they are compared
            row.logprobs.append(logprob)

    @torch.inference_mode()
    def _decode_plain(self, rows: list[TextRow]) -> list[TextRow]:
        """One row at a time and no cache: slow, and right for any model that has logits."""
        for row in rows:
            while not self._over(row):
                self._choose([row], self._plain_logits(row, torch.tensor([len(row.inputs) - 1])))
        return rows

    def _plain_logits(self, row: TextRow, index: torch.Tensor) -> torch.Tensor:
        """Logits of prompt and text, less any draft: one row, no cache, the model's own mask."""
        count = len(row.inputs)
        hidden = set(row.request.prompt.hidden)
        seen = [int(i not in hidden) for i in range(count)]  # what the dialect hides is hidden on the slow way, too
        self.cost.prefill_tokens += count
        ids, positions, mask = send(torch.tensor([row.inputs, row.positions[:count], seen]), self.model.device)[:, None]
        return logits_at(self.model, index, input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)


# ---- One text in the making -----------------------------------------------------------------------------------------


class TextRow:
    """It owns all that must not depend on the batch: its tokens, positions and noise."""

    def __init__(self, request: Request, known: Sequence[int], draft: Sequence[int] = ()) -> None:
        self.request = request
        self.known, self.draft = tuple(known), tuple(draft)
        self.tokens = list(known)
        self.proven = len(self.tokens)  # and what the prefill confirms of the draft
        self.logprobs: list[torch.Tensor] = []  # of the tokens after `known`, kept until the cached way is trusted
        decoding = request.decoding
        self.noise: torch.Generator | None = None
        if not decoding.greedy:  # seeded by sample, not by batch: the same text at any batch size
            seed = int(content_key(request.prompt.key.encode(), str(decoding.seed).encode())[:15], 16)
            self.noise = torch.Generator().manual_seed(seed)

    def fresh(self) -> TextRow:
        """The same text from its start, generator included: a half-made one would draw other numbers."""
        return TextRow(self.request, self.known, self.draft)

    @property
    def broken(self) -> bool:
        return bool(self.tokens) and self.tokens[-1] == BROKEN

    @property
    def begin(self) -> int:
        """How many tokens stand before the first one decoded."""
        return len(self.request.prompt.ids) + self.proven

    @property
    def inputs(self) -> list[int]:
        return [*self.request.prompt.ids, *self.tokens]

    @property
    def positions(self) -> list[int]:
        """HF's generate numbers attended tokens only; a hidden token sits at position 1."""
        hidden = set(self.request.prompt.hidden)
        out = []
        position = 0
        for i in range(len(self.inputs) + len(self.draft)):
            if i in hidden:
                out.append(1)
            else:
                out.append(position)
                position += 1
        return out

    @property
    def target(self) -> Target:
        """What the prefill pushes and where its logits are read, as an answer to score: the draft, and what follows."""
        inputs = self.inputs
        return Target((*inputs, *self.draft, 0), len(inputs), self.request.prompt.hidden)


# ---- Prompts through the model, before decoding begins --------------------------------------------------------------
# Packed like answers to be scored: a beginning that prompts share (a system prompt, or all of it where one prompt is
# sampled often) goes through the model once, and nothing is padded. Behind its prompt each row may carry a draft,
# tokens that it probably continues with; the logits at the draft confirm them or not, under generation's own mask and
# positions. Models for which the packed way does not give a plain forward's logits get padded prompts.


@dataclass(frozen=True)
class Prefill:
    """What one forward gave. Its keys stay where the forward put them until a cache takes them over."""

    rows: list[TextRow]
    logits: torch.Tensor
    reads: list[Array]  # for each row, the logits at its last token and at each token of its draft
    keys: Cache
    places: list[Array]  # for each row, where its tokens are in the flattened (batch x time) of the keys
    tokens: int  # pushed, padding included


@torch.inference_mode()
def prefill_packed(model: Any, rows: Sequence[TextRow], limits: Limits, vocab: int) -> Iterator[Prefill]:
    """Each distinct beginning once."""
    packing = pack([row.target for row in rows], limits, vocab)
    tree = packing.tree
    for batch in packing.batches:
        width = batch.width
        ids, position, end, hidden = columns = np.zeros((4, len(batch.rows), width), np.int64)
        members: list[TextRow] = []
        places: list[Array] = []
        for r, (packed_row, targets) in enumerate(zip(batch.rows, batch.targets, strict=True)):
            nodes = packed_row.nodes
            ids[r, : len(nodes)] = tree.token[nodes]
            end[r, : len(nodes)] = packed_row.end
            hidden[r, : len(nodes)] = tree.hidden[nodes]
            order = np.argsort(nodes)
            for target in targets:
                column = order[np.searchsorted(nodes, tree.path(target), sorter=order)]
                # Rows that share a node share all before it, so they give it the same position.
                position[r, column] = rows[target].positions
                places.append(column + r * width)
                members.append(rows[target])
        reads = [place[row.begin - 1 :] for row, place in zip(members, places, strict=True)]
        index, flat = np.unique(np.concatenate(reads), return_inverse=True)
        keys = Cache(layer_class_to_replicate=DynamicLayer)
        ids_there, position_there, end_there, hidden_there = send(columns, model.device)
        mask = additive(tree_mask(end_there, hidden_there.bool()), model.dtype)
        with tree_attention(model, batch.rows, width):
            logits = logits_at(
                model, torch.from_numpy(index), input_ids=ids_there, position_ids=position_there, attention_mask=mask,
                past_key_values=keys, use_cache=True,
            )  # fmt: skip
        where = np.split(flat, np.cumsum([len(r) for r in reads])[:-1])
        yield Prefill(members, logits, where, keys, places, ids.size)


@torch.inference_mode()
def prefill_padded(model: Any, rows: Sequence[TextRow], limits: Limits, vocab: int) -> Iterator[Prefill]:
    """Groups of like length, padded on the left: what every architecture with a cache can do."""
    order = sorted(rows, key=lambda r: -len(r.positions))
    while order:
        width = len(order[0].positions)
        cells = np.cumsum([len(r.draft) + 1 for r in order]) * vocab
        fitting = int(np.searchsorted(cells, limits.logit_cells, side="right"))
        group = order[: max(1, min(limits.tokens // width, fitting))]
        order = order[len(group) :]
        ids, position, mask = columns = np.zeros((3, len(group), width), np.int64)
        position[:] = 1  # padding sits at 1, as in HF's generate
        places, reads = [], []
        for i, row in enumerate(group):
            start = width - len(row.positions)
            ids[i, start:] = [*row.inputs, *row.draft]
            position[i, start:] = row.positions
            mask[i, start:] = 1
            mask[i, [start + h for h in row.request.prompt.hidden]] = 0
            place = np.arange(start, width) + i * width
            places.append(place)
            reads.append(place[row.begin - 1 :])
        keys = Cache(layer_class_to_replicate=DynamicLayer)
        ids_there, position_there, mask_there = send(columns, model.device)
        with without_copies(model):
            logits = logits_at(
                model, torch.from_numpy(np.concatenate(reads)), input_ids=ids_there, attention_mask=mask_there,
                position_ids=position_there, past_key_values=keys, use_cache=True,
            )  # fmt: skip
        counts = [len(r) for r in reads]
        where = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
        yield Prefill(group, logits, where, keys, places, ids.size)
