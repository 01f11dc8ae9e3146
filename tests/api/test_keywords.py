"""Keywords of the public functions: every one is named, means what the flag of that name means, and has its default."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from typing import Any

import vestige
from loops import one_test
from vestige.collapse.run import CollapseAsk
from vestige.depth.ask import DepthAsk
from vestige.report.assemble import PageAsk
from vestige.stress.run import SETTINGS, Stress

FUNCTIONS = [name for name in vestige.__all__ if inspect.isfunction(getattr(vestige, name))]


def keywords(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(vestige, name)).parameters)


def defaults(record: Any) -> dict[str, Any]:
    out = {}
    for f in fields(record):
        if f.default is not MISSING:
            out[f.name] = f.default
        elif f.default_factory is not MISSING:
            out[f.name] = f.default_factory()
    return out


@one_test("name", FUNCTIONS)
def test_every_keyword_is_named(name: str) -> None:
    kinds = {p.kind for p in keywords(name).values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_plan_takes_what_evaluate_takes() -> None:
    assert list(keywords("plan")) == list(keywords("evaluate"))


@one_test("name", FUNCTIONS)
def test_help_lists_every_keyword(name: str) -> None:
    text = inspect.getdoc(getattr(vestige, name)) or ""
    listed = set(re.findall(r"^    (\w+): ", text.partition("Keywords:")[2], flags=re.MULTILINE))
    if listed:
        assert listed | {"settings", "reasoning"} >= set(keywords(name))


@one_test(
    ("name", "record", "not_there"),
    [
        ("measure_depth", DepthAsk, {"out", "progress"}),
        ("attack", Stress, {"settings", "metrics"}),
        ("make_report", PageAsk, {"title"}),
        ("measure_collapse", CollapseAsk, {"settings", "reasoning", "progress", "model_args"}),
    ],
)
def test_defaults_are_those_of_the_records(name: str, record: Any, not_there: set[str]) -> None:
    """What is left out on purpose: bars are off in Python, and files go nowhere unless a place is named."""
    known = defaults(record)
    shared = [k for k, p in keywords(name).items() if k in known and k not in not_there and p.default is not p.empty]
    assert len(shared) >= 3
    assert {k: keywords(name)[k].default for k in shared} == {k: known[k] for k in shared}


def test_attack_has_every_setting_of_stress() -> None:
    assert set(SETTINGS) <= set(keywords("attack"))


def test_dir_lists_public_names_only() -> None:
    code = (
        "import vestige, vestige.api, vestige.engine\n"
        "print(sorted(set(dir(vestige)) - {*vestige.__all__, '__version__'}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
