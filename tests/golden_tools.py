"""Comparing result files with golden ones, value by value."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from conftest import LAB, SYSTEM

ATOL, RTOL = 1e-5, 2e-5
EXACT = {"auc", "rouge1_recall", "rougeL_f1", "rougeL_recall"}  # and every text
EXACT_METRICS = ("exact_memorization", "extraction_strength", "forget_quality")


def differences(expected: Any, got: Any, path: str = "") -> tuple[int, list[str]]:
    """How many values were compared, and those that differ. Exact where the number is a count in disguise."""
    if isinstance(expected, dict):
        return _sum(differences(v, got.get(k, "(absent)"), f"{path}/{k}") for k, v in expected.items())
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return 1, [f"{path}: {expected} != {got}"]
        return _sum(differences(e, g, f"{path}[{i}]") for i, (e, g) in enumerate(zip(expected, got, strict=True)))
    return 1, [] if _equal(expected, got, path) else [f"{path}: {expected!r} != {got!r}"]


def _sum(parts: Any) -> tuple[int, list[str]]:
    pairs = list(parts)
    return sum(n for n, _ in pairs), [x for _, bad in pairs for x in bad]


def _equal(expected: Any, got: Any, path: str) -> bool:
    if isinstance(expected, bool) or not isinstance(expected, float):
        return bool(expected == got)
    if not isinstance(got, (int, float)):
        return False
    metric, leaf = path.split("/")[1], path.split("/")[-1].split("[")[0]
    is_auc = metric.startswith("mia_") and path.count("/") == 2
    if leaf in EXACT or is_auc or metric in EXACT_METRICS:
        return abs(expected - got) <= 1e-12  # the last bit of a mean may depend on the order of addition
    rtol = 1e-3 if metric == "mia_gradnorm" else RTOL
    return abs(expected - got) <= ATOL + rtol * abs(expected)


def check(expected_file: Path, got_file: Path, least: int) -> None:
    """Asserts that every value of the golden file is reproduced, and that there were enough of them to matter."""
    expected, got = (json.loads(p.read_text()) for p in (expected_file, got_file))
    count, bad = differences(expected, got)
    assert not bad, f"{len(bad)} of {count} values differ, first: {bad[:5]}"
    assert count >= least, count


def variant_model(tmp_path: Path, variant: str, name: str) -> Path:
    """A lab model with a variant's tokenizer config (its chat template is in there)."""
    place = tmp_path / "model"
    shutil.copytree(LAB / "models" / name, place, ignore=shutil.ignore_patterns("chat_template.jinja"))
    shutil.copy(LAB / "expected_variants" / variant / name / "tokenizer_config.json", place)
    return place


def eval_args(model: Path, out: Path, *more: str) -> list[str]:
    return ["eval", "tofu", "--model", str(model), "--data", str(LAB / "data"), "--out", str(out),
            "--system-prompt", SYSTEM, *more]  # fmt: skip


def reference_args(variant: str | None = None) -> list[str]:
    """Retain logs and reference model as the golden runs had them."""
    logs = LAB / "expected" / "retain_noref" / "TOFU_EVAL.json"
    return ["--retain-logs", str(logs), "--reference-model", str(LAB / "models" / "retain")]
