"""The demo tells a story: each part is announced in order, and the last words can be followed."""

from __future__ import annotations

import shlex
from pathlib import Path

from vestige.cli import parse
from vestige.lab.demo import last_words


def test_the_last_words_are_commands_that_parse(tmp_path: Path) -> None:
    models = {name: tmp_path / "lab" / "models" / name for name in ("full", "retain", "grad_ascent", "npo")}
    said = last_words(tmp_path / "a b", models, tmp_path / "lab" / "data")
    assert f"The page: {(tmp_path / 'a b' / 'report' / 'index.html').as_uri()}" in said
    commands = [line.strip() for line in said.splitlines() if line.startswith("  vestige")]
    assert len(commands) == 3
    for command in commands:
        verb, *words = shlex.split(command)[1:]
        args = parse([verb, *words])
        assert args.verb == verb
    audit = parse(shlex.split(commands[2])[1:])
    assert audit.after == str(models["npo"]) and audit.before == str(models["full"])


def test_the_table_has_no_digits_that_move() -> None:
    from vestige.lab.demo import SHOWN, demo_table

    values = {"full": dict.fromkeys(SHOWN, 0.123456), "npo": dict.fromkeys(SHOWN, -14.1357)}
    shown = demo_table({**values, "retain": {"forget_quality": None}})
    assert "0.12 " in shown and "-14" in shown and "0.123" not in shown and "14.1" not in shown
    by_metric = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert by_metric["forget_quality"][-1] == "1" and by_metric["privleak"][-1] == "0"  # against itself
