"""Fixtures of the contract suite: the process that forks commands, and expensive things that are built once.

Tests share finished runs and tiny models. `shared("name", build)` builds a folder once per test run, whichever pytest
worker comes first, and returns its path; it is read-only by agreement: a test that changes something works on a copy
(`harness.copy_tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import pytest
from filelock import FileLock
from safetensors.numpy import load_file, save_file


@pytest.fixture(autouse=True, scope="session")
def _commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    harness.set_up(tmp_path_factory.mktemp("commands"))
    yield
    harness.tear_down()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[..., Path]:
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "shared"
    root.mkdir(exist_ok=True)

    def build_once(name: str, build: Callable[[Path], object]) -> Path:
        place = root / name
        with FileLock(root / f"{name.replace('/', '-')}.lock"):
            done = root / f"{name.replace('/', '-')}.done"
            if not done.exists():
                build(place)
                done.touch()
        return place

    return build_once


def evaluate_lab(model: Path, *more: object) -> Callable[[Path], object]:
    """A builder for `shared`: every TOFU metric of one of the lab's models, as the golden runs were made."""

    def build(place: Path) -> object:
        words = ("--model", model, "--data", harness.DATA, "--system-prompt", harness.SYSTEM, "--metrics", "all")
        return harness.vestige("eval", "tofu", *words, *more, "--out", place)

    return build


@pytest.fixture(scope="session")
def retain_run(shared: Callable[..., Path]) -> Path:
    """The finished TOFU evaluation of the lab's retain model: every metric, its own reference model."""
    return shared("retain", evaluate_lab(harness.RETAIN, "--reference-model", harness.RETAIN))


def tofu_run(name: str) -> Callable[..., Path]:
    @pytest.fixture(scope="session", name=f"{name}_run")
    def run(shared: Callable[..., Path], retain_run: Path) -> Path:
        references = ("--retain-logs", retain_run / "TOFU_EVAL.json", "--reference-model", harness.RETAIN)
        return shared(name, evaluate_lab(harness.LAB / "models" / name, *references))

    return run


full_run = tofu_run("full")  # the finished TOFU evaluations of the lab's full and unlearned models
unlearned_run = tofu_run("unlearned")


@pytest.fixture(scope="session")
def adapter(shared: Callable[..., Path]) -> Path:
    """A LoRA adapter of the lab's full model; `merged` is the model into which it was merged."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    def build(place: Path) -> None:
        full = AutoModelForCausalLM.from_pretrained(harness.FULL, dtype=torch.float32)
        model = get_peft_model(full, LoraConfig(r=2, target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM"))
        torch.manual_seed(1)
        for name, tensor in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(tensor, std=0.2)
        model.save_pretrained(place)
        model.merge_and_unload().save_pretrained(place / "merged")

    return shared("adapter", build)


# ---- a small lab with known answers ----------------------------------------------------------------------------------

# What was made of the lab's models, by factors that powers of two keep exact: a never_knew and a knows that say to the
# last bit what the retain and the full model say, under other weights, and a model that lost two attention layers.
MADE: dict[str, tuple[str, dict[str, float]]] = {
    "never_knew": ("retain", {"q_proj": 2.0, "k_proj": 0.5}),
    "knows": ("full", {"q_proj": 2.0, "k_proj": 0.5}),
    "ruined": ("full", {"layers.0.self_attn.o_proj": 0.0, "layers.1.self_attn.o_proj": 0.0}),
}
CLUSTERS = (1, 2, 2, 3, 3, 4, 5)  # how many of the twenty rows of each file are in the same group
SMALL_METRICS = "forget_Q_A_Prob,forget_Q_A_ROUGE,mia_min_k,forget_quality,retain_Q_A_ROUGE"


def build_small_lab(place: Path) -> None:
    groups = [letter for letter, size in zip("abcdefg", CLUSTERS, strict=True) for _ in range(size)]
    for name in ("forget", "retain", "holdout"):
        rows = harness.read_rows(harness.DATA / f"{name}.jsonl")[:20]
        for row, group in zip(rows, groups, strict=True):
            row["group"] = group
        harness.write_rows(place / "data" / f"{name}.jsonl", rows)
    models = {name: harness.LAB / "models" / name for name in ("retain", "full", "unlearned")}
    for name, (source, factors) in MADE.items():
        models[name] = harness.copy_tree(models[source], place / "models" / name)
        weights = load_file(models[name] / "model.safetensors")
        for part, factor in factors.items():
            for key in weights:
                if part in key:
                    weights[key] = weights[key] * factor
        save_file(weights, models[name] / "model.safetensors", metadata={"format": "pt"})
    for name, model in models.items():
        words = ["--data", place / "data", "--cluster", "group", "--system-prompt", harness.SYSTEM]
        if name != "retain":
            words += ["--retain-logs", place / "runs" / "retain"]
        words += ["--metrics", SMALL_METRICS, "--quiet", "--out", place / "runs" / name]
        harness.vestige("eval", "tofu", "--model", model, *words)


@pytest.fixture(scope="session")
def small_lab(shared: Callable[..., Path]) -> Path:
    """`models`, `data` of twenty rows in seven groups, and finished `runs` of six models with known answers."""
    return shared("small-lab", build_small_lab)
