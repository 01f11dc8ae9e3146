"""Generation: each distinct prompt once, no step spent on a finished row, none on what is already known.

Up to its first miss, a greedy continuation *is* the teacher-forced reference: collect/prove.py reads it off the
statistics that scoring has collected. Decoding starts behind it. Rows leave the batch the moment they finish.

In: Requests (a prompt, how to decode) and what is known of each. Out: Texts, batch by batch. Caller: engine/obtain.py.
Two ways give the same tokens: with a key/value cache, many rows at a time; and plainly, one row and no cache, for
architectures that the first does not fit. The first texts are read both ways before the cache is trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from vestige.collect.attention import without_copies
from vestige.collect.cache import SlotCache
from vestige.collect.cost import Cost
from vestige.collect.forward import logits_at
from vestige.collect.memory import Halving, out_of_memory
from vestige.collect.pick import pick
from vestige.collect.positions import check_fit, check_tokens, learned_positions
from vestige.collect.reduce import chosen_logprob
from vestige.errors import UserError, named, reraise_ours
from vestige.models.config_checks import check_penalty
from vestige.models.four_bit import precision
from vestige.types import BROKEN, Text, content_key
from vestige.wants import Decoding, Request

CHECKED = 32  # tokens of a text that are compared with the plain way
# How far their log-probabilities may differ on average. A wrong mask or position is off by far more.
TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-3, 0.15
Detokenise = Callable[[Sequence[Sequence[int]]], list[str]]


def penalty_of(model: Any, decoding: Decoding) -> float:
    """The repetition penalty in force: asked for, or the checkpoint's own default (Qwen2.5 ships one)."""
    if decoding.repetition_penalty is not None:
        return decoding.repetition_penalty
    config = getattr(model, "generation_config", None)
    own = getattr(config, "repetition_penalty", None)
    check_penalty(own, "The model's generation config")
    return float(1.0 if own is None else own)


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a text: the generation config's, else the tokenizer's.

    Chat models name several there (end of turn, end of text), of which their tokenizer knows one.
    """
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = tokenizer.eos_token_id if ids is None else ids
    return frozenset() if ids is None else frozenset(ids if isinstance(ids, (list, tuple)) else [ids])


def cut_text(text: str, words: Sequence[str]) -> str:
    """A text up to the first of some words.

    >>> cut_text(" Paris. Question: and?", ("", "Question:"))
    'Paris.'
    """
    for word in words:  # an empty word would split at nothing; a model without an end token has one
        text = text.split(word)[0] if word else text
    return text.strip()


class _TextRow:
    """One text in the making. It owns all that must not depend on the batch: its tokens, positions and noise."""

    def __init__(self, request: Request, known: Sequence[int]) -> None:
        self.request = request
        self.made = list(known)
        self.proven = len(self.made)
        self.logprobs: list[float] = []  # of the tokens decoded, kept until the cached way is trusted
        decoding = request.decoding
        self.noise: torch.Generator | None = None
        if not decoding.greedy:  # seeded by sample, not by batch: the same text at any batch size
            seed = int(content_key(request.prompt.key.encode(), str(decoding.seed).encode())[:15], 16)
            self.noise = torch.Generator().manual_seed(seed)

    def fresh(self) -> _TextRow:
        """The same text from its start, generator included: a half-made one would draw other numbers."""
        return _TextRow(self.request, self.made[: self.proven])

    @property
    def broken(self) -> bool:
        return bool(self.made) and self.made[-1] == BROKEN

    @property
    def begin(self) -> int:
        """How many tokens stand before the first one decoded."""
        return len(self.request.prompt.ids) + self.proven

    @property
    def inputs(self) -> list[int]:
        return [*self.request.prompt.ids, *self.made]

    @property
    def positions(self) -> list[int]:
        """HF's generate numbers attended tokens only; a hidden token sits at position 1."""
        hidden, out, at = set(self.request.prompt.hidden), [], -1
        for i in range(len(self.request.prompt.ids) + len(self.made)):
            at += i not in hidden
            out.append(1 if i in hidden else at)
        return out


