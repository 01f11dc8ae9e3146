"""The recipes of docs/howto.md are short, and what they add is really used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from test_docs import ROOT, blocks, follow, registries_kept

PAGE = ROOT / "docs" / "howto.md"
ADDED = {"metric": "surprise.py", "benchmark": "configs/eval/birds.yaml", "model family": "configs/model/tagged.yaml"}
ADDED |= {"loader": "cards.py", "attack": "noise.py"}


@pytest.mark.parametrize("what", ADDED)
def test_a_recipe_is_under_twenty_lines(what: str) -> None:
    files = {b.word: b.body for b in blocks(PAGE) if b.mark == "file"}
    lines = [line for line in files[ADDED[what]].splitlines() if line.strip()]
    assert len(lines) < 20, f"{what}: {len(lines)} lines"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page followed once."""
    place = tmp_path_factory.mktemp("howto")
    with pytest.MonkeyPatch.context() as patch, registries_kept():
        patch.chdir(place)
        follow(PAGE, place)
    return place / "saves"


def summary(run: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(next(run.glob("*_SUMMARY.json")).read_text())
    return found


def test_each_recipe_changes_what_is_measured(made: Path) -> None:
    made, sweep = made / "eval", made / "sweep" / "noisy" / "runs" / "tofu"
    assert summary(made / "surprise")["forget_surprise"] > 0
    assert set(summary(made / "birds")) == {"birds_Prob", "birds_ROUGE"}
    assert 0 < summary(made / "cards")["forget_Prob"] < 1
    before, after = (summary(sweep / name)["forget_Q_A_Prob"] for name in ("unlearned", "unlearned+noise"))
    assert before != after
    # The same rows behind other prompts.
    prompts = [json.loads((made / name / "manifest.json").read_text())["prompt"] for name in ("birds", "tagged")]
    assert prompts[0] != prompts[1] and "Q: " in str(prompts[1])
    assert summary(made / "birds")["birds_Prob"] != summary(made / "tagged")["birds_Prob"]


def test_a_new_diffusion_family_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    from vestige.models import diffusion

    monkeypatch.setattr(diffusion, "FAMILIES", list(diffusion.FAMILIES))
    config = {"model_type": "modernbert-diffusion", "architectures": ["Something"]}
    assert diffusion.diffusion_kind(config) == "other"  # "diffusion" in its name: known not to be known
    diffusion.FAMILIES.insert(0, ("modernbert-diffusion", "masked"))
    assert diffusion.diffusion_kind(config) == "masked"
