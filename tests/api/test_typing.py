"""What type checkers see: a user's script without errors, and no Any in what it calls and gets."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import vestige
from conftest import LAB

HERE = Path(__file__).resolve().parent.parent / "typing"
SOURCE = Path(vestige.__file__).parent.parent
# What a user gets hold of, and its attributes that a checker is asked about.
REVEALED = {
    "Result": "summary intervals manifest cost notes name scores directory files report verdict",
    "Callback": "looks best",
    "Watch": "looks best is_best should_stop model tokenizer",
}
METHODS = {
    "Result": "rows texts lines to_pandas save __getitem__",
    "Watch": "step look epoch_end state_dict load_state_dict",
}


def returned() -> dict[str, Any]:
    """Classes that public functions return, or that are inside of what they return."""
    from vestige.collapse.detector import CollapseSettings
    from vestige.collapse.reasoning import Reasoning
    from vestige.collapse.run import CollapseReport
    from vestige.depth.run import DepthResult
    from vestige.runs.compare import Comparison, Difference
    from vestige.runs.plan import CostPlan, ServedPlan
    from vestige.stress.run import AttackRow
    from vestige.types import Score
    from vestige.unlearn.looks import Look
    from vestige.verdict.best import Rank

    found = [CollapseSettings, Reasoning, CollapseReport, Rank, CostPlan, DepthResult, Comparison, Difference]
    return {c.__name__: c for c in [*found, ServedPlan, AttackRow, Score, Look]}


def names() -> dict[str, Any]:
    """What annotations name that is imported for type checkers only."""
    import pandas
    import transformers

    theirs = {n: getattr(transformers, n) for n in ("TrainerControl", "TrainerState", "TrainingArguments")}
    return {**returned(), **theirs, "DataFrame": pandas.DataFrame, "Result": vestige.Result}


def holds_any(hint: Any) -> bool:
    return hint is Any or any(holds_any(part) for part in typing.get_args(hint) if not isinstance(part, (str, int)))


def hints_of(thing: Any) -> dict[str, Any]:
    return typing.get_type_hints(inspect.unwrap(thing), localns=names())


def public_callables() -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in vestige.__all__:
        thing = getattr(vestige, name)
        if inspect.isfunction(thing):
            out[name] = thing
    classes = {n: getattr(vestige, n) for n in ("Result", "Callback", "Watch")} | returned()
    for name, cls in classes.items():
        for key, member in vars(cls).items():
            if (key.startswith("_") and key != "__init__") or isinstance(member, staticmethod):
                continue
            member = member.fget if isinstance(member, property) else member
            member = member.__func__ if isinstance(member, classmethod) else member
            if inspect.isfunction(member):
                out[f"{name}.{key}"] = member
    return out


def test_no_public_signature_holds_any() -> None:
    found = public_callables()
    assert {"evaluate", "attack", "Result.to_pandas", "Watch.__init__", "Callback.on_save", "Score.to_json"} <= set(
        found
    )
    bad = []
    for name, thing in found.items():
        hints = hints_of(thing)
        parameters = [p for p in inspect.signature(thing).parameters if p not in ("self", "cls")]
        bad += [f"{name}: {p} has no type" for p in parameters if p not in hints]
        bad += [f"{name}: {key}: {hint}" for key, hint in hints.items() if holds_any(hint)]
    for name, cls in returned().items():
        if is_dataclass(cls):
            hints = typing.get_type_hints(cls, localns=names())
            bad += [f"{name}.{f.name}: {hints[f.name]}" for f in fields(cls) if holds_any(hints[f.name])]
    assert bad == []


def revealing() -> str:
    """A script that asks a checker for the type of every public function and attribute."""
    lines = ["import vestige", "from vestige.depth.run import DepthResult", "from vestige.unlearn.looks import Look"]
    for name in vestige.__all__:
        lines.append(f"reveal_type(vestige.{name})")
    for name, attributes in REVEALED.items():
        lines.append(f"def of_{name}(x: vestige.{name}) -> None:")
        lines += [f"    reveal_type(x.{one})" for one in f"{attributes} {METHODS.get(name, '')}".split()]
    lines += ["def depth(x: DepthResult, y: Look) -> None:"]
    lines += [f"    reveal_type(x.{one})" for one in ["uds", "interval", "reason", "baselines", "summary", "files"]]
    lines += [f"    reveal_type(y.{one})" for one in ["values", "intervals", "rank", "verdict"]]
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_mypy_strict_finds_nothing_in_a_users_script(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    asked = tmp_path / "asked.py"
    asked.write_text(revealing())
    settings = tmp_path / "mypy.ini"
    # Errors inside vestige are the business of `make check`; transformers and datasets bring no types.
    settings.write_text(
        "[mypy]\nstrict = true\nfollow_imports = silent\npython_version = 3.11\n"
        "[mypy-transformers.*,datasets.*]\nignore_missing_imports = true\n"
    )
    words = ["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache")]
    said = subprocess.run(
        [sys.executable, "-m", "mypy", *words, str(HERE / "user_script.py"), str(asked)],
        capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(SOURCE)},
    )  # fmt: skip
    lines = said.stdout.splitlines()
    assert [line for line in lines if ": error:" in line] == [], said.stdout + said.stderr
    told = [line.partition("Revealed type is ")[2] for line in lines if "Revealed type is" in line]
    assert len(told) == revealing().count("reveal_type(")
    assert [line for line in told if "Any" in line.replace("AnyStr", "")] == []


@pytest.mark.slow
def test_pyright_strict_finds_nothing_in_a_users_script(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")
    asked, script = tmp_path / "asked.py", tmp_path / "user_script.py"
    asked.write_text(revealing())
    script.write_text((HERE / "user_script.py").read_text())
    config = {
        "include": [str(asked), str(script)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(SOURCE)],
        # of torch, transformers and datasets, which leave types out
        "reportMissingTypeStubs": False,
        "reportUnknownMemberType": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    words = ["-p", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"]
    said = subprocess.run([sys.executable, "-m", "basedpyright", *words], capture_output=True, text=True)
    found = json.loads(said.stdout)
    shown = [f"{d['file']}:{d['range']['start']['line'] + 1}: {d['message']}" for d in found["generalDiagnostics"]
             if d["severity"] == "error"]  # fmt: skip
    assert shown == []
    told = [d["message"] for d in found["generalDiagnostics"] if d["message"].startswith("Type of")]
    assert len(told) == revealing().count("reveal_type(")
    assert [line for line in told if "Unknown" in line or '"Any"' in line or "[Any" in line or ", Any" in line] == []


def test_the_users_script_runs(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, str(HERE / "user_script.py"), str(LAB), str(tmp_path / "out")],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert "index.html" in said.stdout and "is not a run directory" in said.stdout
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("vestige-")] == []
