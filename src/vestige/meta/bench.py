"""The test bench: every metric of some pools judged by one procedure, ours and those of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.meta.faithfulness import RESAMPLES, Faithfulness, faithfulness
from vestige.meta.numbers import ModelNumbers, Number, same_protocol
from vestige.meta.pools import AttackedModel, Attacks, Pools
from vestige.meta.robustness import PARTS, RULES, UTILITY_FILTER, Filters, ModelState, Robustness, robustness
from vestige.metrics.cards import KNOWN, Direction, direction_of, short
from vestige.numeric import mean

ELSEWHERE = ("retain_", "ra_", "wf_")  # metrics of rows that are not to be forgotten
Said = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class PoolVerdict:
    """A metric's faithfulness, with what is needed to read it."""

    direction: Direction
    protocol: str
    result: Faithfulness
    p_mean: float | None  # of the metric as it is, not of m
    n_mean: float | None
    pools: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # p, n -> model -> m


@dataclass(frozen=True)
class AttackVerdict:
    """A metric's robustness under the chosen rule and under the others."""

    direction: Direction
    protocol: str
    result: Robustness
    others: Mapping[str, Robustness]
    filtered_by: str  # whose threshold chose the models; empty: none was given
    threshold: float | None  # on the m of that metric
    retain: ModelState = field(default_factory=ModelState)
    states: Mapping[str, ModelState] = field(default_factory=dict)  # model -> m before and after attacks
    measured: str = ""  # how the threshold was measured, where that is not the models' way and was accepted


@dataclass(frozen=True)
class Judged:
    """Verdicts by metric, and the metrics left alone with the reason."""

    pools: Mapping[str, PoolVerdict] = field(default_factory=dict)
    attacks: Mapping[str, AttackVerdict] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)


def as_m(numbers: Mapping[str, Number], direction: Direction, metric: str) -> dict[str, float | None]:
    """m of each model; a value that its range does not allow is a mistake in the range."""
    for name, n in numbers.items():
        if n.value is not None and direction.unit and not -1e-9 <= n.value <= 1 + 1e-9:
            raise UserError(
                f"{metric} of {name} is {n.value:g}, outside 0..1; "
                f"write `metrics: {{{metric}: {{knows: {direction.knows}, range: any}}}}` in the pool file."
            )
    return {name: None if n.value is None else direction.m(n.value) for name, n in numbers.items()}


def choose(
    models: Sequence[ModelNumbers], asked: Sequence[str] | None, said: Said
) -> tuple[dict[str, Direction], dict[str, str]]:
    """The metrics to judge with their directions, and those left alone. Asked-for metrics must exist and have one."""
    there = dict.fromkeys(name for m in models for name, n in m.numbers.items() if n.value is not None)
    if asked is not None:
        wanted = [short(a) for a in asked]
        for name in wanted:
            if name not in there:
                raise unknown_name("metric of these runs", name, there)
        return {name: _direction(name, models, said) for name in wanted}, {}
    out: dict[str, Direction] = {}
    skipped: dict[str, str] = {}
    for name in _in_order(there):
        if name.startswith(ELSEWHERE) and name not in said:
            continue
        try:
            out[name] = _direction(name, models, said)
        except UserError as error:
            if name in said:
                raise  # a mistake in what the pool file says of this metric
            skipped[name] = str(error)
    return out, skipped


def _in_order(names: Mapping[str, None]) -> list[str]:
    """Known metrics in the order of the published table, then the others."""
    place = {k: i for i, k in enumerate(KNOWN)}
    return sorted(names, key=lambda n: (place.get(n, len(place)), n))


def _direction(name: str, models: Sequence[ModelNumbers], said: Said) -> Direction:
    found = next((m.numbers[name] for m in models if name in m.numbers and m.numbers[name].handler), Number(None))
    return direction_of(name, found.handler, str(found.definition.get("aggregator", "")), said.get(name))


def judge_pools(pools: Pools, asked: Sequence[str] | None = None, resamples: int = RESAMPLES) -> Judged:
    """Every metric's faithfulness."""
    chosen, skipped = choose(pools.models, asked, pools.said)
    return Judged({name: _faithful(pools, name, d, resamples) for name, d in chosen.items()}, skipped=skipped)


