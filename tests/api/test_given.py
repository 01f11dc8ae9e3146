"""What Python users hand over in memory: rows, models, adapters, models that accelerate placed. Real packages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from datasets import Dataset, DatasetDict

import vestige
from conftest import LAB
from staleness_tools import forwards
from vestige.errors import UserError

FULL, RETAIN, UNLEARNED = (LAB / "models" / name for name in ("full", "retain", "unlearned"))
ASKED: dict[str, Any] = {"metrics": ["forget_Q_A_Prob", "mia_loss"], "limit": 4, "cluster": "none"}
ASKED |= {"overrides": ["stats.resamples=100"]}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """No call of this file may leave a temporary folder."""
    import tempfile

    place = tmp_path_factory.mktemp("system")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield
    assert [p.name for p in place.iterdir() if p.name.startswith("vestige")] == []


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (LAB / "data" / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> vestige.Result:
    return vestige.evaluate(FULL, data=LAB / "data", out=tmp_path_factory.mktemp("plain") / "full", **ASKED)


def live(path: Path = FULL) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


# ---- rows -------------------------------------------------------------------------------------------------------


def test_rows_in_memory_give_the_numbers_of_files(plain: vestige.Result) -> None:
    tables = {"forget": Dataset.from_list(rows("forget")), "holdout": pandas.DataFrame(rows("holdout"))}
    found = vestige.evaluate(FULL, data=tables, **ASKED)
    assert found.summary == plain.summary

    def prints(result: vestige.Result) -> set[str]:
        return {d["fingerprint"] for d in result.outcome.manifest["data"].values()}

    assert prints(found) == prints(plain)
    sources = {d["source"] for d in found.outcome.manifest["data"].values()}
    assert sources == {"forget (Dataset in memory, 32 rows)", "holdout (DataFrame in memory, 32 rows)"}
    # comparisons go by content, not by where rows were
    assert vestige.compare_runs(plain, found, metrics="forget_Q_A_Prob", resamples=100).differences != {}


def test_a_changed_row_is_never_answered_from_evidence(tmp_path: Path) -> None:
    asked = {**ASKED, "metrics": ["forget_Q_A_Prob"], "out": tmp_path / "run"}
    frame = pandas.DataFrame(rows("forget"))
    before = vestige.evaluate(FULL, data={"forget": frame}, **asked)
    with forwards() as pushed:
        again = vestige.evaluate(FULL, data=DatasetDict({"forget": Dataset.from_pandas(frame)}), **asked)
        assert pushed[0] == 0 and again.summary == before.summary
    frame.loc[0, "answer"] = "Nobody knows where that was."
    with pytest.raises(UserError, match="holds results of other rows"):
        vestige.evaluate(FULL, data={"forget": frame}, **asked)
    for file in (tmp_path / "run").glob("*.json"):
        file.unlink()  # the evidence stays
    with forwards() as pushed:
        other = vestige.evaluate(FULL, data={"forget": frame}, **asked)
        assert pushed[0] > 0
    assert other.rows("forget_Q_A_Prob")[0] != before.rows("forget_Q_A_Prob")[0]
    assert other.rows("forget_Q_A_Prob")[1] == before.rows("forget_Q_A_Prob")[1]
    with pytest.raises(UserError, match="objects in Python"):
        vestige.score(tmp_path / "run", cluster="author")


def test_depth_and_attacks_read_rows_in_memory(tmp_path: Path) -> None:
    forget = rows("forget")
    file = LAB / "data" / "forget.jsonl"
    [one] = vestige.measure_depth(UNLEARNED, FULL, RETAIN, file, limit=2, layers="0")
    [two] = vestige.measure_depth(UNLEARNED, FULL, RETAIN, Dataset.from_list(forget), limit=2, layers=[0])
    assert one.uds == two.uds and len(two.examples) == 2 and one.files == two.files == []
    said: dict[str, Any] = {"limit": 2, "metrics": "forget_Q_A_Prob"}
    by_file = vestige.attack(UNLEARNED, LAB / "data", {"prune": 0.5}, **said)
    by_rows = vestige.attack(
        UNLEARNED, {"forget": forget, "retain": pandas.DataFrame(rows("retain"))}, "prune=0.5", **said
    )
    assert [r.values for r in by_rows] == [r.values for r in by_file]


# ---- models -----------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter whose configuration names a base that is nowhere."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    get_peft_model(live()[0], config).save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": "/nowhere/at/all"}))
    return tmp_path / "adapter"


def state(model: Any) -> list[Any]:
    modules, weights = list(model.modules()), list(model.named_parameters())
    facts = [[type(m).__name__ for m in modules], [m.training for m in modules], sorted(vars(model))]
    return [*facts, [(n, p.requires_grad, p.detach().clone().sum().item()) for n, p in weights]]


def test_a_pair_of_base_and_adapter(adapter: Path, plain: vestige.Result) -> None:
    from peft import PeftModel

    asked = {**ASKED, "data": LAB / "data"}
    with pytest.raises(UserError, match=r"\(base, adapter\)"):
        vestige.evaluate(adapter, **asked)
    by_path = vestige.evaluate((FULL, adapter), **asked)
    assert by_path.summary != plain.summary
    assert vestige.plan((FULL, adapter), **asked).answers.distinct == 8
    model, tokenizer = live()
    model.train()
    model.model.layers[0].eval()
    before = state(model)
    by_object = vestige.evaluate((model, adapter), tokenizer=tokenizer, **asked)
    assert state(model) == before
    alone = vestige.evaluate(PeftModel.from_pretrained(model, adapter), tokenizer=tokenizer, **asked)
    assert by_path.summary == by_object.summary == alone.summary
    other = vestige.evaluate((RETAIN, adapter), **asked)  # another base, other numbers
    assert other.summary != by_path.summary
    with pytest.raises(UserError, match="is not an adapter"):
        vestige.evaluate((live()[0], FULL), tokenizer=tokenizer, **asked)
    with pytest.raises(UserError, match="PeftModel"):
        vestige.evaluate((FULL, model), **asked)  # type: ignore[arg-type]


def test_a_model_stays_where_accelerate_put_it(
    tmp_path: Path, plain: vestige.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers on disk, brought in by hooks: the same numbers, the same places afterwards, and no call of `.to`."""
    import accelerate

    def placed(name: str, factor: float) -> tuple[Any, Any]:
        model, tokenizer = live()
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight.mul_(factor)
        places = {f"model.{n}": "cpu" for n, _ in model.model.named_children() if n != "layers"} | {"lm_head": "cpu"}
        places |= {f"model.layers.{n}": "disk" if n else "cpu" for n in range(len(model.model.layers))}
        return accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=str(tmp_path / name)), tokenizer

    model, tokenizer = placed("same", 1.0)
    where = {name: p.device.type for name, p in model.named_parameters()}
    assert "meta" in where.values() and "cpu" in where.values()
    monkeypatch.setattr(type(model), "to", lambda *a, **k: pytest.fail("the model was moved"))
    asked = {**ASKED, "data": LAB / "data", "out": tmp_path / "run", "tokenizer": tokenizer}
    assert vestige.evaluate(model, **asked).summary == plain.summary
    assert {name: p.device.type for name, p in model.named_parameters()} == where
    with pytest.raises(UserError, match="holds results of another model"):  # what is on disk counts in the fingerprint
        vestige.evaluate(placed("other", 1.5)[0], **asked)


