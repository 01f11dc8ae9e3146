"""Two processes train on a CPU (gloo): the same weights with and without looks.

In a Trainer weights are replicated: on a CPU accelerate ignores `fsdp` (the model ends up in DDP). Sharded ones (FSDP
of both versions) are tested in a plain loop with torch.distributed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import vestige
from vestige.unlearn.live import gather_weights
from watch_tools import FULL, QUICK

TESTS = Path(__file__).parents[1]
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from watch_tools import QUICK, trainer_of
import vestige
from vestige.unlearn.live import is_sharded

place = Path(sys.argv[1])
said = {}
for kind in sys.argv[2:]:
    ends, seen = [], []
    for watched in (False, True):
        share, out = kind == "shared", place / f"looks-{kind}"
        callback = vestige.Callback("tofu", every=2, share=share, out=out, **QUICK) if watched else None
        trainer = trainer_of(place / f"run-{watched}", [callback] if callback else [], max_steps=2,
                             ddp_find_unused_parameters=False)
        trainer.train()
        sharded = is_sharded(trainer.model_wrapped)
        state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
        ends.append({k: v.clone() for k, v in state.items()})
        seen = [dict(look.values) for look in callback.looks] if callback else []
    same = ends[0].keys() == ends[1].keys() and all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])
    said[kind] = {"same": same, "tensors": len(ends[0]), "seen": seen, "sharded": sharded}
(place / f"said-{trainer.accelerator.process_index}.json").write_text(json.dumps(said))
torch.distributed.destroy_process_group()
"""


LOOP = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from watch_tools import QUICK, collate, fresh, rows, tokenizer
import vestige
from vestige.unlearn.live import is_sharded

dist.init_process_group("gloo")
rank, place = dist.get_rank(), Path(sys.argv[1])

def wrapped(kind):
    model = fresh().train()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)

said = {}
for kind in sys.argv[2:]:
    ends, seen = [], []
    for watched in (False, True):
        torch.manual_seed(rank)
        model = wrapped(kind)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        watch = vestige.Watch(model, tokenizer(), every=2, out=place / kind, **QUICK) if watched else None
        for step in range(4):
            model(**collate(rows()[2 * step + rank : 2 * step + rank + 1])).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            seen += [dict(look.values) for look in [watch and watch.step()] if look]
        inside = model.module if kind == "ddp" else model
        ends.append(get_model_state_dict(inside, options=StateDictOptions(full_state_dict=True)))
    same = all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])
    if rank == 0:
        whole = fresh()
        strange = whole.load_state_dict(ends[0], strict=False).unexpected_keys
        same = same and len(ends[0]) > 10 and not strange
        whole.save_pretrained(place / f"whole-{kind}")
    said[kind] = {"same": same, "seen": seen, "sharded": is_sharded(model)}
(place / f"said-{rank}.json").write_text(json.dumps(said))
dist.barrier()
dist.destroy_process_group()
"""
DEEPSPEED = """
import json, sys
from pathlib import Path
import deepspeed
import torch
from watch_tools import QUICK, trainer_of
import vestige
from vestige.unlearn.live import is_sharded

deepspeed.init_distributed(dist_backend="gloo")  # before the model: ZeRO-3 takes it apart while it is loaded
place = Path(sys.argv[1])
said = {}
for kind in sys.argv[2:]:
    zero = {"stage": int(kind), "stage3_gather_16bit_weights_on_model_save": kind == "3"}
    settings = {"zero_optimization": zero, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    settings |= dict.fromkeys(sizes, "auto")
    ends, seen = [], []
    for watched in (False, True):
        callback = vestige.Callback("tofu", every=2, out=place / f"looks-{kind}", **QUICK) if watched else None
        trainer = trainer_of(place / f"run-{watched}", [callback] if callback else [], deepspeed=settings)
        trainer.train()
        sharded = is_sharded(trainer.model_wrapped)
        state = trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}
        ends.append({k: v.clone() for k, v in state.items()})
        seen = [dict(look.values) for look in callback.looks] if callback else []
    same = ends[0].keys() == ends[1].keys() and all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])
    said[kind] = {"same": same, "tensors": len(ends[0]), "seen": seen, "sharded": sharded}
