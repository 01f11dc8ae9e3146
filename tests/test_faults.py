"""A few seeded faults, and what the kit itself must be able to see."""

from __future__ import annotations

import errno
import json
import os

import pytest

from fault_commands import Capability, capabilities
from fault_strikes import IDENTICAL, SAID, strike
from fault_tools import Ended, child, differences, kill_at, refuse_from, snapshot, wipe

# What the contract suite (test_resume.py, test_files.py) does not strike with; a lost worker is left to the tool.
FAULTS = (
    ("trajectory", "kill at a moment"), ("collapse", "disk full (tmpfs)"), ("eval", "read-only"),
    ("eval", "evidence damaged"), ("sweep", "json damaged"), ("collapse", "clock jumps"), ("eval", "memory out"),
)  # fmt: skip


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Capability]:
    names = list(dict.fromkeys(name for name, _ in FAULTS))
    found = {c.name: c for c in capabilities(tmp_path_factory.mktemp("faults"), names)}
    for c in found.values():
        c.measure()
    return found


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_nothing_is_lost_and_nothing_silently_wrong(name: str, fault: str, commands: dict[str, Capability]) -> None:
    result = strike(commands[name], fault, seed=7)
    assert result.outcome in (IDENTICAL, SAID), result


def test_the_kit_sees_a_wrong_number(commands: dict[str, Capability]) -> None:
    """A kit that calls everything identical would be worth nothing."""
    c = commands["collapse"]
    wipe(c.out)
    assert child(c.argv).status == 0
    assert differences(c.clean, snapshot(c.out)) == []
    body = json.loads((c.out / "metrics.json").read_text())
    body["steps"][0]["metrics"]["collapse_first_turn_sample/mi_estimate"] += 1e-9
    (c.out / "metrics.json").write_text(json.dumps(body))
    (c.out / ".metrics.json.abcdefgh").write_text("left behind")
    assert differences(c.clean, snapshot(c.out)) == [".metrics.json.abcdefgh", "metrics.json"]


def test_the_kit_strikes(commands: dict[str, Capability]) -> None:
    c = commands["collapse"]
    wipe(c.out)
    assert child(c.argv, kill_at(c.out, c.events)).status == -9
    wipe(c.out)
    full = child(c.argv, refuse_from(c.out, 3, errno.ENOSPC))
    assert full.status == 2 and os.strerror(errno.ENOSPC) in full.sentence
    assert Ended(1, "Traceback (most recent call last)\nvestige: error: x").sentence == ""
