"""The suite `depth` of a plan: one depth run for each model, with S1 (retain -> full) collected once for all.

S1 is a task of its own. Every depth task needs it and reads its cache, in whichever process it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vestige.depth.ask import DepthAsk, make_ask
from vestige.errors import UserError, unknown_name

SUITE = "depth"
OURS = {"unlearned", "out", "s1_cache", "progress", "quantization", "compute_dtype"}  # what a sweep says itself
FLAGS = {f.name for f in fields(DepthAsk)} - OURS


def check_flags(flags: Mapping[str, Any], where: str) -> None:
    for key in flags:
        if key not in FLAGS | {"suite"}:
            raise unknown_name("setting", str(key), FLAGS, f"({where} in the plan)")


def resolved(flags: Mapping[str, Any], paths: Mapping[str, str], retain: str | None, where: str) -> dict[str, Any]:
    """The suite's flags with models by their paths, checked as `vestige depth` checks them."""
    said = dict(flags)
    said.setdefault("retain", retain)
    for key in ("full", "retain", "data"):
        if said.get(key) is None:
            hint = " (or retain: of the plan)" if key == "retain" else ""
            raise UserError(f"The suite '{where}' of the plan needs {key}:{hint}, as `vestige depth --{key}` does.")
    for key in ("full", "retain"):
        said[key] = paths.get(str(said[key]), str(said[key]))
    body = {k: v for k, v in said.items() if k != "suite"}
    make_ask(**body, unlearned=[said["full"]])
    return said


def to_ask(said: Mapping[str, Any]) -> DepthAsk:
    return make_ask(**{k: v for k, v in said.items() if k != "suite"})


def run_depth(said: Mapping[str, Any]) -> dict[str, Any]:
    """One model's depth; returns its summary."""
    from vestige.depth.run import depth_run, report

    ask = to_ask(said)
    results = depth_run(ask)
    print(report(results), flush=True)
    return dict(results[0].summary)
