"""Keywords of the public functions: every one is named, means what the flag of that name means, and has its default."""

from __future__ import annotations

import importlib.util
import inspect
import io
import pydoc
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import vestige
from vestige.collapse.run import CollapseAsk
from vestige.depth.ask import DepthAsk
from vestige.engine.flags import EvalAsk
from vestige.flags import flags_of
from vestige.report.assemble import PageAsk
from vestige.stress.ask import SETTINGS
from vestige.stress.run import Stress

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = [name for name in vestige.__all__ if inspect.isfunction(getattr(vestige, name))]


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("keywords", ROOT / "tools" / "keywords.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_keyword_is_named(name: str) -> None:
    kinds = {p.kind for p in keywords(name).values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert len(FUNCTIONS) == 9


def test_lists_of_keywords_are_those_of_the_flags() -> None:
    made = tool()
    for file in sorted(made.API.glob("*.py")):
        assert file.read_text() == made.rewritten(file), f"{file.name}: run python tools/keywords.py"
    assert "limit: first N rows of every data set" in (vestige.evaluate.__doc__ or "")


def test_evaluate_has_every_flag_of_eval() -> None:
    of_the_command = {"retain_model", "config_name", "cfg", "plugin", "multirun"}
    flags = {flag.attribute for flag in flags_of("eval")} - of_the_command
    assert set(keywords("evaluate")) == flags | {"suite", "progress", "overrides", "plugins"}
    assert list(keywords("plan")) == list(keywords("evaluate"))


@pytest.mark.parametrize(
    ("name", "record", "not_there"),
    [
        ("evaluate", EvalAsk, {"progress"}),
        ("plan", EvalAsk, {"progress"}),
        ("measure_depth", DepthAsk, {"out", "progress"}),
        ("attack", Stress, {"settings", "metrics"}),
        ("make_report", PageAsk, set()),
        ("measure_collapse", CollapseAsk, {"settings", "reasoning", "progress", "model_args"}),
    ],
)
def test_defaults_are_those_of_the_records(name: str, record: Any, not_there: set[str]) -> None:
    """What is left out on purpose: bars are off in Python, and files go nowhere unless a place is named."""
    known = defaults(record)
    shared = [k for k, p in keywords(name).items() if k in known and k not in not_there and p.default is not p.empty]
    assert len(shared) >= 4
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


def test_help_shows_the_functions() -> None:
    text = pydoc.plain(pydoc.render_doc(vestige))
    for name in vestige.__all__:
        assert name in text
    assert "annotations" not in text and "TYPE_CHECKING" not in text
    shown = io.StringIO()
    pydoc.Helper(output=shown).help(vestige.evaluate)
    assert "limit: 'int | None' = None" in shown.getvalue() and "first N rows of every data set" in shown.getvalue()


def test_a_misspelt_keyword_is_named() -> None:
    with pytest.raises(vestige.UserError, match=r"evaluate\(\) has no keyword 'limits'. Did you mean 'limit'"):
        vestige.evaluate("MODEL", limits=3)  # type: ignore[call-arg]
