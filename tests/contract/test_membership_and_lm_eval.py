"""Membership attacks against a slow float64 reference, and lm-evaluation-harness against its own numbers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
import torch
from formulas import auc
from harness import DATA, FULL, RETAIN, UNLEARNED, read_json, read_rows, vestige, write_rows

# ---- membership attacks ----------------------------------------------------------------------------------------------

ATTACKS = ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus", "mia_gradnorm", "mia_reference")


def rows_of_both_sets() -> dict[str, list[dict[str, str]]]:
    """Nine forget rows and seven holdout rows: ties between the sets, answers of one token, and of none."""
    forget, holdout = ([dict(row) for row in read_rows(DATA / f"{name}.jsonl")] for name in ("forget", "holdout"))
    sets = {"forget": forget[:6], "holdout": holdout[:4]}
    same = {"question": "What is it?", "answer": "A grey stone."}
    short = {"question": "Which letter?", "answer": "a"}
    sets["forget"] += [same, short, {"question": "What now?", "answer": "e"}]
    sets["holdout"] += [same, same, short]
    return {name: [{key: row[key] for key in ("question", "answer")} for row in rows] for name, rows in sets.items()}


@cache
def loaded(path: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval(), AutoTokenizer.from_pretrained(path)


def slow_scores(model: Path, row: dict[str, str], strict: bool, k: float, p: float) -> dict[str, float]:
    """All attacks on one answer. The last label is left out where the dialect says so."""
    lm, tokenizer = loaded(model)
    talk = [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]
    prompt = tokenizer.apply_chat_template(talk[:1], add_generation_prompt=True, return_dict=True)["input_ids"]
    ids = tokenizer.apply_chat_template(talk, return_dict=True)["input_ids"]
    logits = lm(input_ids=torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
    log_probs = logits.log_softmax(-1)
    own = log_probs[torch.arange(len(logits)), torch.tensor(ids[len(prompt) :])]
    last = len(own) if strict else len(own) - 1
    mean = (log_probs.exp() * log_probs).sum(-1)
    std = ((log_probs.exp() * log_probs**2).sum(-1) - mean**2).clamp(min=1e-6).sqrt()
    count = max(1, int(last * k))
    lm.zero_grad()
    (-own[:last].mean()).backward()
    norms = [float(weight.grad.norm(p)) for weight in lm.parameters()]
    own, mean, std = own.detach(), mean.detach(), std.detach()
    loss = -float(own.mean())
    return {
        "mia_loss": loss,
        "mia_zlib": loss / len(zlib.compress(row["answer"].encode())),
        "mia_min_k": -float(own[:last].sort().values[:count].mean()),
        "mia_min_k_plus_plus": -float(((own - mean) / std)[:last].sort().values[:count].mean()),
        "mia_gradnorm": float(np.mean(norms)),
    }


@pytest.fixture(scope="session")
def data(shared: Callable[..., Path]) -> Path:
    def build(place: Path) -> None:
        for name, rows in rows_of_both_sets().items():
            write_rows(place / f"{name}.jsonl", rows)

    return shared("membership-data", build)


@pytest.mark.parametrize(
    ("dialect", "k", "p"), [("open-unlearning", 0.4, 2), ("strict", 0.1, 1), ("depth-score", 1.0, np.inf)]
)
def test_all_attacks_against_a_slow_reference(dialect: str, k: float, p: float, data: Path, tmp_path: Path) -> None:
    """Every score of every row in float64, one row at a time, and the AUC by pairs."""
    settings = [f"+eval.tofu.metrics.{name}.k={k}" for name in ("mia_min_k", "mia_min_k_plus_plus")]
    settings.append(f"+eval.tofu.metrics.mia_gradnorm.p={'inf' if p == np.inf else p}")
    words = ("--data", data, "--metrics", ",".join(ATTACKS), "--reference-model", RETAIN, "--dialect", dialect)
    vestige("eval", "tofu", "--model", UNLEARNED, *words, *settings, "stats.resamples=0", "--quiet", "--out", tmp_path)
    found = read_json(tmp_path / "TOFU_EVAL.json")
    scores: dict[str, dict[str, list[float]]] = {name: {} for name in ATTACKS}
    for group, rows in rows_of_both_sets().items():
        for row in rows:
            mine = slow_scores(UNLEARNED, row, dialect == "strict", k, p)
            mine["mia_reference"] = mine["mia_loss"] - slow_scores(RETAIN, row, True, k, p)["mia_loss"]
            for name, value in mine.items():
                scores[name].setdefault(group, []).append(value)
    for name, groups in scores.items():
        assert found[name]["agg_value"] == pytest.approx(auc(groups["forget"], groups["holdout"]), abs=1e-12), name
        for group, expected in groups.items():
            values = found[name][group]["value_by_index"]
            assert [int(index) for index in values] == list(range(len(expected)))
            close = {"rel": 1e-3, "abs": 1e-5} if name == "mia_gradnorm" else {"rel": 2e-5, "abs": 1e-5}
            assert [row["score"] for row in values.values()] == pytest.approx(expected, **close), (name, group)


def test_privleak_needs_an_auc_below_one(data: Path, tmp_path: Path) -> None:
    """Against 0.5, against a retain run, and against one whose AUC is 1, which leaves nothing to divide by."""
    words = ("eval", "tofu", "--data", data, "--quiet", "stats.resamples=0", "--metrics", "mia_min_k,privleak")
    runs = {name: tmp_path / name for name in ("retain", "unlearned", "perfect")}
    for name in ("retain", "unlearned"):
        vestige(*words, "--model", harness.LAB / "models" / name, "--out", runs[name])
    auc_of = {name: read_json(runs[name] / "TOFU_EVAL.json")["mia_min_k"]["agg_value"] for name in list(runs)[:2]}
    write_rows(runs["perfect"] / "TOFU_EVAL.json", [{"mia_min_k": {"agg_value": 1.0, "auc": 1.0}}])
    found = [read_json(runs["unlearned"] / "TOFU_EVAL.json")["privleak"]]
    for name in ("retain", "perfect"):
        copy = harness.copy_tree(runs["unlearned"], tmp_path / f"against-{name}")
        vestige("score", copy, "--retain-logs", runs[name] / "TOFU_EVAL.json")
        found += [read_json(path)["privleak"] for path in copy.glob("scores/*/TOFU_EVAL.json")]
    mine, retain = auc_of["unlearned"], auc_of["retain"]
    expected = [(0.5 - mine) / 0.5 * 100, (retain - mine) / (1 - retain) * 100]
    assert [one["agg_value"] for one in found] == [*(pytest.approx(value, rel=1e-9) for value in expected), None]
    assert found[2]["reason"]


# ---- lm-evaluation-harness -------------------------------------------------------------------------------------------

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}, train: {data}}}}}
test_split: test
fewshot_split: train
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: {target}
metric_list: [{metrics}]
"""
CHOICES = 'label\ndoc_to_choice: "{{choices}}"'
UNTIL = '"{{answer}}"\ngeneration_kwargs: {until: ["."], max_gen_toks: 12, do_sample: false}'
ROWS = 8
# The harness without us, by the settings of a command, for every case in a file.
ALONE = """
import json, sys, torch, transformers
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
manager = TaskManager(include_path="tasks", include_defaults=False)
found = []
for names, settings in json.load(open("cases.json")):
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4)
    body = simple_evaluate(model=lm, tasks=names, task_manager=manager, bootstrap_iters=0, **settings)
    rows = {n: {s["doc_id"]: {m: float(s[m]) for m in s["metrics"]} for s in v} for n, v in body["samples"].items()}
    found.append({"results": body["results"], "rows": rows})
json.dump(found, open("found.json", "w"), default=str)
"""