(place / f"said-{trainer.accelerator.process_index}.json").write_text(json.dumps(said))
"""
KINDS = ("ddp", "shared")
LOOPS = ("ddp", "fsdp", "fully_shard")


def processes(
    script: str, place: Path, kinds: tuple[str, ...], count: int = 2, python: str = sys.executable
) -> list[dict[str, dict[str, Any]]]:
    """What each process of torchrun found."""
    (place / "run.py").write_text(script)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    launch = [python, "-m", "torch.distributed.run", f"--nproc_per_node={count}", "--standalone"]
    words = [*launch, str(place / "run.py"), str(place), *kinds]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, "\n".join(x for x in done.stderr.splitlines() if x.startswith("[rank"))
    return [json.loads((place / f"said-{rank}.json").read_text()) for rank in range(count)]


def test_a_plain_loop_with_replicated_and_sharded_weights(tmp_path: Path) -> None:
    """DDP, FSDP and fully_shard of torch itself: looks change nothing, and give the whole model's numbers."""
    first, second = processes(LOOP, tmp_path, LOOPS)
    for kind in LOOPS:
        mine, other = first[kind], second[kind]
        assert mine["same"] and other["same"]
        assert mine["sharded"] is other["sharded"] is (kind != "ddp")
        assert mine["seen"] == other["seen"] and len(mine["seen"]) == 2 and mine["seen"][0] != mine["seen"][1]
        said = {k: v for k, v in QUICK.items() if k != "on_error"}
        whole = vestige.evaluate(tmp_path / f"whole-{kind}", tokenizer=FULL, **said)
        assert mine["seen"][-1] == pytest.approx(whole.summary, abs=1e-6)
        assert {p.name for p in (tmp_path / kind).glob("step-*")} == {"step-0", "step-2", "step-4"}


def test_two_processes_are_untouched_and_agree(tmp_path: Path) -> None:
    """ddp: the first process looks; shared: both collect."""
    first, second = processes(SCRIPT, tmp_path, KINDS)
    for kind in KINDS:
        mine, other = first[kind], second[kind]
        assert mine["same"] and other["same"] and mine["tensors"] > 10 and not mine["sharded"]
        assert mine["seen"] == other["seen"] and len(mine["seen"]) == 2 and mine["seen"][0] != mine["seen"][1]
        assert {p.name for p in (tmp_path / f"looks-{kind}").glob("step-*")} == {"step-0", "step-2"}
    # One process alone finds what two find together.
    assert [list(x) for x in first["ddp"]["seen"]] == [list(x) for x in first["shared"]["seen"]]
    assert first["ddp"]["seen"][-1] == pytest.approx(first["shared"]["seen"][-1], abs=1e-6)


@pytest.mark.skipif("VESTIGE_DEEPSPEED" not in os.environ, reason="needs DeepSpeed: run `make test-deepspeed`")
@pytest.mark.parametrize("count", [1, 2])
def test_deepspeed_is_untouched_and_looks_see_the_whole_model(count: int, tmp_path: Path) -> None:
    """The real package. Weights are whole in ZeRO-2 and in pieces in ZeRO-3: both give the same numbers."""
    found = processes(DEEPSPEED, tmp_path, ("2", "3"), count, os.environ["VESTIGE_DEEPSPEED"])
    for kind in ("2", "3"):
        assert all(one[kind]["same"] for one in found) and found[0][kind]["tensors"] > 10
        assert all(one[kind]["sharded"] is (kind == "3") for one in found)
        seen = [one[kind]["seen"] for one in found]
        assert seen[0] == seen[-1] and len(seen[0]) == 3 and seen[0][0] != seen[0][-1]
    for two, three in zip(found[0]["2"]["seen"], found[0]["3"]["seen"], strict=True):
        assert two == pytest.approx(three, abs=1e-6)


def test_processes_that_get_no_weights_of_deepspeed_take_part() -> None:
    """Seen with DeepSpeed 0.19.8: gathered ZeRO-3 weights are None on every process but the first."""

    class Accelerator:
        def get_state_dict(self, model: Any) -> None:
            return None

    model = torch.nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.ds_id = 0  # type: ignore[attr-defined]
    assert gather_weights(model, Accelerator()) == {}