class TextCollector:
    """Runs one model's requests. `run` yields finished texts batch by batch, so that a caller can keep them."""

    def __init__(  # noqa: PLR0913 - three of them are limits with defaults
        self, model: Any, detokenise: Detokenise, eos: frozenset[int], end_text: str, cost: Cost,
        max_rows: int = 128, max_columns: int = 65536, prefill_tokens: int = 4096,
    ) -> None:  # fmt: skip
        self.model = model
        self.detokenise = detokenise
        self.eos = eos
        self.end_text = end_text  # what the end token decodes to; a text is cut there, as the peer does
        self.cost = cost
        self.max_rows = max_rows
        self.max_columns = max_columns
        self.prefill_tokens = prefill_tokens
        self.max_rows_in_memory = max_rows  # falls when memory runs out, and stays down; batches keep their rows
        self.positions = learned_positions(model) or math.inf
        self.verified = False  # until some texts were read both ways
        self.plain = False  # once they differed

    def batches(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Requests grouped for decoding: alike in length, so that left padding is small; longest first."""
        # Longest first: if memory runs out, then in the first batch. Ties by key: a resumed run must group alike, since
        # the rows beside it decide the last bits of a text's logits, and those now and then a token.
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
    ) -> Iterator[dict[str, Text]]:
        """Yields {request key: Text}. Batches wholly in `done` are skipped; composition never depends on `done`."""
        if all(r.key in done for r in requests):
            return
        self._check_room(requests)
        rows = {r.key: self._begin(r, proven.get(r.key, ())) for r in requests}
        settled = [row for row in rows.values() if self._over(row)]  # teacher forcing has shown them to the end
        if any(row.request.key not in done for row in settled):
            yield self._texts(settled)
        for batch in self.batches([row.request for row in rows.values() if not self._over(row)]):
            if not all(r.key in done for r in batch):
                yield self._texts(self._decode_in_memory([rows[r.key] for r in batch]))

    def _check_room(self, requests: Sequence[Request]) -> None:
        """Refuses prompts the model cannot read; says so when it cannot write as much as was asked."""
        if not all(r.prompt.ids for r in requests):
            raise UserError("A prompt has no tokens, so there is nothing to continue; give that row a prefix.")
        check_fit(self.model, max(r.prompt.attended for r in requests), "A prompt")
        check_tokens(self.model, (r.prompt.ids for r in requests))
        short = sum(r.prompt.attended + r.decoding.max_new_tokens - 1 > self.positions for r in requests)
        if short:
            self.cost.say(f"{short} text(s) may end early: this model has only {int(self.positions)} positions")

    def _begin(self, request: Request, known: Sequence[int]) -> _TextRow:
        """A row that starts behind what is known; a stop word in there ends it, as it would have when decoding."""
        # All prefixes are tried, because decoding would have stopped at the first token that completes a word.
        if request.decoding.stopwords:
            prefixes = (_TextRow(request, known[:n]) for n in range(1, len(known)))
            return next(filter(self._over, prefixes), _TextRow(request, known))
        return _TextRow(request, known)

    def _over(self, row: _TextRow) -> bool:
        if not row.made:
            return False
        if row.broken or row.made[-1] in self.eos or len(row.made) >= row.request.decoding.max_new_tokens:
            return True
        if row.request.prompt.attended + len(row.made) > self.positions:
            return True
        words = row.request.decoding.stopwords
        if not words:
            return False
        # A token is at least a byte, so a word that the last token completes began at most so many tokens ago; four
        # more, since a decoder may trim the first and the last character may have come in pieces.
        tail = self.detokenise([row.made[-(max(len(w.encode()) for w in words) + 4) :]])[0]
        return any(word in tail for word in words)

    def _texts(self, rows: Sequence[_TextRow]) -> dict[str, Text]:
        out = {}
        for row, text in zip(rows, self.detokenise([[t for t in r.made if t != BROKEN] for r in rows]), strict=True):
            read = cut_text(text, (self.end_text, *row.request.decoding.stopwords))
            out[row.request.key] = Text(tuple(row.made), read, row.proven)
            self.cost.tokens_produced += len(row.made)
            self.cost.tokens_proven += row.proven
        return out

    def _decode_in_memory(self, rows: list[_TextRow]) -> list[_TextRow]:
        """Decodes the rows together; when memory runs out, half as many at a time from then on."""
        finished: list[_TextRow] = []
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

    def _decode(self, rows: list[_TextRow]) -> list[_TextRow]:
        """The cached way, once it has been seen to agree with the plain way on first texts; else the plain way."""
        if self.plain:
            return self._decode_plain(rows)
        try:
            with without_copies(self.model):
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
    def _disagreement(self, rows: Sequence[_TextRow]) -> str:
        """Reads two texts again without a cache; their tokens must be as likely as they were with one.

        They are the longest fresh one and the one with most padding in front. Log-probabilities are compared, not
        tokens: near a tie rounding may choose another token though nothing is wrong, and the texts part from there.
        """
        rows = [row for row in rows if not row.broken]  # NaN agrees with nothing, whichever way it was made
        if not rows:
            return ""
        longest = max(rows, key=lambda r: len(r.made) - r.proven)
        gap = max(self._gap(row) for row in {longest, min(rows, key=lambda r: r.begin)})
        exact = precision(self.model) in ("float32", "float64")
        if gap > (TOLERANCE if exact else LOW_PRECISION_TOLERANCE):
            return f"log-probabilities differ by {gap:.2g} on average"
        return ""

    def _gap(self, row: _TextRow) -> float:
        # One forward over prompt and text gives all log-probabilities at once. The last token is not an input.
        made = row.made[row.proven :][:CHECKED]
        probe = _TextRow(row.request, row.made[: row.proven + len(made) - 1])
        logits = self._plain_logits(probe, torch.arange(row.begin - 1, row.begin - 1 + len(made)))
        again = chosen_logprob(logits, torch.tensor(made)).cpu()
        return float((again - torch.tensor(row.logprobs[:CHECKED])).abs().mean())

    @torch.inference_mode()
    def _decode_cached(self, rows: list[_TextRow]) -> list[_TextRow]:
        finished: list[_TextRow] = []
        active, cache, length = self._prefill(rows)
        mask = self._left_padded_mask(active, length, rows)
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
            length += 1
            logits = self._step(active, cache, mask[: len(active), :length])
            self._choose(active, logits)

    def _prefill(self, rows: list[_TextRow]) -> tuple[list[_TextRow], SlotCache, int]:
        """Runs the prompts (and what is proven behind them) in groups of like length; picks each row's next token."""
        # In groups, because prompts differ in length more than memory allows to pad, and a prompt's activations are far
        # larger than its keys. All rows then end at one column, so that each step appends to all at the same place.
        order = sorted(rows, key=lambda r: -len(r.inputs))
        length = len(order[0].inputs)
        # Allocated once at its final size: growing by a column per step would copy every key at every step.
        columns = length + max(r.request.decoding.max_new_tokens - len(r.made) for r in rows)
        cache: SlotCache | None = None
        at = 0
        while at < len(order):
            width = len(order[at].inputs)
            group = order[at : at + max(1, self.prefill_tokens // width)]
            at += len(group)
            filled = Cache(layer_class_to_replicate=DynamicLayer)
            logits = self._prefill_group(group, width, filled)
            if cache is None:
                cache = SlotCache(len(filled.layers), len(order), columns)
            cache.admit(filled, length)
            self._choose(group, logits)
        assert cache is not None
        return order, cache, length

    def _prefill_group(self, group: list[_TextRow], width: int, cache: Cache) -> torch.Tensor:
        ids = torch.zeros((len(group), width), dtype=torch.long)
        position = torch.ones((len(group), width), dtype=torch.long)  # padding sits at 1, as in HF's generate
        for i, row in enumerate(group):
            ids[i, width - len(row.inputs) :] = torch.tensor(row.inputs)
            position[i, width - len(row.inputs) :] = torch.tensor(row.positions)
        mask = self._left_padded_mask(group, width, group)
        self.cost.prefill_tokens += ids.numel()
        last = torch.arange(1, len(group) + 1) * width - 1
        device = self.model.device
        return logits_at(
            self.model, last, input_ids=ids.to(device), attention_mask=mask[:, :width].to(device),
            position_ids=position.to(device), past_key_values=cache, use_cache=True,
        )  # fmt: skip

    def _left_padded_mask(self, group: Sequence[_TextRow], width: int, rows: Sequence[_TextRow]) -> torch.Tensor:
        # Made once with room for all that may be written; a step takes the first `length` columns of it.
        room = max(r.request.decoding.max_new_tokens for r in rows)
        mask = torch.ones((len(group), width + room), dtype=torch.long)
        for i, row in enumerate(group):
            start = width - row.begin
            mask[i, :start] = 0
            mask[i, [start + h for h in row.request.prompt.hidden]] = 0
        return mask

    def _step(self, active: Sequence[_TextRow], cache: SlotCache, mask: torch.Tensor) -> torch.Tensor:
        device = self.model.device
        ids = torch.tensor([[r.made[-1]] for r in active])
        # Counted over attended tokens, not columns: padding and hidden tokens take up columns and have no position.
        position = torch.tensor([[r.request.prompt.attended + len(r.made) - 1] for r in active])
        self.cost.decode_row_steps += len(active)
        self.cost.decode_forwards += 1
        return logits_at(
            self.model, torch.arange(len(active)), input_ids=ids.to(device), attention_mask=mask.to(device),
            position_ids=position.to(device), past_key_values=cache, use_cache=True,
        )  # fmt: skip

    def _choose(self, rows: Sequence[_TextRow], logits: torch.Tensor) -> None:
        """Appends the next token to each row: argmax, or a seeded draw; BROKEN without a distribution."""
        best = logits.argmax(dim=-1)
        # NaN counts as the largest value there is, so that the largest says it all: NaN, +inf, or nothing but -inf.
        whole = torch.isfinite(logits.gather(-1, best[:, None])[:, 0]).tolist()
        for row, token, scores, good in zip(rows, best.tolist(), logits, whole, strict=True):
            if not good:
                row.made.append(BROKEN)
            elif self._argmax(row):
                row.made.append(token)
            else:
                decoding, penalty = row.request.decoding, penalty_of(self.model, row.request.decoding)
                row.made.append(pick(scores.float().cpu(), row.inputs, decoding, penalty, row.noise))
        # Until the cached way is trusted, the probabilities it gave are kept for `_disagreement` to compare.
        if not self.verified and len(rows[0].logprobs) < CHECKED:  # rows advance together
            chosen = chosen_logprob(logits, torch.tensor([max(r.made[-1], 0) for r in rows]))  # BROKEN is below 0
            for row, logprob in zip(rows, chosen.tolist(), strict=True):
                row.logprobs.append(logprob)

    def _argmax(self, row: _TextRow) -> bool:
        return row.request.decoding.greedy and penalty_of(self.model, row.request.decoding) == 1.0

    @torch.inference_mode()
    def _decode_plain(self, rows: list[_TextRow]) -> list[_TextRow]:
        """One row at a time and no cache: slow, and right for any model that has logits."""
        for row in rows:
            while not self._over(row):
                self._choose([row], self._plain_logits(row, torch.tensor([len(row.inputs) - 1])))
        return rows

    def _plain_logits(self, row: _TextRow, index: torch.Tensor) -> torch.Tensor:
        mask = torch.ones((1, len(row.inputs)), dtype=torch.long)
        mask[0, list(row.request.prompt.hidden)] = 0  # what the dialect hides is hidden on the slow way, too
        self.cost.prefill_tokens += len(row.inputs)
        device = self.model.device
        return logits_at(
            self.model, index, input_ids=torch.tensor([row.inputs]).to(device), attention_mask=mask.to(device),
            position_ids=torch.tensor([row.positions]).to(device), use_cache=False,
        )  # fmt: skip
