"""Where a command's processor time goes when the model is tiny: imports, forwards, and the rest, which is ours.

    python bench/startup.py                  the main commands on the golden lab, each in a fresh process
    python bench/startup.py --only score     one of them (and those it needs)
    python bench/startup.py --model DIR --data DIR --repeat 1     some of them on a checkpoint and rows of your own
    python bench/startup.py --who            who imports the heavy libraries in an `eval`

Seconds are processor seconds on one thread, the least of --repeat. `imports` are outermost import statements, other
people's libraries nearly all of it; `forwards` are outermost calls of torch modules.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from measure import cpu_seconds, crowded, print_table

LAB = Path(__file__).parent.parent / "tests" / "golden" / "lab"
MODELS, DATA = LAB / "models", LAB / "data"
REAL = ("eval", "eval, again", "score", "collapse", "report")  # what one model is enough for


def commands(model: Path, full: Path, retain: Path, data: Path) -> dict[str, list[str]]:
    evaluate = ["eval", "tofu", "--data", str(data), "--quiet", "--model"]
    mine = [*evaluate, str(model), "--out", "run"] + (["--retain-logs", "retain"] if retain != model else [])
    return {
        "help": ["--help"],
        "ls": ["ls", "metrics"],
        "eval, retain": [*evaluate, str(retain), "--out", "retain"],
        "eval": mine,
        "eval, again": mine,  # all evidence is there
        "score": ["score", "run", "dialect=strict"],
        "compare": ["compare", "run", "retain"],
        "diff": ["diff", "run", "retain"],
        "depth": [
            "depth", "--unlearned", str(model), "--full", str(full), "--retain-model", str(retain),
            "--forget", f"{data}/forget.jsonl", "--out", "depth", "--quiet",
        ],
        "collapse": ["collapse", "rollouts.jsonl", "--model", str(model), "--out", "collapse", "--quiet"],
        "report": ["report", "run", "--out", "report"],
    }  # fmt: skip


COMMANDS = commands(*(MODELS / name for name in ("unlearned", "full", "retain")), DATA)
FRESH = {
    "eval": "run",
    "eval, retain": "retain",
    "depth": "depth",
    "collapse": "collapse",
}  # what a repeat must not find


class Watch:
    """Seconds inside outermost calls of some function."""

    def __init__(self) -> None:
        self.seconds, self.inside = 0.0, False

    def over(self, real: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return real(*args, **kwargs)
            self.inside, start = True, time.process_time()
            try:
                return real(*args, **kwargs)
            finally:
                self.inside = False
                self.seconds += time.process_time() - start

        return timed


def child(words: list[str], note: Path) -> None:
    """One command in this process; where its time went is written to `note`."""
    imports, forwards = Watch(), Watch()
    real = imports.over(builtins.__import__)

    def importing(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        if not imports.inside:
            watch_modules(forwards)
        return found

    builtins.__import__ = importing
    from vestige.cli import main as vestige

    try:
        status = vestige(words)
    except SystemExit as end:  # --help
        status = int(end.code or 0)
    spent = {"cpu": cpu_seconds(), "imports": imports.seconds, "forwards": forwards.seconds, "status": status}
    note.write_text(json.dumps(spent))


HEAVY = (
    "numpy", "torch", "transformers", "hydra", "scipy", "scipy.optimize", "accelerate", "transformers.modeling_utils",
    "torch.distributed.tensor", "torch._dynamo", "pandas", "sklearn", "datasets", "peft", "matplotlib",
)  # fmt: skip


class Who:
    """Told of every import before it happens; notes which line of ours led to a heavy one, and who asked for it."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, str]] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in HEAVY and name not in self.found:
            frames = [(f.filename, f.lineno) for f in traceback.extract_stack()[:-1]]
            files = [(short(file), line) for file, line in frames if "importlib" not in file and file != __file__]
            ours = next((f"`{file}:{line}`" for file, line in reversed(files) if file.startswith("vestige/")), "none")
            self.found[name] = ours, files[-1][0].split("/")[0]


def short(file: str) -> str:
    return file.rpartition("site-packages/")[2].rpartition("/src/")[2]


def who() -> str:
    """A table: each heavy library that an evaluation imports, the line of ours behind it, and whose import it is."""
    watch = Who()
    sys.meta_path.insert(0, watch)  # type: ignore[arg-type]
    from vestige.cli import main as vestige

    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        few = ["--limit", "1", "--metrics", "forget_Q_A_Prob"]
        vestige(["eval", "tofu", "--data", str(DATA), "--quiet", "--model", str(MODELS / "full"), "--out", place, *few])
    rows = [[f"`{n}`", *watch.found.get(n, ("", "not imported"))] for n in HEAVY]
    lines = [["library", "the line of ours behind it", "imported by"], ["---"] * 3, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def watch_modules(forwards: Watch) -> None:
    """As soon as torch has come, calls of its modules are watched."""
    module = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    if module is not None and not hasattr(module, "watched"):
        timed = forwards.over(module.__call__)
        module.watched, module.__call__ = True, lambda self, *args, **kwargs: timed(self, *args, **kwargs)


def measure(name: str, words: list[str], place: Path, repeat: int) -> dict[str, float]:
    rounds = []
    for _ in range(repeat):
        if name in FRESH:
            subprocess.run(["rm", "-rf", FRESH[name]], cwd=place, check=True)
        note = place / "note.json"
        order = [sys.executable, __file__, "--child", json.dumps([words, str(note)])]
        done = subprocess.run(order, cwd=place, capture_output=True, text=True)
        said = json.loads(note.read_text()) if done.returncode == 0 else {"status": 1}
        if said["status"]:
            raise RuntimeError(f"vestige {' '.join(words)} failed: {done.stderr[-600:]}")
        rounds.append(said)
    return min(rounds, key=lambda r: r["cpu"])


def write_rollouts(path: Path, data: Path) -> None:
    rows = [json.loads(line) for line in (data / "forget.jsonl").read_text().splitlines()[:8]]
    with path.open("w", encoding="utf-8") as file:
        for i, row in enumerate(rows):
            for text in (row["answer"], row["paraphrased_answer"]):
                turn = [{"role": "user", "content": row["question"]}]
                file.write(json.dumps({"messages": turn, "response": f"<think>{text}</think>x", "group_id": i}) + "\n")


def chosen(only: str | None) -> list[str]:
    names = list(COMMANDS)
    needed = ("eval, retain", "eval") if only in ("eval", "eval, again", "score", "compare", "diff", "report") else ()
    return [n for n in names if only in (None, n) or n in needed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=COMMANDS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--who", action="store_true", help="who imports the heavy libraries")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.who:
        print(who())
        return
    if args.child:
        words, note = json.loads(args.child)
        child(words, Path(note))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    data = (args.data or DATA).resolve()
    words = commands(*[args.model.resolve()] * 3, data) if args.model else COMMANDS
    names = [n for n in chosen(args.only) if n in REAL or not args.model]
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        write_rollouts(Path(place) / "rollouts.jsonl", data)
        for name in names:
            found[name] = measure(name, words[name], Path(place), args.repeat)
    rows = [
        [name, *(f"{r[k]:.2f}" for k in ("cpu", "imports", "forwards")), f"{rest(r):.2f}"] for name, r in found.items()
    ]
    print_table(["command", "CPU s", "imports", "forwards", "the rest"], rows)
    print(f"\n{crowded()}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


def rest(r: dict[str, float]) -> float:
    return r["cpu"] - r["imports"] - r["forwards"]


if __name__ == "__main__":
    main()
