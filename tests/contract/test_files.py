"""Other people's files, secrets, and what goes wrong with a disk, a pipe, a process or the program itself.

`harness.digests` before and after every command: what somebody else wrote is there byte for byte, whatever happens.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import pytest
import yaml
from harness import DATA, FULL, GOLDEN, RETAIN, UNLEARNED, copy_tree, digests, read_json, vestige, visible, write_plan
from test_resume import Command, causal, collapse, depth, stress, sweep

PROB = "forget_Q_A_Prob"
FORGET = DATA / "forget.jsonl"
FEW = ("--limit", 2, "--metrics", PROB, "--cluster", "none", "--quiet")
EVAL = ("eval", "tofu", "--model", FULL, "--data", DATA, *FEW, "stats.resamples=0")
SMALL = ("--epochs", 1, "--limit", 2, "--batch-size", 2, "--accumulation", 1, "--quiet")
UNLEARN = ("unlearn", "--model", FULL, "--method", "GradAscent", "--forget", FORGET, *SMALL)
TRAIN = ("train", "--model", FULL, *SMALL)
DEPTH = ("depth", "--unlearned", UNLEARNED, "--full", FULL, "--retain-model", RETAIN, "--forget", FORGET, "--limit", 1)
COLLAPSE = ("collapse", "--model", GOLDEN / "collapse" / "tiny", "--resamples", 20, "--quiet")
STRESS = ("stress", "prune", "--model", FULL, "--data", DATA, "--limit", 2, "--metrics", PROB, "--held-out", "--keep")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What commands read: two runs, an archive, rollouts, a list of runs."""
    place = tmp_path_factory.mktemp("shelf")
    for name in ("retain", "full"):
        vestige(*EVAL, "--model", harness.LAB / "models" / name, "--out", place / name)
    vestige("pack", place / "retain", "-o", place / "proof.zip")
    collapse(place)
    runs = {"retain": "retain", "full": "full", "models": [{"model": "m", "run": "full", "method": "none"}]}
    (place / "runs.yaml").write_text(yaml.safe_dump(runs))
    return place


# ---- foreign files ---------------------------------------------------------------------------------------------------

FOREIGN = (
    *(".x.tmp", ".env.template", "manifest.json.bak", "evidence/notes.txt", "evidence/parts/mine.part-1", "best/m.bin"),
    *("evals/model/before/mine.txt", "runs/tofu/mine/result.json", "data/mine.jsonl", "checkpoints/mine.bin"),
    *("logs/mine.log", "tasks/mine.json", "s1_cache/mine.bin", "scores/strict/mine.json", "deploy/prod/.env"),
)


def plant(out: Path, names: tuple[str, ...] = FOREIGN) -> None:
    """A user's files, a link to a file, a link to a folder, and one to nothing."""
    thesis = out.parent / "precious" / "thesis.txt"
    for file in (thesis, *(out / name for name in names)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"years of work: {file.name}")
    for name, target in (("link", thesis), ("folder", thesis.parent), ("hanging", out / "nothing")):
        (out / name).symlink_to(target)


def lost(before: dict[str, str], place: Path) -> list[str]:
    now = digests(place)
    return [name for name in before if now.get(name) != before[name]]


def writers(shelf: Path, out: Path) -> dict[str, tuple[tuple[object, ...], str]]:
    """Commands that write to `out`, and a file that each one writes there."""
    run, to = shelf / "full", ("--out", out)
    scatter = ("plot", run, "scatter", "--x", PROB, "--y", PROB)
    return {
        "eval": ((*EVAL, *to), "TOFU_EVAL.json"),
        "eval --overwrite": ((*EVAL, "--overwrite", *to), "TOFU_SUMMARY.json"),
        "depth": ((*DEPTH, "resamples=0", "--quiet", *to), "results.json"),
        "collapse": ((*COLLAPSE, shelf / "rollouts.jsonl", *to), "metrics.json"),
        "stress": ((*STRESS, *to), "stress.json"),
        "sweep": (("sweep", out.with_name("plan.yaml")), "sweep.json"),
        "unlearn": ((*UNLEARN, "--overwrite", *to), "model.safetensors"),
        "train": ((*TRAIN, "--learn", FORGET, "--overwrite", *to), "config.json"),
        "report": (("report", run, *to), "index.html"),
        "meta": (("meta", "axes", shelf / "runs.yaml", "--resamples", 0, *to), "method_results.json"),
        "import": (("import", run / "TOFU_EVAL.json", *to), "TOFU_EVAL.json"),
        "table": (("table", run, "-o", out / "table.md"), "table.md"),
        "plot": ((*scatter, "-o", out / "plot.png"), "plot.png"),
        "pack": (("pack", run, "-o", out / "proof.zip"), "proof.zip"),
    }


