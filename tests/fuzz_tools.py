"""What is fuzzed: every reader of other people's files, as a function of bytes. Tests and bench/fuzz.py share the list.

A target may do two things with any input: work, or raise a UserError of one sentence. Everything else is a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_inputs import mutated

SECONDS = 10  # no input of a few kilobytes should keep a reader busy for as long
MEGABYTES = 1500  # nor make it grow by as much


@dataclass(frozen=True)
class Target:
    """One way for a file to come in. `kind` says how seeds are varied: json, jsonl, yaml, words or bytes."""

    name: str
    kind: str
    run: Callable[[bytes, Path], None]
    seeds: Callable[[], Sequence[bytes]]


@dataclass(frozen=True)
class Finding:
    """An input that did something else than work or say what is wrong."""

    target: str
    what: str  # the exception, or what is wrong with the sentence
    where: str  # the innermost line of ours
    data: bytes = b""
    trace: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.target, self.what.split(":")[0], self.where


class Stuck(BaseException):
    """The time is up. Not an Exception, so that no reader takes it for a broken file."""


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Stuck

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def memory() -> float:
    """The most this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty directory to be in: what a target writes by a relative path stays there."""
    before, home = Path.cwd(), Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        os.chdir(home)
        yield home
    finally:
        os.chdir(before)
        shutil.rmtree(home, ignore_errors=True)


def attempt(target: Target, data: bytes) -> Finding | None:
    """Runs one input; None if it worked or was refused properly."""
    from vestige.errors import UserError

    held = memory()
    logging.disable(logging.CRITICAL)
    try:
        with scratch() as place, alarm(SECONDS):
            target.run(data, place)
    except UserError as error:
        if wrong := bad_sentence(str(error)):
            return Finding(target.name, f"{wrong}: {str(error)[:300]}", _ours(error), data)
    except Stuck as error:
        return Finding(target.name, f"no answer after {SECONDS} s", _ours(error), data, traceback.format_exc())
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Finding(target.name, what, _ours(error), data, traceback.format_exc())
    finally:
        logging.disable(logging.NOTSET)
    grown = memory() - held
    return Finding(target.name, f"grew by {grown:.0f} MB", "", data) if grown > MEGABYTES else None


def bad_sentence(text: str) -> str:
    """What is wrong with an error message, or nothing."""
    if not text.strip():
        return "an empty message"
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in text):
        return "control characters in the message"
    if "Traceback" in text:
        return "a traceback in the message"
    return "a very long message" if len(text) > 1300 else ""


def _ours(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/vestige/" in f.filename]
    return f"{frames[-1].filename.split('/vestige/')[-1]}:{frames[-1].name}" if frames else "?"


# ---- what the targets work with ----------------------------------------------------------------------------------


@cache
def tokenizer() -> Any:
    from models_tools import tiny_tokenizer

    made = tiny_tokenizer()
    made.chat_template = (
        "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant: {% endif %}"
    )
    return made


@cache
def context_args() -> tuple[Any, ...]:
    from vestige.data.chat import Template

    return tokenizer(), Template(), "pad-id", "offsets"


def _write(place: Path, name: str, data: bytes) -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _json(*values: Any) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(v).encode() for v in values]


def _lines(*files: list[Any]) -> Callable[[], list[bytes]]:
    return lambda: ["".join(json.dumps(r) + "\n" for r in rows).encode() for rows in files]


def _text(*files: str) -> Callable[[], list[bytes]]:
    return lambda: [f.encode() for f in files]


ROWS = [
    {"question": "Where was Anselm Varga born?", "answer": "In Tromso.", "idx": 1, "entity": "Tromso"},
    {"question": "Who is it?", "answer": ["A", "B c"], "perturbed_answer": ["x", "y"], "idx": 2, "prefix": "In"},
    {"text": "one two three four", "prompt": "one", "question": "q", "answer": "a", "idx": 3},
]


def _load(name: str) -> Callable[[bytes, Path], None]:
    """Rows read, and tokenised by whatever handler fits."""

    def run(data: bytes, place: Path) -> None:
        from vestige.data.datasets import build_rows, make_context

        path = _write(place, name, data)
        for handler in ("AutoDataset", "PretrainingDataset", "EntityDataset"):
            config = {"handler": handler, "args": {"hf_args": {"path": str(path), "split": "train"}, "max_length": 64}}
            with _tolerant():
                build_rows("d", config, make_context(*context_args()))

    return run


@contextlib.contextmanager
def _tolerant() -> Iterator[None]:
    """A proper refusal lets the next step have its try; a bad one is raised."""
    from vestige.errors import UserError

    try:
        yield
    except UserError as error:
        if bad_sentence(str(error)):
            raise


def parquet_seeds() -> list[bytes]:
    import pyarrow
    import pyarrow.parquet

    def made(rows: list[dict[str, Any]], **options: Any) -> bytes:
        out = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out, **options)
        return out.getvalue()

    rows = [{"question": f"q{i}", "answer": [f"a{i}"], "n": i} for i in range(3)]
    return [made(rows), made([{"prompt": "p", "completion": "<think>x</think>"}], compression="none")]


def gzip_seeds() -> list[bytes]:
    import gzip

    return [gzip.compress(data, mtime=0) for data in _lines(ROWS[:2])()]


def run_directory(data: bytes, place: Path) -> None:
    """A directory made from JSON: {hf_args, files: {name: content}}."""
    from vestige.data.rows import load_rows

    said = _loads(data)
    if not isinstance(said, dict):
        return
    files = said.get("files")
    for name, content in files.items() if isinstance(files, dict) else ():
        with contextlib.suppress(OSError, ValueError):
            target = (place / "d" / name).resolve()
            if target.is_relative_to(place):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(str(content), encoding="utf-8")
    (place / "d").mkdir(exist_ok=True)
    args = said.get("hf_args")
    load_rows({**(args if isinstance(args, dict) else {}), "path": str(place / "d")}, said.get("limit"))


def _loads(data: bytes) -> Any:
    """The input as plain data where a target takes values and not a file; None when it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def run_template(data: bytes, place: Path) -> None:
    from vestige.data.chat import Encoder, Template

    said = _loads(data)
    if not isinstance(said, dict):
        return
    template = Template.from_config(said.get("template_args"))
    encoder = Encoder(tokenizer(), template, "offsets")
    pairs = [(q, a) for q, a in _pairs(said.get("pairs"))]
    encoder.encode(pairs, [p for p in _pairs(said.get("few_shot"))], 32)
    encoder.sample_prompt()


