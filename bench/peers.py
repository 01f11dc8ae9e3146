"""vestige beside other projects' own programs: the same rows, their entry points, their environment.

    python bench/peers.py --peer CHECKOUT --peer-python VENV/bin/python --model DIR --data DIR     open-unlearning
    python bench/peers.py --peer CHECKOUT --peer-python ... --full DIR --retain DIR --model DIR --rows FILE    UDS
    python bench/peers.py --peer CHECKOUT --peer-python ...                                        RAGEN

Which of them a checkout is, its files tell. Each side is a process of its own on one thread, in turn, `--runs` times;
what counts is processor seconds of the whole program, imports and loading included (RAGEN: of its function, since the
rest of it is a trainer). `--write` puts the row into docs/bench.md.

What open-unlearning needs to run without a GPU and without the network, and nothing more than that: copies of its data
configs that read local files, checkpoints whose configuration an older transformers can read, and empty modules in the
place of deepspeed and lm_eval, which it imports and does not use here. Nothing of it is kept: all of this is written
into a temporary directory. Tried with transformers 4.51.3 and torch 2.13.0.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from measure import crowded, machine
from table import PAGE, markdown
from tofu import FILES, real_rows, worst, write_rows

HERE = Path(__file__).parent
OPEN, CLOSE = "<!-- peers table -->", "<!-- /peers table -->"
HEAD = ("their program", "what was run", "theirs, CPU s", "ours, CPU s", "times faster", "the same numbers?")
# open-unlearning's names for TOFU's files -> ours
SPLITS = {
    "forget10_perturbed": "forget", "forget10": "forget", "holdout10": "holdout", "retain_perturbed": "retain",
    "real_authors_perturbed": "real_authors", "world_facts_perturbed": "world_facts",
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One of the two programs: what to start, where, and how to read what it found."""

    order: list[str]
    place: Path
    out: Path  # removed before each run: what was kept of an earlier one would be read again
    found: Callable[[], Any]
    path: tuple[Path, ...] = ()  # before what the environment has
    # Seconds that the program measured itself; None: the whole process counts.
    seconds: Callable[[], float] | None = None


