"""Representation baselines beside a depth score: CKA, logit lens, Fisher information; one model in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vestige.depth.ask import DepthAsk
from vestige.engine.handles import ModelHandle
from vestige.errors import UserError
from vestige.metrics import depth
from vestige.numeric import mean
from vestige.runs.patched import PatchSource
from vestige.show.progress import Bar
from vestige.types import Array
from vestige.wants import PatchWant

BaselineResult = dict[str, Any]


def representation_baselines(
    full: ModelHandle, retain: PatchSource, unlearned: Sequence[PatchSource], wants: Sequence[PatchWant], ask: DepthAsk
) -> dict[str, dict[str, BaselineResult]]:
    """For each unlearned model's name: {baseline: {score, per_layer, ...}}; a missing score has its reason."""
    models = {"": full, retain.name: retain.handle, **{u.name: u.handle for u in unlearned}}
    states: dict[str, Mapping[str, Any]] = {}
    information: dict[str, list[Array] | str] = {}
    for name, handle in models.items():
        if {"cka", "logit_lens"} & set(ask.baselines):
            states[name] = _states(handle, wants, ask)
        if "fisher" in ask.baselines:
            information[name] = _fisher(handle, wants, ask)
        if handle is not full:
            handle.free()
    out: dict[str, dict[str, BaselineResult]] = {u.name: {} for u in unlearned}
    unlearned = [u for u in unlearned if not _broken(["", retain.name, u.name], states, information, ask, out[u.name])]
    if "cka" in ask.baselines:
        for name, result in _each_cka(states, retain.name, unlearned, wants).items():
            out[name]["cka"] = result
    if "logit_lens" in ask.baselines:
        for name, result in _each_lens(full, states, retain.name, unlearned, wants, ask).items():
            out[name]["logit_lens"] = result
    if "fisher" in ask.baselines:
        for u in unlearned:
            out[u.name] |= fisher_results(information[""], information[retain.name], information[u.name])
    return out


def _broken(
    names: Sequence[str],
    states: Mapping[str, Mapping[str, Any]],
    information: Mapping[str, list[Array] | str],
    ask: DepthAsk,
    out: dict[str, BaselineResult],
) -> bool:
    """Whether one of the three models of a comparison has states or gradients that are not numbers; `out` says so."""
    arrays = [v for n in names for v in states.get(n, {}).values()]
    arrays += [v for n in names for v in (information.get(n) or []) if not isinstance(information.get(n), str)]
    if all(bool((np.isfinite(a) if isinstance(a, np.ndarray) else a.isfinite()).all()) for a in arrays):
        return False
    kinds = [k for k in ask.baselines if k != "fisher"] + (fisher_names() if "fisher" in ask.baselines else [])
    out |= {k: {"score": None, "per_layer": {}, "reason": "a model's states are NaN or infinite"} for k in kinds}
    return True


def _states(handle: ModelHandle, wants: Sequence[PatchWant], ask: DepthAsk) -> Mapping[str, Any]:
    from vestige.collect.patch import collect_states, make_plan

    model = handle.get().model
    plan = make_plan(model, ask.layers)  # always before the final norm
    return {k: v for part in collect_states(model, wants, plan, ask.batch_size) for k, v in part.items()}


def _fisher(handle: ModelHandle, wants: Sequence[PatchWant], ask: DepthAsk) -> list[Array] | str:
    """The Fisher information of each block, or why there is none."""
    from vestige.collect.gradients import fisher

    loaded = handle.get()
    if loaded.quantization:
        return f"{handle.name}: Fisher information needs gradients, which {loaded.quantization} weights do not have"
    model = loaded.model
    if hasattr(model, "merge_and_unload"):  # an adapter beside its base is other weights; merged it is the same ones
        model = model.merge_and_unload()
    try:
        with Bar(f"gradients of {handle.name}", len(wants), "row", ask.progress) as bar:
            for sums in fisher(model, wants):
                bar.add(1)
                last = sums
    except UserError as error:
        return str(error)
    return [total / len(wants) for total in last]