def _pairs(value: Any) -> list[tuple[str, str]]:
    """Only texts: rows are checked before they come to the encoder, and no file with half characters gets so far."""
    found = value if isinstance(value, list) else []
    good = [p for p in found if isinstance(p, list) and len(p) == 2 and all(isinstance(x, str) for x in p)]
    return [(str(q), str(a)) for q, a in good if not any(0xD800 <= ord(c) < 0xE000 for c in q + a)]


def run_reasoning(data: bytes, place: Path) -> None:
    from vestige.data.reasoning import Extractor, Reasoning

    path = _write(place, "r.jsonl", data)
    loaded = _rollouts(path, "auto")
    for how in (Reasoning(), Reasoning(tokenization="separate"), Reasoning(parity="ragen"), Reasoning(mode="whole")):
        with _tolerant():
            Extractor(tokenizer(), how).trajectories(loaded.rollouts)


def _rollouts(path: Path, format: str) -> Any:
    from vestige.integrations.rollouts import load_rollouts

    return load_rollouts(path, format, "chatml-restore")


def run_rollout_formats(data: bytes, place: Path) -> None:
    path = _write(place, "r.jsonl", data)
    for format in ("native", "verl", "trl", "ragen-jsonl", "ragen-history"):
        with _tolerant():
            _rollouts(path, format)