@pytest.fixture(scope="session")
def place(shared: Callable[..., Path]) -> Path:
    """A folder with task files: multiple choice, one of them under WMDP's name, texts, and a group."""
    pytest.importorskip("lm_eval")

    def build(place: Path) -> None:
        rows = []
        for number, row in enumerate(read_rows(DATA / "forget.jsonl")[:ROWS]):
            choices = row["perturbed_answer"][:3]
            choices.insert(number % 4, row["answer"])
            rows.append({"question": row["question"], "answer": row["answer"], "choices": choices, "label": number % 4})
        data = write_rows(place / "tasks" / "rows.jsonl", rows)
        for name in ("lab_choice", "lab_more", "wmdp_cyber", "mmlu"):
            said = {"kind": "multiple_choice", "target": CHOICES, "metrics": "{metric: acc}, {metric: acc_norm}"}
            (place / "tasks" / f"{name}.yaml").write_text(TASK.format(name=name, data=data, **said))
        said = {"kind": "generate_until", "target": UNTIL, "metrics": "{metric: exact_match}"}
        (place / "tasks" / "lab_text.yaml").write_text(TASK.format(name="lab_text", data=data, **said))
        sized = "aggregate_metric_list: [{metric: acc, weight_by_size: true}]"
        (place / "tasks" / "lab_group.yaml").write_text(f"group: lab_group\ntask: [lab_choice, lab_more]\n{sized}\n")

    return shared("lm-eval", build)