def started(side: Side) -> float:
    """Runs it on one thread; returns its processor seconds."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    env["PYTHONPATH"] = os.pathsep.join(map(str, side.path))
    shutil.rmtree(side.out, ignore_errors=True)
    before = _children()
    done = subprocess.run(side.order, cwd=side.place, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(side.order)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return side.seconds() if side.seconds else _children() - before


def _children() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def taken(ours: Side, theirs: Side, runs: int) -> tuple[list[float], list[float]]:
    """Seconds of each run, in turn: load on the machine meets both."""
    mine, other = [], []
    for turn in range(runs):
        mine.append(started(ours))
        other.append(started(theirs))
        print(f"run {turn + 1} of {runs}: theirs {other[-1]:.1f} s, ours {mine[-1]:.1f} s", file=sys.stderr, flush=True)
    return mine, other


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def row(name: str, what: str, mine: Sequence[float], other: Sequence[float], same: str) -> list[str]:
    ratios = [b / a for a, b in zip(mine, other, strict=True)]
    return [name, what, spread(other), spread(mine), spread(ratios), same]


def compared(theirs: Any, ours: Any) -> str:
    """What both sides found, number by number and text by text."""
    gaps = list(worst(theirs, ours))
    texts = [g for p, g in gaps if p.endswith("text")]
    numbers = [g for p, g in gaps if not p.endswith("text")]
    if not numbers:
        return "nothing to compare"
    said = f"{len(numbers):,} numbers within {max(numbers):.0e}"
    return f"{len(texts) - sum(texts):.0f} of {len(texts)} texts equal, {said}" if texts else said


def lowered(found: dict[str, Any]) -> dict[str, Any]:
    """Metrics by their names in lower case: the two projects write some of them differently."""
    return {name.lower(): value for name, value in found.items()}


def revision(checkout: Path) -> str:
    done = subprocess.run(["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "no revision"


def our_python() -> list[str]:
    return [sys.executable, "-m", "vestige"]


# ------------------------------------------------------------------------------------------------------ open-unlearning


def older_checkpoint(model: Path, place: Path) -> Path:
    """A copy whose configuration transformers 4 can read; weights and vocabulary are links to the original."""
    place.mkdir(parents=True)
    for file in model.iterdir():
        if file.suffix in (".safetensors", ".json", ".jinja", ".txt", ".model"):
            (place / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    rope = config.pop("rope_parameters", None) or {}
    config |= {k: v for k, v in rope.items() if k == "rope_theta"}
    config["torch_dtype"] = config.pop("dtype", "float32")
    tokenizer = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer = {k: v for k, v in tokenizer.items() if k not in ("backend", "is_local", "local_files_only")}
    tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    template = model / "chat_template.jinja"
    if template.is_file():
        tokenizer["chat_template"] = template.read_text(encoding="utf-8")
    for name, value in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        (place / name).unlink()
        (place / name).write_text(json.dumps(value, indent=1), encoding="utf-8")
    return place


def local_configs(checkout: Path, place: Path, rows: Path) -> Path:
    """A copy of its configs in which TOFU's rows are local files. One of ours stands for several of theirs."""
    shutil.copytree(checkout / "configs", place)
    for theirs, ours in SPLITS.items():
        lines = (rows / f"{ours}.jsonl").read_text(encoding="utf-8")
        (place / f"{theirs}.jsonl").write_text(lines, encoding="utf-8")
    for file in [*(place / "data" / "datasets").glob("TOFU*.yaml"), *(place / "eval" / "tofu_metrics").glob("*.yaml")]:
        text = file.read_text(encoding="utf-8")
        text = re.sub(r"""path: ["']?locuslab/TOFU["']?""", "path: json", text)
        text = re.sub(
            r"""(hf_args:(?:\n\s+\w+:.*)*?\n\s+)name: ["']?([^"'\n]+)["']?""", rf"\1data_files: {place}/\2.jsonl", text
        )
        file.write_text(text, encoding="utf-8")
    return place


def stand_ins(place: Path) -> Path:
    """Modules that it imports and that nothing here calls."""
    files = {
        "deepspeed/__init__.py": "DeepSpeedEngine = type('DeepSpeedEngine', (), {})\n",
        "lm_eval/__init__.py": "simple_evaluate = None\n",
        "lm_eval/tasks.py": "TaskManager = None\n",
        "lm_eval/models/__init__.py": "",
        "lm_eval/models/hf_vlms.py": "HFLM = None\n",
    }
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    return place


def open_unlearning(args: argparse.Namespace, scratch: Path) -> list[str]:
    rows = args.data
    if args.tofu:
        rows = write_rows(scratch / "rows", real_rows(args.tofu, args.limit))
    elif args.limit:
        head = {f: (rows / f"{f}.jsonl").read_text(encoding="utf-8").splitlines()[: args.limit] for f in FILES}
        rows = write_rows(scratch / "rows", {f: [json.loads(line) for line in lines] for f, lines in head.items()})
    model = older_checkpoint(args.model, scratch / "older")
    configs = local_configs(args.peer, scratch / "configs", rows)
    out = scratch / "theirs"
    order = [
        args.peer_python, "src/eval.py", "--config-path", str(configs), "experiment=eval/tofu/default.yaml",
        "model=Llama-3.2-1B-Instruct", f"model.model_args.pretrained_model_name_or_path={model}",
        f"model.tokenizer_args.pretrained_model_name_or_path={model}", "model.model_args.attn_implementation=sdpa",
        "model.model_args.torch_dtype=float32", "model.model_args.device_map=cpu", "~model.template_args.date_string",
        "model.template_args.system_prompt=null", "task_name=bench", f"paths.output_dir={out}",
        "eval.tofu.overwrite=true",
    ]  # fmt: skip
    theirs = Side(
        order, args.peer, out, lambda: json.loads((out / "TOFU_EVAL.json").read_text()), (stand_ins(scratch / "empty"),)
    )
    mine = scratch / "ours"
    command = [*our_python(), "eval", "tofu", "--model", str(args.model), "--data", str(rows), "--out", str(mine)]
    ours = Side(
        [*command, "--quiet"],
        scratch,
        mine,
        lambda: json.loads((mine / "TOFU_EVAL.json").read_text()),
        our_source(),
    )
    took = taken(ours, theirs, args.runs)
    counts = sum(len((rows / f"{f}.jsonl").read_text().splitlines()) for f in FILES)
    what = f"TOFU's default metrics, {counts} rows, {args.model.name}, {_padding(args.model)}"
    same = compared(lowered(theirs.found()), lowered(ours.found()))
    return row(f"open-unlearning {revision(args.peer)}", what, *took, same)