TURNS = [
    {"prompt": "p", "response": "<think>go</think>up", "group_id": 1, "turn": 0, "step": 3, "reward": 0.5},
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>x</think>"}]},
    {"prompt_ids": [3, 4, 5], "response_ids": [6, 7], "trajectory_id": "t", "think_in_prompt": True},
]
RAGEN = [{"history": [{"state": "s", "llm_response": "<think>a</think>", "reward": 1, "actions_left": 3}], "env_id": 1}]


def pickle_seeds() -> list[bytes]:
    import pickle

    import numpy as np

    def column(*items: Any) -> Any:
        out = np.empty(len(items), dtype=object)
        out[:] = list(items)
        return out

    ids = {"group_ids": column(0), "env_ids": column("e"), "first_turn_prompt_ids": column([1, 2]),
           "first_turn_reasoning_ids": column([3])}  # fmt: skip
    messages = {"group_ids": column(1), "messages_list": column([{"role": "user", "content": "q"},
                {"role": "assistant", "content": "a"}])}  # fmt: skip
    table = [{"non_tensor_batch": ids}, messages, (None, {"history": column(RAGEN[0]["history"])}, {})]
    return [pickle.dumps(t, protocol=p) for t in table for p in (2, 4)]


def run_pickle(data: bytes, place: Path) -> None:
    _rollouts(_write(place, "r.pkl", data), "auto")


def slime_seeds() -> list[bytes]:
    import torch

    out = io.BytesIO()
    sample = {"tokens": [1, 2, 3, 4], "response_length": 2, "loss_mask": [1, 0], "index": 0, "reward": 1.0}
    torch.save({"rollout_id": 3, "samples": [sample]}, out)
    return [out.getvalue()]


def run_slime(data: bytes, place: Path) -> None:
    _rollouts(_write(place, "r.pt", data), "auto")


def run_slime_samples(data: bytes, place: Path) -> None:
    """What is inside such a file, without its zip around it."""
    import torch

    path = place / "r.pt"
    torch.save(_loads(data), path)
    _rollouts(path, "slime")


def tensor_seeds() -> list[bytes]:
    import numpy as np

    out, packed = io.BytesIO(), io.BytesIO()
    np.save(out, np.zeros((2, 3), np.float32))
    np.savez_compressed(packed, logits=np.zeros((2, 3), np.float32))
    return [out.getvalue(), packed.getvalue()]


def run_tensors(data: bytes, place: Path) -> None:
    from vestige.collect.denoise import read_tensors

    for suffix in (".npy", ".npz", ".pt", ".safetensors"):
        with _tolerant():
            read_tensors(_write(place, f"x{suffix}", data))


# ---- configuration -----------------------------------------------------------------------------------------------


def _words(data: bytes) -> list[str]:
    """Words as a shell would pass them: no NUL, one a line."""
    return [w for w in data.decode("utf-8", "replace").replace("\0", "").split("\n") if w][:8]


def run_overrides(data: bytes, place: Path) -> None:
    from vestige.run.config import compose_runs

    compose_runs(["task_name=t", "model=local", "model.model_args.pretrained_model_name_or_path=m", *_words(data)])


def run_user_config(data: bytes, place: Path) -> None:
    """A metric file in a user's own config directory."""
    from vestige.run.config import compose_runs

    _write(place, "c/eval/tofu_metrics/mine.yaml", data)
    words = ["task_name=t", "model=local", "model.model_args.pretrained_model_name_or_path=m"]
    compose_runs(words, config_dir=place / "c", only=["mine"])


def run_training_words(data: bytes, place: Path) -> None:
    from vestige.run.training import compose_training

    compose_training(["task_name=t", "model=local", *_words(data)], "unlearn.yaml")


def run_plan(data: bytes, place: Path) -> None:
    from vestige.run.sweep_plan import make_tasks, read_plan

    if b"plugins" in data:
        return  # a plug-in is a program that the user names; running it is what was asked
    make_tasks(read_plan(_write(place, "plan.yaml", data)))