def command(place: Path, *words: object, **options: Any) -> int:
    """`vestige eval WORDS` in the folder; the number of tokens that the model read."""
    env = {"HF_DATASETS_CACHE": str(place / "cache")}
    return harness.counted("eval", *words, cwd=place, env=env, **options)[1]


LM_EVAL = ("lm_eval", "--model", FULL, "--include-path", "tasks", "--quiet")
MODEL = f"model.model_args.pretrained_model_name_or_path={FULL}"
LOADED = 2 * 23  # tokens of the two rows that show, when a model is loaded, whether it sees later tokens
CHAT = {"num_fewshot": 2, "apply_chat_template": True, "system_instruction": "Be brief.", "limit": 4}


def test_the_harness_own_numbers(place: Path, tmp_path: Path) -> None:
    """All tasks of a list, and again in Hydra's words with few-shot examples in a chat: each summary and each row."""
    cases = [(["lab_group", "lab_text"], {}), (["lab_choice"], CHAT)]
    (place / "cases.json").write_text(json.dumps(cases))
    env = {"HF_DATASETS_CACHE": str(place / "cache")}
    harness.python(ALONE, FULL, cwd=place, env=env)
    command(place, *LM_EVAL, "--tasks", "lab_group,lab_text", "--out", tmp_path / "0")
    settings = [f"eval.lm_eval.simple_evaluate_args.{key}={value}" for key, value in CHAT.items()]
    settings += ["eval.lm_eval.tasks=[lab_choice]", "eval.lm_eval.include_path=tasks", "model=local", MODEL]
    command(place, "eval=lm_eval", *settings, "task_name=x", f"paths.output_dir={tmp_path / '1'}")
    for number, expected in enumerate(read_json(place / "found.json")):
        values = {}
        for task, results in expected["results"].items():
            for key, value in results.items():
                metric, _, rule = key.partition(",")
                if rule and not metric.endswith("_stderr"):
                    values[f"{task}/{metric}"] = value
        summary = read_json(tmp_path / str(number) / "LMEval_SUMMARY.json")
        harness.assert_same(values, summary, least=(6, 2)[number], close=lambda a, b, path: abs(a - b) < 1e-12)
        details = read_json(tmp_path / str(number) / "LMEval_EVAL.json")
        for task, rows in expected["rows"].items():
            assert len(details[task]["value_by_index"]) == len(rows) == (ROWS, 4)[number]
            harness.assert_same(rows, details[task]["value_by_index"], close=lambda a, b, path: a == b)
    answers = read_json(tmp_path / "0" / "LMEval_EVAL.json")["lab_text"]["value_by_index"]
    assert all(row["responses"] and row["target"] for row in answers.values())


COUNT_TASK_FILES = """
import importlib.metadata, sys
opened = set()

def note(event, args):
    if event == "open" and "lm_eval/tasks/" in str(args[0]) and str(args[0]).endswith(".yaml"):
        opened.add(args[0])

sys.addaudithook(note)
(script,) = importlib.metadata.entry_points(group="console_scripts", name="vestige")
script.load()()
print(len(opened))
"""


def test_a_group_of_own_tasks_does_not_read_the_harness_own(place: Path, tmp_path: Path) -> None:
    """They are 14,000 files and take ten seconds or more."""
    words = ("eval", *LM_EVAL, "--tasks", "lab_group", "--limit", 1, "--out", tmp_path)
    shown = harness.python(COUNT_TASK_FILES, *words, cwd=place, env={"HF_DATASETS_CACHE": str(place / "cache")}).out
    assert int(shown.split()[-1]) == 0