def _faithful(pools: Pools, metric: str, direction: Direction, resamples: int) -> PoolVerdict:
    sides = [{m.name: m.numbers.get(metric, Number(None)) for m in pool} for pool in (pools.positive, pools.negative)]
    protocol = same_protocol({**sides[0], **sides[1]}, metric)
    p, n = (as_m(side, direction, metric) for side in sides)
    p_mean, n_mean = (_mean(side) for side in sides)
    return PoolVerdict(direction, protocol, faithfulness(p, n, resamples), p_mean, n_mean, {"p": p, "n": n})


def _mean(side: Mapping[str, Number]) -> float | None:
    values = [n.value for n in side.values() if n.value is not None]
    return mean(values) if values else None


@dataclass(frozen=True)
class BenchAsk:
    """How robustness is to be judged."""

    rule: str = "symmetric"
    thresholds: Mapping[str, float] = field(default_factory=dict)  # metric -> threshold on m
    measured: Mapping[str, str] = field(default_factory=dict)  # metric -> protocol of its threshold, where stated
    utility: Mapping[str, float | None] | None = None  # model -> utility_rel; None: no such filter
    least_utility: float = UTILITY_FILTER
    own_thresholds: bool = False  # judge s_mia_* by their own thresholds; the published tables use the attack's
    accept_mixture: bool = False  # use a threshold that was measured in another way than the models, and say so
    resamples: int = RESAMPLES


def judge_attacks(attacks: Attacks, ask: BenchAsk, asked: Sequence[str] | None = None) -> Judged:
    """Every metric's robustness."""
    if ask.rule not in RULES:
        raise unknown_name("robustness rule", ask.rule, RULES)
    before = [m.states["before"] for m in attacks.models if "before" in m.states]
    chosen, skipped = choose(before, asked, attacks.said)
    return Judged(attacks={n: _robust(attacks, n, d, ask) for n, d in chosen.items()}, skipped=skipped)


def _robust(attacks: Attacks, metric: str, direction: Direction, ask: BenchAsk) -> AttackVerdict:
    everyone = (attacks.retain, *attacks.models)
    numbers = {
        f"{m.name} ({state})": found
        for m in everyone
        for state in ("before", *PARTS)
        if (found := m.number(state, metric)) is not None
    }
    protocol = same_protocol(numbers, metric)
    ms = as_m(numbers, direction, metric)

    def state(m: AttackedModel) -> ModelState:
        return ModelState(*(ms.get(f"{m.name} ({s})") for s in ("before", *PARTS)))

    by, judged, asked = _judge(attacks, metric, protocol, ask)
    measured = _unlike_threshold(by, asked, ask) if by else ""
    threshold = ask.thresholds.get(by) if by else None
    filters = Filters(ask.utility, threshold, ask.least_utility)
    states = {m.name: state(m) for m in attacks.models}
    results = {rule: robustness(states, state(attacks.retain), rule, filters, judged, ask.resamples) for rule in RULES}
    others = {rule: r for rule, r in results.items() if rule != ask.rule}
    retain = state(attacks.retain)
    return AttackVerdict(direction, protocol, results[ask.rule], others, by, threshold, retain, states, measured)


def _judge(
    attacks: Attacks, metric: str, protocol: str, ask: BenchAsk
) -> tuple[str, Mapping[str, float | None] | None, str]:
    """Whose threshold chooses the models, that metric's m where it is another one, and the protocol of these m."""
    other = KNOWN[metric].filtered_by if metric in KNOWN and not ask.own_thresholds else ""
    if other and other in ask.thresholds:
        direction = direction_of(other)
        found = {m.name: m.number("before", other) or Number(None) for m in attacks.models}
        if any(n.value is not None for n in found.values()):
            return other, as_m(found, direction, other), same_protocol(found, other)
    return (metric if metric in ask.thresholds else ""), None, protocol


def _unlike_threshold(metric: str, protocol: str, ask: BenchAsk) -> str:
    """The threshold's protocol where it is not the models'; empty where it is. A threshold from one protocol says
    little about numbers of another, so that is refused unless the user accepts it."""
    theirs = ask.measured.get(metric, protocol)
    if theirs == protocol:
        return ""
    if not ask.accept_mixture:
        raise UserError(
            f"The threshold of {metric} was measured as '{theirs}', the models here as '{protocol}'; "
            "measure both in the same way, give thresholds of these, or accept the mixture with --accept-mixture."
        )
    return theirs


def usable(judged: Judged) -> dict[str, tuple[str, ...]]:
    """The kept models of each metric."""
    return {name: v.result.kept for name, v in judged.attacks.items()}
