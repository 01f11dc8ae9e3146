"""Bad input is refused in one sentence that names what is wrong and where; nothing is lost and nothing looks done.

A case is how the input is made, a command line, and what the sentence must name. Commands run in the test's folder, so
inputs have short names. `{full}`, `{data}` and the like are the lab's; `copy` is a copy of a finished run, `{run}`.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

import harness
import numpy as np
import pytest
from harness import DATA, FULL, LAB, RETAIN
from safetensors.numpy import load_file, save_file

Build = Callable[[Path], object]
FORGET = DATA / "forget.jsonl"
ROW = harness.read_rows(FORGET)[0]


# ---- how inputs are made ---------------------------------------------------------------------------------------------


def file(name: str, content: str | bytes = "") -> Build:
    def build(here: Path) -> None:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return build


def gone(name: str) -> Build:
    def build(here: Path) -> None:
        path = here / name
        path.unlink() if path.is_file() else shutil.rmtree(path)

    return build


def changed(name: str, **settings: Any) -> Build:
    """Other settings in a JSON file."""

    def build(here: Path) -> None:
        path = here / name
        path.write_text(json.dumps({**harness.read_json(path), **settings}))

    return build


def row(**changes: Any) -> str:
    return json.dumps({**ROW, **changes}) + "\n"


def rows(*lines: str | bytes, name: str = "forget.jsonl") -> Build:
    """A data folder `myrows` with one file."""
    return file(f"myrows/{name}", b"".join(line.encode() if isinstance(line, str) else line for line in lines))


def model(*changes: Build) -> Build:
    """A changed copy `mymodel` of a lab model."""

    def build(here: Path) -> None:
        harness.copy_tree(FULL, here / "mymodel")
        for change in changes:
            change(here)

    return build


def weights(change: Callable[[dict[str, Any]], object]) -> Build:
    """Changes the arrays of the copy by name."""

    def build(here: Path) -> None:
        path = here / "mymodel" / "model.safetensors"
        arrays = load_file(path)
        change(arrays)
        save_file(arrays, path, metadata={"format": "pt"})

    return build


def adapter(base: str, width: int) -> Build:
    """A LoRA adapter `mymodel` for layers with `width` inputs."""

    def build(here: Path) -> None:
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
        file("mymodel/adapter_config.json", json.dumps({**config, "base_model_name_or_path": base}))(here)
        name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
        arrays = {f"{name}A.weight": np.ones((2, width), "float32"), f"{name}B.weight": np.ones((width, 2), "float32")}
        save_file(arrays, here / "mymodel" / "adapter_model.safetensors")

    return build


class Hostile:
    """Pickled: a program that leaves a folder where it is read."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("EXECUTED",)


def leading_out(here: Path) -> None:
    with zipfile.ZipFile(here / "proof.zip", "w") as archive:
        archive.writestr("../EXECUTED", "x")


def metric(text: str) -> Build:
    return file("conf/eval/tofu_metrics/mine.yaml", f"# @package eval.tofu.metrics.mine\n{text}\n")


def plugin(text: str) -> Build:
    return file("mine.py", f"from vestige.plugins import *\n{text}\n")


# ---- the cases -------------------------------------------------------------------------------------------------------

