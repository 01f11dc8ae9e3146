"""What the layers still hold: the depth score, from patched evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vestige.metrics.dialects import Dialect
from vestige.numeric import mean
from vestige.suites.handlers.common import NO_TOKENS, Value
from vestige.suites.registry import Inputs, handler
from vestige.types import BAD_LOGITS, Example, Rows, Score
from vestige.wants import PatchInto, PatchWant, Wants

if TYPE_CHECKING:
    from vestige.suites.spec import MetricSpec

NO_MODELS = "it needs the full and the retain model: set full_model_path and retain_model_path"


def into(spec: MetricSpec) -> PatchInto | None:
    """The two models a depth score needs besides the evaluated one; None when one of them is not named."""
    full, retain = spec.params.get("full_model_path"), spec.params.get("retain_model_path")
    if not full or not retain:
        return None
    return PatchInto(str(full), str(retain), str(spec.params.get("last_layer", "residual")))


def patch_want(example: Example) -> PatchWant | None:
    """The entity's own positions: those that predict its tokens are patched and scored."""
    t = example.target
    return None if t is None else PatchWant(t, t.start - 1, len(t.ids) - 1)


def wants_patched(spec: MetricSpec, data: Mapping[str, Rows], dialect: Dialect) -> Wants:
    models = into(spec)
    if models is None:
        return Wants()
    found = [patch_want(e) for rows in data.values() for row in rows.examples for e in row]
    return Wants(patched={models: [w for w in found if w is not None]})


@handler("uds", wants_patched, settings=("full_model_path", "retain_model_path", "last_layer", "delta_threshold"))
def uds(inputs: Inputs) -> Score:
    """Share of the full model's knowledge that is gone from the layers, against the retain model (depth score)."""
    from vestige.metrics.depth import NO_KNOWLEDGE, TAU

    models = into(inputs.spec)
    if models is None:
        return Score(None, reason=NO_MODELS)
    tau = float(inputs.spec.params.get("delta_threshold", TAU))
    by_index = {row[0].index: _example(inputs, models, row[0], tau) for row in inputs.rows.examples}
    broken = [i for i, v in by_index.items() if v.get("reason") == BAD_LOGITS]
    if broken:
        return Score(
            None, by_index, reason=f"{BAD_LOGITS} on {len(broken)} of {len(by_index)} rows (first: {broken[0]})"
        )
    scores = [v["score"] for v in by_index.values() if v["score"] is not None]
    if not scores:
        return Score(None, by_index, {"n": 0}, reason=f"no row could be scored: {NO_KNOWLEDGE}")
    over = mean(v["unclipped"] for v in by_index.values() if v["unclipped"] is not None)
    left = [i for i, v in by_index.items() if v["score"] is None]
    notes = (f"{len(left)} row(s) left out ({by_index[left[0]]['reason']}): {', '.join(left[:10])}",) if left else ()
    return Score(mean(scores), by_index, {"n": len(scores), "unclipped": over}, notes=notes)


def _example(inputs: Inputs, models: PatchInto, example: Example, tau: float) -> Value:
    from vestige.metrics.depth import NO_KNOWLEDGE, ExampleDepth

    want = patch_want(example)
    if want is None:
        return {"score": None, "unclipped": None, "layers": [], "reason": example.problem or NO_TOKENS}
    s1, s2 = (inputs.evidence.patched[models.label(who)][want.key] for who in ("retain", "model"))
    found = ExampleDepth(example.index, tuple(range(s1.logprob.shape[0] - 1)), s1, s2, tau)
    if found.broken:
        return {"score": None, "unclipped": None, "layers": [], "reason": BAD_LOGITS}
    out: Value = {"score": found.uds, "unclipped": found.unclipped, "layers": found.knowledge_layers}
    return out if found.uds is not None else {**out, "reason": NO_KNOWLEDGE}
