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
from loops import one_test
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


def shifted(by: float, first: int = 0) -> list[dict[str, Any]]:
    """Scores as another retain model would have given them."""
    return [{**e, "s1_scores": [s - by * (i >= first) for i, s in enumerate(e["s1_scores"])]} for e in entries()]


PEER = ("--last-layer", "peer")
# What else does not fit is in tests/contract/test_depth.py.
REFUSED: dict[str, tuple[Callable[[Path], str], tuple[str, ...], str]] = {
    "no such layer": (
        lambda p: keyed(p, [{**e, "s1_scores": e["s1_scores"][:3]} for e in entries()], layers=[0, 1, 2]), PEER,
        "layer 3",
    ),
    "another retain model": (lambda p: keyless(p, shifted(0.01, 2)), PEER, "another retain model"),
    "only deltas": (
        lambda p: keyless(p, [{k: e[k] for k in ("idx", "s1_deltas")} for e in entries()]), PEER, "full_score",
    ),
    "not JSON": (lambda p: str((p / "x.json").write_text("{") and p / "x.json"), PEER, "JSON"),
    "nowhere": (lambda p: str(p / "nowhere.json"), PEER, "nowhere.json"),
    "their folder": (lambda p: str(Path(keyed(p)).parent), PEER, "name one of them"),
}  # fmt: skip


@one_test("name", REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, flags, needle = REFUSED[name]
    assert depth(tmp_path / "out", make(tmp_path), *flags) == 2
    said = capsys.readouterr().err
    assert needle in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_cache_of_other_models_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert depth(tmp_path / "a", keyless(tmp_path), *PEER, retain="unlearned") == 2
    assert "another retain model" in capsys.readouterr().err
    assert depth(tmp_path / "b", keyless(tmp_path), *PEER, full="retain", retain="full") == 2
    assert "another full model" in capsys.readouterr().err