EVAL = "eval tofu --limit 2 --metrics forget_Q_A_Prob --quiet --out copy stats.resamples=0 "
MODEL = EVAL.replace("copy", "out") + "--data {data} --model mymodel "
ROWS = EVAL + "--model {full} --data myrows "
LAB_EVAL = EVAL + "--model {full} --data {data} "
TOKENIZER = "mymodel/tokenizer_config.json"
WEIGHTS, EMBEDDING = "mymodel/model.safetensors", "model.embed_tokens.weight"
CONF = LAB_EVAL + "--config-dir conf --metrics mine "
LOGS = LAB_EVAL + "--metrics forget_quality --retain-logs "
SERVER = LAB_EVAL + "+server.down=0.01 --server "
PLUGIN = LAB_EVAL + "--plugin mine.py "
UNLEARN = "unlearn --model {full} --forget {forget} --retain {forget} --quiet --out out --method "
DEPTH = "depth --full {full} --retain-model {retain} --limit 2 --quiet --out out --unlearned "
COLLAPSE = "collapse rollouts.jsonl --model {full} --quiet --out out "
TRAJECTORY = "eval tofu_trajectory --model {full} +eval.tofu_trajectory.metrics.trajectory_metrics"
STRESS = "stress --model {full} --data {data} --limit 2 --quiet --out out "
CUT = model(lambda here: os.truncate(here / WEIGHTS, 100_000))
LAST_BLOCK = weights(lambda w: [w.pop(name) for name in list(w) if ".layers.3." in name])
SHALLOW = model(changed("mymodel/config.json", num_hidden_layers=3), LAST_BLOCK)
TOKENS = weights(lambda w: w.update({EMBEDDING: w[EMBEDDING][:100].copy()}))
FEW_TOKENS = model(changed("mymodel/config.json", vocab_size=100), TOKENS)
NAN = model(weights(lambda w: w["model.norm.weight"].fill(np.nan)))
PICKLE = file("mymodel/pytorch_model.bin", pickle.dumps(Hostile()))
UNSAFE = "+model.model_args.use_safetensors=false"
INDEX = {"metadata": {}, "weight_map": {"model.norm.weight": "../forget.jsonl"}}
ELSEWHERE = file("mymodel/model.safetensors.index.json", json.dumps(INDEX))
OWN_CODE = file("mymodel/own.py", "import os\nos.mkdir('EXECUTED')")
AUTO_MAP = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
FOREIGN = changed("mymodel/config.json", model_type="wobbly", auto_map=AUTO_MAP)
SWEEP, META = "sweep plan.yaml", "meta faithfulness pools.yaml -o out"
ROLLOUT = '{"prompt": "p", "response": "<think>a</think> b", "group_id": 1}\n'

