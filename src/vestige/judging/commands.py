"""The exact command for each test that was not made, from the paths of the runs at hand.

In: paths of checkpoints, and the audited model's evaluations. Out: test -> command line. Callers: report/audits.py,
audit/run.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from vestige.compare.rule import TESTS
from vestige.judging.evaluated import Evaluated

TEMPLATES = {
    "says": "vestige eval {suite} --model {model} --data {data}",
    "likely": "vestige eval {suite} --model {model} --data {data}",
    "membership": "vestige eval {suite} --model {model} --data {data} --metrics mia_min_k",
    "layers": "vestige depth --unlearned {model} --full {full} --retain-model {retain} --forget {forget}",
    "teach": "vestige stress relearn{of} --model {model} --retain-model {retain} --data {data}",
    "disturb": "vestige stress quantise prune{of} --model {model} --retain-model {retain} --data {data}",
}


def commands(
    model: str,
    full: str,
    retain: str,
    evals: Sequence[Evaluated] = (),
    forget: str = "",
) -> dict[str, str]:
    """What is not known is a word in capitals. `forget`: the file of the forget rows, if no evaluation names it."""
    forget = forget or next((path for e in evals if (path := forget_file(e))), "")
    names = {
        "model": model or "MODEL",
        "full": full or "FULL",
        "retain": retain or "RETAIN",
        "forget": forget or "DATA/forget.jsonl",
        "data": str(PurePath(forget).parent) if forget else "DATA",
        "suite": next((str(s) for e in evals if (s := (e.manifest.get("config") or {}).get("suite"))), "tofu"),
    }
    quoted = {key: shlex.quote(value) for key, value in names.items()}
    quoted["of"] = "" if names["suite"] == "tofu" else f" --suite {quoted['suite']}"
    return {test: TEMPLATES[test].format(**quoted) for test in TESTS}


def forget_file(evaluated: Evaluated) -> str:
    """The file of the forget rows, as the run names it; of a hub's data there is none."""
    sources = [str(d.get("source") or "") for d in (evaluated.manifest.get("data") or {}).values()]
    return next((s for s in sources if PurePath(s).stem == "forget" and PurePath(s).suffix), "")
