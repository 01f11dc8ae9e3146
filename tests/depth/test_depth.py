"""Depth runs from command line to files: scores, caches, refusals, baselines, pictures."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import LAB
from models_tools import save, tiny_model
from vestige.cli import main
from vestige.depth.ask import DepthAsk, ask_from, make_ask
from vestige.depth.run import depth_run
from vestige.engine.handles import ModelHandle
from vestige.errors import UserError
from vestige.runs import patched as patching
from vestige.runs.files import load_rows
from vestige.types import stats

torch.set_num_threads(1)
MODELS = LAB / "models"


def ask(out: Path, unlearned: Any = None, **more: Any) -> DepthAsk:
    given: dict[str, Any] = {
        "unlearned": unlearned or str(MODELS / "unlearned"),
        "full": MODELS / "full",
        "retain": MODELS / "retain",
        "data": LAB / "data" / "forget.jsonl",
        "out": out,
        "progress": False,
        "resamples": 200,
        "limit": 8,
    }
    return make_ask(**{**given, **more})


# ---- whole runs -------------------------------------------------------------------------------------------------


def test_the_full_model_under_another_name_scores_nearly_nothing(tmp_path: Path) -> None:
    """Other fingerprints (one unused config key), same weights: computed, not looked up."""
    for name in ("full", "retain"):
        place = tmp_path / name
        shutil.copytree(MODELS / name, place)
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, "initializer_range": 0.03}))
    full, retain = depth_run(ask(tmp_path / "out", [str(tmp_path / n) for n in ("full", "retain")]))
    assert full.uds is not None and retain.uds is not None
    assert full.uds <= 1e-6 and retain.uds >= 1 - 1e-6
    assert full.summary["cost"]["score_forwards"] > 0


def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models loaded from here on."""
    seen: list[str] = []
    get = ModelHandle.get

    def spy(self: ModelHandle, *notes: Any) -> Any:
        if not self.is_loaded:
            seen.append(Path(self.name).name)
        return get(self, *notes)

    monkeypatch.setattr(ModelHandle, "get", spy)
    return seen


def test_sources_take_turns_when_their_states_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = depth_run(ask(tmp_path / "a"))[0]
    monkeypatch.setattr(patching, "STATES_BYTES", 1)
    seen = loads(monkeypatch)
    apart = depth_run(ask(tmp_path / "b"))[0]
    assert seen == ["retain", "full", "unlearned", "full"]
    assert apart.uds == pytest.approx(together.uds, abs=1e-6)


def test_a_quantised_model_is_a_source_but_has_no_fisher_information(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    given: dict[str, Any] = {"unlearned": str(MODELS / "full"), "limit": 4}
    result = depth_run(ask(tmp_path, quantization="4bit", baselines=["cka", "fisher"], **given))[0]
    # The full model in 4 bits is not quite itself, and far from the retain model.
    assert result.uds is not None and 0 < result.uds < 0.5
    baselines = json.loads((tmp_path / "baselines.json").read_text())
    assert baselines["fisher_mean"]["score"] is None and "4bit" in baselines["fisher_mean"]["reason"]
    assert baselines["cka"]["score"] is not None


def test_flags_and_keys_mean_the_same() -> None:
    flags = {"unlearned": ["a=b", "c d"], "full": "F", "retain": "R", "data": "x.jsonl", "last_layer": None}
    by_flags = ask_from({**flags, "delta_threshold": 0.1}, [])
    by_keys = ask_from({}, ["unlearned=['a=b','c d']", "full=F", "retain=R", "data=x.jsonl", "delta_threshold=0.1"])
    assert by_flags == by_keys and by_flags.unlearned == ("a=b", "c d") and by_flags.delta_threshold == 0.1
    assert ask_from({**flags, "layers": "0-4:2"}, ["last_layer=peer"]).layers == (0, 2, 4)
    with pytest.raises(UserError, match="needs retain; add --retain"):
        ask_from({"unlearned": ["U"], "full": "F"}, [])


def test_other_tokenizers_and_other_shapes_are_refused(tmp_path: Path) -> None:
    stranger = save(tmp_path / "stranger")
    with pytest.raises(UserError, match="has another tokenizer than"):
        depth_run(ask(tmp_path / "a", str(stranger)))
    smaller = save(
        tmp_path / "smaller", tiny_model(vocab_size=600), tokenizer=False
    )  # takes the full model's tokenizer
    with pytest.raises(UserError, match="one shape"):
        depth_run(ask(tmp_path / "b", str(smaller)))


def test_a_broken_model_has_no_score() -> None:
    from vestige.depth.scores import ExampleDepth, model_depth

    good = stats(logprob=np.array([[-1.0, -1.0], [-3.0, -3.0]]))
    bad = stats(logprob=np.array([[-1.0, -1.0], [np.nan, -3.0]]))
    examples = [ExampleDepth(str(i), (0,), good, s2, 0.05) for i, s2 in enumerate((good, bad))]
    score = model_depth(examples, 100)
    assert score["uds"] is None and "NaN" in score["reason"]


# ---- in a suite -------------------------------------------------------------------------------------------------


def test_a_plan_counts_what_a_depth_score_pushes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full, retain, mine = (str(MODELS / n) for n in ("full", "retain", "unlearned"))
    words = [
        "tofu",
        "--model",
        mine,
        "--data",
        str(LAB / "data"),
        "--out",
        str(tmp_path),
        "--metrics",
        "uds",
        "--limit",
        "6",
    ]
    paths = [f"eval.tofu.full_model_path={full}", f"eval.tofu.retain_model_path={retain}"]

    def planned(*more: str) -> str:
        assert main(["plan", *words, *more]) == 0
        return next((x for x in capsys.readouterr().out.splitlines() if "patch" in x or "uds" in x), "")

    before = planned(*paths)
    assert "6 from two models, 0 cached" in before and f"with {retain} and {full} loaded in turn" in before
    tokens, above = (int(x.replace(",", "")) for x in re.findall(r"([\d,]+) (?:tokens to push|above)", before))
    assert main(["eval", *words, *paths, "--quiet"]) == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    capsys.readouterr()
    rows = load_rows(tmp_path / "evidence" / "examples.json.gz")
    targets = [e.target for r in rows.values() for row in r.examples for e in row]
    assert tokens == 3 * sum(len(t.ids) - 1 for t in targets)
    assert above == sum(2 * (len(t.labels) * 3 // 2) for t in targets)  # two sources, four layers
    # The run pushes as much; batches are padded, and two rows are looked at twice to check the fast way.
    assert tokens <= manifest["cost"]["score_tokens"] <= 1.5 * tokens
    assert "12 cached; 0 tokens to push, and 0 above the patched layers" in planned(*paths)
    assert "full and the retain model" in planned()
    assert "6 cached" in planned(*paths, f"model.model_args.pretrained_model_name_or_path={full}")  # S1 is there