def _padding(model: Path) -> str:
    said = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    return "pad = eos" if said.get("pad_token") in (None, said.get("eos_token")) else "a padding token of its own"


def our_source() -> tuple[Path, ...]:
    return (HERE.parent / "src",)


# ------------------------------------------------------------------------------------------------------------------ UDS


def depth(args: argparse.Namespace, scratch: Path) -> list[list[str]]:
    """Its program and ours on some rows and on twice as many: the difference is what rows cost without starting."""
    models = {n: older_checkpoint(getattr(args, n), scratch / n) for n in ("model", "full", "retain")}
    examples = json.loads(args.rows.read_text(encoding="utf-8"))
    name, out, mine = f"UDS {revision(args.peer)}", scratch / "theirs", scratch / "ours"
    found, took = [], []
    for count in (args.limit, 2 * args.limit):
        rows = scratch / f"rows{count}.json"
        rows.write_text(json.dumps(examples[:count]), encoding="utf-8")
        order = [
            args.peer_python, "compute_uds.py", "--unlearn_model", str(models["model"]), "--full_model",
            str(models["full"]), "--retain_model", str(models["retain"]), "--dtype", "float32", "--device_map", "cpu",
            "--attn_implementation", "sdpa", "--data_path", str(rows), "--no_s1_cache", "--out_dir", str(out),
        ]  # fmt: skip
        theirs = Side(order, args.peer, out, lambda: json.loads((out / "summary.json").read_text())["avg_uds"])
        command = [
            *our_python(), "depth", "--unlearned", str(args.model), "--full", str(args.full), "--retain-model",
            str(args.retain), "--forget", str(rows), "--last-layer", "peer", "--out", str(mine), "--quiet",
        ]  # fmt: skip
        ours = Side(command, scratch, mine, lambda: _our_uds(mine), our_source())
        took.append(taken(ours, theirs, args.runs))
        same = compared(theirs.found(), ours.found())
        found.append(row(name, f"UDS of {count} rows, {args.model.name}", *took[-1], same))
    few, many = took
    further = [[b - a for a, b in zip(few[side], many[side], strict=True)] for side in range(2)]
    return [*found, row(name, f"{args.limit} further rows, {args.model.name}: the difference", *further, "as above")]


def _our_uds(place: Path) -> float | None:
    """The score; None where no row has a layer that knows, which the published code calls 0."""
    for file in sorted(place.rglob("summary.json")):
        summary = json.loads(file.read_text(encoding="utf-8"))
        if "avg_uds" in summary:
            return None if summary["avg_uds"] is None else float(summary["avg_uds"])
    raise SystemExit(f"{place} has no summary with a depth score")


# ---------------------------------------------------------------------------------------------------------------- RAGEN


