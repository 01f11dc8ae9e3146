"""Run directories: only what the manifest lists is replaced or removed, one writer at a time, digests at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vestige.errors import UserError, WriteError
from vestige.io import DamagedError, replacing, write_file
from vestige.runs.directory import (
    ForeignFileError,
    HeldError,
    append_to,
    install,
    is_held,
    is_listed,
    listed_files,
    open_run,
    remove,
    remove_run,
    scratch,
    write_bytes,
)
from vestige.runs.manifest import check_files, is_whole, kind_in, manifest, read_run, runs_in
from vestige.runs.named_files import named_file

HIDDEN = (".lock", ".writes.json", "manifest.json")


def names(place: Path) -> list[str]:
    """Every file but locks and manifests."""
    files = [path for path in place.rglob("*") if not path.is_dir() and path.name not in HIDDEN]
    return sorted(path.relative_to(place).as_posix() for path in files)


def finished(place: Path, kind: str = "eval") -> Path:
    with open_run(place, kind, ["a.json", "evidence/"]) as run:
        write_bytes(place / "a.json", b"{}")
        write_bytes(place / "evidence" / "x" / "1.bin", b"numbers")
        run.finish(manifest(kind, {"suite": "tofu"}))
    return place


# ---- what is ours ----------------------------------------------------------------------------------------------------


def test_a_finished_run_says_what_it_wrote(tmp_path: Path) -> None:
    place = finished(tmp_path / "run")
    found = read_run(place)
    assert found is not None and found.state == "finished" and found.facts["config"] == {"suite": "tofu"}
    assert found.writes == {"a.json", "evidence/"} and set(found.sha256) == {"a.json", "evidence/x/1.bin"}
    assert is_whole(place) and names(place) == ["a.json", "evidence/x/1.bin"]
    assert is_listed(place / "a.json") and is_listed(place / "evidence" / "x" / "1.bin")
    assert [path.name for path in listed_files(place)] == ["a.json", "1.bin"]


def test_the_manifest_comes_first(tmp_path: Path) -> None:
    with open_run(tmp_path, "eval", ["a.json"]):
        found = read_run(tmp_path)
        assert found is not None and found.unfinished and found.writes == {"a.json"}
        assert not is_whole(tmp_path)


def test_a_file_that_is_not_listed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("mine")
    refused = pytest.raises(ForeignFileError, match=r"a\.json was not written by vestige")
    with refused, open_run(tmp_path, "eval", ["b.json", "a.json"]):
        pytest.fail("it was opened")
    assert (tmp_path / "a.json").read_text() == "mine" and read_run(tmp_path) is None


def test_in_a_folder_of_the_users_files_are_listed_one_by_one(tmp_path: Path) -> None:
    mine = tmp_path / "evidence" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    for _ in range(2):
        finished(tmp_path)
        found = read_run(tmp_path)
        assert found is not None and found.writes == {"a.json", "evidence/x/"}
    with open_run(tmp_path, "eval", []), pytest.raises(ForeignFileError, match=r"notes\.txt"):
        write_bytes(mine, b"ours")
    assert remove(mine) == 0
    remove_run(tmp_path)
    assert names(tmp_path) == ["evidence/notes.txt"]


def test_a_deleted_manifest_takes_no_files_away(tmp_path: Path) -> None:
    finished(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "mine.json").write_text("mine")
    with pytest.raises(ForeignFileError, match=r"mine\.json"), open_run(tmp_path, "eval", ["mine.json"]):
        pytest.fail("it was opened")
    finished(tmp_path)
    assert is_whole(tmp_path) and names(tmp_path) == ["a.json", "evidence/x/1.bin", "mine.json"]


def test_links_are_neither_followed_nor_replaced(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    finished(out)
    (out / "a.json").unlink()
    (out / "a.json").symlink_to(elsewhere / "thesis.txt")
    (out / "evidence").rename(out / "kept")
    (out / "evidence").symlink_to(elsewhere)
    (elsewhere / "2.bin").write_text("mine")
    for names_ in (["a.json"], ["evidence/"]):
        with pytest.raises(ForeignFileError, match="is a link"), open_run(out, "eval", names_):
            pytest.fail("it was opened")
    remove(out / "evidence" / "2.bin")
    remove_run(out)
    assert [path.name for path in elsewhere.iterdir()] == ["2.bin"]


def test_another_kind_and_a_manifest_of_somebody_else_are_refused(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    with pytest.raises(UserError, match="another kind"), open_run(tmp_path / "run", "depth", []):
        pytest.fail("it was opened")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"name": "a browser extension"}')
    with pytest.raises(ForeignFileError, match=r"manifest\.json"), open_run(tmp_path / "other", "eval", []):
        pytest.fail("it was opened")
    assert kind_in(tmp_path / "other") is None


def test_several_processes_may_add_to_an_open_folder(tmp_path: Path) -> None:
    with open_run(tmp_path, "sweep", ["a.json"], shared=True) as one, open_run(tmp_path, "sweep", [], shared=True):
        write_bytes(tmp_path / "b.json", b"{}")
        one.finish()
        with append_to(tmp_path / "sweep.log") as log:
            log.write("a line\n")
    found = read_run(tmp_path)
    assert found is not None and found.state == "open" and {"a.json", "b.json", "sweep.log"} >= found.writes
    assert "b.json" in found.writes


# ---- one writer, and what a killed one leaves ------------------------------------------------------------------------


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with open_run(tmp_path, "eval", []):
        assert is_held(tmp_path)
        with pytest.raises(HeldError, match=f"process {os.getpid()} on "), open_run(tmp_path, "eval", []):
            pytest.fail("it was opened")
    assert not is_held(tmp_path)


KILLED = """
import sys, time
from pathlib import Path
from vestige.runs.directory import open_run, scratch, write_bytes
home = Path(sys.argv[1])
with open_run(home, "eval", ["a.json", "b.json"]), scratch(home) as made:
    (made / "half.bin").write_text("half")
    write_bytes(home / "a.json", b"{}")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_leaves_goes_with_the_next(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert is_held(tmp_path)
        process.send_signal(signal.SIGKILL)
    found = read_run(tmp_path)
    assert found is not None and found.unfinished and len(names(tmp_path)) == 2
    with open_run(tmp_path, "eval", ["a.json"]) as run:
        write_bytes(tmp_path / "a.json", b"{}")
        run.finish()
    assert names(tmp_path) == ["a.json"] and is_whole(tmp_path)


def test_work_with_the_same_key_goes_on_where_it_was(tmp_path: Path) -> None:
    with open_run(tmp_path, "train") as run:
        with pytest.raises(KeyboardInterrupt), run.workspace("one") as place:
            (place / "checkpoint").write_text("half-way")
            raise KeyboardInterrupt
        with run.workspace("one") as place:
            assert (place / "checkpoint").read_text() == "half-way"
            (tmp_path / ".vestige" / "unfinished-two").mkdir()
        with run.workspace("one") as place:
            assert not list(place.iterdir()) and not (tmp_path / ".vestige" / "unfinished-two").exists()
    assert names(tmp_path) == []


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_file(file, b"old")
    with pytest.raises(KeyboardInterrupt), replacing(file) as half:
        half.write_text("new")
        raise KeyboardInterrupt
    assert file.read_text() == "old" and names(tmp_path) == ["a.json"]
    with pytest.raises(WriteError, match="it is a file"):
        write_file(file / "b.json", b"")


# ---- digests ---------------------------------------------------------------------------------------------------------


def test_damage_is_found_and_not_made_whole_again(tmp_path: Path) -> None:
    place = finished(tmp_path / "run")
    found = read_run(place)
    assert found is not None
    (place / "evidence" / "x" / "1.bin").write_text("other")
    assert "checksum" in check_files(place, found)[0]
    with pytest.raises(DamagedError, match=r"1\.bin"), open_run(place, "eval", ["a.json"]):
        pytest.fail("it was opened")
    (place / "evidence" / "x" / "1.bin").unlink()
    (place / "evidence" / "x" / "2.bin").write_text("more")
    first, second = check_files(place, found)
    assert "1.bin is missing" in first and "2.bin was not there" in second
    (place / "notes.txt").write_text("mine")  # not listed: not part of the run
    assert len(check_files(place, found)) == 2


def test_digests_are_of_what_is_there_at_the_end(tmp_path: Path) -> None:
    """Also of files that were not announced and were replaced nevertheless."""
    place = finished(tmp_path)
    with open_run(place, "eval", []) as run:
        write_bytes(place / "a.json", b"[]")
        run.finish()
    assert is_whole(place)


@pytest.mark.parametrize(("old", "new"), [('"tofu"', '"muse"'), ('"a.json"', '"b.json"'), ("{", "{ "), ("}", "")])
def test_a_manifest_that_was_changed_is_damaged(old: str, new: str, tmp_path: Path) -> None:
    file = finished(tmp_path) / "manifest.json"
    text = file.read_text()
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(DamagedError, match=r"manifest\.json"):
        read_run(tmp_path)
    assert not is_whole(tmp_path)


def test_a_run_inside_a_run_answers_for_itself(tmp_path: Path) -> None:
    with open_run(tmp_path, "stress", ["stress.json", "evals/"]) as run:
        write_bytes(tmp_path / "stress.json", b"{}")
        finished(tmp_path / "evals" / "before")
        run.finish()
    found = read_run(tmp_path)
    assert found is not None and list(found.sha256) == ["stress.json"]
    assert list(found.runs) == runs_in(tmp_path) == ["evals/before"]
    (tmp_path / "evals" / "before" / "a.json").write_text("other")
    assert check_files(tmp_path, found) == [] and not is_whole(tmp_path / "evals" / "before")
    remove_run(tmp_path / "evals" / "before")
    assert "before is missing" in check_files(tmp_path, found)[0]


def test_a_folder_of_a_run_may_become_one(tmp_path: Path) -> None:
    """A second run adds to the S1 cache of a first one."""
    place = finished(tmp_path / "run")
    with open_run(place / "evidence", "s1", []) as run:
        write_bytes(place / "evidence" / "x" / "1.bin", b"more")
        run.finish()
    found = read_run(place / "evidence")
    assert found is not None and found.state == "open" and found.writes == {"x/"}


# ---- folders of other libraries --------------------------------------------------------------------------------------


def fill(made: Path, *files: str) -> None:
    for file in files:
        (made / file).parent.mkdir(parents=True, exist_ok=True)
        (made / file).write_text(file)


def test_an_install_replaces_the_last_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "mine.bin").write_text("mine")
    with open_run(tmp_path, "train", []) as run:
        for files in (("old.bin", "best/w.bin", "data/a", "record"), ("new.bin", "best/v.bin", "data/b", "record")):
            with scratch(tmp_path) as made:
                fill(made, *files)
                install(made, tmp_path, last="record")
        run.finish()
    assert names(tmp_path) == ["best/mine.bin", "best/v.bin", "data/b", "new.bin", "record"]
    assert is_whole(tmp_path)


