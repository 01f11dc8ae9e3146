"""What every answer of a model server must satisfy before anything of it is used: check_sequences, check_overlaps,
check_text.

Three kinds of checks, each of which raises BadAnswer with what is wrong: the answer belongs to what was asked (count,
lengths, ids), its numbers can be true (finite, not above 0, ranks that fit), and answers that begin alike agree where
they are the same. Caller: served_model.py, for every answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from vestige.adapters.servers import ModelServer, SequenceAnswer, SequenceAsk, TextAnswer, TextAsk, Usage

ROUNDING = 1e-5  # a log-probability may be this far above what it can be
# Nats that two answers about the same tokens may be apart. Sums depend on which other requests are in the batch, and
# servers do not tell their precision, so this is the tolerance of a low one.
TOLERANCE = 0.25
SAME_SERVER = 1e-3  # nats between the canary of a finished run and of the server that would continue it


def check_sequences(
    server: ModelServer, asks: Sequence[SequenceAsk], answers: Sequence[SequenceAnswer], usage: Usage
) -> None:
    """Every answer belongs to its sequence, and its numbers can be true."""
    if len(answers) != len(asks):
        raise server.refuse(f"{len(answers)} answers to {len(asks)} sequences")
    sent = sum(len(ask.ids) for ask in asks)
    if usage.prompt_tokens and usage.prompt_tokens != sent:
        raise server.refuse(f"it counted {usage.prompt_tokens} tokens where {sent} were sent")
    for ask, answer in zip(asks, answers, strict=True):
        expected = ask.ids[1:]
        if len(answer.ids) != len(expected):
            raise server.refuse(f"{len(answer.ids)} of {len(expected)} scored tokens came back (truncated)")
        if tuple(answer.ids.tolist()) != expected:
            raise server.refuse("it scored other tokens than were sent (reordered, or read by another tokenizer)")
        _check_numbers(server, answer)


def _check_numbers(server: ModelServer, answer: SequenceAnswer) -> None:
    """Raises for the first number that contradicts the others or what a probability can be."""
    logprob, top1, top = answer.logprob, answer.top1, answer.top_logprob
    told = top1 >= 0  # the server names its first choice
    with np.errstate(invalid="ignore"):  # infinity minus infinity; the first check refuses both
        above_top = logprob - top
    checks = [
        (~np.isfinite(logprob), "a log-probability is NaN or infinite"),
        (logprob > ROUNDING, "a log-probability is above 0"),
        (top1 >= server.vocab, "a first choice is not a token of the model"),
        (told & ~np.isfinite(top), "the log-probability of a first choice is not one"),
        (told & (top > ROUNDING), "the log-probability of a first choice is above 0"),
        (told & (above_top > ROUNDING), "a token is more likely than the first choice"),
        (told & (top1 == answer.ids) & (np.abs(above_top) > ROUNDING), "the first choice has two log-probabilities"),
    ]
    if answer.rank is not None:
        rank = answer.rank
        # `rank` tokens are at least as likely as this one, so its probability is at most one part in `rank`.
        most = -np.log(np.maximum(rank, 1))
        checks += [
            ((rank < 1) | (rank > server.vocab), "a rank is not one of the vocabulary"),
            (logprob > most + ROUNDING, "a rank contradicts its log-probability"),
            (told & (rank == 1) & (above_top < -ROUNDING), "a token of rank 1 is less likely than the first choice"),
        ]
    if answer.total is not None:
        checks.append((answer.total > 1 + 1e-3, "probabilities of one position add up to more than 1"))
    if answer.mean is not None and answer.std is not None:
        checks.append((~np.isfinite(answer.mean + answer.std), "a mean or deviation of log-probabilities is not one"))
    for is_wrong, problem in checks:
        if is_wrong.any():
            raise server.refuse(problem)


def check_overlaps(
    server: ModelServer, asks: Sequence[SequenceAsk], answers: Sequence[SequenceAnswer], tolerance: float
) -> None:
    """Sequences that begin alike have the same numbers up to where they part.

    Costs nothing: a server that returns whole prompts tells the question's tokens once per answer.
    """
    order = sorted(range(len(asks)), key=lambda i: asks[i].ids)
    for i, j in pairwise(order):
        one, two = answers[i], answers[j]
        same = [a == b for a, b in zip(asks[i].ids, asks[j].ids, strict=False)]
        shared = same.index(False) if False in same else len(same)
        # The numbers begin at position 1, so there are shared - 1 of common tokens. The first choice at the position
        # where the sequences part depends on the common tokens alone; it is missing where one sequence ends there.
        if shared < 2:
            continue
        gaps = np.abs(one.logprob[: shared - 1] - two.logprob[: shared - 1])
        positions = min(shared, len(one.top_logprob), len(two.top_logprob))
        top_gaps = np.abs(one.top_logprob[:positions] - two.top_logprob[:positions])
        worst = max(gaps.max(), np.nanmax(top_gaps, initial=0.0))
        if worst > tolerance:
            raise server.refuse(
                f"sequences that begin alike have log-probabilities {worst:.3g} apart where they are the same"
            )


def check_text(server: ModelServer, ask: TextAsk, answer: TextAnswer, usage: Usage) -> None:
    """A text has tokens of the model, no more than were asked for, and an end that fits its reason."""
    ids, finish = answer.ids, answer.finish
    problem = ""
    if not all(isinstance(i, int) and 0 <= i < server.vocab for i in ids):
        problem = "a text holds something that is not a token of the model"
    elif not ids:
        problem = "a text has no tokens (truncated)"
    elif len(ids) > ask.limit:
        problem = f"a text of {len(ids)} tokens where at most {ask.limit} were asked for"
    elif usage.completion_tokens and usage.completion_tokens != len(ids):
        problem = f"it counted {usage.completion_tokens} tokens of a text that has {len(ids)} (truncated)"
    elif finish not in ("stop", "length"):
        problem = f"a text ended for the reason {finish!r}"
    elif finish == "length" and len(ids) < ask.limit:
        problem = f"a text ends after {len(ids)} of {ask.limit} tokens without a reason (truncated)"
    elif finish == "stop" and ids[-1] not in ask.eos and not ask.decoding.stopwords:
        problem = "a text stops although no end token came (truncated)"
    elif any(i in ask.eos for i in ids[:-1]):
        problem = "a text continues after its end token"
    if problem:
        raise server.refuse(problem)
