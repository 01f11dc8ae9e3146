"""docs/architecture.md says what the source is: its tables and its map are generated, and the paths it names exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import test_rooms

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

import source_map

ROOT = Path(__file__).parent.parent
PAGE = source_map.PAGE.read_text(encoding="utf-8")


def test_the_map_is_what_the_sources_say() -> None:
    assert source_map.written(PAGE) == PAGE, "run: python tools/source_map.py"


def test_every_file_says_what_it_is_for() -> None:
    assert source_map.silent() == []
    assert len(source_map.sources()) > 300  # a search that finds nothing would find nothing silent


def test_a_new_file_or_another_docstring_makes_the_map_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "vestige"
    for room in source_map.rooms():
        place = source / source_map.place_of(room).relative_to(source_map.SOURCE)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text('"""A room."""\n')
    (source / "__init__.py").write_text('"""The package."""\n')
    monkeypatch.setattr(source_map, "SOURCE", source)
    before = source_map.file_map()
    (source / "collect" / "twice.py").write_text('"""Everything twice."""\n')
    added = set(source_map.file_map().splitlines()) - set(before.splitlines())
    assert {tuple(line.split(maxsplit=1)) for line in added} == {("twice.py", "Everything twice.")}


def test_every_room_is_on_a_floor() -> None:
    house = PAGE.split("## The house")[1].split("\n## ")[0]
    floors = {name for name in re.findall(r"`(\w+)`", house) if name in test_rooms.ARROWS}
    rooms = {room for room in test_rooms.ARROWS if not room.startswith("__") and room not in test_rooms.NOUNS}
    assert rooms - floors == set()
    rows = [line.split("|")[1:3] for line in house.splitlines() if line.startswith("| ")]
    shown = [name for _, listed in rows for name in re.findall(r"`(\w+)`", listed)]
    assert len({floor for floor, _ in rows}) == len(rows) and len({*shown}) == len(shown)  # each on one floor, once


def placed() -> dict[str, str]:
    """What the section "Where does it go?" answers: the thing -> where."""
    part = PAGE.split("## Where does it go?")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| ([^|]+) \| ([^|]+ \| [^|]*)\|$", part, re.M))


# "statistic", "reader" and so on: what somebody looks for.
@pytest.mark.parametrize(
    "thing",
    ["attack", "interval", "panel", "reader", "family", "method", "statistic", "server", "exporter", "verb", "metric"],
)
def test_a_placement_question_has_an_answer(thing: str) -> None:
    answers = [where for what, where in placed().items() if re.search(rf"\b{thing}\b", what)]
    assert answers, thing
    assert all(re.search(r"`[\w./*-]+`", where) for where in answers)


def test_every_path_on_the_page_exists() -> None:
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.M | re.S)
    named = set(re.findall(r"`((?:[\w-]+/)[\w./*-]*)`", prose)) | set(re.findall(r"`([\w-]+\.(?:py|json))`", prose))
    assert len(named) > 40
    places = (ROOT, source_map.SOURCE, source_map.SOURCE / "configs")
    # A name in a list of Hydra groups, or of a file that every room has, is found in one of its places.
    lost = [name for name in named if not any(list(place.glob(name.rstrip("/"))) for place in places)]
    assert [n for n in lost if n != "flags.py" and n != "__init__.py"] == []
