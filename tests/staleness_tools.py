"""A tiny world of models and data, and changes to it: which numbers must be made again, and which must not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import LAB

AGAIN, SCORED, KEPT = "made again", "scored again", "kept"
SHORT = ["stats.resamples=0", "++eval.tofu.metrics.forget_Q_A_ROUGE.generation_args.max_new_tokens=10"]
METRICS = "forget_Q_A_Prob,forget_Q_A_ROUGE"


def make_model(place: Path, seed: int, tokenizer: bool = True) -> Path:
    """Two layers with weights large enough for numbers that differ, and the lab's tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=600, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.4, eos_token_id=2, bos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(place)
    if tokenizer:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(LAB / "models" / "full" / name, place)
    return place


def make_adapter(place: Path, base: Path) -> Path:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, init_lora_weights=False))
    model.save_pretrained(place)
    edit_json(place / "adapter_config.json", base_model_name_or_path=str(Path("..") / base.name))
    return place


@dataclass
class World:
    """Files to change, flags to change, and what the commands are told."""

    place: Path
    patch: pytest.MonkeyPatch
    which: str = "model"  # or "adapter"
    flags: list[str] = field(default_factory=list)
    run: str = "run"

    @property
    def model(self) -> Path:
        return self.place / self.which

    @property
    def data(self) -> Path:
        return self.place / "data"

    def eval_words(self, out: Path) -> list[str]:
        words = ["eval", "tofu", "--model", self.model, "--data", self.data, "--out", out, "--metrics", METRICS]
        plain = [w for w in self.flags if not w.startswith("-") and "=" in w]
        return [str(w) for w in [*words, "--limit", "3", "--quiet", *_others(self.flags), *SHORT, *plain]]


def _others(flags: list[str]) -> list[str]:
    return [w for w in flags if w.startswith("-") or "=" not in w]


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def one_weight(file: Path) -> None:
    weights = load_file(file)
    whole = ("model.norm.weight", "model.layers.0.mlp.down_proj.weight")  # what is said, and what is in the layers
    for key in whole if whole[0] in weights else sorted(weights)[:1]:
        weights[key][::2] *= 2
    save_file(weights, file, metadata={"format": "pt"})


def tokenizer_json(world: World, **changes: Any) -> None:
    edit_json(world.model / "tokenizer.json", **changes)


def rows(world: World, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    file = world.data / "forget.jsonl"
    found = edit([json.loads(line) for line in file.read_text().splitlines()])
    file.write_text("".join(json.dumps(r) + "\n" for r in found))


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def template(world: World, old: str, new: str) -> None:
    file = world.model / "chat_template.jinja"
    file.write_text(replaced(file.read_text(), old, new))


def version(world: World, name: str) -> None:
    from vestige.models import fingerprint

    real = fingerprint.library
    for where in ("vestige.models.fingerprint.library", "vestige.sweep.tasks.library"):
        world.patch.setattr(where, lambda n: "99.0" if n == name else real(n))


def collector(world: World, kind: str) -> None:
    from vestige.models.fingerprint import COLLECTED

    world.patch.setitem(COLLECTED, kind, COLLECTED[kind] + 1)


def touch(world: World) -> None:
    for file in [*world.model.iterdir(), *world.data.iterdir()]:
        os.utime(file, (1, 1))


def renamed(world: World) -> None:
    world.model.rename(world.place / "renamed")
    world.which = "renamed"


def hooked(model: Any) -> None:
    def shift(module: Any, inputs: Any, output: Any) -> Any:
        return output.roll(1, dims=-1)

    model.lm_head.register_forward_hook(shift)


@dataclass(frozen=True)
class Case:
    """One change and what each command must do about it."""

    name: str
    change: Callable[[World], Any]
    eval: str = ""
    sweep: str = ""
    depth: str = ""
    collapse: str = ""
    other: bool = True  # the numbers differ from those before
    which: str = "model"


def _all(expected: str) -> dict[str, str]:
    return {"eval": expected, "sweep": expected, "depth": expected}


SWAP = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}}
LOUDER = {"type": "Replace", "pattern": {"String": "e"}, "content": "E"}
TRIM = {"decoder": {"type": "Sequence", "decoders": [SWAP["pre_tokenizer"], LOUDER]}}
SAMPLED = "++eval.tofu.metrics.forget_Q_A_ROUGE.generation_args"

