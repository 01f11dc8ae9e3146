"""Fuzzed: overrides, config files, plans, pools, job settings, command lines."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path

from fuzz_tools import loads, text_seeds, tolerant, words, written

# ---- configuration -----------------------------------------------------------------------------------------------


def run_overrides(data: bytes, place: Path) -> None:
    from vestige.engine.config import compose_runs

    compose_runs(["task_name=t", "model=local", "model.model_args.pretrained_model_name_or_path=m", *words(data)])


def run_user_config(data: bytes, place: Path) -> None:
    """A metric file in a user's own config directory."""
    from vestige.engine.config import compose_runs

    written(place, "c/eval/tofu_metrics/mine.yaml", data)
    words = ["task_name=t", "model=local", "model.model_args.pretrained_model_name_or_path=m"]
    compose_runs(words, config_dir=place / "c", only=["mine"])


def run_training_words(data: bytes, place: Path) -> None:
    from vestige.unlearn.config import compose_training

    compose_training(["task_name=t", "model=local", *words(data)], "unlearn.yaml")


def run_plan(data: bytes, place: Path) -> None:
    from vestige.sweep.plan import read_plan
    from vestige.sweep.tasks import make_tasks

    if b"plugins" in data:
        return  # a plug-in is a program that the user names; running it is what was asked
    make_tasks(read_plan(written(place, "plan.yaml", data)))


def run_pools(data: bytes, place: Path) -> None:
    from vestige.meta.axes import read_methods
    from vestige.meta.pools import read_attacks, read_pools

    path = written(place, "pools.yaml", data)
    for read in (read_pools, read_attacks, read_methods):
        with tolerant():
            read(path)


def run_meta_files(data: bytes, place: Path) -> None:
    from vestige.meta.axes import read_method_results, read_utility
    from vestige.meta.files import read_meta_eval, read_thresholds
    from vestige.meta.pools import read_pools

    path = written(place, "x.json", data)
    for read in (read_method_results, read_utility, read_thresholds, read_meta_eval, read_pools):
        with tolerant():
            read(path)


def run_meta_checks(data: bytes, place: Path) -> None:
    """Files of meta-evaluation put to the checklist, and results of attacks read."""
    from vestige.meta.checks import check_meta
    from vestige.meta.tree import read_tree_attacks

    for name in ("method_results.json", "meta_eval.json"):
        written(place, f"checked/{name}", data)
    with tolerant():
        check_meta(place / "checked")
    with tolerant():
        read_tree_attacks({"quant": written(place, "quant/results.json", data)})


def run_meta_numbers(data: bytes, place: Path) -> None:
    """Numbers of a pool file all the way to verdicts."""
    from vestige.meta.run import MetaAsk, meta

    path = written(place, "pools.yaml", data)
    for what in ("faithfulness", "robustness", "axes"):
        with tolerant():
            meta(what, MetaAsk(file=path, out=place / "out", resamples=10))


def run_tree(data: bytes, place: Path) -> None:
    from vestige.meta.tree import methods_of, read_tree

    for axis in ("memorization", "privacy", "utility", "gen_rouge", "uds"):
        written(place, f"runs/ep5/{axis}/npo_lr2e5_a5/summary.json", data)
        with tolerant():
            methods_of(read_tree(place))
        shutil.rmtree(place / "runs")


def run_job(data: bytes, place: Path) -> None:
    from vestige.sweep.job import check, read_settings, render, to_yaml

    for kind in ("job", "rayjob"):
        with tolerant():
            body = render(read_settings([], written(place, "s.yaml", data)), ["eval", "tofu"], kind)
            check(body)
            to_yaml(body)


def run_job_words(data: bytes, place: Path) -> None:
    from vestige.sweep.job import check, read_settings, render

    check(render(read_settings(words(data)), ["eval"]))


