"""The recipes of docs/howto.md are short, and what they add is really used."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from browser_tools import browser, open_page, why_not
from conftest import LAB
from test_docs import ROOT, blocks, follow, registries_kept
from vestige.cli import main

PAGE = ROOT / "docs" / "howto.md"
ADDED = {"metric": "surprise.py", "benchmark": "configs/eval/birds.yaml", "model family": "configs/model/tagged.yaml"}
ADDED |= {
    "loader": "cards.py",
    "attack": "noise.py",
    "method": "hinge.py",
    "page panel": "src/vestige/report/page/lengths.js",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page followed once."""
    place = tmp_path_factory.mktemp("howto")
    with pytest.MonkeyPatch.context() as patch, registries_kept():
        patch.chdir(place)
        follow(PAGE, place)
    return place / "saves"


def test_a_new_panel_is_on_the_page(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's files laid over a copy of the page's scripts, and a report made with them."""
    there = Path("src/vestige/report/page")
    shutil.copytree(ROOT / there, tmp_path / there)
    shutil.copy(made.parent / there / "lengths.js", tmp_path / there)
    change = made.parent / "lengths.diff"
    subprocess.run(["git", "apply", "--unsafe-paths", f"--directory={tmp_path}", str(change)], cwd=tmp_path, check=True)
    monkeypatch.setattr("vestige.report.page.ASSETS", tmp_path / there)
    run = tmp_path / "run"
    words = ["--data", str(LAB / "data"), "--limit", "3", "--metrics", "forget_Q_A_ROUGE,forget_Q_A_Prob", "--quiet"]
    assert main(["eval", "tofu", "--model", str(LAB / "models" / "unlearned"), *words, "--out", str(run)]) == 0
    assert main(["report", str(run), "-o", str(tmp_path / "page")]) == 0
    page = tmp_path / "page" / "index.html"
    assert "How long its answers are" in page.read_text(encoding="utf-8")
    if why_not():
        pytest.skip(why_not())
    with browser() as running:
        opened = open_page(running, page)
        text = opened.text("#panel-lengths")
        assert "How long its answers are" in text and "words of the reference" in text
        assert opened.count("#panel-lengths tbody tr") == 3


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


def test_a_new_diffusion_family_is_recognised(tmp_path: Path) -> None:
    from vestige.models import families

    config = {"model_type": "modernbert-diffusion", "architectures": ["Something"]}
    assert families.diffusion_kind(config) == "other"  # "diffusion" in its name: known not to be known
    recipe = next(b.body for b in blocks(PAGE) if b.word == "family.py")
    with registries_kept():
        exec(recipe, {})
        assert families.diffusion_kind(config) == "masked"
    assert families.diffusion_kind(config) == "other"


def test_a_new_attack_is_measured_beside_its_control(made: Path) -> None:
    found = json.loads((made / "stress" / "noise" / "stress.json").read_text())
    assert [row["budget"] for row in found["rows"]].count(0.1) == 2  # the model and the retain model
    assert {row["budget"] for row in found["rows"]} == {None, 0.1, 0.5}
    assert "of the weights' deviation" in json.dumps(found)


def test_a_new_method_makes_a_checkpoint_that_is_not_the_full_model(made: Path) -> None:
    weights = [p / "model.safetensors" for p in (made / "unlearn" / "hinge", LAB / "models" / "full")]
    assert weights[0].read_bytes() != weights[1].read_bytes()
    record = json.loads((made / "unlearn" / "hinge" / "training.json").read_text())
    assert record["settings"]["method"] == "hinge" and record["config"]["method_args"] == {"ceiling": 3}
    assert 0 < summary(made / "eval" / "hinge")["forget_Q_A_Prob"] < 1
