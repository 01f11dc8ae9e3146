"""`load_or_collect` with a job that counts: what is there is read, the rest is collected, in the batches of before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vestige.collect.backend import Cost
from vestige.runs.collect import Job, Work, load_or_collect
from vestige.runs.evidence import EvidenceFolder
from vestige.runs.team import Team


@dataclass(frozen=True)
class Want:
    key: str


class Killed(Exception):  # noqa: N818
    """In the place of a signal."""


@dataclass
class Counting:
    """Numbers wants in batches of two, and says how often a model would have run."""

    batches: list[str] = field(default_factory=list)
    dies_after: int = 99
    settings: dict[str, Any] = field(default_factory=lambda: {"rows": 2})
    folders: int = 1

    def run(self, work: Work) -> Iterator[list[dict[str, float]]]:
        keys = [want.key for want in work.wants]
        for start in range(0, len(keys), 2):
            batch = keys[start : start + 2]
            if set(batch) <= work.done:
                continue
            if len(self.batches) == self.dies_after:
                raise Killed
            self.batches.append("".join(batch))
            # What shares a batch changes the last bits, as in a model.
            yield [{key: ord(key) + len(batch) / 8 for key in batch}] * self.folders

    @property
    def job(self) -> Job:
        return Job(self.run, lambda: self.settings, lambda number: {"number": number})


def wants(keys: str) -> list[Want]:
    return [Want(key) for key in keys]


def collect(place: Path, keys: str, counting: Counting, team: Team | None = None, cost: Cost | None = None) -> Any:
    folders = [EvidenceFolder[float](place, "gradients", f"m{i}") for i in range(counting.folders)]
    return load_or_collect(wants(keys), folders, counting.job, [], team or Team(), cost or Cost())


def files(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*.*"))}


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("folders", [1, 2])
def test_a_resumed_run_packs_as_before(after: int, folders: int, tmp_path: Path) -> None:
    collect(tmp_path / "whole", "abcde", Counting(folders=folders))
    with pytest.raises(Killed):
        collect(tmp_path / "cut", "abcde", Counting(dies_after=after, folders=folders))
    rest = Counting(folders=folders)
    found = collect(tmp_path / "cut", "abcde", rest)
    assert rest.batches == ["ab", "cd", "e"][after:]
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert [dict(one) for one in found] == [{key: ord(key) + (1 if key == "e" else 2) / 8 for key in "abcde"}] * folders
    again = Counting(folders=folders)
    collect(tmp_path / "cut", "abcde", again)
    assert again.batches == []


def test_later_wants_do_not_disturb_an_interrupted_plan(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        collect(tmp_path, "abc", Counting(dies_after=1))
    more = Counting()
    collect(tmp_path, "xabcy", more)
    assert more.batches == ["c", "xy"]


def test_a_plan_with_other_wants_or_settings_is_packed_anew(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        collect(tmp_path, "abcde", Counting(dies_after=1))
    fewer = Counting()
    collect(tmp_path, "acd", fewer)
    assert fewer.batches == ["cd"]
    other = Counting(settings={"rows": 3})
    collect(tmp_path, "abcdef", other)
    assert other.batches == ["ef"]


def test_a_damaged_file_is_collected_again(tmp_path: Path) -> None:
    collect(tmp_path, "abcd", Counting())
    before = files(tmp_path)
    file = tmp_path / "gradients-m0" / "c.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    again = Counting()
    collect(tmp_path, "abcd", again)
    assert again.batches == ["cd"] and files(tmp_path) == before


def test_one_of_two_folders_lacks_a_batch(tmp_path: Path) -> None:
    collect(tmp_path, "abcd", Counting(folders=2))
    before = files(tmp_path)
    (tmp_path / "gradients-m1" / "a.safetensors").unlink()
    again = Counting(folders=2)
    collect(tmp_path, "abcd", again)
    assert again.batches == ["ab"] and files(tmp_path) == before


def test_notes_are_recalled(tmp_path: Path) -> None:
    noting, reading = Cost(notes=["halved"]), Cost()
    collect(tmp_path, "ab", Counting(), cost=noting)
    collect(tmp_path, "ab", Counting(), cost=reading)
    assert reading.notes == ["halved"]


class Meeting:
    """Waits for nobody: each process is run to its end, one after the other."""

    def wait_for_everyone(self) -> None:
        pass


def test_a_team_shares_the_work_and_one_process_takes_over(tmp_path: Path) -> None:
    shares = [Counting(dies_after=1), Counting()]
    with pytest.raises(Killed):
        collect(tmp_path, "abcdefg", shares[0], Team(0, 2, Meeting()))
    left = Team(1, 2).share({key: Want(key) for key in "bcdefg"})
    collect(tmp_path, "abcdefg", shares[1], Team(1, 2, Meeting()))
    assert left and not set(shares[0].batches) & set(shares[1].batches)
    rest = Counting()
    (found,) = collect(tmp_path, "abcdefg", rest)
    assert sorted(found) == list("abcdefg")


def test_evidence_of_a_server_that_changed_is_removed(tmp_path: Path) -> None:
    collect(tmp_path, "ab", Counting())
    folder = EvidenceFolder[float](tmp_path, "gradients", "m0")
    for problem, batches in (("", []), ("its weights are others", ["ab"])):
        handle: Any = SimpleNamespace(check=lambda: None)
        handle.served = SimpleNamespace(reuse_problem=lambda how, problem=problem: problem)
        counting, cost = Counting(), Cost()
        load_or_collect(wants("ab"), [folder], counting.job, [handle], Team(), cost)
        assert counting.batches == batches
        assert [problem in note for note in cost.notes] == [True] * len(batches)
