"""Files that are not ours: below every --out of every verb, in failure, kill and full disk, none is touched.

FOREIGN is planted below the output directory of each command; what is there afterwards must be there byte for byte.
Runs that succeed, names that are taken and inputs where a command writes are in the contract suite (test_files.py).
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from collapse_tools import TINY, turn_rows, write
from conftest import LAB
from fault_tools import child, kill_at, refuse_from, watch
from golden_tools import eval_args
from vestige.cli import main, parser
from vestige.lab.corpus import make_corpus
from vestige.lab.models import LabSettings, ensure_built

MODELS, DATA = LAB / "models", LAB / "data"
METRIC = "forget_Q_A_Prob"

FOREIGN = (
    ".x.tmp", ".env.template", "deploy/prod/.env.original", "notes/.plan.thursday", "manifest.json.bak",
    "evidence/.part-0123", "evidence/parts/answers-mine.part-1", "evidence/notes.txt", "runs/tofu/mine/result.json",
    "best/mine.bin", "evals/epoch-1/notes.txt", "evals/model/before/mine.txt", "data/mine.jsonl", "models/mine/w.bin",
    "checkpoints/model/mine.txt", "attacked/full/relearn/mine.txt", "held_out/mine.jsonl", "logs/mine.log",
    "tasks/mine.json", "s1_cache/mine.bin", ".0123456789abcdef-1.tmp", ".attacked-abc/w.bin", ".building-x/y",
    ".report.zip.half", "scores/strict/mine.json",
)  # fmt: skip
READ_ONLY, LINKS = "keep/read-only.txt", ("link-to-file", "keep/link-to-folder", "hanging-link")


def plant(place: Path, names: tuple[str, ...] = FOREIGN) -> None:
    """Somebody else's files, with links and a file that may not be written."""
    for name in (*names, READ_ONLY):
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"precious: {name}\n")
    (place / READ_ONLY).chmod(0o444)
    precious = place.parent / "precious"
    precious.mkdir(exist_ok=True)
    (precious / "thesis.txt").write_text("years of work\n")
    for name, target in zip(LINKS, (precious / "thesis.txt", precious, precious / "nothing"), strict=True):
        (place / name).symlink_to(target)


