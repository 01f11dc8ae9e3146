"""The Python interface: the names of `vestige.__all__`, one function per question, with plain keywords.

In: paths, names and numbers, as the command line takes them, and models, rows and results in memory. Out: objects that
print as the command line does. A keyword means what the flag of that name means (tests/test_keywords.py). Rooms that
run models are imported when a function is called.
"""

from vestige.api.evaluating import evaluate, plan
from vestige.api.finished import compare_runs, load_run, make_report, score
from vestige.api.questions import attack, measure_collapse, measure_depth
from vestige.api.result import Result

__all__ = [
    "Result",
    "attack",
    "compare_runs",
    "evaluate",
    "load_run",
    "make_report",
    "measure_collapse",
    "measure_depth",
    "plan",
    "score",
]
