"""The walk through the first hour: a stranger's environment, honest times, and a page that only the script writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import first_hour  # noqa: E402 - beside the tests, not on their path


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> first_hour.Stranger:
    old = tmp_path / "old"
    (old / "bin").mkdir(parents=True)
    (old / "pyvenv.cfg").write_text("")
    monkeypatch.setenv("PATH", f"{old / 'bin'}:/usr/bin:/bin")
    for name in ("PYTHONPATH", "HF_TOKEN", "HF_HOME", "VIRTUAL_ENV", "OMP_NUM_THREADS", "PIP_NO_CACHE_DIR"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.invalid/simple")
    made = first_hour.Stranger(tmp_path)
    made.clone.mkdir()
    return made


def test_a_stranger_has_an_empty_home_and_nothing_of_ours(stranger: first_hour.Stranger) -> None:
    env = stranger.env
    assert not {"PYTHONPATH", "HF_TOKEN", "HF_HOME", "VIRTUAL_ENV", "OMP_NUM_THREADS"} & set(env)
    assert env["PIP_INDEX_URL"] and env["PIP_NO_CACHE_DIR"] == "1" and env["HOME"] == str(stranger.home)
    assert env["PATH"].split(":") == [str(stranger.clone / ".venv" / "bin"), "/usr/bin", "/bin"]
    assert not list(stranger.home.iterdir())


def test_times_are_measured_and_a_failure_stops_the_walk(stranger: first_hour.Stranger) -> None:
    code = f"import time; time.sleep(0.3); print('{first_hour.FIRST_TABLE}', flush=True); sum(range(10**6))"
    done = stranger.run("make demo: the demo", [sys.executable, "-c", code])
    assert done.table is not None and 0.3 <= done.table <= done.wall and 0 < done.cpu < done.wall + 1
    with pytest.raises(SystemExit, match="a command failed with status 3"):
        stranger.run("a command", [sys.executable, "-c", "raise SystemExit(3)"])
    part = first_hour.written(stranger, 1.5)
    assert part.startswith(first_hour.START) and part.endswith(first_hour.END) and "load 1.5" in part
    assert "| make demo: the demo | " in part and "a command" not in part


def test_the_page_has_the_place_for_it() -> None:
    text = first_hour.PAGE.read_text(encoding="utf-8")
    assert text.count(first_hour.START) == text.count(first_hour.END) == 1
    assert text.index(first_hour.START) < text.index(first_hour.END)


def test_the_demo_prints_what_the_walk_waits_for() -> None:
    source = (ROOT / "src" / "vestige" / "lab" / "demo.py").read_text()
    assert f'"{first_hour.FIRST_TABLE}"' in source
    assert ".venv/.core" in (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")


def test_a_place_with_something_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "left over").touch()
    monkeypatch.setattr("sys.argv", ["first_hour.py", "--keep", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        first_hour.main()
    assert ended.value.code == 2 and "is not empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["left over"]
