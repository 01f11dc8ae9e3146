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

from conftest import GOLDEN, LAB
from loops import one_test
from models_tools import save, tiny_model
from vestige.cli import main
from vestige.depth.ask import DepthAsk, ask_from, make_ask, parse_layers
from vestige.depth.run import depth_run, short_names
from vestige.engine.handles import ModelHandle
from vestige.errors import UserError
from vestige.runs import patched as patching
from vestige.runs.evidence import EvidenceFolder
from vestige.runs.files import load_rows
from vestige.types import stats

torch.set_num_threads(1)
MODELS = LAB / "models"
GOLD = json.loads((GOLDEN / "depth.json").read_text())["sets"]["lab-sdpa"]


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


def test_layers_as_people_write_them() -> None:
    assert parse_layers("0-24:8") == (0, 8, 16, 24)
    assert parse_layers("3,1,1") == (1, 3)
    assert parse_layers([0, 2]) == (0, 2)
    assert parse_layers("auto") is None
    for bad in ("x", "1-", "0-4:0", "5-2"):
        with pytest.raises(UserError, match="layers"):
            parse_layers(bad)


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


def test_s1_is_kept_for_further_models_and_never_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "s1"
    seen = loads(monkeypatch)
    first = depth_run(ask(tmp_path / "a", s1_cache=str(cache)))[0]
    assert seen == ["retain", "unlearned", "full"]
    seen.clear()
    other = tmp_path / "other"
    shutil.copytree(MODELS / "unlearned", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "initializer_range": 0.03}))
    again = depth_run(ask(tmp_path / "b", str(other), s1_cache=str(cache)))[0]
    assert seen == ["other", "full"]  # S1 from the cache
    assert again.summary["s1_cache"]["reused"] and again.uds == pytest.approx(first.uds, abs=1e-6)
    seen.clear()
    stricter = depth_run(ask(tmp_path / "a", s1_cache=str(cache), delta_threshold=1.0))[0]
    assert seen == [] and stricter.uds != first.uds  # the threshold is no part of the evidence
    for change in (
        {"attn_implementation": "eager"},
        {"last_layer": "peer"},
        {"layers": "0,2"},
        {"em_scope": "full"},
    ):
        seen.clear()
        depth_run(ask(tmp_path / "c", s1_cache=str(cache), **{"limit": 2, **change}))
        assert seen == ["retain", "unlearned", "full"], change
    seen.clear()
    depth_run(ask(tmp_path / "a", s1_cache=str(cache), limit=9))  # one more example: only it is new
    assert seen == ["retain", "unlearned", "full"]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = depth_run(ask(tmp_path / "whole", batch_size=2))[0]
    write = EvidenceFolder.write
    count = 0

    def stop(self: Any, *batch: Any) -> None:
        nonlocal count
        count += 1
        if count > 5:
            raise KeyboardInterrupt
        write(self, *batch)

    monkeypatch.setattr(EvidenceFolder, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        depth_run(ask(tmp_path / "part", batch_size=2))
    monkeypatch.setattr(EvidenceFolder, "write", write)
    resumed = depth_run(ask(tmp_path / "part", batch_size=2))[0]
    assert resumed.summary["cost"]["score_tokens"] < whole.summary["cost"]["score_tokens"]
    for a, b in zip(resumed.examples, whole.examples, strict=True):
        assert np.abs(a.s1_drops - b.s1_drops).max() < 1e-5 and np.abs(a.s2_drops - b.s2_drops).max() < 1e-5


def test_sources_take_turns_when_their_states_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = depth_run(ask(tmp_path / "a"))[0]
    monkeypatch.setattr(patching, "STATES_BYTES", 1)
    seen = loads(monkeypatch)
    apart = depth_run(ask(tmp_path / "b"))[0]
    assert seen == ["retain", "full", "unlearned", "full"]
    assert apart.uds == pytest.approx(together.uds, abs=1e-6)


def test_an_adapter_is_a_source(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    base = str(MODELS / "full")
    tuned = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    tuned.save_pretrained(tmp_path / "adapter")
    tuned.merge_and_unload().save_pretrained(tmp_path / "merged")
    paths = [str(tmp_path / n) for n in ("adapter", "merged")]
    adapter, merged = depth_run(ask(tmp_path / "out", paths, baselines=["fisher"], limit=4))
    assert adapter.uds == pytest.approx(merged.uds, abs=1e-4)
    both = [r.summary["baselines"]["fisher_masked_0.01"] for r in (adapter, merged)]
    assert both[0] == pytest.approx(both[1], abs=1e-3)


def test_a_quantised_model_is_a_source_but_has_no_fisher_information(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    given: dict[str, Any] = {"unlearned": str(MODELS / "full"), "limit": 4}
    result = depth_run(ask(tmp_path, quantization="4bit", baselines=["cka", "fisher"], **given))[0]
    # The full model in 4 bits is not quite itself, and far from the retain model.
    assert result.uds is not None and 0 < result.uds < 0.5
    baselines = json.loads((tmp_path / "baselines.json").read_text())
    assert baselines["fisher_mean"]["score"] is None and "4bit" in baselines["fisher_mean"]["reason"]
    assert baselines["cka"]["score"] is not None


@one_test(
    ("change", "needle"),
    [
        ({"last_layer": "peeer"}, "Did you mean 'peer'"),
        ({"delta_threshold": -1}, "0 or more"),
        ({"batch_size": 0}, "at least 1"),
        ({"baselines": "ckaa"}, "Did you mean 'cka'"),
        ({"batch_size": "many"}, "must be a number"),
        ({"layers": "0-99"}, "layers 0 to 3"),
        ({"data": "/nowhere.jsonl"}, "does not exist"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_mistakes_get_one_sentence(change: dict[str, Any], needle: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=needle):
        depth_run(ask(tmp_path, **change))


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


def test_half_precision_is_warned_about() -> None:
    from vestige.depth.run import _precision_notes

    def notes(dtype: str, tau: float) -> list[str]:
        return _precision_notes(ModelHandle(ask(Path("x"), dtype=dtype).model("m")), tau)

    assert "as much as delta_threshold" in notes("bfloat16", 0.05)[0]
    assert notes("bfloat16", 0.5) == [] and notes("float32", 0.05) == []


def test_a_broken_model_has_no_score() -> None:
    from vestige.depth.scores import ExampleDepth, model_depth

    good = stats(logprob=np.array([[-1.0, -1.0], [-3.0, -3.0]]))
    bad = stats(logprob=np.array([[-1.0, -1.0], [np.nan, -3.0]]))
    examples = [ExampleDepth(str(i), (0,), good, s2, 0.05) for i, s2 in enumerate((good, bad))]
    score = model_depth(examples, 100)
    assert score["uds"] is None and "NaN" in score["reason"]


def test_names_of_folders() -> None:
    assert list(short_names(["x/m", "y/m"]).values()) == ["m", "m-2"]


# ---- baselines and pictures -------------------------------------------------------------------------------------


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vestige.show.figures import draw_depth

    result = depth_run(ask(tmp_path))[0]
    files = draw_depth(tmp_path, result.summary, result.records)
    assert [f.name for f in files] == ["layer_profile.svg", "heat_map.svg", "tokens.svg"]
    profile = files[0].read_text()
    assert f"UDS {result.uds:.3f}" in profile and "retain → full" in profile
    assert result.records[0]["entity"] in files[1].read_text()
    again = draw_depth(tmp_path / "again", result.summary, result.records)
    assert [f.read_bytes() for f in again] == [f.read_bytes() for f in files]


# ---- in a suite -------------------------------------------------------------------------------------------------


def test_uds_beside_other_metrics_in_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [f"eval.tofu.{n}_model_path={MODELS / n}" for n in ("full", "retain")]

    def run(model: str, *words: str) -> dict[str, Any]:
        args = [
            "eval",
            "tofu",
            "--model",
            MODELS / model,
            "--data",
            LAB / "data",
            "--out",
            tmp_path / model,
            "--metrics",
        ]
        assert main([str(w) for w in (*args, "uds,mia_zlib", *words)]) == 0
        return dict(json.loads((tmp_path / model / "TOFU_EVAL.json").read_text()))

    found = run("unlearned", *paths)["uds"]
    golden = GOLD["prenorm_last_layer"]
    assert found["agg_value"] == pytest.approx(golden["avg_uds"], abs=1e-5)
    assert found["n"] == 31 and "at no layer" in found["notes"][0]
    for expected in golden["examples"]:
        got = found["value_by_index"][str(expected["idx"])]
        assert got["layers"] == expected["ke_layers"]
        assert got["score"] == (None if expected["uds"] is None else pytest.approx(expected["uds"], abs=1e-5))
    interval = json.loads((tmp_path / "unlearned" / "TOFU_STATS.json").read_text())
    assert "uds" in json.dumps(interval)
    assert main(["score", str(tmp_path / "unlearned"), "uds.delta_threshold=1.0"]) == 0
    (again,) = (tmp_path / "unlearned" / "scores").glob("*/TOFU_EVAL.json")
    assert json.loads(again.read_text())["uds"]["n"] < 31  # scored again, without a model
    assert run("full", "--limit", "4", *paths)["uds"]["agg_value"] == 0
    assert main(["score", str(tmp_path / "full")]) == 0
    capsys.readouterr()
    without = run("retain", "--limit", "4")["uds"]
    assert without["agg_value"] is None and "set full_model_path" in without["reason"]


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