# name: how the input is made, the command, what the sentence names (parted by |)
CASES: dict[str, tuple[Build | None, str, str]] = {
    "verb: eval": (None, "evl", "evl|vestige eval"),
    "verb: compare": (None, "comparee", "comparee|vestige compare"),
    "verb: none": (None, "frobnicate", "frobnicate|--help"),
    "verb: a flag": (None, "version", "--version"),
    "verb: removed": (None, "methods-text --out o", "vestige explain METRIC"),
    "verb: removed 2": (None, "published saves/eval/mine", "vestige compare RUN published"),
    "verb: removed 3": (None, "demo-meta", "vestige meta"),
    "verb: removed 4": (None, "completion --help", "vestige VERB --help"),
    "verb: removed 5": (None, "serve-check", "vestige plan SUITE --model PATH --server URL"),
    "flag: eval": (None, "eval tofu --modle x", "--modle|--model"),
    "flag: depth": (None, "depth --unlerned x", "--unlerned|--unlearned"),
    "flag: score": (None, "score RUN --out X", "--out"),
    "flag: other mode": (None, "stress relearn --mode relearn --model {full}", "--mode|--model"),
    "flag: sweep": (None, "sweep plan.yaml --batch_size 3", "--batch-size|plan"),
    "flag: no number": (None, "eval --limit x", "--limit|x"),
    "flag: device": (None, LAB_EVAL + "--device tpu", "tpu"),
    "missing: audit": (None, "audit --before X", "--after|--forget"),
    "missing: publish": (None, "publish RUN", "--to"),
    "missing: diff": (None, "diff A", "RUN_B"),
    "missing: eval": (None, "eval", "--model"),
    "name: suite": (None, "eval tofo --model x", "tofo|'tofu'"),
    "name: two suites": (None, "eval tofu muse --model x", "tofu|muse"),
    "name: metric": (None, LAB_EVAL + "--metrics mia_los", "mia_los|'mia_loss'"),
    "name: dialect": (None, LAB_EVAL + "--dialect strickt", "strickt|'strict'"),
    "name: model": (None, "eval model=Llama-3.2-1B-Instuct task_name=x", "'Llama-3.2-1B-Instruct'"),
    "name: method": (None, UNLEARN + "NOP", "NOP|NPO"),
    "name: attack": (None, STRESS + "relern", "relern|'relearn'"),
    "name: list": (None, "ls metrix", "metrix|'metrics'"),
    "name: explanation": (None, "explain privlek", "privlek|'privleak'"),
    "setting: unknown": (None, LAB_EVAL + "eval.tofu.nonsense=1", "nonsense"),
    "setting: metric": (None, LAB_EVAL + "+eval.tofu.metrics.forget_Q_A_Prob.foo=1", "foo|forget_Q_A_Prob"),
    "setting: trajectory": (None, TRAJECTORY + ".steps=4", "steps|trajectory_metrics"),
    "setting: its parts": (None, TRAJECTORY.replace("+", "") + ".trajectory_config.foo=1", "foo|+"),
    "setting: collapse": (None, COLLAPSE + "num_sample=3", "num_sample"),
    "model: cut, into a run": (CUT, LAB_EVAL + "--model mymodel", "mymodel/model.safetensors"),
    "model: nowhere": (None, MODEL, "mymodel"),
    "model: empty folder": (lambda here: (here / "mymodel").mkdir(), MODEL, "mymodel|config.json"),
    "model: a text": (file("mymodel", "hello"), MODEL, "mymodel"),
    "model: no config": (model(gone("mymodel/config.json")), MODEL, "mymodel|config.json"),
    "model: architecture": (model(changed("mymodel/config.json", model_type="wobbly")), MODEL, "mymodel|wobbly"),
    "model: cut weights": (CUT, MODEL, "mymodel/model.safetensors"),
    "model: no norm": (model(weights(lambda w: w.pop("model.norm.weight"))), MODEL, "mymodel|model.norm.weight"),
    "model: pickle": (model(gone(WEIGHTS), PICKLE), MODEL, "mymodel|pytorch_model.bin|safetensors"),
    "model: pickle, allowed": (model(gone(WEIGHTS), PICKLE), MODEL + UNSAFE, "mymodel"),
    "model: weights elsewhere": (model(gone(WEIGHTS), ELSEWHERE), MODEL, "mymodel|../forget.jsonl"),
    "model: its own code": (model(FOREIGN, OWN_CODE), MODEL, "mymodel|trust_remote_code"),
    "model: no tokenizer": (model(gone("mymodel/tokenizer.json"), gone(TOKENIZER)), MODEL, "mymodel|tokenizer"),
    "model: GGUF": (file("m.gguf", "GGUX" + "x" * 64), MODEL + "--model m.gguf", "m.gguf"),
    "model: no base": (adapter("org/nowhere", 64), MODEL, "mymodel|'org/nowhere'"),
    "model: wrong base": (adapter(str(FULL), 32), MODEL, "mymodel|q_proj"),
    "data: nowhere": (None, ROWS, "myrows"),
    "data: a file": (None, EVAL + "--model {full} --data {forget}", "--data"),
    "data: empty file": (rows(""), ROWS, "myrows/forget.jsonl"),
    "data: broken line": (rows(row(), '{"question":\n'), ROWS, "myrows/forget.jsonl|line 2"),
    "data: NaN": (rows(row(), '{"question": "q", "answer": NaN}'), ROWS, "myrows/forget.jsonl|row 1|'answer'"),
    "data: a number": (rows(row(), row(answer=3)), ROWS, "myrows/forget.jsonl|row 1|'answer'"),
    "data: Latin": (rows(row(), '{"question": "K\xf6ln"}'.encode("latin-1")), ROWS, "myrows/forget.jsonl|UTF-8"),
    "data: CSV": (rows("question,answer\nwho,me\n"), ROWS, "myrows/forget.jsonl|line 1"),
    "data: too long": (rows(row(), row(answer="the cat " * 9999)), ROWS, "myrows/forget.jsonl|row 1|256"),
    "plan: data": (rows("{"), ROWS.replace("eval", "plan", 1), "myrows/forget.jsonl|line 1"),
    "config: folder of ls": (None, "ls metrics --config-dir conf", "--config-dir|conf"),
    "config: YAML": (metric("handler: [rouge"), CONF, "conf/eval/tofu_metrics/mine.yaml|line 3"),
    "config: program": (metric("handler: !!python/object/apply:os.mkdir [EXECUTED]"), CONF, "mine.yaml|line 2"),
    "config: handler": (metric("handler: probabilty"), CONF, "'mine'|'probabilty'|'probability'"),
    "config: cyclic defaults": (metric("defaults: [mine]\nhandler: loss"), CONF, "tofu_metrics/mine"),
    "config: cyclic parents": (metric("handler: privleak\npre_compute: {mine: {}}"), CONF, "'mine'"),
    "config: interpolation": (None, LAB_EVAL + "'task_name=${{not.there}}'", "'task_name'|'not.there'"),
    "config: limit": (None, LAB_EVAL + "--limit -1", "--limit|-1"),
    "config: seed": (None, LAB_EVAL + "seed=monday", "seed|'monday'"),
    "config: experiment": (None, "eval experiment=eval/tofu/other task_name=t", "eval/tofu|'other'"),
    "logs: not JSON": (file("logs.json", "{"), LOGS + "logs.json", "logs.json"),
    "score: logs": (None, "score copy --retain-logs nowhere", "nowhere"),
    "score: no evidence": (gone("copy/evidence"), "score copy", "copy"),
    "score: newer": (changed("copy/manifest.json", schema=99), "score copy", "copy|99"),
    "compare: broken": (file("copy/TOFU_EVAL.json", "{"), "compare copy {run}", "copy/TOFU_EVAL.json"),
    "diff: no run": (None, "diff copy {full}", "{full}"),
    "report: no run": (None, "report {data} -o out", "{data}"),
    "table: column": (None, "table copy --columns nonsense", "'nonsense'|forget_Q_A_Prob"),
    "plot: what": (None, "plot copy scater -o out.png", "'scater'|'scatter'"),
    "view: port": (None, "view copy --port 99999", "--port|99999"),
    "verify: nowhere": (None, "verify nowhere", "nowhere"),
    "pack: no evidence": (gone("copy/evidence"), "pack copy -o out.zip", "copy|evidence"),
    "unpack: no archive": (file("proof.zip", "PK"), "unpack proof.zip -o out", "proof.zip"),
    "unpack: a name that leads out": (leading_out, "unpack proof.zip -o out", "proof.zip"),
    "out: a name that leads out": (None, "eval tofu --model {full} --task-name ../../EXECUTED", "../../EXECUTED"),
    "publish: tool": (None, "publish copy --to exel -o out", "'exel'|json"),
    "depth: blocks": (SHALLOW, DEPTH + "mymodel --forget {forget}", "mymodel| 3 |{full}"),
    "depth: no entity": (rows(row(entity="Rome")), DEPTH + "{full} --forget myrows/forget.jsonl", "myrows|entity"),
    "collapse: columns": (file("rollouts.jsonl", row()), COLLAPSE, "rollouts.jsonl|row 1|prompt"),
    "meta: YAML": (file("pools.yaml", "a: [\n"), META, "pools.yaml|line 2"),
    "meta: models": (file("pools.yaml", "positive: [saves/a]\nnegative: [b]"), META, "pools.yaml|saves/a"),
    "meta: truth": (None, "meta verdict {data} -o out", "{data}|truth.json"),
    "import: a model": (None, "import {full}/config.json -o out", "{full}/config.json"),
    "import: no tree": (None, "import {data} -o out", "{data}"),
    "sweep: YAML": (file("plan.yaml", "models: [a"), SWEEP, "plan.yaml|line 1"),
    "sweep: program": (file("plan.yaml", "models: !!python/object/apply:os.mkdir [EXECUTED]"), SWEEP, "plan.yaml"),
    "sweep: twice a key": (file("plan.yaml", "models: [a]\nsuites: [tofu]\nmodels: [b]"), SWEEP, "'models'|line 3"),
    "sweep: cyclic": (file("plan.yaml", "models: &m {a: *m}\nsuites: [tofu]"), SWEEP, "plan.yaml|alias"),
    "sweep: key": (file("plan.yaml", "models: [a]\nsuites: [tofu]\nslot: 1"), SWEEP, "plan.yaml|'slot'|'slots'"),
    "sweep: names": (file("plan.yaml", "models: [x/a, y/a]\nsuites: [tofu]"), SWEEP, "'a'"),
    "job: name": (None, "job My_Job! --dry-run -- eval tofu --model m", "My_Job!"),
    "server: nobody": (None, SERVER + "http://127.0.0.1:{nobody}", "http://127.0.0.1:{nobody}"),
    "server: path": (None, SERVER + "http://127.0.0.1:{port}/other", "http://127.0.0.1:{port}/other|/v1/models"),
    "server: https": (None, SERVER + "https://127.0.0.1:{port}", "https://127.0.0.1:{port}|SSL"),
    "out: a file": (file("notes.txt", "mine"), LAB_EVAL + "--out notes.txt", "notes.txt|--out"),
    "depth: vocabulary": (FEW_TOKENS, DEPTH + "mymodel --forget {forget}", "mymodel|0 to 99|--tokenizer"),
    "out: not writable": (None, DEPTH + "{full} --forget {forget} --out /proc/out", "/proc/out"),
    "out: a checkpoint": (model(), UNLEARN + "NPO --out mymodel", "mymodel|--out"),
    "out: others' file": (file("out.zip", "mine"), "pack copy -o out.zip", "out.zip|--out"),
    "plug-in: nowhere": (None, PLUGIN, "mine.py|--plugin"),
    "plug-in: syntax": (plugin("def f(:"), PLUGIN, "mine.py|line 2"),
    "plug-in: exception": (plugin("1 / 0"), PLUGIN, "mine.py|line 2|ZeroDivisionError"),
    "plug-in: signature": (plugin("@metric(knows='low')\ndef f(t): 'f'"), PLUGIN, "mine.py|line 2|source"),
    "plug-in: no function": (plugin("attack('a')(3)"), STRESS + "a --plugin mine.py", "mine.py|line 2|3"),
    "plug-in: our name": (plugin("@attack('prune')\ndef f(a, b): 'f'"), STRESS + "prune --plugin mine.py", "'prune'"),
    "train: broken rows": (rows("{"), "train --model {full} --learn myrows/forget.jsonl", "myrows/forget.jsonl|line 1"),
    "train: rank": (None, "train --model {full} --learn {forget} --lora 0", "--lora|0"),
    "unlearn: knob's type": (None, UNLEARN + "NPO --knob beta=much", "beta|'much'"),
    "stress: budget": (None, STRESS + "prune=2", "prune|2"),
    "audit: rows": (rows(""), "audit --before {full} --after {full} --forget myrows/forget.jsonl", "myrows"),
    "demo: seed": (None, "demo --out out --seed monday", "--seed|'monday'"),
}  # fmt: skip

