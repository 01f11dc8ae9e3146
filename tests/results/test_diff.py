"""`vestige diff` finds the cause of a disagreement, in cases whose cause is known because it was put there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import LAB
from golden_tools import variant_model
from vestige.cli import main
from vestige.runs.compare import compare_parts, edited_rows
from vestige.runs.compare import explain_difference as diff
from vestige.runs.run import read_manifest

METRICS = "forget_Q_A_Prob,extraction_strength,forget_Q_A_ROUGE"


def evaluated(out: Path, model: Path = LAB / "models" / "full", data: Path = LAB / "data", *more: str) -> Path:
    words = ["eval", "tofu", "--model", str(model), "--data", str(data), "--out", str(out), "--limit", "5"]
    assert main([*words, "--quiet", "--metrics", METRICS, *more]) == 0
    return out


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evaluated(tmp_path_factory.mktemp("diff") / "base")


def guilty(a: Path, b: Path) -> dict[str, tuple[str, ...]]:
    one, other = read_manifest(a), read_manifest(b)
    parts = compare_parts(one, other, edited_rows(a, b, one, other))
    assert all(p.known for p in parts)
    return {p.name: tuple(p.differs) for p in parts if p.differs}


def edited_copy(run: Path, out: Path) -> Path:
    """A copy of a run in which one number has moved."""
    shutil.copytree(run, out)
    file = out / "TOFU_EVAL.json"
    results = json.loads(file.read_text())
    results["forget_Q_A_Prob"]["value_by_index"]["2"]["prob"] -= 0.05
    results["forget_Q_A_Prob"]["agg_value"] -= 0.01
    file.write_text(json.dumps(results))
    return out


def test_a_run_is_like_itself(base: Path, tmp_path: Path) -> None:
    again = evaluated(tmp_path / "again")
    assert guilty(base, again) == {}
    assert "the same in every" in diff(base, again)


def test_other_weights(base: Path, tmp_path: Path) -> None:
    other = evaluated(tmp_path / "run", LAB / "models" / "retain")
    assert list(guilty(base, other)) == ["model"]
    out = diff(base, other, rows=2)
    assert "differ only in the model: weights" in out
    assert "the moved rows are due to that" in out
    assert "question: " in out
    assert "B says: " in out


@pytest.mark.parametrize("setting", ["system_prompt", "date_string"])
def test_another_template(setting: str, base: Path, tmp_path: Path) -> None:
    """A date counts where the template prints one: the lab's is made to."""
    model = tmp_path / "model"
    shutil.copytree(LAB / "models" / "full", model)
    if setting == "date_string":
        file = model / "chat_template.jinja"
        file.write_text("{{ date_string | default('1 May 2031') }} " + file.read_text())
        base = evaluated(tmp_path / "undated", model)
    other = evaluated(tmp_path / "run", model, LAB / "data", f"model.template_args.{setting}=26 Jul 2024")
    found = guilty(base, other)
    assert list(found) == ["template"]
    assert setting in found["template"][0]
    out = diff(base, other)
    assert f"differ only in the template: {setting}" in out
    assert "26 Jul 2024" in out


def test_a_date_nobody_set_shows_in_the_prompt(base: Path, tmp_path: Path) -> None:
    """Llama-3 templates print today's date: the same settings, another day, another prompt."""
    other = edited_copy(base, tmp_path / "later")
    manifest = read_manifest(other)
    manifest["prompt"] = "Today is 2 May. " + manifest["prompt"]
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert list(guilty(base, other)) == ["template"]
    assert "2 May" in diff(base, other)


def test_pad_is_eos(tmp_path: Path) -> None:
    runs = []
    for variant in ("tmpleos", "tmpleos_padeos"):
        model = variant_model(tmp_path / variant, variant, "full")
        runs.append(evaluated(tmp_path / variant / "run", model))
    found = guilty(runs[0], runs[1])
    assert list(found) == ["mask"]
    assert "(pad = eos)" in " ".join(found["mask"])
    assert "differ only in the mask" in diff(*runs)


def test_another_precision(base: Path, tmp_path: Path) -> None:
    # Not every CPU has half-precision products, so the case is made by hand.
    other = edited_copy(base, tmp_path / "half")
    manifest = read_manifest(other)
    manifest["model"] |= {"dtype": "bfloat16", "evidence": "0" * 16}
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert guilty(base, other) == {"dtype": ("dtype: float32 -> bfloat16",)}
    out = diff(base, other, metrics=["forget_Q_A_Prob"])
    assert "differ only in the dtype: dtype: float32 -> bfloat16" in out
    assert "1 of 5 rows moved" in out


def test_another_dialect(base: Path, tmp_path: Path) -> None:
    other = evaluated(tmp_path / "run", LAB / "models" / "full", LAB / "data", "--dialect", "strict")
    assert list(guilty(base, other)) == ["definition"]
    out = diff(base, other)
    assert "differ only in the definition: dialect: open-unlearning -> strict" in out
    line = next(x for x in out.splitlines() if x.startswith("extraction_strength")).split()
    assert line[2] == line[3] != line[1]  # A by B's definition is B: the whole difference is the definition's


def test_another_setting_of_a_metric(tmp_path: Path) -> None:
    words = ["eval", "tofu", "--model", str(LAB / "models" / "unlearned"), "--data", str(LAB / "data"), "--quiet"]
    runs = []
    for k in ("0.1", "0.9"):
        runs.append(tmp_path / k)
        more = ["--out", str(runs[-1]), "--limit", "8", "--metrics", "mia_min_k", f"+eval.tofu.metrics.mia_min_k.k={k}"]
        assert main([*words, *more]) == 0
    assert guilty(*runs) == {"definition": ("mia_min_k.k: 0.1 -> 0.9",)}
    line = next(x for x in diff(*runs).splitlines() if x.startswith("mia_min_k ")).split()
    assert line[2] == line[3]


def test_two_causes_are_both_named(base: Path, tmp_path: Path) -> None:
    model = LAB / "models" / "retain"
    other = evaluated(tmp_path / "run", model, LAB / "data", "--system-prompt", "Be brief.")
    assert "differ in the model and template; together" in diff(base, other)