def test_an_install_over_somebody_elses_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_text("mine")
    with open_run(tmp_path, "train", []), scratch(tmp_path) as made:
        fill(made, "a.bin", "w.bin")
        with pytest.raises(ForeignFileError):
            install(made, tmp_path)
    assert names(tmp_path) == ["w.bin"] and (tmp_path / "w.bin").read_text() == "mine"


def test_an_install_that_was_killed_is_finished_by_calling_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ("a.bin", "b.bin", "data/c", "record")
    with open_run(tmp_path, "train", []) as run, run.workspace("k") as place:
        fill(place / "result", *files)
        real, moved = Path.replace, []

        def replace(self: Path, target: Path) -> Path:
            if len(moved) == 2 and "result" in str(self):
                raise KeyboardInterrupt
            moved.append(target) if "result" in str(self) else None
            return real(self, target)

        monkeypatch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            install(place / "result", tmp_path, last="record")
        monkeypatch.undo()
        assert not (tmp_path / "record").exists()
        install(place / "result", tmp_path, last="record")
    assert names(tmp_path) == sorted(files)


# ---- files that the user named ---------------------------------------------------------------------------------------


def test_a_named_file_is_replaced_only_as_it_was_left(tmp_path: Path) -> None:
    file = tmp_path / "table.tex"
    for text in ("one", "two"):
        with named_file(file) as half:
            half.write_text(text)
        assert file.read_text() == text
    file.write_text("edited")
    with pytest.raises(ForeignFileError, match="not as vestige wrote it"), named_file(file):
        pytest.fail("it was replaced")
    (tmp_path / "mine.tex").write_text("mine")
    with pytest.raises(ForeignFileError, match="was not written by vestige"), named_file(tmp_path / "mine.tex"):
        pytest.fail("it was replaced")
    place = finished(tmp_path / "run")
    with pytest.raises(ForeignFileError, match="a file of the run"), named_file(place / "a.json"):
        pytest.fail("it was replaced")
    with named_file(place / "picture.png") as half:
        half.write_text("picture")
    assert is_whole(place)


def test_writing_is_quick(tmp_path: Path) -> None:
    """A hundred files of a run take less than a second: listing a folder covers what is in it."""
    began = time.perf_counter()
    with open_run(tmp_path, "eval", ["evidence/"]) as run:
        for number in range(100):
            write_bytes(tmp_path / "evidence" / f"{number}.json", json.dumps(number).encode())
        run.finish()
    assert time.perf_counter() - began < 1