CASES = [
    Case("one weight", lambda w: one_weight(w.model / "model.safetensors"), **_all(AGAIN), collapse=AGAIN),
    Case("a number of config.json", lambda w: edit_json(w.model / "config.json", rms_norm_eps=0.3), **_all(AGAIN),
         collapse=AGAIN),
    Case("repetition penalty in generation_config.json",
         lambda w: edit_json(w.model / "generation_config.json", repetition_penalty=5.0), **_all(AGAIN)),
    Case("end token in generation_config.json",
         lambda w: edit_json(w.model / "generation_config.json", eos_token_id=[2, *range(7, 600, 2)]), **_all(AGAIN)),
    Case("chat template", lambda w: template(w, "<|user|>", "<|user|>Now: "), AGAIN, AGAIN),
    Case("pre-tokeniser, same vocabulary", lambda w: tokenizer_json(w, **SWAP), AGAIN, AGAIN, "refused"),
    Case("decoder of the tokenizer", lambda w: tokenizer_json(w, **TRIM), SCORED, AGAIN),
    Case("end token of the tokenizer", lambda w: edit_json(w.model / "tokenizer_config.json", eos_token="<|end|>"),
         AGAIN, AGAIN),
    Case("--dtype bfloat16", lambda w: w.flags.extend(["--dtype", "bfloat16"]), AGAIN, AGAIN, AGAIN),
    Case("eager attention", lambda w: w.flags.append("model.model_args.attn_implementation=eager"), AGAIN, AGAIN,
         other=False),
    Case("another torch", lambda w: version(w, "torch"), **_all(AGAIN), collapse=AGAIN, other=False),
    Case("another transformers", lambda w: version(w, "transformers"), **_all(AGAIN), collapse=AGAIN, other=False),
    Case("another tokenizers", lambda w: version(w, "tokenizers"), KEPT, AGAIN, KEPT, KEPT, other=False),
    Case("our way to fill the cross matrix", lambda w: collector(w, "cross"), KEPT, KEPT, KEPT, AGAIN,
         other=False),
    Case("our way to score answers", lambda w: collector(w, "answers"), AGAIN, AGAIN, KEPT, other=False),
    Case("our way to write texts", lambda w: collector(w, "texts"), AGAIN, AGAIN, KEPT, other=False),
    Case("our way to patch", lambda w: collector(w, "patched"), KEPT, AGAIN, AGAIN, other=False),
    Case("weights of an adapter", lambda w: one_weight(w.model / "adapter_model.safetensors"), AGAIN, AGAIN, AGAIN,
         which="adapter"),
    Case("scale of an adapter", lambda w: edit_json(w.model / "adapter_config.json", lora_alpha=64), AGAIN, AGAIN,
         which="adapter"),
    Case("base of an adapter", lambda w: one_weight(w.place / "model" / "model.safetensors"), AGAIN, AGAIN,
         which="adapter"),
    Case("another peft, with an adapter", lambda w: version(w, "peft"), AGAIN, AGAIN, which="adapter", other=False),
    Case("another peft, without", lambda w: version(w, "peft"), **_all(KEPT), other=False),
    Case("text of a row", lambda w: rows(w, lambda r: [{**r[0], "answer": "Nobody knows."}, *r[1:]]), AGAIN, AGAIN),
    Case("order of rows", lambda w: rows(w, lambda r: [r[1], r[0], *r[2:]]), SCORED, AGAIN, SCORED),
    Case("a further row", lambda w: rows(w, lambda r: [r[3], *r[:3]]), AGAIN, AGAIN, AGAIN),
    Case("--system-prompt", lambda w: w.flags.extend(["--system-prompt", "Be brief."]), AGAIN, AGAIN),
    Case("date_string", lambda w: (template(w, "{{ bos_token }}", "{{ bos_token }}{{ date_string }}"),
         w.flags.append("+model.template_args.date_string=1 Jan 2030")), AGAIN, AGAIN),
    Case("tags in place of the template", lambda w: w.flags.extend(
         ["model.template_args.apply_chat_template=false", "+model.template_args.user_start_tag=Q"]), AGAIN, AGAIN),
    Case("max_new_tokens", lambda w: w.flags.append(f"{SAMPLED}.max_new_tokens=3"), AGAIN, AGAIN),
    Case("sampling, and its seed", lambda w: w.flags.extend([f"{SAMPLED}.do_sample=true", f"{SAMPLED}.seed=5",
         f"{SAMPLED}.temperature=1.0"]), AGAIN, AGAIN),
    Case("a metric's definition (--dialect strict)", lambda w: w.flags.extend(["--dialect", "strict"]), KEPT, AGAIN,
         other=False),
    Case("times of all files", touch, **_all(KEPT), collapse=KEPT, other=False),
    Case("folder of the model renamed", renamed, KEPT, AGAIN, KEPT, KEPT, other=False),
    Case("_name_or_path, transformers_version, description in config.json", lambda w: edit_json(
         w.model / "config.json", _name_or_path="x", transformers_version="0", description="Mine."), **_all(KEPT),
         other=False),
    Case("name_or_path in tokenizer_config.json", lambda w: edit_json(w.model / "tokenizer_config.json",
         name_or_path="x"), **_all(KEPT), other=False),
    Case("a file that nothing reads, beside the model", lambda w: (w.model / "README.md").write_text("x"),
         **_all(KEPT), other=False),
    Case("--batch-tokens", lambda w: w.flags.extend(["--batch-tokens", "600"]), KEPT, AGAIN, other=False),
    Case("fewer rows (--limit)", lambda w: w.flags.extend(["--limit", "2"]), SCORED, AGAIN, SCORED),
    Case("another list of metrics", lambda w: w.flags.extend(["--metrics", "forget_Q_A_Prob"]), SCORED, AGAIN),
    Case("output directory moved", lambda w: ((w.place / "run").rename(w.place / "moved"),
         setattr(w, "run", "moved")), KEPT, other=False),
    Case("what `auto` means, said (--dtype float32, sdpa)", lambda w: w.flags.extend(
         ["--dtype", "float32", "model.model_args.attn_implementation=sdpa"]), KEPT, AGAIN, other=False),
]  # fmt: skip


@contextmanager
def forwards() -> Iterator[list[int]]:
    """Counts what goes through a model: every linear layer of it, however it is called."""
    count = [0]

    def see(module: Any, inputs: Any) -> None:
        count[0] += isinstance(module, torch.nn.Linear)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(see)
    try:
        yield count
    finally:
        handle.remove()


def close(a: Any, b: Any) -> bool:
    """The same numbers and texts, to rounding."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        # A quotient of two small numbers: its rounding says nothing, and both numbers are compared themselves.
        return set(a) == set(b) and all(close(a[k], b[k]) for k in a if k != "ratio_s2_over_s1")
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-5 * max(1.0, abs(a))
    return bool(a == b)