def seen(place: Path) -> dict[str, Any]:
    """Every file below a place: its content, or where its link leads; and whether it may be written."""
    out: dict[str, Any] = {}
    for path in sorted(place.rglob("*")):
        if path.is_symlink():
            out[str(path.relative_to(place))] = ("link", str(path.readlink()))
        elif path.is_file():
            out[str(path.relative_to(place))] = (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
    return out


def lost(before: dict[str, Any], place: Path) -> list[str]:
    after = seen(place)
    return [name for name in before if after.get(name) != before[name]]


@dataclass
class Verb:
    """One command: its words when it writes to `out`, and what must be there first."""

    words: Callable[[Path], list[str]]
    into: str = ""  # a file in the directory, when --out is a file
    prepare: Callable[[Path], None] | None = None


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished things that commands read: two runs, a stress run, an archive, rollouts, lists of runs."""
    place = tmp_path_factory.mktemp("shelf")
    few = ["--limit", "2", "--quiet", "--metrics", METRIC]
    for name in ("retain", "full"):
        assert main(eval_args(MODELS / name, place / name, *few)) == 0
    assert main(["pack", str(place / "retain"), "-o", str(place / "proof.zip")]) == 0
    write(place / "rollouts.jsonl", turn_rows())
    body = {"retain": "retain", "full": "full", "models": [{"model": "full", "run": "full", "method": "none"}]}
    (place / "methods.yaml").write_text(yaml.safe_dump(body))
    return place


def plan_of(out: Path, **more: Any) -> Path:
    suites = {"tofu": {"data": str(DATA), "metrics": [METRIC], "limit": 2, "overrides": ["stats.resamples=0"]}}
    models = {name: str(MODELS / name) for name in ("full", "retain")}
    body = {"out": str(out), "retain": "retain", "models": models, "suites": suites, "slots": 0, "free_space": 0}
    file = out.parent / "plan.yaml"
    file.write_text(yaml.safe_dump({**body, **more}))
    return file


def verbs(shelf: Path) -> dict[str, Verb]:
    model, rows = ["--model", str(MODELS / "full")], str(DATA / "forget.jsonl")
    small = ["--epochs", "1", "--limit", "2", "--batch-size", "2", "--accumulation", "1", "--quiet"]
    few = ["--limit", "2", "--quiet", "--metrics", METRIC]
    attack = [*model, "--data", str(DATA), "--metrics", METRIC, "--limit", "2", "--epochs", "1"]
    watched = ["--eval-data", str(DATA), "--metrics", METRIC, "--keep-best", f"{METRIC}=-1"]
    forget = ["unlearn", *model, "--method", "GradAscent", "--forget", rows, *small]
    layers = [
        "--full",
        str(MODELS / "full"),
        "--retain-model",
        str(MODELS / "retain"),
        "--forget",
        rows,
        "--limit",
        "2",
    ]
    old = [str(shelf / "full"), str(shelf / "retain")]

    def swept(out: Path) -> None:
        assert main(["sweep", str(plan_of(out))]) == 0
        plan_of(out, models={"retain": str(MODELS / "retain")})

    def trained(out: Path) -> None:
        assert main([*forget, *watched, "--out", str(out)]) == 0

    def scored(out: Path) -> None:
        shutil.copytree(shelf / "full", out, dirs_exist_ok=True)

    def to(*words: str, flag: str = "--out") -> Callable[[Path], list[str]]:
        return lambda out: [*words, flag, str(out)]

    return {
        "eval": Verb(lambda out: eval_args(MODELS / "full", out, *few)),
        "eval --overwrite": Verb(lambda out: eval_args(MODELS / "full", out, *few, "--overwrite"), "", scored),
        "score": Verb(lambda out: ["score", str(out), "dialect=strict"], "", scored),
        "sweep": Verb(lambda out: ["sweep", str(plan_of(out))]),
        "sweep attacks": Verb(lambda out: ["sweep", str(plan_of(out, attacks=ATTACK))]),
        "sweep --clean": Verb(lambda out: ["sweep", str(out.parent / "plan.yaml"), "--clean"], "", swept),
        "sweep --clean all": Verb(lambda out: ["sweep", str(out.parent / "plan.yaml"), "--clean", "all"], "", swept),
        "stress --held-out --keep": Verb(to("stress", "relearn=1", "prune=0.1", *attack, "--held-out", "--keep")),
        "train": Verb(to("train", *model, "--learn", rows, *small)),
        "unlearn": Verb(to(*forget, *watched)),
        "unlearn --overwrite": Verb(to(*forget, *watched, "--overwrite"), "", trained),
        "report": Verb(to("report", *old)),
        "table": Verb(to("table", *old), "table.md"),
        "plot": Verb(to("plot", *old, "scatter", "--x", METRIC, "--y", METRIC), "plot.png"),
        "pack": Verb(to("pack", *old), "proof.zip"),
        "unpack": Verb(to("unpack", str(shelf / "proof.zip"))),
        "depth": Verb(to("depth", *layers, "--unlearned", str(MODELS / "unlearned"), "--quiet")),
        "collapse": Verb(to("collapse", str(shelf / "rollouts.jsonl"), "--model", str(TINY), "--resamples", "20")),
        "meta": Verb(to("meta", "axes", str(shelf / "methods.yaml"), "--resamples", "0")),
        "audit": Verb(to("audit", "--before", str(MODELS / "full"), "--after", str(MODELS / "unlearned"),
                         "--forget", rows, "--limit", "2", "--minutes", "0.01")),  # its attacks: see stress
        "import": Verb(to("import", str(shelf / "full" / "TOFU_EVAL.json"))),
        "publish json": Verb(to("publish", str(shelf / "full"), "--to", "json")),
        "publish hub": Verb(to("publish", str(shelf / "full"), "--to", "hub")),
    }  # fmt: skip


ATTACK = {"relearn": {"epochs": 1, "steps": 1, "batch_size": 2, "accumulation": 1}}
NAMES = list(verbs(Path()))
# Of verbs with --out: built of others in this table (lab, eval, depth, stress, report), or in the test of the lab.
COMPOSED = {"demo"}
REFUSES = {"unpack"}  # a folder that is not empty


def test_every_verb_that_writes_is_here() -> None:
    writing = {name for name, p in parser().verbs.items() if "--out" in p.options}
    tried = {name.split()[0] for name in NAMES}
    assert writing - tried - COMPOSED <= {"plan"}, "a verb with --out that is not tried here"


def ready(verb: Verb, out: Path) -> tuple[list[str], dict[str, Any]]:
    """The directory of a command with foreign files in it, and the words."""
    if verb.prepare is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        verb.prepare(out)
    ours, names = set(seen(out)) if out.exists() else set(), FOREIGN
    if verb.words(out)[0] != "sweep":  # what is in a folder that a run created is the run's
        folders = {name.split("/")[0] for name in ours if "/" in name}
        names = tuple(name for name in names if name.split("/")[0] not in folders)
    plant(out, tuple(name for name in names if name not in ours))
    before = {name: what for name, what in seen(out.parent).items() if name.removeprefix(f"{out.name}/") not in ours}
    words = verb.words(out / verb.into if verb.into else out)
    return words, {name: what for name, what in before.items() if name != "plan.yaml"}


def spoilt(path: Path, place: Path, how: str) -> Path:
    """Where an input should be, but is not; or a copy of it of which every file is cut in half."""
    other = place / "spoilt" / path.name
    if how == "damaged" and not other.exists():
        other.parent.mkdir(exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, other)
        for file in other.rglob("*") if other.is_dir() else [other]:
            if file.is_file():
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return other


def failing(words: list[str], out: Path, place: Path, how: str) -> list[str]:
    """The same words with every input spoilt: models, data, runs, rollouts, lists and plans."""
    if words[0] == "sweep" and "--clean" not in words:  # its inputs are in its plan
        plan_of(out, models={"full": str(spoilt(MODELS / "full", place, how)), "retain": str(MODELS / "retain")})
        return words
    if words[0] == "score":  # what it reads is its own
        return [*words[:-1], "dialect=stirct"]
    given = [Path(w) for w in words]
    inputs = [
        p.is_absolute() and p.exists() and (not p.is_relative_to(out) or p == out.parent / "plan.yaml") for p in given
    ]
    assert any(inputs)
    return [str(spoilt(p, place, how)) if spoil else w for w, p, spoil in zip(words, given, inputs, strict=True)]


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("name", NAMES)
def test_failure_leaves_them_alone(
    name: str, how: str, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inputs that are not there, or not whole: also what vestige itself wrote before is as it was."""
    out = tmp_path / "x" / "out"
    out.parent.mkdir()
    words, before = ready(verbs(shelf)[name], out)
    ours = {k: v for k, v in seen(out).items() if ".vestige/" not in k}
    capsys.readouterr()
    status = main(failing(words, out, tmp_path, how))
    said = capsys.readouterr()
    assert status in (1, 2) and "Traceback" not in said.err, said.out + said.err
    assert lost(before, out.parent) == [] and lost(ours, out) == []


STRUCK = [name for name in NAMES if name not in REFUSES]


@pytest.mark.parametrize("fault", ["kill", "disk full"])
@pytest.mark.parametrize("name", STRUCK)
def test_kill_and_full_disk(name: str, fault: str, shelf: Path, tmp_path: Path) -> None:
    """Struck before several of its file operations, then run again to the end: it goes on, and takes nothing along."""
    verb, rng = verbs(shelf)[name], random.Random(name)
    place = tmp_path / "x"
    place.mkdir()
    words, before = ready(verb, place / "out")
    count = tmp_path / "count"
    shutil.copytree(place, tmp_path / "kept", symlinks=True)
    ended = child(words, lambda: watch(place / "out", lambda n, *_: count.write_text(str(n))))
    assert ended.status == 0, ended.text
    total = int(count.read_text())
    for n in sorted({1, total, *(rng.randint(1, total) for _ in range(2))}):
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "kept", place, symlinks=True)
        armed = kill_at(place / "out", n) if fault == "kill" else refuse_from(place / "out", n, errno.ENOSPC)
        struck = child(words, armed)
        assert lost(before, place) == [], (fault, n, total, struck.text)
        again = child(words)
        assert lost(before, place) == [], (fault, n, total, again.text)
        # A killed clean-up may have removed the mark that there was a sweep. A training that was struck after its last
        # file was whole is finished: the next one is told that a checkpoint is there. All else goes on to its end.
        either = "clean" in name or name in ("train", "unlearn")
        assert again.status in ((0, 2) if either else (0,)), (fault, n, total, struck.text, again.text)
        left = [p for p in (place / "out").rglob(".*.tmp*") if str(p.relative_to(place)) not in before]
        left = [p for p in left if "x.tmp" not in p.name and ".0123456789abcdef" not in p.name]
        assert left == [], (fault, n, total)