def collapse(args: argparse.Namespace, scratch: Path, collapsed: bool) -> list[str]:
    """Its cross scoring and ours on one random model and bench/collapse.py's workloads."""
    import numpy as np

    from collapse import make_model, workload

    make_model().save_pretrained(scratch / "model")
    older = older_checkpoint_bare(scratch / "model", scratch / "older")
    prompts, reasonings = workload(collapsed, args.prompts)
    ask = scratch / "ask.json"
    ask.write_text(json.dumps({"prompts": prompts, "reasonings": reasonings}), encoding="utf-8")
    sides = {}
    for name, python, model, path in (
        ("theirs", args.peer_python, older, (args.peer,)),
        ("ours", sys.executable, scratch / "model", our_source()),
    ):
        out = scratch / f"{name}.json"
        order = [python, str(HERE / "peer_ragen.py"), name, str(model), str(ask), str(out)]
        read = lambda out=out: json.loads(out.read_text(encoding="utf-8"))  # noqa: E731
        sides[name] = Side(
            order,
            scratch,
            scratch / "nothing",
            lambda read=read: read()["sums"],
            path,
            lambda read=read: float(read()["seconds"]),
        )
    mine, other = taken(sides["ours"], sides["theirs"], args.runs)
    a, b = (np.asarray(sides[name].found()) for name in ("theirs", "ours"))
    gap = float(np.max(np.abs(a - b) / np.abs(a)))
    what = (
        f"cross matrix, {args.prompts} prompts x {len(reasonings)} reasonings, {'collapsed' if collapsed else 'main'}"
    )
    return row(f"RAGEN {revision(args.peer)}", what, mine, other, f"{a.size:,} sums within {gap:.0e}")


def older_checkpoint_bare(model: Path, place: Path) -> Path:
    """The same as `older_checkpoint` for a model without a tokenizer."""
    (model / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    return older_checkpoint(model, place)


# ----------------------------------------------------------------------------------------------------------------- page


def written(text: str, found: Sequence[Sequence[str]], today: str) -> str:
    """The page with these rows in its table; rows of other programs and cases stay, each with its machine and day."""
    before, rest = text.split(OPEN, 1)
    old, after = rest.split(CLOSE, 1)
    kept = [line for line in old.strip().splitlines() if line.startswith("| ")][1:]
    kept = [line for line in kept if not line.startswith("| ---")]
    new = [markdown((), [[*cells, today]]).splitlines()[-1] for cells in found]
    fresh = {tuple(line.split(" | ")[:2]) for line in new}
    lines = [line for line in kept if tuple(line.split(" | ")[:2]) not in fresh] + new
    table = "\n".join([*markdown((*HEAD, "where and when"), []).splitlines(), *lines])
    return f"{before}{OPEN}\n{table}\n{CLOSE}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="a checkout of open-unlearning, UDS or RAGEN")
    parser.add_argument("--peer-python", required=True, help="the Python of an environment it runs in")
    parser.add_argument("--model", type=Path, help="the checkpoint (UDS: the unlearned one)")
    parser.add_argument("--data", type=Path, help="rows as vestige reads them (forget.jsonl, ...)")
    parser.add_argument("--tofu", type=Path, help="or TOFU's own files")
    parser.add_argument("--full", type=Path)
    parser.add_argument("--retain", type=Path)
    parser.add_argument("--rows", type=Path, help="UDS: its annotated rows")
    parser.add_argument("--limit", type=int, default=5, help="rows of each split; 0: all")
    parser.add_argument("--prompts", type=int, default=8, help="RAGEN: prompts, with four reasonings each")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/bench.md")
    args = parser.parse_args()
    args.peer_python = str(Path(args.peer_python).absolute())  # not resolved: a link to it is another environment
    for name in ("peer", "model", "data", "tofu", "full", "retain", "rows"):
        setattr(args, name, getattr(args, name) and getattr(args, name).resolve())
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        if (args.peer / "src" / "eval.py").is_file():
            found = [open_unlearning(args, scratch)]
        elif (args.peer / "compute_uds.py").is_file():
            found = depth(args, scratch)
        elif (args.peer / "ragen" / "trainer" / "collapse_metrics.py").is_file():
            found = [collapse(args, scratch / str(c), c) for c in (False, True) if not (scratch / str(c)).mkdir()]
        else:
            parser.error(f"{args.peer} is not a checkout of open-unlearning, UDS or RAGEN")
    print(markdown(HEAD, found))
    today = f"{machine().split(',')[0]}, {datetime.datetime.now(tz=datetime.UTC).date().isoformat()}"
    if args.write:
        note = f"; {crowded()}" if crowded() else ""
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found, today + note), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
