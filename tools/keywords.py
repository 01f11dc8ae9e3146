"""Writes the lists of keywords in the docstrings of the public functions, from the table of flags.

    python tools/keywords.py            (run it after a change of the table)

A keyword means what the flag of that name means: the words are those of src/vestige/flags.py, or of the verb that
alone has the flag. Keywords that have no flag are described in OWN.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from pathlib import Path

import vestige
from vestige.cli import parser
from vestige.flags import FLAGS

API = Path(__file__).resolve().parent.parent / "src" / "vestige" / "api"
VERBS = {
    "evaluate": "eval",
    "score": "score",
    "compare_runs": "compare",
    "make_report": "report",
    "measure_depth": "depth",
    "measure_collapse": "collapse",
    "attack": "stress",
}
# Keywords that have the meaning of a flag with another name.
FLAG_OF = {
    ("measure_depth", "retain"): "retain_model",
    ("make_report", "retain"): "retain_model",
    ("measure_collapse", "columns"): "cross_columns",
    ("measure_collapse", "format"): "rollout_format",
    ("measure_collapse", "steps"): "step",
    ("measure_collapse", "reasoning"): "",
    ("measure_collapse", "rollouts"): "",
    ("measure_depth", "data"): "forget",
}
# What Python has besides: keywords without a flag, and what is added to the meaning of one.
OWN = {
    "suite": "which benchmark, such as tofu or muse",
    "progress": "progress bars on stderr",
    "overrides": "Hydra overrides, as words on the command line",
    "plugins": "Python file, or files, with metrics, attacks, data sets, ... of your own",
    "run": "a run directory, or a Result",
    "runs": "run directories, or Results",
    "changes": "metric -> setting -> value",
    "rollouts": "a rollout file, or several",
    "settings": "a CollapseSettings, in place of single settings",
    "reasoning": "a Reasoning: how reasoning is found in a response",
    "scheduled": "only the steps that compute_freq asks for",
    "model_args": "how a checkpoint is loaded: dtype, device, trust_remote_code, ...",
    "context_window_mode": "full: a prompt with all that came before it",
    "on_error": "raise, or skip what cannot be measured and say so",
    "attacks": "words (relearn=5,20), or a mapping from attack to budgets; None: the attack's own",
}
ADDED = {
    "data": "or the rows themselves",
    "out": "without it nothing is left on disk",
    "tokenizer": "of a model in memory: the tokenizer itself",
    "metrics": "a list, or text with commas",
    "model": "or the model in memory; or (base, adapter)",
    "retain_logs": "or its Result",
}


def lines_of(name: str) -> list[str]:
    """A line for each parameter of a public function."""
    function, verb = getattr(vestige, name), VERBS[name]
    actions = {action.dest: action for action in parser(verb).verbs[verb].arguments}
    out = []
    for keyword in inspect.signature(function).parameters:
        flag = FLAG_OF.get((name, keyword), keyword)
        if row := FLAGS.get(flag.replace("_", "-")):
            words = row.meaning
            words += f": {' | '.join(row.words)}" if row.words else ""
        elif keyword in OWN:
            words = OWN[keyword]
        else:
            words = str(actions[flag].help).replace("%%", "%")
            choices = str(actions[flag].metavar or "")
            words += f": {choices.replace('|', ' | ')}" if "|" in choices and "|" not in words else ""
        in_memory = name in ("evaluate", "measure_collapse") or keyword not in ("model", "tokenizer")
        in_memory = in_memory and (name, keyword) != ("make_report", "out")
        if keyword in ADDED and in_memory:
            words += f" ({ADDED[keyword]})"
        first = f"        {keyword}: "
        out += textwrap.wrap(words, 120, initial_indent=first, subsequent_indent=" " * 12, break_on_hyphens=False)
    return out


def rewritten(path: Path) -> str:
    """A file of the room with the lists in its docstrings as they should be."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for node in reversed(ast.parse("\n".join(lines)).body):
        if not isinstance(node, ast.FunctionDef) or node.name not in VERBS:
            continue
        doc = node.body[0]
        start, end = doc.lineno - 1, int(doc.end_lineno or 0) - 1
        at = next(i for i in range(start, end) if lines[i] == "    Keywords:")
        lines[at + 1 : end] = ["", *lines_of(node.name)]
    return "\n".join(lines)


if __name__ == "__main__":
    for file in sorted(API.glob("*.py")):
        text = rewritten(file)
        if text != file.read_text(encoding="utf-8"):
            file.write_text(text, encoding="utf-8")
            print(f"{file.name}: written", file=sys.stderr)
