"""vestige verify, pack and unpack: any byte, any file, any number; and the proof that travels."""

from __future__ import annotations

import json
import random
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collapse_tools import TINY, turn_rows, write
from conftest import LAB
from golden_tools import eval_args
from loops import one_test
from vestige.cli import main
from vestige.errors import UserError
from vestige.runs import archive
from vestige.runs.archive import extract
from vestige.runs.directory import open_run
from vestige.runs.verify import verify

MODELS = LAB / "models"
METRICS = "forget_Q_A_Prob,forget_Q_A_ROUGE,forget_quality,mia_gradnorm"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run of each kind."""
    place = tmp_path_factory.mktemp("runs")
    out = {name: place / name for name in ("retain", "eval", "depth", "collapse", "stress")}
    more = ["--limit", "3", "--quiet", "--metrics", METRICS]
    assert main(eval_args(MODELS / "retain", out["retain"], *more)) == 0
    assert main(eval_args(MODELS / "unlearned", out["eval"], *more, "--retain-logs", str(out["retain"]))) == 0
    assert main(["score", str(out["eval"]), "dialect=strict"]) == 0
    flags = [
        "--full",
        str(MODELS / "full"),
        "--retain-model",
        str(MODELS / "retain"),
        "--forget",
        str(LAB / "data/forget.jsonl"),
    ]
    both = [str(MODELS / "unlearned"), str(MODELS / "full")]
    assert main(["depth", *flags, "--unlearned", *both, "--limit", "3", "--out", str(out["depth"]), "--quiet"]) == 0
    file = write(place / "rollouts.jsonl", turn_rows())
    assert main(["collapse", str(file), "--model", str(TINY), "--out", str(out["collapse"]), "--resamples", "20"]) == 0
    attack = ["jailbreak", "--metrics", "forget_Q_A_Prob", "--limit", "2", "--out", str(out["stress"])]
    assert main(["stress", *attack, "--model", str(MODELS / "full"), "--data", str(LAB / "data")]) == 0
    return out


def files_of(run: Path) -> list[Path]:
    return sorted(p for p in run.rglob("*") if p.is_file() and not {".vestige", "s1_cache"} & set(p.parts))


def flipped(path: Path, rng: random.Random) -> bytes:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("kind", ["eval", "depth", "collapse", "stress"])
def test_any_flipped_byte_is_caught(kind: str, runs: dict[str, Path]) -> None:
    run, rng = runs[kind], random.Random(9)
    whole = verify(run)
    assert not whole.findings and (whole.numbers > 10)
    for path in files_of(run):
        good = path.read_bytes()
        for _ in range(3):
            path.write_bytes(flipped(path, rng))
            found = verify(run, again=False).findings
            assert found and any(path.name in words and "delete it" in words for words in found), (path, found)
            path.write_bytes(good)
    assert not verify(run, again=False).findings


@pytest.mark.parametrize(
    ("kind", "file", "change"),
    [
        ("eval", "TOFU_EVAL.json", lambda b: b["forget_Q_A_Prob"].update(agg_value=0.5)),
        ("eval", "TOFU_SUMMARY.json", lambda b: b.update(forget_Q_A_ROUGE=0.5)),
        ("eval", "TOFU_STATS.json", lambda b: b["forget_Q_A_Prob"].update(interval=[0, 1])),
        ("eval", "scores/strict/TOFU_EVAL.json", lambda b: b["forget_quality"].update(agg_value=1.0)),
        ("depth", "unlearned/summary.json", lambda b: b.update(avg_uds=0.5)),
        ("depth", "full/results.json", lambda b: b[0]["layer_records"][0].update(s2_score=0.0)),
        ("collapse", "metrics.json", lambda b: _touch(b["steps"][0]["metrics"])),
    ],
)
def test_numbers_that_do_not_follow_are_found_behind_good_hashes(
    kind: str, file: str, change: Callable[[Any], None], runs: dict[str, Path], tmp_path: Path
) -> None:
    """Somebody edits a number and finishes the run again: the evidence still says otherwise."""
    run = tmp_path / kind
    shutil.copytree(runs[kind], run)
    body = json.loads((run / file).read_text())
    change(body)
    (run / file).write_text(json.dumps(body))
    with open_run(run, kind, [file]) as again:
        again.finish()
    found = verify(run).findings
    assert len(found) == 1 and Path(file).name in found[0] and "its evidence gives" in found[0]
    assert not verify(run, again=False).findings


def _touch(metrics: dict[str, float]) -> None:
    metrics["collapse_first_turn_sample/mi_estimate"] += 0.001


# ---- archives -------------------------------------------------------------------------------------------------------


def test_a_proof_scores_again_without_anything_else(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "elsewhere"
    shutil.copytree(runs["eval"].parent, place)
    proofs = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for proof in proofs:
        assert main(["pack", str(runs["eval"]), str(runs["depth"]), "-o", str(proof)]) == 0
    assert proofs[0].read_bytes() == proofs[1].read_bytes()
    assert not any("safetensors" in n and "evidence" not in n for n in zipfile.ZipFile(proofs[0]).namelist())
    assert main(["pack", str(runs["eval"]), "--out", str(proofs[1])]) == 0
    hidden = runs["retain"].rename(tmp_path / "hidden")  # the machine it came from is gone
    try:
        capsys.readouterr()
        assert main(["verify", str(proofs[0])]) == 0
        assert "whole" in capsys.readouterr().out
        assert main(["score", str(proofs[1])]) == 0
        shown = capsys.readouterr().out
        value = json.loads((runs["eval"] / "TOFU_SUMMARY.json").read_text())["forget_quality"]
        assert f"{value:.4f}" in shown
        assert main(["compare", str(proofs[1]), str(hidden)]) == 0
        assert main(["score", str(proofs[0])]) == 2
        assert "holds 2 runs (eval, depth)" in capsys.readouterr().err
        assert main(["unpack", str(proofs[0]), "-o", str(tmp_path / "out")]) == 0
        assert main(["score", str(tmp_path / "out" / "runs" / "eval"), "dialect=tofu"]) == 0
        assert not verify(tmp_path / "out" / "runs" / "eval").findings
    finally:
        hidden.rename(runs["retain"])


def hostile(place: Path, name: str, mode: int = stat.S_IFREG | 0o644, data: bytes = b"x") -> Path:
    path = place / "evil.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(archive.PACK, json.dumps({"version": 1, "runs": {"a": "x"}, "order": ["a"], "references": {}}))
        entry = zipfile.ZipInfo(name)
        entry.external_attr, entry.compress_type = mode << 16, zipfile.ZIP_DEFLATED
        out.writestr(entry, data)
    return path


@one_test("name", ["../x", "/tmp/x", "runs/../../x", "runs\\..\\x", "C:/x", "runs//x"])
def test_names_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    place = tmp_path / "in" / "place"
    with pytest.raises(UserError, match="leads out"):
        extract(hostile(tmp_path, name), place)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["evil.zip"]


def test_links_bombs_and_rubbish_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a plain file"):
        extract(hostile(tmp_path, "runs/a/x", stat.S_IFLNK | 0o777, b"/etc/passwd"), tmp_path / "o")
    with pytest.raises(UserError, match="GB"):
        extract(hostile(tmp_path, "runs/a/x", data=bytes(40 << 20)), tmp_path / "o")
    (tmp_path / "no.zip").write_bytes(b"PK rubbish")
    with pytest.raises(UserError, match="is damaged"):
        extract(tmp_path / "no.zip", tmp_path / "o")
    good = hostile(tmp_path, "runs/a/x", data=b"some bytes that are compressed")
    data = good.read_bytes()
    at = data.index(b"runs/a/x") + 10
    good.write_bytes(data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :])
    with pytest.raises(UserError, match="is damaged"):
        extract(good, tmp_path / "o2")
    with pytest.raises(UserError, match=r"no pack\.json"):
        zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
        extract(tmp_path / "empty.zip", tmp_path / "o3")
