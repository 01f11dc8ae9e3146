"""Two processes train on a CPU (gloo): the same weights with and without looks.

Sharded weights are not tested: on a CPU accelerate ignores `fsdp` and replicates (the model ends up in DDP).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from watch_tools import QUICK, trainer_of
import vestige
from vestige.watch.processes import is_sharded

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


KINDS = ("ddp", "shared")


def test_two_processes_are_untouched_and_agree(tmp_path: Path) -> None:
    """ddp: the first process looks; shared: both collect."""
    (tmp_path / "run.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    words = [*launch, str(tmp_path / "run.py"), str(tmp_path), *KINDS]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in (0, 1))
    for kind in KINDS:
        mine, other = first[kind], second[kind]
        assert mine["same"] and other["same"] and mine["tensors"] > 10 and not mine["sharded"]
        assert mine["seen"] == other["seen"] and len(mine["seen"]) == 2 and mine["seen"][0] != mine["seen"][1]
        assert {p.name for p in (tmp_path / f"looks-{kind}").glob("step-*")} == {"step-0", "step-2"}
    # One process alone finds what two find together.
    assert [list(x) for x in first["ddp"]["seen"]] == [list(x) for x in first["shared"]["seen"]]
    assert first["ddp"]["seen"][-1] == pytest.approx(first["shared"]["seen"][-1], abs=1e-6)