RESULTS = re.compile(  # documented names (docs/results.md and the pages of the verbs)
    r".*_(EVAL|SUMMARY|STATS)\.json|(stress|summary|metrics|results|training|report|meta_eval|method_results)\.json"
    r"|.*\.(html|png|svg|zip|safetensors)"
)


@pytest.fixture(scope="session")
def places(shared: Callable[..., Path]) -> Iterator[dict[str, object]]:
    """What `{name}` in a command stands for."""

    def build(place: Path) -> object:
        words = ("--model", FULL, "--data", DATA, "--metrics", "forget_Q_A_Prob", "--limit", 3, "stats.resamples=0")
        return harness.vestige("eval", "tofu", *words, "--quiet", "--out", place)

    handler = partial(SimpleHTTPRequestHandler, directory=str(DATA))  # a server, but not of models
    with socket.socket() as unused, HTTPServer(("127.0.0.1", 0), handler) as server:
        unused.bind(("127.0.0.1", 0))
        Thread(target=server.serve_forever, daemon=True).start()
        ports = {"port": server.server_port, "nobody": unused.getsockname()[1]}
        lab = {"full": FULL, "retain": RETAIN, "data": DATA, "forget": FORGET, "golden": LAB}
        yield {**lab, **ports, "run": shared("tiny-run", build)}
        server.shutdown()


