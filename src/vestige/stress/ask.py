"""What an attack is asked: flags of `vestige stress`, or arguments of `vestige.attack`, as one checked record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.errors import UserError, unknown_name
from vestige.stress.registry import WeightsAttack, attack_named
from vestige.stress.run import DEFAULT_METRICS, Stress

RECIPE = ("epochs", "lr", "batch_size", "accumulation")  # of relearning
# What evaluations are told.
PASSED_ON = (
    "suite", "system_prompt", "limit", "cluster", "dtype", "device", "tokenizer", "trust_remote_code", "server",
    "server_key_env",
)  # fmt: skip
OWN = ("metrics", "held_out", "examples", "keep", "temperature", "compute_dtype", "progress")
SETTINGS = (*OWN, *RECIPE, *PASSED_ON)
NO_WEIGHTS = "it changes weights, and those of a served model stay at its server"

Attacks = str | Sequence[str] | Mapping[str, Any]


def make_stress(
    model: str | Path,
    data: str | Path,
    attacks: Attacks,
    out: str | Path,
    retain_model: str | Path | None = None,
    plugins: Sequence[str] = (),
    **given: Any,
) -> Stress:
    """The ask of plain values; `given` are SETTINGS, None for the default. Plug-ins must be loaded already."""
    for name in given:
        if name not in SETTINGS:
            raise unknown_name("setting of attack()", name, (*SETTINGS, "plugins"))
    budgets = read_attacks(attacks)
    said = {**{name: given.get(name) for name in PASSED_ON}, "plugins": list(plugins)}
    if given.get("server"):
        _check_served(budgets)
        said["server_by_name"] = retain_model is not None
    own = {name: given[name] for name in OWN if given.get(name) is not None and name != "metrics"}
    if own.get("examples", 1) < 1:
        raise UserError(f"--examples must be at least 1, it is {own['examples']}.")
    return Stress(
        model=str(model),
        data=_folder(data),
        attacks=list(budgets),
        out=Path(out),
        retain_model=None if retain_model is None else str(retain_model),
        metrics=_listed(given.get("metrics")) or DEFAULT_METRICS,
        budget={name: budget for name, budget in budgets.items() if budget},
        relearning={name: given[name] for name in RECIPE if given.get(name) is not None},
        settings={name: value for name, value in said.items() if value not in (None, False, [])},
        **own,
    )


def _check_served(attacks: Collection[str]) -> None:
    if changing := [name for name in attacks if not possible_served(name)]:
        raise UserError(f"{', '.join(changing)}: {NO_WEIGHTS}; leave out the attack, or --server.")


def possible_served(name: str) -> bool:
    """Whether an attack leaves the weights alone."""
    return not isinstance(attack_named(name), WeightsAttack)


def read_attacks(attacks: Attacks) -> dict[str, list[float]]:
    """Attacks with their budgets, from words or from a mapping; no budgets: the attack's own.

    >>> read_attacks(["relearn=5,20", "leak"])
    {'relearn': [5.0, 20.0], 'leak': []}
    >>> read_attacks({"relearn": [5, 20], "prune": 0.5, "leak": None})
    {'relearn': [5.0, 20.0], 'prune': [0.5], 'leak': []}
    """
    if isinstance(attacks, Mapping):
        found = {str(name): _numbers(f"{name}={given}", given) for name, given in attacks.items()}
    else:
        words = attacks.split() if isinstance(attacks, str) else attacks
        found = {word.partition("=")[0]: _numbers(word, word.partition("=")[2].split(",")) for word in words}
    if not found:
        raise UserError("No attack is named; write for example relearn=5,20 (see `vestige stress --help`).")
    for name, budgets in found.items():
        least = attack_named(name).least
        if any(b < least for b in budgets):
            shown = ",".join(f"{b:g}" for b in budgets)
            raise UserError(f"Cannot attack with the budget of '{name}={shown}'; it must be larger.")
    return found


def _numbers(word: str, given: Any) -> list[float]:
    several = given if isinstance(given, (list, tuple)) else [given]
    try:
        return [float(str(one)) for one in several if one not in (None, "")]
    except ValueError:
        raise UserError(f"Cannot read '{word}'; a budget is a number or several: relearn=5,20.") from None


def _listed(metrics: str | Sequence[str] | None) -> list[str]:
    return [m.strip() for m in metrics.split(",")] if isinstance(metrics, str) else list(metrics or ())


def _folder(data: str | Path) -> Path:
    place = Path(data).expanduser()
    if not place.is_dir():
        raise UserError(f"--data {data} is not a folder; give one with forget.jsonl, retain.jsonl, ...")
    return place