# ---- the lab -----------------------------------------------------------------------------------------------------


def build(root: Path, mark: bytes = b"weights") -> None:
    def make(models: Path) -> None:
        for name in ("full", "retain"):
            (models / name).mkdir(parents=True)
            (models / name / "model.safetensors").write_bytes(mark)

    settings = LabSettings()
    ensure_built(root, ["recipe"], {"mark": mark.decode()}, make_corpus(settings.seed, settings.sizes), False, make)


def test_the_labs_builder_leaves_them_alone(tmp_path: Path) -> None:
    from vestige.errors import UserError

    root = tmp_path / "lab"
    plant(root)
    before = seen(tmp_path)
    build(root)
    assert lost(before, tmp_path) == []
    build(root, b"other")
    assert lost(before, tmp_path) == []
    assert (root / "models" / "full" / "model.safetensors").read_bytes() == b"other"
    for name in ("lab.json", "data/forget.jsonl", "models/full/model.safetensors"):
        other = tmp_path / name.replace("/", "-") / "lab"
        plant(other, (name,))
        before = seen(other)
        with pytest.raises(UserError, match="was not written by vestige"):
            build(other)
        assert lost(before, other) == []


# ---- links -----------------------------------------------------------------------------------------------------------


def test_a_planted_link_in_the_way_of_an_archive(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    for name in (".proof.zip.half", "proof.zip"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    assert main(["pack", str(shelf / "full"), "-o", str(tmp_path / "proof.zip")]) == 2
    os.unlink(tmp_path / "proof.zip")  # noqa: PTH108
    assert main(["pack", str(shelf / "full"), "-o", str(tmp_path / "proof.zip")]) == 0
    assert (tmp_path / "victim").read_text() == "precious"