def test_a_killed_run_asks_only_the_rest(place: Path, tmp_path: Path) -> None:
    """The rerun command answers what is missing and leaves the same bytes; --overwrite asks again."""
    words = (*LM_EVAL, "--tasks", "lab_choice,lab_text,lab_more")
    whole = command(place, *words, "--out", tmp_path / "whole")
    command(place, *words, "--out", tmp_path / "cut", most=whole * 2 // 3, status=-9)
    assert not (tmp_path / "cut" / "LMEval_SUMMARY.json").exists()
    assert 0 < command(place, *words, "--out", tmp_path / "cut") < whole * 3 // 4
    for name in ("LMEval_SUMMARY.json", "LMEval_EVAL.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert command(place, *words, "--out", tmp_path / "cut") == LOADED
    vestige("verify", tmp_path / "cut")
    assert command(place, *words, "--out", tmp_path / "cut", "--limit", 2, "--overwrite") > 0
    assert len(read_json(tmp_path / "cut" / "LMEval_EVAL.json")["lab_text"]["value_by_index"]) == 2
    assert command(place, *words, "--out", tmp_path / "whole", "--overwrite") == whole


def test_tasks_of_one_model_accumulate(place: Path, tmp_path: Path) -> None:
    """As in one command with all tasks; another model, other settings or other rows are refused."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    few = (*LM_EVAL, "--limit", 3)
    first = command(place, *few, "--tasks", "lab_choice", "--out", out)
    second = command(place, *few, "--tasks", "lab_text", "--out", out)
    assert command(place, *few, "--tasks", "lab_choice,lab_text", "--out", whole) == first + second
    for name in ("LMEval_SUMMARY.json", "LMEval_EVAL.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    vestige("verify", out)
    shots = "eval.lm_eval.simple_evaluate_args.num_fewshot=1"
    others = {"model": ("--model", RETAIN), "--limit 3": ("--limit", 2), "simple_evaluate_args": (shots,)}
    before = harness.digests(out / "evidence")
    env = {"HF_DATASETS_CACHE": str(place / "cache")}
    for what, more in others.items():
        words = ("eval", *few, *more, "--tasks", "lab_choice", "--out", out)
        refused = harness.vestige(*words, cwd=place, env=env, status=2)
        assert what in refused.error and "--overwrite" in refused.error and str(out) in refused.error
        assert harness.digests(out / "evidence") == before
    own = harness.copy_tree(place / "tasks", tmp_path / "tasks")
    rows = read_rows(own / "rows.jsonl")
    (own / "lab_choice.yaml").write_text((own / "lab_choice.yaml").read_text().replace(str(place), str(tmp_path)))
    for number, text in ((0, "As before?"), (1, "Otherwise?")):
        write_rows(own / "rows.jsonl", [{**row, "question": text} for row in rows])
        words = ("eval", *few, "--tasks", "lab_choice", "--out", tmp_path / "own")
        status = (0, 2)[number]
        told = harness.vestige(*words, cwd=tmp_path, env={"HF_DATASETS_CACHE": str(tmp_path)}, status=status)
        assert ("lab_choice" in told.err) == (number == 1)
        vestige("verify", tmp_path / "own")


def test_the_wmdp_experiment(place: Path) -> None:
    """open-unlearning's words, with tasks of our own under the harness's names, and the result in Python."""
    words = ("experiment=eval/wmdp/default", "data_split=cyber", "task_name=X", "data.max_samples=3", MODEL)
    command(place, *words, "eval.lm_eval.include_path=tasks")
    summary = read_json(place / "saves" / "eval" / "X" / "LMEval_SUMMARY.json")
    assert {"wmdp_cyber/acc", "mmlu/acc"} <= set(summary)
    run = "import vestige; r = vestige.load_run('saves/eval/X'); print(len(r.rows('mmlu/acc')), r.summary['mmlu/acc'])"
    count, value = harness.python(run, cwd=place).out.split()
    assert (int(count), float(value)) == (3, summary["mmlu/acc"])


MISTAKES = {
    "eval lm_eval --model {full} --include-path tasks": "tasks",
    "eval lm_eval --tasks lab_choice +eval.lm_eval.simple_evaluate_args.batchsize=3 --model {full}": "'batch_size'",
    "eval lm_eval --tasks lab_choice --include-path tasks --model {full} --retain-logs x": "--retain-logs",
    "eval lm_eval --tasks lab_choice --include-path tasks --model {full} --metrics all": "metrics",
    "plan lm_eval --tasks lab_choice --model {full}": "lm_eval",
    "eval tofu --tasks lab_choice --model {full} --data {data}": "--tasks",
}


def test_mistakes_are_one_sentence(place: Path) -> None:
    for line, names in MISTAKES.items():
        harness.refused(names, *(word.format(full=FULL, data=DATA) for word in line.split()), cwd=place)
