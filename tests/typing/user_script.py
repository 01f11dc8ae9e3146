"""A user's script: every public name, called as a user would. Type checkers read it, and a test runs it.

python user_script.py LAB OUT        (LAB: a folder with models/ and data/)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import cast

import pandas
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import vestige


def evaluations(lab: Path, out: Path) -> tuple[vestige.Result, vestige.Result]:
    """From paths, with files."""
    models, data = lab / "models", lab / "data"
    chosen = ["forget_Q_A_Prob", "forget_Q_A_ROUGE"]
    cost = vestige.plan(models / "unlearned", "tofu", data=data, metrics=chosen, limit=4)
    print(f"{cost.answers.tokens} tokens, {cost.seconds:.1f} s, {cost.memory} bytes, {cost.unavailable}")
    retain = vestige.evaluate(models / "retain", data=data, metrics=chosen, limit=4, out=out / "retain")
    mine = vestige.evaluate(
        str(models / "unlearned"), data=data, metrics=chosen, limit=4, out=out / "mine", retain_logs=retain
    )
    value: float | None = mine.summary["forget_Q_A_Prob"]
    low, high = mine.intervals.get("forget_Q_A_Prob", (0.0, 1.0))
    print(value, low <= high, mine.cost["score_tokens"], mine.notes, mine.name)
    reason: str = mine["forget_Q_A_Prob"].reason
    print(reason, len(mine.rows("forget_Q_A_Prob")), mine.rows("forget_Q_A_Prob")[0]["index"])
    for text in mine.texts("forget_Q_A_ROUGE"):
        print(text["input"].upper(), text["reference"], text["text"])
    frame: pandas.DataFrame = mine.to_pandas()
    print(list(frame.columns), [line["reading"] for line in mine.lines()])
    return retain, mine


def finished_runs(retain: vestige.Result, mine: vestige.Result, out: Path) -> Path:
    """Without a model."""
    again = vestige.load_run(out / "mine")
    assert again.summary == mine.summary
    strict = vestige.score(again, dialect="strict")
    print(strict, strict.files)
    found = vestige.compare_runs(retain, out / "mine", metrics=["forget_Q_A_Prob"], resamples=100, cluster="none")
    for difference in found.differences["mine"]:
        print(difference.metric, difference.value + 1.0, difference.interval[0], difference.holm, difference.reading)
    page = vestige.make_report([retain, out / "mine"], out / "report", title="Mine", rows=3)
    print(page.name, retain.report, None if mine.verdict is None else mine.verdict.title)
    return page


def in_memory(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, str]]) -> vestige.Result:
    """A model and rows that are in memory; nothing is written."""
    half = len(rows) // 2
    tables = {"forget": Dataset.from_list(rows[:half]), "retain": pandas.DataFrame(rows), "holdout": rows[half:]}
    live = vestige.evaluate(model, tokenizer=tokenizer, data=tables, metrics="forget_Q_A_Prob,mia_loss")
    splits = DatasetDict({"forget": Dataset.from_list(rows[:half])})
    other = vestige.evaluate(model, tokenizer=tokenizer, data=splits, metrics=["forget_Q_A_Prob"])
    print(vestige.compare_runs(live, other, metrics="forget_Q_A_Prob", resamples=100))
    directory: Path | None = live.directory
    assert directory is None
    return live


def other_questions(lab: Path, out: Path) -> None:
    """Layers, attacks, reasoning."""
    models = lab / "models"
    mine, full, retain = (models / name for name in ("unlearned", "full", "retain"))
    [depth] = vestige.measure_depth(mine, full, retain, lab / "data" / "forget.jsonl", limit=2, layers=[0, 1])
    uds: float | None = depth.uds
    print(uds, depth.interval, depth.reason, depth.name)
    for row in vestige.attack(mine, lab / "data", {"prune": 0.5}, metrics="forget_Q_A_Prob", limit=2):
        print(row.model, row.attack, row.budget, row.values["forget_Q_A_Prob"])
    rollouts = out / "rollouts.jsonl"
    with rollouts.open("w") as file:
        for state in ("a red box", "a blue door", "a green key"):
            for action in ("Up", "Down"):
                answer = f"<think>I see {state}, so I go {action}.</think><answer>{action}</answer>"
                turn = {"messages": [{"role": "user", "content": f"You see {state}."}], "response": answer}
                file.write(json.dumps({**turn, "group_id": state}) + "\n")
    report = vestige.measure_collapse(rollouts, full, num_samples="all", resamples=20)
    for step, numbers in report.metrics.items():
        print(step, numbers["collapse_first_turn_sample/mi_seq_estimate"] + 0.0)


def while_training(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, data: Path, out: Path) -> float | None:
    """A callback for trainers, and a watch for loops."""
    callback = vestige.Callback("tofu", data=data, metrics=["forget_Q_A_Prob"], limit=2, every=10, out=out / "callback")
    best = callback.best
    print([look.values for look in callback.looks], None if best is None else best.step)
    watch = vestige.Watch(model, tokenizer, "tofu", data=data, metrics=["forget_Q_A_Prob"], limit=2, every=1)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    look = None
    for _ in range(2):
        optimiser.zero_grad()
        loss = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        torch.autograd.backward(loss)
        optimiser.step()
        look = watch.step(tokens=8)
        if look is not None and watch.is_best and not watch.should_stop:
            print(look.step, look.values["forget_Q_A_Prob"], look.rank.score, look.seconds)
    return None if look is None else look.values["forget_Q_A_Prob"]


def mistakes() -> str:
    """Bad input is one exception, with a sentence."""
    try:
        vestige.load_run("nowhere")
    except vestige.UserError as error:
        return str(error)
    raise AssertionError


def main(lab: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    finished_runs(*evaluations(lab, out), out)
    other_questions(lab, out)
    model = AutoModelForCausalLM.from_pretrained(lab / "models" / "full")
    tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(lab / "models" / "full"))
    rows = [json.loads(line) for line in (lab / "data" / "forget.jsonl").read_text().splitlines()[:5]]
    print(in_memory(model, tokenizer, rows))
    print(while_training(model, tokenizer, lab / "data", out))
    print(mistakes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