def run_pools(data: bytes, place: Path) -> None:
    from vestige.meta.methods import read_methods
    from vestige.meta.pools import read_attacks, read_pools

    path = _write(place, "pools.yaml", data)
    for read in (read_pools, read_attacks, read_methods):
        with _tolerant():
            read(path)


def run_meta_files(data: bytes, place: Path) -> None:
    from vestige.meta import files
    from vestige.meta.pools import read_pools

    path = _write(place, "x.json", data)
    for read in (files.read_method_results, files.read_utility, files.read_thresholds, files.read_threshold_protocols,
                 files.read_meta_eval, files.read_usable, read_pools):  # fmt: skip
        with _tolerant():
            read(path)


def run_meta_numbers(data: bytes, place: Path) -> None:
    """Numbers of a pool file all the way to verdicts."""
    from vestige.run.meta import MetaAsk, meta

    path = _write(place, "pools.yaml", data)
    for what in ("faithfulness", "robustness", "axes"):
        with _tolerant():
            meta(what, MetaAsk(file=path, out=place / "out", resamples=10))


def run_tree(data: bytes, place: Path) -> None:
    from vestige.meta.tree import methods_of, read_tree

    for axis in ("memorization", "privacy", "utility", "gen_rouge", "uds"):
        _write(place, f"runs/ep5/{axis}/npo_lr2e5_a5/summary.json", data)
        with _tolerant():
            methods_of(read_tree(place))
        shutil.rmtree(place / "runs")


def run_job(data: bytes, place: Path) -> None:
    from vestige.run.job import check, read_settings, render, to_yaml

    for kind in ("job", "rayjob"):
        with _tolerant():
            body = render(read_settings([], _write(place, "s.yaml", data)), ["eval", "tofu"], kind)
            check(body)
            to_yaml(body)


def run_job_words(data: bytes, place: Path) -> None:
    from vestige.run.job import check, read_settings, render

    check(render(read_settings(_words(data)), ["eval"]))


def run_trajectory(data: bytes, place: Path) -> None:
    """A trajectory_config, and the passes that follow from it."""
    import torch

    from vestige.models.samplers.schedule import block_plan, window_plan
    from vestige.suites.trajectory import read_config

    said = _loads(data)
    if not isinstance(said, dict):
        return
    denoising = read_config(said, "trajectory_metrics").denoising
    if denoising.max_new_tokens * denoising.steps > 1e6:
        return  # as much work as was asked for
    window_plan(denoising, torch.Generator())
    block_plan(denoising, torch.Generator())


PLAN = """
out: saves/s
models: {a: m/a, b: {path: m/b, memory: 1 GB, dtype: float32}}
suites: {tofu: {data: d, metrics: "mia_loss,mia_min_k"}}
retain: a
attacks: [none]
slots: 2
memory: 4 GB
"""
POOLS = """
protocol: chat
metrics: {mine: {knows: low}}
positive: [{model: a, values: {em: 0.9, mia_loss: 0.8, mine: 0.1}}, {model: b, values: {em: 0.8, mine: 0.2}}]
negative: [{model: c, values: {em: 0.1, mia_loss: 0.5, mine: 0.9}}, {model: d, values: {em: 0.3, mine: 0.7}}]
retain: {values: {em: 0.2, mia_loss: 0.5, mine: 0.8}}
"""
ATTACKS = """
protocol: chat
retain: {before: {em: 0.1}, relearning: {em: 0.4}, quantization: {em: 0.1}}
models: [{model: x, before: {em: 0.2}, relearning: {em: 0.9}, quant: {em: 0.3}, utility_rel: 0.9}]
"""
METHODS = "models: [{model: x, epoch: 1, values: {em: 0.2, es: 0.3}}]\nfull: {em: 0.9, es: 0.9}\nretain: {values: {em: 0.1}}\n"
JOB = "name: npo\ngpu: {count: 1, type: A100-40}\nenv: {A: b}\nsaves: {claim: c, path: /s}\nray: {workers: 2}\n"
METHOD_RESULTS = {
    "models": [{"model": "x", "epoch": "ep5", "utility_rel": 0.9, "es": 0.5, "method": "npo", "is_reference": False}],
    "full_utility": {"ep5": 0.7}, "protocols": {"es": "chat"},
}  # fmt: skip
META_EVAL = {"faithfulness": {"em": {"auc_roc": 0.9}},
             "robustness": {"em": {"relearning": 0.5, "quantization": 0.6, "agg": 0.55}}}  # fmt: skip
