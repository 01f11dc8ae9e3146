"""One module owns every write, replacement and removal of files; and what it does with files that are not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vestige.errors import UserError, WriteError
from vestige.installing import install, place_new, save_pretrained, scratch
from vestige.ownership import (
    JOURNAL,
    ForeignError,
    adopt_file,
    beside,
    is_ours,
    own_journal,
    pass_over,
    permit,
    session,
)
from vestige.writing import (
    append_to,
    claim,
    copy_file,
    create_bytes,
    keep_apart,
    lock_file,
    one_file,
    remove,
    remove_all,
    temporary,
    write_bytes,
    written_by,
)

# ---- the module --------------------------------------------------------------------------------------------------


def names(place: Path) -> list[str]:
    return sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.name != JOURNAL and not p.is_dir())


def test_a_file_is_ours_because_it_is_listed(tmp_path: Path) -> None:
    (tmp_path / "theirs.json").write_text("precious")
    write_bytes(tmp_path / "ours.json", b"1")
    write_bytes(tmp_path / "ours.json", b"2")
    assert (tmp_path / "ours.json").read_bytes() == b"2"
    with pytest.raises(ForeignError, match=r"theirs\.json was not written by vestige"):
        write_bytes(tmp_path / "theirs.json", b"ours")
    assert remove(tmp_path / "theirs.json", tmp_path / "ours.json", tmp_path / "absent") == 1
    assert (tmp_path / "theirs.json").read_text() == "precious"
    assert names(tmp_path) == ["theirs.json"]


def test_a_name_that_was_removed_is_nobodys(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"1")
    remove(tmp_path / "a")
    (tmp_path / "a").write_text("theirs now")
    with pytest.raises(ForeignError):
        write_bytes(tmp_path / "a", b"2")
    assert remove(tmp_path / "a") == 0


def test_a_file_that_is_already_equal_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same")
    before = (tmp_path / "a").stat().st_mtime_ns
    write_bytes(tmp_path / "a", b"same")
    assert (tmp_path / "a").stat().st_mtime_ns == before
    assert is_ours(tmp_path / "a")


def test_links_are_never_followed(tmp_path: Path) -> None:
    victim, home = tmp_path / "victim", tmp_path / "home"
    victim.mkdir()
    (victim / "file").write_text("precious")
    claim(home)
    (home / "link").symlink_to(victim / "file")
    (home / "folder").symlink_to(victim)
    (home / "hanging").symlink_to(victim / "new")
    for name in ("link", "folder/file", "folder/new", "hanging"):
        with pytest.raises(ForeignError, match="is a link"):
            write_bytes(home / name, b"x")
        with pytest.raises(ForeignError, match="is a link"):
            append_to(home / name)
        with pytest.raises(ForeignError, match="is a link"), one_file(home / name) as half:
            half.write_bytes(b"x")
    adopt_file(home / "link")
    adopt_file(home / "folder" / "file")
    assert remove(home / "link", home / "folder/file", home / "folder") == 0
    assert names(victim) == ["file"] and (victim / "file").read_text() == "precious"
    assert remove_all(home / "folder") == 0
    assert (home / "link").is_symlink()


def test_our_file_that_became_a_link_is_left_alone(tmp_path: Path) -> None:
    write_bytes(tmp_path / "home" / "a", b"1")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "home" / "a").unlink()
    (tmp_path / "home" / "a").symlink_to(tmp_path / "victim")
    with pytest.raises(ForeignError, match="is a link"):
        write_bytes(tmp_path / "home" / "a", b"2")
    assert remove(tmp_path / "home" / "a") == 0
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_journal_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("dear diary\n")
    with pytest.raises(UserError, match="is not a journal of vestige"):
        claim(tmp_path)
    assert (tmp_path / JOURNAL).read_text() == "dear diary\n"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / JOURNAL).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is not a journal of vestige"):
        claim(tmp_path / "b")
    assert not (tmp_path / "elsewhere").exists()


def test_a_user_named_file_is_replaced_only_as_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    for text in (b"one", b"two"):
        with one_file(path) as half:
            assert half.suffix == ".md"  # libraries look at it
            half.write_bytes(text)
    write_bytes(tmp_path / "results.json", b"of a run")
    with pytest.raises(ForeignError, match="is not as vestige wrote it"), one_file(tmp_path / "results.json") as half:
        half.write_bytes(b"a table")
    path.write_bytes(b"two, and a note of mine")
    with pytest.raises(ForeignError, match="is not as vestige wrote it"), one_file(path) as half:
        half.write_bytes(b"three")
    assert path.read_bytes() == b"two, and a note of mine"
    assert written_by(tmp_path / "b.txt", lambda p, word: p.write_text(word), word="x").read_text() == "x"


def test_a_failed_write_leaves_the_old_file_and_no_half(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with one_file(path) as half:
        half.write_bytes(b"old")
    with pytest.raises(WriteError, match="No space left"), one_file(tmp_path / "b") as half:
        half.write_bytes(b"x")
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == ["a"]
    with pytest.raises(KeyboardInterrupt), one_file(path) as half:
        half.write_bytes(b"new")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["a"] and path.read_bytes() == b"old"


def test_new_files_and_copies(tmp_path: Path) -> None:
    create_bytes(tmp_path / "x" / "a", b"1")
    with pytest.raises(ForeignError):
        create_bytes(tmp_path / "x" / "a", b"2")
    copy_file(tmp_path / "x" / "a", tmp_path / "home" / "b")
    assert (tmp_path / "home" / "b").read_bytes() == b"1"
    with append_to(tmp_path / "home" / "log") as log:
        log.write("a")
    with append_to(tmp_path / "home" / "log") as log:
        log.write("b")
    assert (tmp_path / "home" / "log").read_bytes() == b"ab"


def test_the_lock_of_somebody_else_is_not_emptied(tmp_path: Path) -> None:
    claim(tmp_path)
    (tmp_path / ".lock").write_text("mine")
    with pytest.raises(ForeignError):
        lock_file(tmp_path)
    (tmp_path / ".lock").write_text("")  # of an earlier version, or nothing to lose
    assert lock_file(tmp_path) == tmp_path / ".lock"


KILLED = """
import os, signal, sys
from pathlib import Path
from vestige.writing import claim
from vestige import installing, writing
home = Path(sys.argv[1])
claim(home, alone=True)
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "writing":
    with writing.one_file(home / "sub" / "a.txt") as half:
        half.write_text("half")
        die()
