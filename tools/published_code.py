"""Checkpoints that `vestige unlearn` saved, opened with the code that their families published.

    tools/published_code.py --python PYTHON --code DIR [--out docs/published_code.json]

PYTHON is an interpreter with transformers 4.57 and peft (the published code does not run on newer ones). DIR is the
folder `dllm/pipelines` of a checkout of dllm, which has the modelling code of LLaDA, Dream and the adapted models. Each
golden family is unlearned for a few steps (whole, and LLaDA with an adapter too), the saved folder is opened on both
sides, and the logits of the same sequences are compared. Nothing of that code is kept here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
# Family -> where its code lies below DIR, and the class that reads it.
CODE = {
    "llada": ("llada", "models", "LLaDAModelLM"),
    "llada-gqa": ("llada", "models", "LLaDAModelLM"),
    "dream": ("dream", "models", "DreamModel"),
    "a2d-llama": ("a2d/models/llama", "modeling_llama", "A2DLlamaLMHeadModel"),
    "a2d-qwen2": ("a2d/models/qwen2", "modeling_qwen2", "A2DQwen2LMHeadModel"),
    "a2d-qwen3": ("a2d/models/qwen3", "modeling_qwen3", "A2DQwen3LMHeadModel"),
}
CASES = [*((family, False) for family in CODE), ("llada", True), ("dream", True)]


def base_of(family: str, scratch: Path) -> Path:
    """The golden folder with the generation_config.json that published ones have and Dream's code asks for."""
    base = scratch / "base" / family
    if not base.is_dir():
        shutil.copytree(GOLDEN / "families" / family, base)
        (base / "generation_config.json").write_text('{"_from_model_config": true}\n')
    return base


def unlearn(base: Path, adapter: bool, out: Path) -> None:
    """Through the command line, as a user would."""
    data = GOLDEN / "lab" / "data"
    command = [sys.executable, "-m", "vestige", "unlearn", "--method", "MDU", "--model", base]
    command += ["--forget", data / "forget.jsonl", "--retain", data / "retain.jsonl", "--limit", "8", "--lr", "1e-2"]
    command += ["--epochs", "3", "--accumulation", "1", "--out", out, *(["--lora", "4"] if adapter else [])]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, cwd=ROOT)


def sequences() -> list[list[int]]:
    found: list[list[int]] = json.loads((GOLDEN / "families" / "families.json").read_text())["sequences"]
    return found


def our_logits(folder: Path, ids: list[int]) -> Any:
    """Every position's own row: without the shift that Dream needs to speak of the same position."""
    import torch

    from vestige.models.load import ModelArgs, load_model

    predictor = load_model(ModelArgs(path=str(folder))).diffusion
    assert predictor is not None
    row = torch.tensor([ids])
    with torch.no_grad():
        return predictor.logits(row, torch.ones_like(row, dtype=torch.bool), torch.arange(len(ids)), shift=False)


def their_logits(folder: Path, family: str, code: Path, base: Path | None) -> list[Any]:
    import importlib

    import torch

    place, module, name = CODE[family]
    sys.path.insert(0, str(code / place))
    reader = getattr(importlib.import_module(module), name)
    if name == "LLaDAModelLM":
        _build_on_cpu(importlib.import_module(reader.__module__).ModelConfig)
    model = reader.from_pretrained(base or folder, dtype=torch.float32).eval()
    if base is not None:  # the folder is an adapter
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder).eval()
    with torch.no_grad():
        return [model(input_ids=torch.tensor([ids])).logits[0] for ids in sequences()]


def _build_on_cpu(config: Any) -> None:
    """dllm's copy of LLaDA's code builds the model on "cuda" whatever the machine has; the original says "cpu"."""
    keep = config.__setattr__

    def set_on_cpu(self: Any, name: str, value: Any) -> None:
        keep(self, name, "cpu" if name == "init_device" else value)

    config.__setattr__ = set_on_cpu


def compare(family: str, adapter: bool, args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file, save_file

    folder = scratch / f"{family}{'-adapter' if adapter else ''}"
    base = base_of(family, scratch)
    unlearn(base, adapter, folder)
    ours = [our_logits(folder, ids) for ids in sequences()]
    before = load_file(GOLDEN / "families" / "logits.safetensors")
    save_file({str(i): x.contiguous() for i, x in enumerate(ours)}, folder / "ours.tensors")
    told = [str(args.python), __file__, "--inside", family, "--folder", str(folder), "--code", str(args.code)]
    reply = subprocess.run(
        [*told, *(["--base", str(base)] if adapter else [])], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(reply.stdout.splitlines()[-1])
    moved = max(float((x - before[f"{family}.single{i}"]).abs().max()) for i, x in enumerate(ours))
    return {"family": family, "adapter": adapter, "moved_by_unlearning": moved, "torch": torch.__version__, **found}


def inside(args: argparse.Namespace) -> None:
    """The half that runs on the other interpreter."""
    import torch
    import transformers
    from safetensors.torch import load_file

    ours = load_file(args.folder / "ours.tensors")
    theirs = their_logits(args.folder, args.inside, args.code, args.base)
    largest = max(float((x - ours[str(i)]).abs().max()) for i, x in enumerate(theirs))
    same = all(bool(torch.equal(x, ours[str(i)])) for i, x in enumerate(theirs))
    print(json.dumps({"largest_difference": largest, "bit_identical": same, "transformers": transformers.__version__}))


def write_table(rows: list[dict[str, Any]]) -> None:
    lines = ["| family | saved | moved by unlearning | largest difference of a logit |", "|---|---|---|---|"]
    for row in rows:
        apart = "0 (bit-identical)" if row["bit_identical"] else f"{row['largest_difference']:.1e}"
        saved = "adapter" if row["adapter"] else "whole model"
        lines.append(f"| {row['family']} | {saved} | {row['moved_by_unlearning']:.1f} | {apart} |")
    page = ROOT / "docs" / "unlearn.md"
    start, end = "<!-- published code -->\n", "<!-- /published code -->"
    before, rest = page.read_text(encoding="utf-8").split(start)
    page.write_text(before + start + "\n".join(lines) + "\n" + end + rest.split(end)[1], encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--code", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "published_code.json")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(args)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        rows = [compare(family, adapter, args, Path(scratch)) for family, adapter in CASES]
    for row in rows:
        print(row)
    args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    write_table(rows)
    return 0 if all(row["largest_difference"] <= 1e-5 < row["moved_by_unlearning"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