def _each_cka(
    states: Mapping[str, Mapping[str, Any]], retain: str, unlearned: Sequence[PatchSource], wants: Sequence[PatchWant]
) -> dict[str, BaselineResult]:
    from vestige.collect.patch import stacked_states

    stacked = {name: stacked_states(wants, s) for name, s in states.items()}
    base = [depth.cka(f, r) for f, r in zip(stacked[""], stacked[retain], strict=True)]
    out = {}
    for u in unlearned:
        mine = [depth.cka(x, r) for x, r in zip(stacked[u.name], stacked[retain], strict=True)]
        layers = {i: depth.cka_layer(c, v) for i, (c, v) in enumerate(zip(base, mine, strict=True))}
        rows = {
            str(i): {"cka_full_ret": base[i], "cka_unl_ret": mine[i], "erasure": x.erasure, "weight": x.weight}
            for i, x in layers.items()
        }
        out[u.name] = _result(depth.weighted(layers), rows, "the full and the retain model's states are alike")
    return out


def _result(score: float | None, per_layer: Mapping[str, Any], reason: str) -> BaselineResult:
    return {"score": score, "per_layer": per_layer, **({"reason": reason} if score is None else {})}


def _each_lens(
    full: ModelHandle,
    states: Mapping[str, Mapping[str, Any]],
    retain: str,
    unlearned: Sequence[PatchSource],
    wants: Sequence[PatchWant],
    ask: DepthAsk,
) -> dict[str, BaselineResult]:
    from vestige.collect.patch import lens_scores

    model = full.get().model
    read = {name: lens_scores(model, wants, s) for name, s in states.items()}
    lost = read[""] - read[retain]
    out = {}
    for u in unlearned:
        scores = depth.logit_lens(read[""], read[retain], read[u.name], ask.delta_threshold)
        good = scores[~np.isnan(scores)]
        ratio = depth.lens_ratio(lost, read[""] - read[u.name])
        rows = {}
        for i in range(lost.shape[1]):
            counts = lost[:, i] > ask.delta_threshold
            rows[str(i)] = {
                "mean_erasure": mean(ratio[counts, i]) if counts.any() else None,
                "mean_d_ret": mean(lost[:, i]),
                "n_ft_examples": int(counts.sum()),
            }
        score = mean(good) if len(good) else None
        out[u.name] = {**_result(score, rows, "no layer of any example counts"), "n": len(good)}
    return out


def _plain_shares() -> dict[str, float | None]:
    return {"mean": None, **{f"top{s}": s for s in depth.TOP_SHARES}}


def fisher_names() -> list[str]:
    return [*(f"fisher_{n}" for n in _plain_shares()), *(f"fisher_masked_{s}" for s in depth.MASK_SHARES)]


def fisher_results(
    full: list[Array] | str, retain: list[Array] | str, unlearned: list[Array] | str
) -> dict[str, BaselineResult]:
    """Plain (mean, top shares) and masked Fisher scores of one unlearned model."""
    plain, names = _plain_shares(), fisher_names()
    for part in (full, retain, unlearned):
        if isinstance(part, str):
            return {name: {"score": None, "per_layer": {}, "reason": part} for name in names}
    assert not isinstance(full, str) and not isinstance(retain, str) and not isinstance(unlearned, str)
    blocks = list(zip(full, retain, unlearned, strict=True))
    makers: list[Callable[..., tuple[float, float]]] = [
        *(lambda f, r, u, s=s: depth.plain_excess(f, r, u, s) for s in plain.values()),
        *(lambda f, r, u, s=s: depth.masked_excess(f, r, u, s) for s in depth.MASK_SHARES),
    ]
    out = {}
    for name, make in zip(names, makers, strict=True):
        score, layers = depth.excess_scores([make(*block) for block in blocks])
        rows = {str(i): {"erasure": x.erasure, "weight": x.weight} for i, x in layers.items()}
        out[name] = _result(score, rows, "the retain model's Fisher information exceeds the full model's nowhere")
    return out
