"""The commands of docs/lab.md, run one after the other, with what each costs and the table that the page shows.

    python tools/real_model.py BASE_MODEL DIR OUT [--steps 1,2] [--write]

BASE_MODEL is SmolLM2-135M-Instruct (bench/smollm2.py fetches it), DIR the folder of a few authors that
tools/tofu_authors.py cuts out of TOFU. The commands are read from the page, so the two cannot drift apart. They run in
OUT, where each leaves its output and its times in steps/; a step that is done is not done again. --write puts
the tables and the picture into the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vestige.numeric import number
from vestige.show.tables import table

PAGE = Path(__file__).parent.parent / "docs" / "lab.md"
MARK = "<!-- not run: a real model; tools/real_model.py runs these -->"
MODELS = ("full", "retain", "npo")
SHOWN = (
    "forget_Q_A_Prob", "forget_Q_A_ROUGE", "extraction_strength", "forget_truth_ratio", "forget_quality", "privleak",
    "retain_Q_A_Prob", "retain_Q_A_ROUGE", "model_utility",
)  # fmt: skip


def commands(page: Path = PAGE, **places: str) -> list[list[str]]:
    """The words of each command under the mark, with BASE_MODEL and DIR filled in."""
    found = re.search(re.escape(MARK) + r"\n```bash\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    if not found:
        raise SystemExit(f"{page} has no block of commands under {MARK}")
    text = found[1].replace("\\\n", " ")
    for name, place in places.items():
        text = re.sub(rf"\b{name}\b", lambda _, place=place: place, text)
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


def label(words: Sequence[str]) -> str:
    """What a step is called: the verb and the place it writes, unless that has the verb's name.

    >>> label(["vestige", "eval", "tofu", "--out", "saves/eval/npo"])
    'eval npo'
    >>> label(["vestige", "depth", "--out", "saves/depth"])
    'depth'
    """
    return " ".join(dict.fromkeys([words[1], Path(words[words.index("--out") + 1]).name]))


def step(number_: int, words: Sequence[str], out: Path) -> dict[str, Any]:
    """Runs one command in OUT, unless it was; keeps its output and its times."""
    record = out / "steps" / f"{number_}.json"
    if record.is_file():
        done = json.loads(record.read_text())
        if done["command"] == list(words):
            return dict(done)
    record.parent.mkdir(parents=True, exist_ok=True)
    print(f"{number_}. {shlex.join(words)}", flush=True)
    started = time.perf_counter()
    with record.with_suffix(".log").open("w") as log:
        child = subprocess.Popen([sys.executable, "-m", "vestige", *words[1:]], cwd=out, stdout=log, stderr=log)
        _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"step {number_} failed; see {record.with_suffix('.log')}")
    wall, cpu = time.perf_counter() - started, used.ru_utime + used.ru_stime
    threads = os.environ.get("OMP_NUM_THREADS")
    made = {"command": list(words), "label": label(words), "wall": wall, "cpu": cpu, "threads": threads}
    record.write_text(json.dumps(made, indent=1))
    return made


def results(out: Path) -> str:
    """One column per model: its evaluation, its depth score, and what relearning brings back."""
    runs = {name: _read(out / "saves" / "eval" / name / "TOFU_EVAL.json") for name in MODELS}
    lines = [[metric, *(number(_value(runs[name], metric)) for name in MODELS)] for metric in SHOWN]
    depth = _read(out / "saves" / "depth" / "summary.json")
    lines.append(["uds", "", "", number(depth.get("avg_uds"))])
    for row in _read(out / "saves" / "stress" / "stress.json").get("relearning", []):
        lines.append(
            [f"gained in {row['budget']:g} steps of relearning", "", *map(number, (row["control"], row["gained"]))]
        )
        lines.append([f"R after {row['budget']:g} steps", "", "", number(row["one-sided"])])
    return table(lines, ["metric", *MODELS], right=(1, 2, 3))


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def _value(run: Mapping[str, Any], metric: str) -> float | None:
    found: float | None = run.get(metric, {}).get("agg_value")
    return found


def costs(steps: Sequence[Mapping[str, Any]]) -> str:
    lines = [[s["label"], f"{s['wall']:.0f}", f"{s['cpu']:.0f}"] for s in steps]
    lines.append(["all", f"{sum(s['wall'] for s in steps):.0f}", f"{sum(s['cpu'] for s in steps):.0f}"])
    return table(lines, ["step", "seconds", "CPU seconds"], right=(1, 2))


def write(page: Path, out: Path, tables: Mapping[str, str]) -> None:
    """Puts each table between its marks in the page, and the layer profile beside it."""
    text = page.read_text(encoding="utf-8")
    for name, body in tables.items():
        marks = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        block = f"```text\n{body}\n```\n"
        text, count = re.subn(marks, lambda m, block=block: m[1] + block + m[2], text, flags=re.S)
        if not count:
            raise SystemExit(f"{page} has no place for the table of {name} (<!-- {name} --> ... <!-- /{name} -->)")
    page.write_text(text, encoding="utf-8")
    shutil.copy(out / "saves" / "depth" / "layer_profile.svg", page.with_name("real_model_profile.svg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE_MODEL", type=Path)
    parser.add_argument("data", metavar="DIR", type=Path)
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("--steps", metavar="N,...", help="only these, counting from 1")
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    todo = commands(BASE_MODEL=str(args.base.resolve()), DIR=str(args.data.resolve()))
    chosen = {int(n) for n in args.steps.split(",")} if args.steps else set(range(1, len(todo) + 1))
    done = [step(n, words, args.out) for n, words in enumerate(todo, 1) if n in chosen]
    tables = {"results": results(args.out), "costs": costs(done)}
    print("\n" + "\n\n".join(tables.values()))
    if args.write:
        write(PAGE, args.out, tables)


if __name__ == "__main__":
    main()