@pytest.mark.parametrize("verb", writers(Path(), Path("out")))
def test_a_users_files_stay(verb: str, shelf: Path, tmp_path: Path) -> None:
    """Beside ours, in a first run and in a second one; a file or a link that has the name of one of ours is refused."""
    out = tmp_path / "out"
    plant(out)
    write_plan(tmp_path / "plan.yaml", {"full": FULL})
    before = digests(tmp_path)
    words, file = writers(shelf, out)[verb]
    for _ in range(2):
        vestige(*words)
        assert lost(before, tmp_path) == []
    assert (out / file).is_file()
    shutil.rmtree(out)
    plant(out, (file, "mine.txt"))
    before = digests(tmp_path)
    assert file in vestige(*words, status=2).error
    assert lost(before, tmp_path) == []
    (out / file).unlink()
    (out / file).symlink_to(tmp_path / "precious" / "thesis.txt")
    vestige(*words, status=None)
    assert lost(before, tmp_path) == [f"out/{file}"]


def test_cleaning_a_sweep_removes_only_what_it_made(tmp_path: Path) -> None:
    """Neither what lies beside and in its runs, nor what a link leads to, nor a model that is no download."""
    model = copy_tree(FULL, tmp_path / "model")
    out, models = tmp_path / "out", {"mine": model, "full": FULL}
    vestige("sweep", write_plan(tmp_path / "plan.yaml", models, clear_cache=True))
    plant(out)
    (out / "runs" / "tofu" / "mine" / "thesis.txt").write_text("years of work")
    (out / "runs" / "link").symlink_to(tmp_path / "precious")
    before = {name: digests(tmp_path / name) for name in ("model", "precious")}
    plan = write_plan(tmp_path / "plan.yaml", {"full": FULL})
    for more, left in ((("--clean",), {"full"}), (("--clean", "all"), set())):
        vestige("sweep", plan, *more, status=None)
        assert {file.parent.name for file in (out / "runs").glob("tofu/*/TOFU_EVAL.json")} == left
        assert (out / "runs" / "tofu" / "mine" / "thesis.txt").read_text() == "years of work"
        assert set(FOREIGN) <= set(digests(out))
        assert before == {name: digests(tmp_path / name) for name in before}


