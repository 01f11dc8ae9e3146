"""The demo tells a story: each part is announced in order, and the last words can be followed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from vestige.cli import parse
from vestige.lab.story import PARTS, DemoStory, last_words


@pytest.mark.parametrize("diffusion", [True, False])
def test_parts_are_numbered_and_say_how_long_they_take(diffusion: bool, capsys: pytest.CaptureFixture[str]) -> None:
    story = DemoStory(diffusion)
    story.begin()
    for name in story.names:
        story.part(name)
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0].startswith(f"Did it forget? {len(PARTS) - (not diffusion)} parts, about ")
    for n, (line, name) in enumerate(zip(lines[1:], story.names, strict=True), 1):
        assert line.startswith(f"[{n}/{len(story.names)}] {PARTS[name].title} (about ")


def test_the_demo_announces_every_part_it_has() -> None:
    source = Path(__file__).parents[2] / "src" / "vestige" / "lab"
    text = "".join((source / f"{name}.py").read_text() for name in ("demo", "demo_report"))
    assert all(text.count(f'story.part("{name}")') == 1 for name in PARTS)


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


def test_two_demos_are_compared_by_what_they_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    import demo_compare

    for name, value, word in (("a", 0.1204, "Partly"), ("b", 0.1196, "Partly"), ("c", 0.3, "Damaged")):
        place = tmp_path / name
        (place / "eval" / "npo").mkdir(parents=True)
        (place / "eval" / "npo" / "TOFU_SUMMARY.json").write_text(json.dumps({"forget_Q_A_Prob": value}))
        (place / "report").mkdir()
        report = {"models": [{"id": "m", "name": "npo"}], "audits": [{"model": "m", "verdict": {"title": word}}]}
        (place / "report" / "report.json").write_text(json.dumps(report))
    for other, status, said in (("b", 0, "the same numbers"), ("c", 1, "npo: Partly and Damaged")):
        monkeypatch.setattr("sys.argv", ["demo_compare", str(tmp_path / "a"), str(tmp_path / other)])
        assert demo_compare.main() == status
        assert said in capsys.readouterr().out
