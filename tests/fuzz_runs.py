"""Fuzzed: result files of others, finished runs, checkpoints' small files."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_tools import tolerant, written

# ---- results and runs --------------------------------------------------------------------------------------------


def tofu_log(rows: int = 2) -> dict[str, Any]:
    column = {str(i): 0.5 + i for i in range(rows)}
    lists = {str(i): [0.5, 1.0] for i in range(rows)}
    one = {"avg_gt_loss": column, "avg_paraphrased_loss": column, "average_perturb_loss": lists,
           "rougeL_recall": column, "rouge1_recall": column}  # fmt: skip
    names = ("eval_log_forget.json", "eval_log.json", "eval_real_author_wo_options.json",
             "eval_real_world_wo_options.json")  # fmt: skip
    return dict.fromkeys(names, one)


def eval_file() -> dict[str, Any]:
    """A result file of open-unlearning, two rows of each metric."""
    from conftest import LAB

    whole = json.loads((LAB / "expected_default" / "retain" / "TOFU_EVAL.json").read_text())
    return {name: _cut(body) for name, body in whole.items()}


def _cut(body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    return {k: (dict(list(v.items())[:2]) if k == "value_by_index" and v else _cut(v)) for k, v in body.items()}


def run_import(data: bytes, place: Path) -> None:
    from vestige.runs.imports import import_file, show

    path = written(place, "TOFU_EVAL.json", data)
    with tolerant():
        show(import_file(path), path)
    good = written(place, "good.json", json.dumps(eval_file()).encode())
    with tolerant():
        import_file(good, place / "out", retain_logs=path)
    import_file(path, place / "out2", retain_logs=good)


@cache
def finished_run() -> Path:
    """A tiny run of the golden lab, made once a process."""
    import vestige
    from conftest import LAB

    home = Path(tempfile.mkdtemp(prefix="fuzz-run-"))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        vestige.evaluate(
            str(LAB / "models" / "unlearned"), "tofu", data=str(LAB / "data"), limit=2, out=str(home / "run"),
            metrics=["mia_loss", "forget_truth_ratio", "forget_Q_A_ROUGE", "privleak"], progress=False,
            overrides=["stats.resamples=20"],
        )  # fmt: skip
    return home / "run"


def stored(name: str) -> Callable[[bytes, Path], None]:
    """A finished run with one of its files replaced, read by every verb that reads runs."""

    def run(data: bytes, place: Path) -> None:
        from vestige.report.build import ReportRequest, build_report
        from vestige.runs.compare import compare, published
        from vestige.runs.compare import explain_difference as diff
        from vestige.runs.evaluation import rescore
        from vestige.runs.verify import verify

        home = place / "run"
        shutil.copytree(finished_run(), home)
        path = next(home.rglob(name))
        path.write_bytes(data)
        for step in (
            lambda: rescore(home),
            lambda: str(compare([finished_run(), home], resamples=100)),
            lambda: diff(home, finished_run(), 1),
            lambda: published(home),
            lambda: build_report(ReportRequest([finished_run(), home], place)),
            lambda: verify(home, again=True),
        ):
            with tolerant():
                step()

    return run


def file_of_run(name: str) -> Callable[[], list[bytes]]:
    return lambda: [next(finished_run().rglob(name)).read_bytes()]


def model(name: str) -> Callable[[bytes, Path], None]:
    """A checkpoint with one of its small files replaced: found, checked and its tokenizer read, weights not."""

    def run(data: bytes, place: Path) -> None:
        from vestige.models.args import ModelArgs
        from vestige.models.checks import check_place
        from vestige.models.locate import locate
        from vestige.models.tokenizer import load_tokenizer

        home = place / "m"
        shutil.copytree(checkpoint(), home)
        if name.startswith("adapter"):
            (home / "config.json").unlink()
        (home / name).write_bytes(data)
        args = ModelArgs(path=str(home))
        with tolerant():
            check_place(locate(args), args)
        if name.startswith("tokenizer"):
            load_tokenizer(args)

    return run


@cache
def checkpoint() -> Path:
    from models_tools import save

    return save(Path(tempfile.mkdtemp(prefix="fuzz-model-")) / "m")


def file_of_model(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(checkpoint() / name).read_bytes()]
