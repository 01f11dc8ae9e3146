"""Loading a large published checkpoint: the most memory held at once, and the bytes read, against the weights' size.

    python bench/loading.py                  a random sharded bfloat16 LLaDA checkpoint of about 1 GB, made on the spot
    python bench/loading.py --megabytes 64   does it work?

Each way of loading runs in a process of its own. `peak` is the largest resident memory above what the libraries take,
divided by the weights as the model holds them; `read` is what came from the disk (the page cache is emptied of the
files first), divided by the size of the files. Ends with status 1 if a peak is above its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import markdown, measured_memory

LIMIT = 1.15  # of the weights as they are held
GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "families" / "llada"
WAYS: dict[str, dict[str, Any]] = {
    "bfloat16, as stored": {"dtype": "bfloat16"},
    "float32, twice the files": {"dtype": "float32"},
}


def make_checkpoint(directory: Path, megabytes: int, shards: int = 6) -> int:
    """A LLaDA of about so many megabytes with random weights; returns its bytes. Written a shard at a time."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((GOLDEN / "config.json").read_text())
    width, wide, layers = 1024, 3072, max(2, round(megabytes * 2**20 / 2 / (4 * 1024**2 + 3 * 1024 * 3072)))
    config |= {
        "d_model": width, "n_heads": 16, "n_kv_heads": 16, "mlp_hidden_size": wide, "n_layers": layers,
        "dtype": "bfloat16",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    for file in GOLDEN.glob("*token*"):
        (directory / file.name).write_bytes(file.read_bytes())
    shapes = {f"model.transformer.{n}.weight": (config["embedding_size"], width) for n in ("wte", "ff_out")}
    shapes["model.transformer.ln_f.weight"] = (width,)
    for n in range(layers):
        block = {
            "attn_norm": (width,), "ff_norm": (width,), "ff_proj": (wide, width), "up_proj": (wide, width),
            "ff_out": (width, wide),
        }  # fmt: skip
        block |= dict.fromkeys(("q_proj", "k_proj", "v_proj", "attn_out"), (width, width))
        shapes |= {f"model.transformer.blocks.{n}.{k}.weight": shape for k, shape in block.items()}
    where, total = {}, 0
    for shard in range(shards):
        names = sorted(shapes)[shard::shards]
        tensors = {name: (torch.randn(shapes[name]) * 0.02).bfloat16() for name in names}
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        save_file(tensors, directory / file, metadata={"format": "pt"})
        where |= dict.fromkeys(names, file)
        total += sum(t.numel() * 2 for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def load_once(path: str, settings: dict[str, Any]) -> dict[str, float]:
    """In a child: load, and say what it took."""
    import peft  # noqa: F401 (imported unasked while loading; not the weights' memory)
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    from vestige.models.load import ModelArgs, load_model

    torch.set_num_threads(1)
    load_model(ModelArgs(str(GOLDEN)))  # whatever is imported late
    start, disk = time.perf_counter(), bytes_read()
    with measured_memory() as memory:
        loaded = load_model(ModelArgs(path, **settings))
    took, read = time.perf_counter() - start, bytes_read() - disk
    sum(float(p.detach().reshape(-1)[::512].float().sum()) for p in loaded.model.parameters())  # every page is there
    held = sum(p.numel() * p.element_size() for p in loaded.model.parameters()) / 2**20
    return {"held": held, "peak": memory["megabytes"] / held, "read": read, "seconds": took}


def bytes_read() -> int:
    """What this process had fetched from the disk; the page cache does not count."""
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(found["read_bytes"])


def forget(directory: Path) -> None:
    """Empties the page cache of the files, so that reading them again is seen."""
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(load_once(args.child[0], json.loads(args.child[1]))))
        return 0
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        stored = make_checkpoint(directory, args.megabytes)
        for way, settings in WAYS.items():
            forget(directory)
            command = [sys.executable, __file__, "--child", name, json.dumps(settings)]
            environment = {**os.environ, "VESTIGE_CACHE": str(directory / "cache")}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            found[way] = json.loads(done.stdout.splitlines()[-1])
            found[way]["read"] /= stored
    rows = [
        [way, f"{r['held']:,.0f}", f"{r['peak']:.3f}", f"{r['read']:.2f}", f"{r['seconds']:.1f}"]
        for way, r in found.items()
    ]
    print(f"LLaDA layout, {stored / 2**20:,.0f} MB in 6 shards; limit {LIMIT} x the weights\n")
    print(markdown(("held as", "MB", "peak / weights", "read / files", "seconds"), rows))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    return int(any(r["peak"] > LIMIT for r in found.values()))


if __name__ == "__main__":
    sys.exit(main())
