"""Reads a log of `vestige publish --to inspect` with inspect_ai's own reader, and writes it again with its writer.

inspect_ai pins packages that do not fit beside ours, so it has an environment of its own (`make test-inspect`):

    ENVIRONMENT/bin/python tools/inspect_check.py LOG.json COPY.json

Prints what inspect found as JSON: status, task, samples, metrics, and what its viewer lists of the folder. COPY.json is
the log as inspect writes it; the tests read it back. Imports nothing of vestige.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(log_file: str, copy: str) -> int:
    from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample_summaries, write_eval_log

    log = read_eval_log(log_file)
    header = read_eval_log(log_file, header_only=True)
    assert log.results is not None and log.samples is not None and header.samples is None
    write_eval_log(log, copy, format="json")
    found = {
        "status": log.status,
        "task": header.eval.task,
        "model": header.eval.model,
        "samples": len(log.samples),
        "summaries": len(read_eval_log_sample_summaries(log_file)),  # the viewer's list of samples
        "metrics": {s.name: {k: m.value for k, m in s.metrics.items()} for s in log.results.scores},
        "listed": [Path(info.name).name for info in list_eval_logs(str(Path(log_file).parent))],
        "first": {
            "input": str(log.samples[0].input),
            "target": str(log.samples[0].target),
            "completion": log.samples[0].output.completion,
        }
        if log.samples
        else None,
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
