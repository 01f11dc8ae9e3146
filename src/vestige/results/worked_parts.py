"""A worked example of the numbers inside a handler's result, for `vestige explain`.

In: the name of a part (explanations.PARTS). Out: printed lines. Caller: results/explain.py.
"""

from __future__ import annotations

import numpy as np

from vestige.metrics.revocation import last_accepted, revision, summary
from vestige.types import Trace


def worked_revocations(name: str) -> list[str]:
    """Two tokens in three passes, for the numbers under `revocations`."""
    right = np.asarray([5, 6])
    accepted = np.asarray([[1, 0], [0, 1], [1, 1]], bool)
    proposal = np.asarray([[5, 9], [8, 6], [7, 6]])
    plane = np.zeros((3, 2), np.float32)
    trace = Trace(
        final=np.asarray([7, 6]), fixed=last_accepted(accepted), committed=np.asarray([0, 1, 1]), canvas=proposal,
        proposal=proposal, top1=proposal, mean=plane, std=plane, labels=right[None], logprob=plane[None],
        accepted=accepted,
    )  # fmt: skip
    found = summary({"0": revision(trace, 0)})[name]
    return [
        "example  the answer is Ada Byron; three passes propose Ada?, Bob Byron, Eve Byron and accept the first token,",
        "         the second, both; the text is Eve Byron",
        *(f"         {part}: {value:g}" for part, value in found.items()),
    ]