def run_trajectory(data: bytes, place: Path) -> None:
    """A trajectory_config, and the passes that follow from it."""
    import torch

    from vestige.models.samplers.base import block_plan, window_plan
    from vestige.suites.trajectory import read_config

    said = loads(data)
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
METHODS = """
models: [{model: x, epoch: 1, values: {em: 0.2, es: 0.3}}]
full: {em: 0.9, es: 0.9}
retain: {values: {em: 0.1}}
"""
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
ATTACKED = {n: {"model_id": n, "metrics_before": {"em": 0.5, "mia_loss": 0.4}, "metrics_after_quant": {"em": 0.6}}
            for n in ("retain", "npo")}  # fmt: skip
ASKED = {
    **META_EVAL, "overall": {"em": 0.68}, "versions": {}, "formulas": {}, "metrics": [{"key": "em", "label": "x"}],
    "data_sources": {"pools": "x.yaml (0123456789ab)"},
    "asked": {"robustness": {
        "file": "../quant", "metrics": None, "resamples": 0, "rule": "symmetric", "least_utility": 0.8,
        "own_thresholds": False, "floor": 0.05, "baseline": None, "thresholds": None, "utility": None,
        "models": {"models": ["npo"]}, "read": {},
    }},
}  # fmt: skip
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
OVERRIDES = text_seeds(
    "eval=muse\ndata.max_samples=3",
    "eval.tofu.metrics=[mia_loss]",
    "+eval.tofu.metrics.mia_min_k.k=0.3\nseed=4",
    "batch_tokens=100\nmax_rows=2\ndialect=strict",
    "paths.output_dir=x\ntask_name=a/b",
    "stats.resamples=10",
    "eval.tofu.output_dir=${paths.root_dir}",
    "~eval.tofu.metrics.forget_quality",
    "model.template_args.system_prompt=x",
    "+eval.tofu.metrics.trajectory_metrics=_global_.eval.metrics.trajectory_metrics",
)


SAFE_VERBS = {"ls", "explain", "import", "compare", "diff", "job", "meta", "score", "sweep"}


def run_cli(data: bytes, place: Path) -> None:
    """Words to the command line. What would load a model, train or submit is only asked for its configuration."""
    from vestige.cli import main
    from vestige.errors import UserError

    given = words(data)
    if not given or any("plugin" in w or w in ("demo", "audit", "stress", "collapse") for w in given):
        return
    if given[0] in ("eval", "plan", "train", "unlearn"):
        given.insert(1, "--cfg")
    elif given[0] == "job":
        given.insert(1, "--dry-run")
    elif given[0] == "sweep":
        given.insert(1, "--list")
    elif given[0] not in SAFE_VERBS:
        given = ["ls", *given]
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            status = main(given)
        except SystemExit as error:
            status = int(error.code or 0) if not isinstance(error.code, str) else 2
    if status not in (0, 2):
        raise AssertionError(f"exit status {status}")
    if status == 2:
        lines = [line for line in said.getvalue().split("\n") if "error:" in line]
        raise UserError(lines[-1] if lines else "")


CLI = text_seeds(
    "eval\ntofu\n--model\nx\n--limit\n3",
    "eval\nexperiment=eval/tofu/default\ntask_name=t",
    "ls\nmetrics",
    "explain\nforget_quality",
    "import\nx.json",
    "compare\na\nb",
    "diff\na\nb",
    "job\n--\neval\ntofu",
    "compare\na\npublished",
    "meta\naxes\nx.yaml",
    "score\nr\nmia_min_k.k=0.2",
    "sweep\nplan.yaml",
    "unlearn\n--method\nNPO\n--model\nx",
    "train\n--model\nx\n--epochs\n2\n--best\na=1",
    "plan\nmuse\n--model\nx\n--metrics\nprivleak",
    "eval\nlm_eval\n--model\nx\n--tasks\na,b",
    "eval\ntofu\n--model\nx\n-m\nseed=1,2",
    "job\n--set\ngpu.count=2\n--\neval",
)