PAIRS: dict[str, tuple[str, ...]] = {  # commands whose output is an input, or the folder that holds one
    "eval into the model": (*EVAL, "--model", "model", "--out", "model"),
    "eval over its retain logs": (*EVAL, "--retain-logs", "run/TOFU_EVAL.json", "--out", "run"),
    "eval into the data": (*EVAL, "--data", "data", "--out", "data"),
    "unlearn over the model": (*UNLEARN, "--model", "model", "--overwrite", "--out", "model"),
    "train into the data": (*TRAIN, "--learn", "data/forget.jsonl", "--overwrite", "--out", "data"),
    "stress over the data": (*STRESS, "--data", "data", "--out", "."),
    "depth into the model": (*DEPTH, "--full", "model", "--out", "model"),
    "report into the model": ("report", "run", "-o", "model"),
    "audit into an evaluation": ("audit", "--before", FULL, "--after", RETAIN, "--forget", FORGET, "--out", "run"),
    "collapse into an evaluation": (*COLLAPSE, "rollouts.jsonl", "--out", "run"),
    "depth into an evaluation": (*DEPTH, "--out", "run"),
    "report into a run": ("report", "run", "-o", "run"),
    "stress into an evaluation": (*STRESS, "--out", "run"),
    "train into an evaluation": (*TRAIN, "--learn", FORGET, "--out", "run"),
    "unpack into an evaluation": ("unpack", "proof.zip", "-o", "run"),
    "publish into an evaluation": ("publish", "run", "--to", "json", "-o", "run/sent"),
    "table over results": ("table", "run", "-o", "run/TOFU_EVAL.json"),
    "plot over rows": ("plot", "run", "scatter", "--x", PROB, "--y", PROB, "-o", "data/forget.jsonl"),
    "pack over a manifest": ("pack", "run", "-o", "run/manifest.json"),
    "import over its source": ("import", "run/TOFU_EVAL.json", "--out", "run"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_no_input_is_lost(name: str, shelf: Path, tmp_path: Path) -> None:
    """Refused in one sentence, or done beside it."""
    copy_tree(FULL, tmp_path / "model")
    copy_tree(DATA, tmp_path / "data")
    copy_tree(shelf / "retain", tmp_path / "run")
    for file in ("rollouts.jsonl", "proof.zip"):
        shutil.copy(shelf / file, tmp_path)
    before = visible(tmp_path)
    outcome = vestige(*PAIRS[name], cwd=tmp_path, status=None)
    assert outcome.status == 0 or (outcome.status == 2 and outcome.error)
    assert lost(before, tmp_path) == []
    if "evaluation" in name:
        assert "run" in outcome.error and visible(tmp_path) == before


# ---- secrets ---------------------------------------------------------------------------------------------------------


def secret(number: int) -> str:
    """Of no known form: only where it came from gives it away."""
    return f"plnt{number}Q7zKx9Wv3"


SECRETS = [secret(number) for number in range(8)]
ENV = {"HF_TOKEN": secret(1), "WANDB_API_KEY": secret(2), "MY_SETTING": secret(3), "SERVER_KEY": secret(4)}


def texts(place: Path) -> Iterator[tuple[str, bytes]]:
    """Every name and every byte below a folder, with what is packed unpacked."""
    for path in sorted(place.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        yield str(path), str(path).encode() + (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        if data[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    inner = archive.read(name)
                    yield f"{path}:{name}", gzip.decompress(inner) if inner[:2] == b"\x1f\x8b" else inner


def leaks(place: Path, printed: str) -> list[tuple[str, str]]:
    found = [(name, one) for name, data in texts(place) for one in SECRETS if one.encode() in data]
    return found + [("printed", one) for one in SECRETS if one in printed]


def test_secrets_are_in_no_file_and_in_no_output(tmp_path: Path) -> None:
    """From the environment, settings, an address, a checkpoint's own config; in files, archives and reports."""
    model = copy_tree(FULL, tmp_path / "model")
    config = read_json(model / "config.json")
    (model / "config.json").write_text(json.dumps({**config, "api_key": secret(0)}))
    settings = (
        f"+model.model_args.token={secret(5)}",
        "++eval.tofu.setting=${oc.env:MY_SETTING}",
        f'++eval.tofu.address="https://ada:{secret(6)}@example.org/x?token={secret(7)}"',
    )
    out = tmp_path / "out"
    commands: list[tuple[object, ...]] = [
        (*EVAL, "--model", model, *settings, "--out", out / "run"),
        ("score", out / "run"),
        ("verify", out / "run"),
        ("report", out / "run", "-o", out / "report"),
        ("pack", out / "run", "-o", out / "proof.zip"),
        (*UNLEARN, "--model", model, settings[0], "+trainer.args.hub_token=${oc.env:HF_TOKEN}", "--out", out / "model"),
        ("stress", "prune", "--model", model, "--data", DATA, *FEW[:4], "--keep", "--quiet", "--out", out / "stress"),
        ("sweep", write_plan(out / "sweep" / "plan.yaml", {"m": model}), "--quiet"),
    ]
    for words in commands:
        printed = vestige(*words, env=ENV).printed
        assert leaks(out, printed) == [], words
    assert read_json(out / "run" / "TOFU_SUMMARY.json").keys() == {PROB}


@pytest.mark.parametrize(
    "words",
    [
        (*EVAL, f"+model.model_args.token={secret(1)}", f"nonsense={secret(1)}"),
        (*EVAL, "--model", f"https://ada:{secret(1)}@example.org/model"),
        (*EVAL, "--data", f"https://ada:{secret(1)}@example.org/rows"),
        (*EVAL, "--data", "${oc.env:MY_SETTING}/rows"),
        (*EVAL, "--server", f"http://ada:{secret(1)}@127.0.0.1:9/v1", "--server-key-env", "SERVER_KEY"),
        ("eval", "tofu", f"--api-key={secret(1)}"),
        ("job", "--dry-run", "--", "eval", "tofu", f"+model.model_args.token={secret(1)}"),
        (*UNLEARN, "--model", "/nowhere", f"+trainer.args.hub_token={secret(1)}"),
    ],
    ids=str,
)
def test_secrets_are_not_in_sentences(words: tuple[object, ...], tmp_path: Path) -> None:
    refused = vestige(*words, cwd=tmp_path, status=2, env=ENV)
    assert refused.error
    assert leaks(tmp_path, refused.printed) == []


# ---- the program's own mistakes --------------------------------------------------------------------------------------


def test_a_mistake_of_the_program_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    """Two lines and a traceback in a file, without secrets; afterwards the same command resumes."""
    command = causal(tmp_path)
    whole = command.finish()
    expected = read_json(command.out / "TOFU_EVAL.json")
    shutil.rmtree(command.out)
    moment = round(whole["operations"] * 0.7)
    words = (*command.words, f"+model.model_args.token={secret(5)}", "--debug")
    ended = harness.python(harness.RUNNER, command.out, 0, moment, *words, status=70, env=ENV)
    (name,) = re.findall(r"\S*/vestige-bug-\S+\.txt", ended.err)
    report = Path(name)
    text = report.read_text()
    report.unlink()
    assert "bug" in ended.err and "Traceback (most recent call last)" in ended.err
    assert "Traceback (most recent call last)" in text and "KeyError" in text and "vestige eval" in text
    assert leaks(tmp_path, ended.printed + text) == []
    assert command.finish()["tokens"] < whole["tokens"]
    harness.assert_same(expected, read_json(command.out / "TOFU_EVAL.json"), least=20)


# ---- disks, pipes, processes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
@pytest.mark.parametrize("make", [causal, depth, collapse, stress, sweep], ids=lambda make: make.__name__)
def test_a_disk_that_takes_nothing_more(make: Callable[[Path], Command], code: int, tmp_path: Path) -> None:
    """One sentence with the reason; when there is room, the same command resumes."""
    command = make(tmp_path)
    struck = command.strike(-code, 1 if code == errno.EROFS else 9)
    assert struck.status in ((1, 2) if make is sweep else (2,)), struck.printed
    assert os.strerror(code) in struck.printed and "Traceback" not in struck.printed
    assert struck.status == 1 or struck.error
    if code == errno.ENOSPC:
        command.finish()
        assert vestige("verify", command.out).status == 0


QUOTA = """
import importlib.metadata, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.argv[0] = "vestige"
(script,) = importlib.metadata.entry_points(group="console_scripts", name="vestige")
raise SystemExit(script.load()())
"""


def test_a_quota_leaves_the_model_that_was_there(tmp_path: Path) -> None:
    """Weights that do not fit do not replace those of an earlier training."""
    out = tmp_path / "out"
    vestige(*UNLEARN, "--out", out)
    before = {name: digest for name, digest in digests(out).items() if name.endswith((".safetensors", ".json"))}
    struck = harness.python(QUOTA, *UNLEARN, "--overwrite", "--out", out, status=2)
    assert "Traceback" not in struck.printed
    assert struck.error
    assert lost(before, out) == []


@pytest.mark.parametrize("make", [causal, depth], ids=lambda make: make.__name__)
def test_a_damaged_file_is_never_read_as_a_number(make: Callable[[Path], Command], tmp_path: Path) -> None:
    """Each file of a finished run in turn: `verify` names it, and nothing shows another number."""
    command = make(tmp_path)
    command.finish()
    vestige("report", command.out, "-o", tmp_path / "right")
    kept = copy_tree(command.out, tmp_path / "kept")
    files = [name for name in visible(kept) if "s1_cache" not in name]
    assert len(files) >= 6
    for number, name in enumerate(files):
        shutil.rmtree(command.out)
        copy_tree(kept, command.out)
        file = command.out / name
        if number % 2:
            os.truncate(file, file.stat().st_size // 2)
        else:
            harness.flip_a_byte(file)
        assert Path(name).name in vestige("verify", command.out, status=1).printed
        for words in (("score", command.out), ("report", command.out, "-o", tmp_path / "page")):
            outcome = vestige(*words, status=None)
            assert outcome.status in (0, 1, 2) and "Traceback" not in outcome.printed, (name, words[0])
        if outcome.status == 0:
            models = [read_json(tmp_path / page / "report.json")["models"] for page in ("right", "page")]
            assert models[0] == models[1], name


def test_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    """`vestige ls metrics | head -1`, and standard output on a full disk."""
    program = Path(sys.executable).with_name("vestige")
    shell = f"{program} ls metrics | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=harness.environment())
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    full = f"{program} ls metrics > /dev/full"
    done = subprocess.run(["bash", "-c", full], capture_output=True, text=True, env=harness.environment())
    assert done.returncode != 0
    assert os.strerror(errno.ENOSPC) in done.stderr and "Traceback" not in done.stderr


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    """A sweep's worker process is killed while it works; its task is tried again."""
    process = harness.start("sweep", write_plan(tmp_path / "plan.yaml", {"full": FULL}, slots=1, retries=1))
    log = tmp_path / "out" / "sweep.log"
    harness.wait_until(lambda: log.exists() and "start" in log.read_text(), process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    harness.wait_until(lambda: bool(children.read_text().split()), process)
    os.kill(int(children.read_text().split()[0]), 9)
    ended = process.wait()
    assert ended.status == 0, ended.printed
    assert "again" in ended.out
    assert list((tmp_path / "out" / "runs").glob("tofu/full/TOFU_EVAL.json"))
