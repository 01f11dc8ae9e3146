"""Trust, then verify: what every answer of a server must be before anything of it is kept.

In: what was asked and what came. Out: nothing, or `BadAnswer`, which says what is wrong. Caller: served.py, for every
answer. Three kinds of checks: the answer is to what was asked (count, lengths, ids, the model's name), its numbers
can be true (finite, not above 0, ranks that fit), and answers that overlap agree with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vestige.servers.kinds import SequenceAnswer, SequenceAsk, Server, TextAnswer, TextAsk, Usage

ROUNDING = 1e-5  # a log-probability may end this far above what it can be
# Nats that two answers about the same tokens may be apart. Sums depend on which other requests are in the batch, and
# servers do not tell their precision, so this is the tolerance of a low one.
TOLERANCE = 0.25
SAME_SERVER = 1e-3  # nats between the canary of a finished run and of the server that would continue it


def check_sequences(
    server: Server, asks: Sequence[SequenceAsk], answers: Sequence[SequenceAnswer], usage: Usage
) -> None:
    """Every answer belongs to its sequence, and its numbers can be true."""
    if len(answers) != len(asks):
        raise server.refuse(f"{len(answers)} answers to {len(asks)} sequences")
    sent = sum(len(a.ids) for a in asks)
    if usage.prompt and usage.prompt != sent:
        raise server.refuse(f"it counted {usage.prompt} tokens where {sent} were sent")
    for ask, answer in zip(asks, answers, strict=True):
        _check_ids(server, ask, answer)
        _check_numbers(server, answer)


def _check_ids(server: Server, ask: SequenceAsk, answer: SequenceAnswer) -> None:
    expected = ask.ids[answer.first :]
    if answer.first > ask.start or len(answer.ids) != len(expected):
        raise server.refuse(f"{len(answer.ids)} of {len(ask.ids) - ask.start} scored tokens came back (truncated)")
    if tuple(answer.ids.tolist()) != expected:
        raise server.refuse("it scored other tokens than were sent (reordered, or read by another tokenizer)")
    lengths = {len(a) for a in (answer.logprob, answer.top1, answer.top_logprob, answer.rank) if a is not None}
    if lengths != {len(expected)}:
        raise server.refuse("its numbers do not have the length of its tokens")


def _check_numbers(server: Server, a: SequenceAnswer) -> None:
    if not np.isfinite(a.logprob).all():
        raise server.refuse("a log-probability is NaN or infinite")
    if (a.logprob > ROUNDING).any():
        raise server.refuse(f"a log-probability is above 0 ({a.logprob.max():.4g})")
    told = a.top1 >= 0
    if (a.top1 >= max(server.vocab, 1)).any():
        raise server.refuse("a first choice is not a token of the model")
    if not np.isfinite(a.top_logprob[told]).all() or (a.top_logprob[told] > ROUNDING).any():
        raise server.refuse("the log-probability of a first choice is not one")
    if (a.logprob > a.top_logprob + ROUNDING)[told].any():
        raise server.refuse("a token is more likely than the first choice")
    own = told & (a.top1 == a.ids)
    if (np.abs(a.logprob - a.top_logprob) > ROUNDING)[own].any():
        raise server.refuse("the first choice has two log-probabilities")
    if a.rank is not None:
        _check_ranks(server, a, told)
    if a.sums is not None and (a.sums > 1 + 1e-3).any():
        raise server.refuse(f"probabilities of one position add up to {a.sums.max():.4g}")
    if a.mean is not None and a.std is not None and not (np.isfinite(a.mean).all() and np.isfinite(a.std).all()):
        raise server.refuse("mean or deviation of log-probabilities is not a number")


def _check_ranks(server: Server, a: SequenceAnswer, told: np.ndarray) -> None:
    rank = a.rank
    assert rank is not None
    if (rank < 1).any() or (rank > max(server.vocab, 1)).any():
        raise server.refuse("a rank is not one of the vocabulary")
    # `rank` tokens are at least as likely, so that each has at most one part in `rank`.
    if (a.logprob > -np.log(rank) + ROUNDING).any():
        raise server.refuse("a rank contradicts its log-probability")
    if ((rank == 1) & (a.logprob < a.top_logprob - ROUNDING))[told].any():
        raise server.refuse("a token of rank 1 is less likely than the first choice")
    if ((rank > 1) & (a.logprob > a.top_logprob - 1e-9) & (a.top1 != a.ids) & (a.sums is None))[told].any():
        raise server.refuse("a token that ties with the first choice has another rank")


@dataclass
class Overlaps:
    """What was told of each prefix: sequences that begin alike must be answered alike up to where they part.

    Costs nothing: a server that returns whole prompts tells the question's tokens once per answer.
    """

    tolerance: float
    largest: float = 0.0  # difference met so far
    compared: int = 0

    def check(self, server: Server, asks: Sequence[SequenceAsk], answers: Sequence[SequenceAnswer]) -> None:
        """Compares answers of one batch with each other; only prefixes that two of them share are looked at."""
        order = sorted(range(len(asks)), key=lambda i: asks[i].ids)
        for left, right in pairwise(order):
            self._pair(server, (asks[left], answers[left]), (asks[right], answers[right]))

    def _pair(
        self, server: Server, one: tuple[SequenceAsk, SequenceAnswer], two: tuple[SequenceAsk, SequenceAnswer]
    ) -> None:
        shared = _shared(one[0].ids, two[0].ids)
        first = max(one[1].first, two[1].first)
        if shared <= first:
            return
        a, b = (answer.logprob[first - answer.first : shared - answer.first] for _, answer in (one, two))
        gap = np.abs(a - b)
        tops = [answer.top_logprob[first - answer.first : shared + 1 - answer.first] for _, answer in (one, two)]
        n = min(len(tops[0]), len(tops[1]))
        gap_top = np.abs(tops[0][:n] - tops[1][:n])
        worst = float(max(gap.max(initial=0.0), np.nanmax(gap_top, initial=0.0)))
        self.compared += len(gap)
        self.largest = max(self.largest, worst)
        if worst > self.tolerance:
            raise server.refuse(
                f"sequences that begin alike have log-probabilities {worst:.3g} apart where they are the same"
            )


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def check_text(server: Server, ask: TextAsk, answer: TextAnswer, usage: Usage) -> None:
    """A text has tokens of the model, no more than were asked for, and an end that fits its reason."""
    ids = answer.ids
    if not all(isinstance(i, int) and 0 <= i < max(server.vocab, 1) for i in ids):
        raise server.refuse("a text holds something that is not a token of the model")
    if not ids:
        raise server.refuse("a text has no tokens (truncated)")
    if len(ids) > ask.limit:
        raise server.refuse(f"a text of {len(ids)} tokens where at most {ask.limit} were asked for")
    if usage.completion and usage.completion != len(ids):
        raise server.refuse(f"it counted {usage.completion} tokens of a text that has {len(ids)} (truncated)")
    if answer.finish == "length" and len(ids) < ask.limit:
        raise server.refuse(f"a text ends after {len(ids)} of {ask.limit} tokens without a reason (truncated)")
    if answer.finish == "stop" and ids[-1] not in ask.eos and not ask.decoding.stopwords:
        raise server.refuse("a text stops although no end token came (truncated)")
    if answer.finish not in ("stop", "length"):
        raise server.refuse(f"a text ended for the reason {answer.finish!r}")
    if any(i in ask.eos for i in ids[:-1]):
        raise server.refuse("a text goes on behind its end token")


def agreement(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> float:
    """The largest difference between two answers to the same questions."""
    gaps = [float(np.abs(before[k] - after[k]).max(initial=0.0)) for k in after]
    return max(gaps, default=0.0)