def test_modes_and_folders_are_as_they_were_after_a_failure() -> None:
    model, tokenizer = live()
    model.train()
    model.model.layers[1].eval()
    before = state(model)

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("the model breaks")

    honest, model.forward = model.forward, fails
    with pytest.raises(Exception, match="the model breaks"):
        vestige.evaluate(model, tokenizer=tokenizer, data=LAB / "data", **ASKED)
    del model.forward
    assert honest is not fails and state(model) == before


# ---- results that are not on disk -------------------------------------------------------------------------------


def test_a_result_is_saved_as_if_out_had_been_given(plain: vestige.Result, tmp_path: Path) -> None:
    found = vestige.evaluate(FULL, data=LAB / "data", **ASKED)
    assert found.directory is None and found.files == () and "result.save(DIR)" in repr(found)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("not vestige's")
    with pytest.raises(UserError, match="not empty"):
        found.save(tmp_path / "mine")
    place = found.save(tmp_path / "saved")
    assert found.directory == place and all(file.is_file() for file in found.files)
    assert vestige.load_run(place).summary == plain.summary
    assert vestige.score(place).summary == plain.summary
    with pytest.raises(UserError, match="on disk already"):
        found.save(tmp_path / "twice")


@pytest.mark.parametrize("name", ["..", "a/..", "/", "", ".hidden", "x; rm -rf ~", "<script>alert(1)</script>", "a\nb"])
def test_a_hostile_name_of_a_model_is_one_plain_folder_and_escaped(plain: vestige.Result, name: str) -> None:
    """Names come from checkpoints that somebody else made."""
    manifest = {**plain.outcome.manifest, "model": {**plain.outcome.manifest["model"], "name": name}}
    found = vestige.Result(replace(plain.outcome, manifest=manifest), {"manifest.json": b"{}"})
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", found.short_name)
    with found.placed() as place:
        assert (place / "manifest.json").read_bytes() == b"{}" and place.parent.name.startswith("vestige")
    assert "<script>" not in found._repr_html_()
