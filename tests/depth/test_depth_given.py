"""S1 from a file of the depth score's own project: read where it fits, refused with the true reason where not.

The numbers are those of that project's own functions on the lab's models (golden/depth.json), in the two layouts that
its repository holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import GOLDEN, LAB
from vestige.cli import main

SETS = json.loads((GOLDEN / "depth.json").read_text())["sets"]
GOLD = SETS["lab-sdpa"]
COUNT = 6
MODELS = LAB / "models"
LAYERS = len(GOLD["examples"][0]["s1_scores"])
CONFIG: dict[str, Any] = {
    "data_path": "tofu_data/forget10_filtered.json", "reference": "gt", "reference_scope": "continuation",
    "entity_source": "gt", "em_scope": "entity", "em_type": "token", "patch_scope": "span", "metric": "logprob",
    "delta_threshold": 0.05, "layers": list(range(LAYERS)), "full_model": "org/full", "retain_model": "org/retain90",
}  # fmt: skip


def entries(examples: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    tau = CONFIG["delta_threshold"]
    return [
        {
            "idx": e["idx"], "full_score": e["full_score"], "s1_scores": e["s1_scores"], "s1_deltas": e["s1_deltas"],
            "s1_status": ["LOST" if d > tau else "KEPT" for d in e["s1_deltas"]],
        }
        for e in examples or GOLD["examples"]
    ]  # fmt: skip


def write(place: Path, body: Any) -> str:
    place.write_text(json.dumps(body))
    return str(place)


def keyed(place: Path, found: list[dict[str, Any]] | None = None, **changes: Any) -> str:
    """As compute_uds.py writes it."""
    return write(place / "s1_cache_8a6c962d6983.json", {"config": {**CONFIG, **changes}, "entries": found or entries()})


def keyless(place: Path, found: list[dict[str, Any]] | None = None) -> str:
    """As its meta-evaluation scripts write it."""
    return write(place / "s1_cache_sdpa.json", {str(e["idx"]): e for e in found or entries()})


def depth(out: Path, cache: str, *more: str, full: str = "full", retain: str = "retain") -> int:
    words = ["depth", "--unlearned", str(MODELS / "unlearned"), "--full", str(MODELS / full), "--quiet"]
    words += ["--retain-model", str(MODELS / retain), "--forget", str(LAB / "data" / "forget.jsonl"), "--out", str(out)]
    return main([*words, "--limit", str(COUNT), "--s1-cache", cache, "resamples=0", *more])


def summary(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "summary.json").read_text()))


@pytest.mark.parametrize("make", [keyed, keyless])
def test_a_published_cache_serves_a_run(
    make: Callable[[Path], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, out = make(tmp_path), tmp_path / "out"
    before = Path(cache).read_bytes()
    assert depth(out, cache, "--last-layer", "peer") == 0
    wanted = [e["uds"] for e in GOLD["examples"][:COUNT] if e["uds"] is not None]
    found = summary(out)
    assert found["avg_uds"] == pytest.approx(sum(wanted) / len(wanted), abs=1e-4)
    said = found["s1_cache"]
    assert said["file"] == cache and said["reused"] and said["made_again"] == 4 and said["largest_difference"] < 1e-3
    assert any("4 of 6 examples were made again and agree" in note for note in found["notes"])
    assert Path(cache).read_bytes() == before and not (out / "s1_cache").exists()
    for record, gold in zip(json.loads((out / "results.json").read_text()), GOLD["examples"], strict=False):
        assert record["s1_deltas"] == pytest.approx(gold["s1_deltas"], abs=1e-5)
        assert record["s2_deltas"] == pytest.approx(gold["s2_deltas"], abs=1e-3)
        assert record["token_logprobs"]["s1"] is None and record["layer_records"][0]["s1_em"] is None
        assert len(record["token_logprobs"]["full"]) == len(record["tokens"])


def test_the_numbers_are_made_again_from_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """verify, score, pictures and the report know that S1 has no tokens; a run without the file does not read it."""
    out = tmp_path / "out"
    assert depth(out, keyed(tmp_path), "--last-layer", "peer", "--plots") == 0
    assert (out / "layer_profile.svg").is_file() and not (out / "tokens.svg").exists()
    assert main(["verify", str(out)]) == 0
    assert main(["report", str(out), "--out", str(tmp_path / "report")]) == 0
    assert depth(out, str(tmp_path / "ours"), "--last-layer", "peer") == 0
    found = summary(out)
    assert found["s1_cache"]["file"].startswith("patched-") and not found["s1_cache"]["reused"]
    assert json.loads((out / "results.json").read_text())[0]["token_logprobs"]["s1"]


def test_layers_below_the_last_need_no_peer_mode(tmp_path: Path) -> None:
    assert depth(tmp_path / "out", keyed(tmp_path), "--layers", f"0-{LAYERS - 2}") == 0
    assert summary(tmp_path / "out")["layers"] == list(range(LAYERS - 1))


def shifted(by: float, first: int = 0) -> list[dict[str, Any]]:
    """Scores as another retain model would have given them."""
    return [{**e, "s1_scores": [s - by * (i >= first) for i, s in enumerate(e["s1_scores"])]} for e in entries()]


PEER = ("--last-layer", "peer")
REFUSED: dict[str, tuple[Callable[[Path], str], tuple[str, ...], str]] = {
    "residual": (keyed, (), "its last layer (3) was patched with the state after the final norm"),
    "scope": (lambda p: keyed(p, em_scope="full"), PEER, "made with em_scope full, this run has entity"),
    "reference": (lambda p: keyed(p, reference="full_output"), PEER, "made with reference full_output"),
    "dtype": (lambda p: keyed(p, dtype="bfloat16"), PEER, "made in bfloat16, this run is in float32; add --dtype"),
    "tokens": (keyed, (*PEER, "--tokenization", "joint"), "tokenised apart"),
    "rows": (lambda p: keyed(p, entries()[2:]), PEER, "2 of 6 examples of this run are not in it (first: 0)"),
    "layers": (lambda p: keyed(p, layers=[0, 1, 2]), PEER, "4 scores per example, and it names 3 layers"),
    "unsaid layers": (
        lambda p: keyless(p, [{**e, "s1_scores": e["s1_scores"][:2]} for e in entries()]), PEER,
        "2 scores per example, and the full model has 4 layers",
    ),
    "no such layer": (
        lambda p: keyed(p, [{**e, "s1_scores": e["s1_scores"][:3]} for e in entries()], layers=[0, 1, 2]), PEER,
        "it has no layer 3",
    ),
    "another retain model": (lambda p: keyless(p, shifted(0.01, 2)), PEER, "another retain model, attention"),
    "other scores of the full model": (
        lambda p: keyless(p, [{**e, "full_score": e["full_score"] - 0.01} for e in entries()]), PEER,
        "its full_score of example",
    ),
    "no scores": (lambda p: keyless(p, [{**e, "s1_scores": None} for e in entries()]), PEER, "s1_scores"),
    "only deltas": (
        lambda p: keyless(p, [{k: e[k] for k in ("idx", "s1_deltas")} for e in entries()]), PEER, "lacks full_score",
    ),
    "a list": (lambda p: write(p / "x.json", entries()), PEER, "does not have the form"),
    "not JSON": (lambda p: str((p / "x.json").write_text("{") and p / "x.json"), PEER, "not valid JSON"),
    "nowhere": (lambda p: str(p / "nowhere.json"), PEER, "does not exist"),
    "their folder": (lambda p: str(Path(keyed(p)).parent), PEER, "name one of them"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, flags, needle = REFUSED[name]
    assert depth(tmp_path / "out", make(tmp_path), *flags) == 2
    said = capsys.readouterr().err
    assert needle in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "summary.json").exists()


def test_every_full_score_is_compared_not_only_those_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever four of the six are made again, an example among the others is not believed unseen."""
    for wrong in range(COUNT):
        found = [{**e, "full_score": e["full_score"] - 0.5 * (e["idx"] == wrong)} for e in entries()]
        assert depth(tmp_path / "out", keyless(tmp_path, found), *PEER) == 2
        assert f"its full_score of example {wrong} is" in capsys.readouterr().err


def test_a_cache_of_other_models_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert depth(tmp_path / "a", keyless(tmp_path), *PEER, retain="unlearned") == 2
    assert "another retain model" in capsys.readouterr().err
    assert depth(tmp_path / "b", keyless(tmp_path), *PEER, full="retain", retain="full") == 2
    assert "another full model" in capsys.readouterr().err
