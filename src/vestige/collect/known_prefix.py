"""What scoring already shows of a greedy text, so that it need not be decoded.

Teacher forcing gives the model's first choice at every position of an answer. As long as those choices are the answer's
own tokens, greedy decoding would have read exactly this prefix, so it would choose the same; the first choice that
differs is still its next token. For a model that recites, this is most of the text.

Where scoring hides other tokens than generation does, the same tokens are a draft that the model has to confirm.

In: requests, and the answers that were scored with their TokenStats. Out: for each request the tokens it begins with.
Caller: runs/collect.py, which hands them to collect/texts.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from vestige.types import BROKEN, Target, TokenStats
from vestige.wants import Request

Seen = Mapping[str, TokenStats]  # by target key
Walks = dict[str, list[int]]  # tokens by request key


def known_prefixes(requests: Sequence[Request], known: Iterable[Target], seen: Seen, eos: frozenset[int]) -> Walks:
    """For each greedy request, the tokens teacher forcing has shown (the first miss included).

    Only where scoring and generation see the same mask and positions: no hidden token may be involved. The caller
    asks only for requests without a repetition penalty, which would change the choices.
    """
    # The last token of a target is not an input: it may be hidden.
    alike = [t for t in known if all(h == len(t.ids) - 1 for h in t.hidden)]
    return _walks([r for r in requests if not r.prompt.hidden], alike, seen, eos)


def draft_prefixes(requests: Sequence[Request], known: Iterable[Target], seen: Seen, eos: frozenset[int]) -> Walks:
    """For each greedy request, what it probably begins with: the same tokens, whatever was hidden.

    Where the end token is also the padding, scoring and generation hide other tokens (the peer's masks do), so this
    proves nothing. collect/texts.py puts it after the prompt and keeps what the model confirms.
    """
    return {key: walk for key, walk in _walks(requests, known, seen, eos).items() if walk}


def _walks(requests: Sequence[Request], known: Iterable[Target], seen: Seen, eos: frozenset[int]) -> Walks:
    by_prompt: dict[bytes, list[Target]] = {}
    for target in known:
        by_prompt.setdefault(array("q", target.ids[: target.start]).tobytes(), []).append(target)
    out = {}
    for r in requests:
        if r.decoding.greedy:
            # What was seen of an answer is looked up for one prompt at a time: of all of them it is most of a run.
            targets = by_prompt.get(array("q", r.prompt.ids).tobytes(), [])
            answers = [(t.labels, seen[t.key].top1.tolist()) for t in targets]
            out[r.key] = _walk(answers, r.decoding.max_new_tokens, eos)
    return out


def _walk(answers: Sequence[tuple[Sequence[int], Sequence[int]]], limit: int, eos: frozenset[int]) -> list[int]:
    """Follows the model's first choices through the answers that agree with them so far."""
    out: list[int] = []
    while answers and len(out) < limit:
        choice = answers[0][1][len(out)]  # all remaining answers share this prefix, so they share the choice
        if choice == BROKEN:  # decoding will find the same, and say so
            break
        out.append(choice)
        if choice in eos:
            break
        # Of several answers (paraphrases, wrong ones) those remain that wrote what the model chose: one may go on where
        # another parts from it.
        answers = [a for a in answers if len(a[0]) > len(out) and a[0][len(out) - 1] == choice]
    return out