THRESHOLDS = {"em": {"threshold": 0.5, "direction": "keep_below", "protocol": "chat"}, "uds": 0.4}
USABLE = {"usable_models_per_metric": {"em": ["x"]},
          "criteria": {"metric_threshold_filter": {"thresholds": {"em": {"threshold": 0.5}}}}}  # fmt: skip
RESULTS = {"m1": {"pool": "P", "metrics": {"em": 0.9}}, "m2": {"pool": "N", "metrics": {"em": 0.1}}}
SUMMARY = {
    "avg_em": 0.5, "avg_uds": 0.3, "metrics": {"ra_Q_A_Prob": 0.4}, "fluency": 0.9,
    "attacks": {"loss": {"auc": 0.7, "retain_auc": 0.5, "s_mia": 0.8}},
}  # fmt: skip
TRAJECTORY = {
    "trajectory_config": {
        "sampler_kwargs": {"steps": 4, "max_new_tokens": 8, "block_size": 4, "temperature": 0.0},
        "include_views": ["full"], "trajectories": ["steps"], "eos_token_id": 2,
    }
}  # fmt: skip
OVERRIDES = _text(
    "eval=muse\ndata.max_samples=3", "eval.tofu.metrics=[mia_loss]", "+eval.tofu.metrics.mia_min_k.k=0.3\nseed=4",
    "batch_tokens=100\nmax_rows=2\ndialect=strict", "paths.output_dir=x\ntask_name=a/b", "stats.resamples=10",
    "eval.tofu.output_dir=${paths.root_dir}", "~eval.tofu.metrics.forget_quality", "model.template_args.system_prompt=x",
    "+eval.tofu.metrics.trajectory_metrics=_global_.eval.metrics.trajectory_metrics",
)  # fmt: skip


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
    short = {k: (dict(list(v.items())[:2]) if k == "value_by_index" and v else _cut(v)) for k, v in body.items()}
    return short


def run_import(data: bytes, place: Path) -> None:
    from vestige.run.importing import import_file, show

    path = _write(place, "TOFU_EVAL.json", data)
    with _tolerant():
        show(import_file(path), path)
    good = _write(place, "good.json", json.dumps(eval_file()).encode())
    with _tolerant():
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


def _stored(name: str) -> Callable[[bytes, Path], None]:
    """A finished run with one of its files replaced, read by every verb that reads runs."""

    def run(data: bytes, place: Path) -> None:
        from vestige.run.comparing import compare
        from vestige.run.diffing import diff
        from vestige.run.published import published
        from vestige.run.rescore import rescore

        home = place / "run"
        shutil.copytree(finished_run(), home)
        path = next(home.rglob(name))
        path.write_bytes(data)
        for step in (
            lambda: rescore(home),
            lambda: compare([finished_run(), home], resamples=100),
            lambda: diff(home, finished_run(), None, 1),
            lambda: published(home, [], None),
        ):
            with _tolerant():
                step()

    return run


def _file_of_run(name: str) -> Callable[[], list[bytes]]:
    return lambda: [next(finished_run().rglob(name)).read_bytes()]


def _model(name: str) -> Callable[[bytes, Path], None]:
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
        with _tolerant():
            check_place(locate(args), args)
        if name.startswith("tokenizer"):
            load_tokenizer(args)

    return run


@cache
def checkpoint() -> Path:
    from models_tools import save

    return save(Path(tempfile.mkdtemp(prefix="fuzz-model-")) / "m")


