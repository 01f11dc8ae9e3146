"""Memory per row: a whole evaluation, with texts and intervals, at two sizes, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
FEW, MANY = 500, 1000  # forget rows, and as many holdout rows; what intervals take at once is all taken from 500 on
MOST = 20  # KB for each further pair of them

# One layer: the model's share of the time is not what is looked at. The first evaluation pays for what is paid once.
WORK = """
import logging, shutil, sys
from functools import partial
sys.path.insert(0, sys.argv[1])
import growth_jobs as jobs
import torch
from measure import peak_megabytes

torch.set_num_threads(1)
logging.disable(logging.WARNING)
jobs.llama = partial(jobs.llama, layers=1)
try:
    jobs.evaluation()()
    work = jobs.evaluation(rows=int(sys.argv[2]))
    before = peak_megabytes()
    found = work()
    assert found.outcome.stats and found.scores["forget_Q_A_ROUGE"].agg_value is not None
    print(peak_megabytes() - before)
finally:
    shutil.rmtree(jobs.SCRATCH)
"""


def peak_above_start(rows: int) -> float:
    """Megabytes of resident memory that an evaluation of so many rows takes at most."""
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(BENCH), str(rows)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what a process held at most is counted otherwise elsewhere")
def test_a_further_row_takes_little_memory() -> None:
    few, many = peak_above_start(FEW), peak_above_start(MANY)
    each = 1024 * (many - few) / (MANY - FEW)
    assert each <= MOST, (few, many)