def prepare(build: Build | None, line: str, places: dict[str, object], here: Path) -> list[str]:
    """Makes the input, and returns the words of the command."""
    words = shlex.split(line)
    if "copy" in words:
        harness.copy_tree(Path(str(places["run"])), here / "copy")
    if build is not None:
        build(here)
    return [word.format(**places) for word in words]


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_sentence(name: str, places: dict[str, object], tmp_path: Path) -> None:
    build, line, names = CASES[name]
    words = prepare(build, line, places, tmp_path)
    before = harness.visible(tmp_path)
    refused = harness.refused(names.format(**places), *words, cwd=tmp_path)
    assert len(refused.error) < 700 and refused.error.isprintable()
    assert "Traceback" not in refused.printed
    assert not re.search(r"\d\.\d{3}|files:", refused.out), "it looks like a result"
    after = harness.visible(tmp_path)
    lost = [path for path in before if after.get(path) != before[path]]
    assert not lost, f"changed: {lost}"
    new = [path for path in after if path not in before]
    assert not [path for path in new if path.startswith("copy/") or RESULTS.fullmatch(Path(path).name)], new
    assert not (tmp_path / "EXECUTED").exists(), "a program in the input was run, or a name led out"


NO_VALUE: dict[str, tuple[Build | None, str, str]] = {  # the metric, and what its reason names
    "NaN weights": (NAN, MODEL, "forget_Q_A_Prob|NaN|2 of 2 rows"),
    "no forget rows": (rows(row(), name="retain.jsonl"), ROWS, "forget_Q_A_Prob|myrows|'forget'|retain.jsonl"),
    "no column": (rows('{"question": "q", "text": "a"}'), ROWS, "forget_Q_A_Prob|myrows/forget.jsonl|'answer'|text"),
    "logs of MUSE": (None, LOGS + "{golden}/expected/retain/MUSE_EVAL.json", "forget_quality|MUSE_EVAL.json"),
    "logs without it": (None, LOGS + "{run}", "forget_quality|{run}|forget_truth_ratio"),
}


