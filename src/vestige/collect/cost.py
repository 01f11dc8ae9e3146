"""What collecting cost, counted where it is spent.

In: counts and notes, from whatever runs a model. Out: the `cost` of a manifest, and notes for its reader. Callers: all
collectors, which are handed one Cost per run; processes of a team add theirs up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

log = logging.getLogger("vestige.collect")


@dataclass
class Cost:
    """Counts for the manifest and the tests: a claim about speed starts with what was pushed through the model."""

    nodes: int = 0  # distinct prefix-tree nodes asked for (inputs only)
    score_tokens: int = 0  # tokens pushed in scoring, padding and self check included
    score_forwards: int = 0
    prefill_tokens: int = 0  # prompt tokens pushed before decoding, padding included
    decode_row_steps: int = 0  # one row advanced by one token
    decode_forwards: int = 0
    tokens_produced: int = 0
    tokens_proven: int = 0  # of those, known or drafted from teacher forcing: no decoding step
    backwards: int = 0
    denoise_tokens: int = 0  # canvas tokens pushed in denoising, padding and repeated looks included
    denoise_forwards: int = 0
    server_requests: int = 0  # answered by servers
    server_prompt_tokens: int = 0  # of those, as the servers count them
    server_cached_tokens: int = 0  # of those tokens, found in a server's cache
    server_decoded_tokens: int = 0
    server_check_tokens: int = 0  # prompt tokens of what was asked again to be compared
    server_retries: int = 0
    notes: list[str] = field(default_factory=list)

    def say(self, note: str) -> None:
        """Something that readers of the numbers must know: printed at once, and kept in the manifest."""
        log.warning(note)
        self.notes.append(note)

    def add(self, others: Iterable[Cost]) -> None:
        """Takes in what others spent on the same work."""
        for other in others:
            for name, value in asdict(other).items():
                if name == "notes":
                    self.notes += [note for note in value if note not in self.notes]
                else:
                    setattr(self, name, getattr(self, name) + value)

    def as_dict(self) -> dict[str, object]:
        """Every count; those of servers where there was one."""
        served = self.server_requests or self.server_check_tokens
        return {k: v for k, v in asdict(self).items() if served or not k.startswith("server_")}
