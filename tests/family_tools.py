"""The golden checkpoints of published families, broken copies of them, and LLaDA once more in plain torch.

`PublishedLlada` has the module tree of the published code (so that peft gives adapters its names) and computes the
same logits with another person's arithmetic: no class of transformers is in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

GOLDEN = Path(__file__).parent / "golden" / "families"
FACTS: dict[str, Any] = json.loads((GOLDEN / "families.json").read_text())
NAMES = tuple(FACTS["models"])


def copy_of(name: str, directory: Path, **changes: Any) -> Path:
    """A golden checkpoint, to be broken; `changes` of its config.json (None removes a key)."""
    path = shutil.copytree(GOLDEN / name, directory / name)
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))
    return path


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


class Block(nn.Module):
    def __init__(self, width: int, heads: int, shared: int, wide: int, theta: float, eps: float) -> None:
        super().__init__()
        self.heads, self.size, self.theta = heads, width // heads, theta
        few = shared * self.size
        self.attn_norm, self.ff_norm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
        self.q_proj, self.attn_out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = nn.Linear(width, few, bias=False), nn.Linear(width, few, bias=False)
        self.ff_proj, self.up_proj = nn.Linear(width, wide, bias=False), nn.Linear(width, wide, bias=False)
        self.ff_out = nn.Linear(wide, width, bias=False)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(*x.shape[:2], -1, self.size).transpose(1, 2)
        return x.repeat_interleave(self.heads // x.shape[1], dim=1)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        half = self.size // 2
        angles = torch.outer(torch.arange(x.shape[2]).float(), self.theta ** (-torch.arange(half) / half))
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attn_norm(x)
        q, k, v = self.turned(self.split(self.q_proj(h))), self.turned(self.split(self.k_proj(h))), self.v_proj(h)
        seen = torch.softmax(q @ k.transpose(-1, -2) / self.size**0.5, dim=-1) @ self.split(v)
        x = x + self.attn_out(seen.transpose(1, 2).reshape(x.shape))
        h = self.ff_norm(x)
        out: torch.Tensor = x + self.ff_out(nn.functional.silu(self.ff_proj(h)) * self.up_proj(h))
        return out


class PublishedLlada(nn.Module):
    """LLaDA by its published names: `model.transformer.blocks.N.q_proj` and so on."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        c = json.loads((path / "config.json").read_text())
        sizes = (c["d_model"], c["n_heads"], c["n_kv_heads"], c["mlp_hidden_size"], c["rope_theta"], c["rms_norm_eps"])
        self.model = nn.Module()
        self.model.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(c["embedding_size"], c["d_model"]),
                "blocks": nn.ModuleList([Block(*sizes) for _ in range(c["n_layers"])]),
                "ln_f": nn.RMSNorm(c["d_model"], c["rms_norm_eps"]),
                "ff_out": nn.Linear(c["d_model"], c["embedding_size"], bias=False),
            }
        )
        self.load_state_dict(load_file(path / "model.safetensors"))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        parts: Any = self.model.transformer
        x = parts["wte"](input_ids)
        for block in parts["blocks"]:
            x = block(x)
        logits: torch.Tensor = parts["ff_out"](parts["ln_f"](x))
        return logits