@pytest.mark.parametrize("name", NO_VALUE)
def test_what_has_no_value_is_null_with_a_reason(name: str, places: dict[str, object], tmp_path: Path) -> None:
    build, line, names = NO_VALUE[name]
    metric, *named = names.format(**places).split("|")
    words = prepare(build, line.replace("copy", "out"), places, tmp_path)
    outcome = harness.vestige(*words, status=2, cwd=tmp_path)
    assert outcome.error
    found = harness.read_json(tmp_path / "out" / "TOFU_EVAL.json")[metric]
    assert found["agg_value"] is None
    for text in named:
        assert text in found["reason"]
        assert text in outcome.printed
    assert harness.read_json(tmp_path / "out" / "TOFU_SUMMARY.json") == {}


def test_odd_rows_count_like_others(places: dict[str, object], tmp_path: Path) -> None:
    """A byte-order mark, an empty answer, NUL, one row twice and with the same `index`."""
    odd = [row(index=3), row(index=3), row(answer=""), row(question="\0\u2028", answer="\ufeff\U0001d54f")]
    words = prepare(rows("\ufeff", *odd), ROWS.replace("--limit 2", "").replace("copy", "out"), places, tmp_path)
    harness.vestige(*words, cwd=tmp_path)
    found = harness.read_json(tmp_path / "out" / "TOFU_EVAL.json")["forget_Q_A_Prob"]["value_by_index"]
    assert sorted(found) == ["0", "1", "2", "3"]
    assert found["0"] == found["1"]
    plain = harness.read_json(Path(str(places["run"])) / "TOFU_EVAL.json")["forget_Q_A_Prob"]["value_by_index"]
    harness.assert_same(plain["0"], found["0"], least=2)


# ---- from Python -----------------------------------------------------------------------------------------------------

CALLS = """
import json, sys, vestige
for name, values, keywords in json.loads(sys.argv[1]):
    try:
        getattr(vestige, name)(*values, **keywords)
        print(json.dumps("no error"))
    except vestige.UserError as error:
        print(json.dumps(str(error)))
"""


def test_python_raises_user_errors(places: dict[str, object], tmp_path: Path) -> None:
    """One exception for every mistake; it names the keyword or the value as the sentence of a command does."""
    full, data, run = (str(places[name]) for name in ("full", "data", "run"))
    depth = (full, full, str(RETAIN), str(FORGET))
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
        ("evaluate", ("nowhere", "tofu"), {"data": data}, "nowhere"),
        ("evaluate", (full, "tofo"), {"data": data}, "tofu"),
        ("evaluate", (full,), {"data": {"forgot": [ROW]}}, "forgot"),
        ("evaluate", (full,), {"data": {"forget": [ROW, {**ROW, "answer": 3}]}}, "answer"),
        ("evaluate", (full,), {"data": data, "batch_size": 0}, "batch_size"),
        ("evaluate", (full,), {"data": data, "retain_logs": "logs.json"}, "logs.json"),
        ("load_run", (data,), {}, data),
        ("score", (run,), {"changes": {"mia_loss": {"k": 1}}}, "mia_loss"),
        ("compare_runs", (run, run), {"margin": -1}, "margin"),
        ("measure_depth", depth, {"layers": [99]}, "99"),
        ("measure_collapse", ("rollouts.jsonl", full), {}, "rollouts.jsonl"),
        ("attack", (full, data, "prun"), {"out": "out"}, "prune"),
        ("make_report", (data, "out"), {}, data),
        ("Callback", (), {"every": 0}, "every"),
        ("evaluate", (full,), {"data": data, "metrcs": "mia_loss"}, "metrics"),
        ("evaluate", (full,), {"data": data, "metrics": "mia_los"}, "mia_loss"),
        ("evaluate", (full,), {"data": data, "limit": 0}, "limit"),
        ("evaluate", (full,), {"data": data, "dtype": "float23"}, "float32"),
    ]
    done = harness.python(CALLS, json.dumps([call[:3] for call in calls]), cwd=tmp_path)
    errors = [json.loads(line) for line in done.out.splitlines()]
    for call, error in zip(calls, errors, strict=True):
        assert call[3] in error and error != "no error" and "\n" not in error, call
