"""The faults that tools/mutation.py and tools/plumbing_mutants.py put in: every kind, in the right place."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

import mutants
import plumbing_list

ROOT = Path(__file__).parent.parent
TEXT = '''
"""A module."""
TABLE = {"twice": lambda x: x * 2}
LIMIT = 3


def f(x: int = 1, floor: bool = False) -> float:
    """Not 5."""
    if floor:
        raise ValueError(f"not {x + 1}")
    values = [x, -x] if not x > 0 else [x]
    return max(values) + 0.5


class C:
    def g(self, x: list[int]) -> int:
        def inner(y: int) -> int:
            return y
        return inner(x[0])
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "room" / "small.py"
    file.parent.mkdir()
    file.write_text(TEXT)
    return file


def live(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def test_every_fault_is_named(path: Path) -> None:
    found = list(mutants.mutants(path))
    assert str(found[0]) == "room/small.py:3:29 lambda:3: Mult -> Div"
    assert sorted(m.words for m in found) == [
        "0 -> 1",
        "0 -> 1",
        "0.5 -> 1.5",
        "2 -> 3",
        "Add -> Sub",
        "Gt -> GtE",
        "Mult -> Div",
        "Not dropped",
        "USub dropped",
        "branches swapped",
        "condition negated",
        "default 1 -> 2",
        "default False -> True",
        "max -> min",
    ]


def test_a_fault_changes_the_live_function(path: Path) -> None:
    """What f(2) and f(-2) are with each fault; without any they are 2.5 and 2.5."""
    seen = {}
    for mutant in mutants.mutants(path):
        f = live(path)["f"]
        if mutant.unit == "f":
            mutant.put_in(f)
            try:
                seen[mutant.words] = (f(2), f(-2))
            except ValueError as error:
                seen[mutant.words] = (str(error), "")
    assert seen == {
        "0 -> 1": (2.5, 2.5),
        "0.5 -> 1.5": (3.5, 3.5),
        "Add -> Sub": (1.5, 1.5),
        "Gt -> GtE": (2.5, 2.5),
        "Not dropped": (2.5, -1.5),
        "USub dropped": (2.5, -1.5),
        "branches swapped": (2.5, -1.5),
        "condition negated": ("not 3", ""),
        "default 1 -> 2": (2.5, 2.5),
        "default False -> True": ("not 3", ""),
        "max -> min": (2.5, -1.5),
    }


def test_statements_are_noted_as_they_run(path: Path) -> None:
    names, seen = live(path), []
    names[mutants.NOTE] = seen.append
    codes = dict(mutants.watched(path))
    assert set(codes) == {"lambda:3", "f", "C.g"}
    for function, unit in ((names["f"], "f"), (names["C"].g, "C.g"), (names["TABLE"]["twice"], "lambda:3")):
        assert isinstance(function, FunctionType)
        function.__code__ = codes[unit]
    assert names["f"](2) == 2.5 and names["C"]().g([7]) == 7 and names["TABLE"]["twice"](4) == 8
    reached = {line for _, line, _ in seen}
    raising = TEXT.splitlines().index('        raise ValueError(f"not {x + 1}")') + 1
    assert raising not in reached and {3, raising - 1, raising + 1, raising + 2} <= reached
    places = {m.statement for m in mutants.mutants(path)}
    assert places <= {*seen}  # every fault here is in a statement that ran


# ---- faults written by hand -----------------------------------------------------------------------------------------


def test_every_fault_of_the_list_still_fits_the_source() -> None:
    """Exactly one place, and a program afterwards: a list that rots would count faults that are not there."""
    faults = plumbing_list.MUTANTS
    assert len(faults) >= 60 and len({f.name for f in faults}) == len(faults)
    for fault in faults:
        source = (ROOT / "src" / "vestige" / fault.file).read_text()
        assert source.count(fault.old) == 1, f"{fault.file}: {fault.name}"
        assert fault.new != fault.old
        ast.parse(source.replace(fault.old, fault.new))


def test_the_tests_that_the_list_names_exist() -> None:
    for test in {test for fault in plumbing_list.MUTANTS for test in fault.tests}:
        file, _, name = test.partition("::")
        path = ROOT / file if file.startswith("src/") else ROOT / "tests" / file
        assert path.is_file(), test
        assert not name or f"def {name.partition('[')[0]}(" in path.read_text(), test


def test_the_page_has_an_outcome_for_every_fault() -> None:
    """docs/mutation.md is written by tools/plumbing_mutants.py --write; 95 of 100 faults must be noticed."""
    page = (ROOT / "docs" / "mutation.md").read_text()
    [shown] = re.findall(r"<!-- plumbing: begin -->\n(.*?)\n<!-- plumbing: end -->", page, re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in shown.partition("| fault |")[2].splitlines()[2:]]
    assert [row[0] for row in rows] == [fault.name for fault in plumbing_list.MUTANTS]
    noticed = sum(row[2].startswith("noticed") for row in rows)
    assert noticed >= 0.95 * len(rows)
    assert f"| **all** | {len(rows)} | {noticed} |" in shown