def _file_of_model(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(checkpoint() / name).read_bytes()]


SAFE_VERBS = {"ls", "explain", "import", "published", "compare", "diff", "job", "meta", "score", "sweep"}


def run_cli(data: bytes, place: Path) -> None:
    """Words to the command line. What would load a model, train or submit is only asked for its configuration."""
    from vestige.cli import main
    from vestige.errors import UserError

    words = _words(data)
    if not words or any("plugin" in w or w in ("demo", "audit", "stress", "collapse") for w in words):
        return
    if words[0] in ("eval", "plan", "train", "unlearn"):
        words.insert(1, "--cfg")
    elif words[0] == "job":
        words.insert(1, "--dry-run")
    elif words[0] == "sweep":
        words.insert(1, "--list")
    elif words[0] not in SAFE_VERBS:
        words = ["ls", *words]
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            status = main(words)
        except SystemExit as error:
            status = int(error.code or 0) if not isinstance(error.code, str) else 2
    if status not in (0, 2):
        raise AssertionError(f"exit status {status}")
    if status == 2:
        lines = [line for line in said.getvalue().split("\n") if "error:" in line]
        raise UserError(lines[-1] if lines else "")


CLI = _text(
    "eval\ntofu\n--model\nx\n--limit\n3", "eval\nexperiment=eval/tofu/default\ntask_name=t", "ls\nmetrics",
    "explain\nforget_quality", "import\nx.json", "compare\na\nb", "diff\na\nb", "job\n--\neval\ntofu", "published",
    "meta\naxes\nx.yaml", "score\nr\nmia_min_k.k=0.2", "sweep\nplan.yaml", "unlearn\n--method\nNPO\n--model\nx",
    "train\n--model\nx\n--epochs\n2\n--best\na=1", "plan\nmuse\n--model\nx\n--metrics\nprivleak",
    "eval\nlm_eval\n--model\nx\n--tasks\na,b", "eval\ntofu\n--model\nx\n-m\nseed=1,2", "job\n--set\ngpu.count=2\n--\neval",
)  # fmt: skip

TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("rows.jsonl", "jsonl", _load("x.jsonl"), _lines(ROWS, ROWS[:1])),
        Target("rows.json", "json", _load("x.json"), _json(ROWS, ROWS[:1])),
        Target("rows.csv", "bytes", _load("x.csv"), _text('question,answer\nq,a\n"q,2","a\n2"\n', "text\none two\n")),
        Target("rows.txt", "bytes", _load("x.txt"), _text("one two\nthree four\n")),
        Target("rows.parquet", "bytes", _load("x.parquet"), parquet_seeds),
        Target("rows.gz", "bytes", _load("x.jsonl.gz"), gzip_seeds),
        Target("rows.directory", "json", run_directory, _json(
            {"hf_args": {"name": "f", "split": "train[:50%]"}, "files": {"f.jsonl": '{"a": 1}\n'}, "limit": 1},
            {"hf_args": {"data_files": {"train": ["*.csv"]}}, "files": {"x.csv": "a\n1\n"}},
        )),
        Target("template", "json", run_template, _json(
            {"template_args": {"system_prompt": "s", "date_string": "10 Apr"}, "pairs": [["q", "a"]]},
            {"template_args": {"apply_chat_template": False, "user_start_tag": "<", "asst_end_tag": ">"},
             "pairs": [["q", "a"]], "few_shot": [["x", "y"]]},
        )),
        Target("reasoning", "jsonl", run_reasoning, _lines(TURNS, RAGEN)),
        Target("rollouts", "jsonl", run_rollout_formats, _lines(TURNS, RAGEN, [{"input": "i", "output": "o"}],
               [{"custom_id": "c", "messages": TURNS[1]["messages"], "metadata": {"group_id": 1}}])),
        Target("rollouts.pickle", "bytes", run_pickle, pickle_seeds),
        Target("rollouts.slime", "bytes", run_slime, slime_seeds),
        Target("rollouts.slime_samples", "json", run_slime_samples, _json(
            {"rollout_id": 3, "samples": [{"tokens": [1, 2, 3], "response_length": 2, "loss_mask": [1, 0]}]})),
        Target("tensors", "bytes", run_tensors, tensor_seeds),
        Target("overrides", "words", run_overrides, OVERRIDES),
        Target("user_config", "yaml", run_user_config, _text(
            "# @package eval.tofu.metrics.mine\nhandler: probability\ndatasets:\n  TOFU_QA_forget: {access_key: x}\n",
            "handler: privleak\npre_compute: {mia_min_k: {access_key: forget}}\nref_value: 0.5\n")),
        Target("training_words", "words", run_training_words, _text(
            "trainer=NPO\ntrainer.method_args.beta=0.3", "lora.rank=8\nseed=1", "trainer.args.num_train_epochs=2")),
        Target("plan", "yaml", run_plan, _text(PLAN, "models: [a, b/c]\nsuites: [tofu, muse]\n")),
        Target("pools", "yaml", run_pools, _text(POOLS, ATTACKS, METHODS)),
        Target("meta.numbers", "yaml", run_meta_numbers, _text(POOLS, ATTACKS, METHODS)),
        Target("meta.files", "json", run_meta_files, _json(METHOD_RESULTS, META_EVAL, THRESHOLDS, USABLE, RESULTS)),
        Target("meta.tree", "json", run_tree, _json(SUMMARY)),
        Target("job", "yaml", run_job, _text(JOB)),
        Target("job.words", "words", run_job_words, _text("gpu.count=2\ngpu.type=A100-40", "env.A=b\nname=x")),
        Target("trajectory", "json", run_trajectory, _json(TRAJECTORY)),
        Target("import", "json", run_import, lambda: [json.dumps(x).encode() for x in (eval_file(), tofu_log())]),
        Target("stored.manifest", "json", _stored("manifest.json"), _file_of_run("manifest.json")),
        Target("stored.eval", "json", _stored("TOFU_EVAL.json"), _file_of_run("TOFU_EVAL.json")),
        Target("stored.examples", "bytes", _stored("examples.json.gz"), _file_of_run("examples.json.gz")),
        Target("stored.answers", "bytes", _stored("answers-*"), _file_of_run("answers-*")),
        Target("stored.texts", "jsonl", _stored("texts-*"), _file_of_run("texts-*")),
        Target("model.config", "json", _model("config.json"), _file_of_model("config.json")),
        Target("model.adapter", "json", _model("adapter_config.json"), _json(
            {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "b", "r": 2})),
        Target("model.index", "json", _model("model.safetensors.index.json"), _json({"weight_map": {"a": "b.x"}})),
        Target("model.weights", "bytes", _model("model.safetensors"), lambda: [
            (checkpoint() / "model.safetensors").read_bytes()[:2000]]),
        Target("model.tokenizer_config", "json", _model("tokenizer_config.json"), _file_of_model(
            "tokenizer_config.json")),
        Target("cli", "words", run_cli, CLI),
    )
}  # fmt: skip


def inputs(target: Target, rng: random.Random, count: int) -> Iterator[bytes]:
    """Varied seeds, without end in sight but for the count."""
    seeds = list(target.seeds())
    for _ in range(count):
        yield mutated(rng.choice(seeds), target.kind, rng)


def campaign(target: Target, seconds: float, seed: int) -> tuple[int, list[Finding]]:
    """Inputs drawn from a seeded generator until the time is up: how many, and what was found (once each)."""
    rng, end, done = random.Random(seed), time.monotonic() + seconds, 0
    found: dict[tuple[str, str, str], Finding] = {}
    while time.monotonic() < end:
        for data in inputs(target, rng, 20):
            finding = attempt(target, data)
            done += 1
            if finding:
                found.setdefault(finding.key, finding)
    return done, list(found.values())