elif sys.argv[2] == "scratch":
    with installing.scratch(home) as place:
        (place / "deep").mkdir()
        (place / "deep" / "file").write_text("half")
        die()
else:
    with installing.scratch(home) as place:
        for name in ("b", "gone"):
            (place / name).write_text("old")
        installing.install(place, home)
    real, count = writing.move_whole, [0]
    def move(half, path):
        count[0] += 1
        if count[0] == 2:
            die()
        real(half, path)
    with installing.scratch(home) as place:
        for name in "abc":
            (place / name).write_text("new " + name)
        writing.move_whole = move
        installing.install(place, home, last="a")
"""


@pytest.mark.parametrize("where", ["writing", "scratch", "install"])
def test_what_a_killed_process_left_is_known_by_its_record(where: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    theirs = [".x.tmp", ".env.template", "sub/.0123456789abcdef-1.tmp", ".tmp", "sub/.half.12345678"]
    for name in theirs:
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(f"precious {name}")
    done = subprocess.run([sys.executable, "-c", KILLED, str(home), where], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    left = [n for n in names(home) if n not in theirs]
    assert left, "nothing was under way"
    claim(home, alone=True)
    ours = ["a", "b", "c"] if where == "install" else []
    assert names(home) == sorted([*theirs, *ours])
    assert all((home / n).read_text() == f"new {n}" for n in ours)
    assert all((home / n).read_text() == f"precious {n}" for n in theirs)


def test_a_living_process_keeps_its_scratch(tmp_path: Path) -> None:
    claim(tmp_path)
    with scratch(tmp_path) as place:
        (place / "file").write_text("in use")
        code = "import sys; from pathlib import Path; from vestige.writing import claim; claim(Path(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
        assert (place / "file").read_text() == "in use"
    assert names(tmp_path) == []


def test_install_replaces_ours_and_leaves_others(tmp_path: Path) -> None:
    home = tmp_path
    write_bytes(home / "results.json", b"of another command")
    with scratch(home) as made:
        for name in ("config.json", "old.bin", "best/old.bin"):
            create_bytes(made / name, b"old")
        claim(made / "evals" / "e1")
        write_bytes(made / "evals" / "e1" / "m.json", b"old")
        install(made, home)
    write_bytes(home / "evals" / "e1" / "more.json", b"old")
    claim(home / "evals" / "mine")
    write_bytes(home / "evals" / "mine" / "m.json", b"another run")
    (home / "best" / "notes.txt").write_text("precious")
    with scratch(home) as made:
        create_bytes(made / "config.json", b"new")
        create_bytes(made / "best" / "new.bin", b"new")
        install(made, home)
    assert names(home) == ["best/new.bin", "best/notes.txt", "config.json", "evals/mine/m.json", "results.json"]
    assert not (home / "evals" / "e1").exists()
    assert (home / "config.json").read_bytes() == b"new"


def test_install_refuses_before_it_moves_anything(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"old")
    (tmp_path / "z").write_text("precious")
    with scratch(tmp_path) as made:
        create_bytes(made / "a", b"new")
        create_bytes(made / "z", b"new")
        with pytest.raises(ForeignError, match="z was not written"):
            install(made, tmp_path)
    assert (tmp_path / "a").read_bytes() == b"old" and (tmp_path / "z").read_text() == "precious"
    assert names(tmp_path) == ["a", "z"]


def test_a_patient_install_waits_for_the_way_to_be_free(tmp_path: Path) -> None:
    (tmp_path / "z").write_text("precious")
    code = (
        "import sys; from pathlib import Path; from vestige.installing import *; home = Path(sys.argv[1])\n"
        "from vestige.writing import create_bytes\n"
        "with scratch(home) as made:\n"
        "    create_bytes(made / 'model' / 'a', b'new'); create_bytes(made / 'model' / 'z', b'new')\n"
        "    install(made / 'model', home, patient=True)"
    )
    claim(tmp_path)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "z was not written by vestige" in done.stderr
    with pytest.raises(ForeignError):
        claim(tmp_path, alone=True)
    assert (tmp_path / "z").read_text() == "precious" and not (tmp_path / "a").exists()
    (tmp_path / "z").rename(tmp_path / "mine")
    claim(tmp_path, alone=True)
    assert names(tmp_path) == ["a", "mine", "z"] and (tmp_path / "z").read_text() == "new"


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    with scratch(tmp_path) as made:
        create_bytes(made / "x" / "a", b"1")
        assert place_new(made / "x", tmp_path / "held" / "x")
        create_bytes(made / "x" / "a", b"2")
        assert not place_new(made / "x", tmp_path / "held" / "x")
        create_bytes(made / "file", b"1")
        assert place_new(made / "file", tmp_path / "held" / "file")
    assert names(tmp_path) == ["held/file", "held/x/a"]
    assert all(is_ours(tmp_path / name) for name in names(tmp_path))


def test_removing_all_leaves_what_is_not_ours(tmp_path: Path) -> None:
    home = tmp_path / "runs" / "one"
    claim(home)
    lock_file(home).touch()
    write_bytes(home / "evidence" / "parts" / "a", b"1")
    (home / "evidence" / "mine.txt").write_text("precious")
    (home / "empty").mkdir()
    assert remove_all(home) == 2
    assert sorted(p.relative_to(home).as_posix() for p in home.rglob("*")) == ["empty", "evidence", "evidence/mine.txt"]
    other = tmp_path / "runs" / "two"
    claim(other)
    write_bytes(other / "a", b"1")
    assert remove_all(other) == 1
    assert not other.exists() and (tmp_path / "runs").is_dir()


def test_removing_never_takes_an_empty_directory_of_the_user(tmp_path: Path) -> None:
    claim(tmp_path)
    (tmp_path / "empty").mkdir()
    remove(tmp_path / "empty" / "nothing")
    assert (tmp_path / "empty").is_dir()


def test_saving_models_goes_through_a_folder_of_our_own(tmp_path: Path) -> None:
    class Thing:
        def save_pretrained(self, place: Path) -> None:
            place.mkdir(exist_ok=True)
            (place / "config.json").write_text("new")

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("precious")
    with pytest.raises(ForeignError):
        save_pretrained(tmp_path / "a", Thing())
    assert (tmp_path / "a" / "config.json").read_text() == "precious"
    save_pretrained(tmp_path / "b", Thing())
    assert names(tmp_path / "b") == ["config.json"]
    with temporary() as place:
        save_pretrained(place / "c", Thing())
        assert names(place) == ["c/config.json"]
        assert not list(place.rglob(JOURNAL))
    assert not place.exists()


def test_inputs_are_apart_from_what_is_replaced(tmp_path: Path) -> None:
    out, model = tmp_path / "out", tmp_path / "out" / "best"
    model.mkdir(parents=True)
    (tmp_path / "link").symlink_to(model)
    for bad in (out, model, tmp_path / "link", f"{out}/../out/best"):
        with pytest.raises(UserError, match=r"--model .* is in .*, which this command writes"):
            keep_apart(out, {"--model": bad})
    keep_apart(out, {"--model": None, "--data": tmp_path, "--retain": "hub/name", "--file": "a\0b"})
    keep_apart(out, {"--model": model}, ["evals", "best2"])
    with pytest.raises(UserError):
        keep_apart(out, {"--model": model}, ["evals", "best"])


def test_permission_is_asked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("precious")
    permit(tmp_path / "a", tmp_path / "sub" / "c")
    with pytest.raises(ForeignError):
        permit(tmp_path / "a", tmp_path / "b")
    assert names(tmp_path) == ["b"] and not (tmp_path / JOURNAL).exists()


def test_strangers_are_remembered(tmp_path: Path) -> None:
    claim(tmp_path)
    write_bytes(tmp_path / "a", b"1")
    (tmp_path / "b").write_text("theirs")
    assert pass_over(tmp_path, ["a", "b"]) == ["b"]
    assert beside(tmp_path) == {"b"}


def test_a_cut_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"1")
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"file": "b')
    write_bytes(tmp_path / "c", b"1")
    assert {"a", "c"} <= set(own_journal(tmp_path).files)
    assert "b" not in own_journal(tmp_path).files


def test_many_processes_append_to_one_journal(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from vestige.writing import write_bytes\n"
        "for n in range(50): write_bytes(Path(sys.argv[1]) / f'{sys.argv[2]}-{n}', b'x')"
    )
    claim(tmp_path)
    made = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(i)]) for i in range(3)]
    assert [p.wait() for p in made] == [0, 0, 0]
    assert len([n for n in own_journal(tmp_path).files if "-" in n]) == 150


def test_the_journal_is_shortened_when_nobody_else_writes(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", "import sys; from pathlib import Path; from vestige.writing import *\n"
         "for n in range(100): write_bytes(Path(sys.argv[1]) / f'p{n}', b'x')\n"
         "remove(*(Path(sys.argv[1]) / f'p{n}' for n in range(99)))", str(tmp_path)],
        check=True,
    )  # fmt: skip
    before = (tmp_path / JOURNAL).stat().st_size
    claim(tmp_path, alone=True)
    assert (tmp_path / JOURNAL).stat().st_size < before / 10
    assert set(own_journal(tmp_path).files) == {"p99"} and set(own_journal(tmp_path).tokens) == {session().token}
    write_bytes(tmp_path / "q", b"x")
    assert set(own_journal(tmp_path).files) == {"p99", "q"}


def test_a_journal_that_vanished_is_forgotten(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"1")
    os.remove(tmp_path / JOURNAL)  # noqa: PTH107
    assert not is_ours(tmp_path / "a")
    with pytest.raises(ForeignError):
        write_bytes(tmp_path / "a", b"2")
