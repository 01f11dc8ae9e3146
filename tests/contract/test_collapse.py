"""`vestige collapse`: RAGEN's collapse numbers from rollout files, in Python, and inside a trainer.

Golden numbers were computed by RAGEN's own code on a tiny model (golden/collapse). Where there are none, each
log-probability is computed here, slowly: one prompt with one reasoning at a time, with plain transformers.
"""

from __future__ import annotations

import gzip
import json
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import numpy as np
import pytest
import torch
from harness import FULL, GOLDEN, read_json, read_rows, write_rows

import vestige

GOLD = json.loads(gzip.decompress((GOLDEN / "collapse" / "collapse.json.gz").read_bytes()))
TINY = GOLDEN / "collapse" / "tiny"
FIRST, TRAJECTORY, TURN = (f"collapse_{name}_sample" for name in ("first_turn", "trajectory", "turn"))
QUICK = ("--resamples", 0)


def collapse(out: Path, *words: object) -> tuple[harness.Outcome, int]:
    """Runs the command, on the tiny model unless `words` name another; also says how many tokens a model read."""
    model = () if "--model" in words else ("--model", TINY)
    return harness.counted("collapse", *words, *model, "--quiet", "--out", out)


def steps_of(run: Path) -> list[dict[str, Any]]:
    return list(read_json(run / "metrics.json")["steps"])


def numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if not name.startswith("timing_s/")}


def near(golden: dict[str, Any], scale: float = 1.0) -> dict[str, Any]:
    """Information is a difference of large numbers, so its relative error is larger."""
    found = {}
    for name, value in golden.items():
        close = {"abs": 1e-5 * scale, "rel": 1e-4 * scale} if "mi_" in name else {"abs": 1e-4 * scale, "rel": 0}
        found[name] = pytest.approx(value, **close)
    return found


# ---- golden numbers --------------------------------------------------------------------------------------------------


def histories(which: str, rows: Iterable[int] = range(18), **changes: Callable[[int], Any]) -> list[dict[str, Any]]:
    """The golden rollouts with what RAGEN's configuration adds to them."""
    found = []
    for number in rows:
        row = {**GOLD["rollouts"][which][number], "env_instruction": GOLD["meta"]["sys_prefix"], "max_tokens": 64}
        found.append(row | {key: change(number) for key, change in changes.items()})
    return found


def turns(counts: Sequence[int], step: int = 1) -> list[dict[str, Any]]:
    """Trajectories with so many turns that have reasoning."""
    rows = []
    for m, count in enumerate(counts):
        for t in range(max(count, 1)):
            row = {"prompt": f"State {m} {t}", "response": f"<think>{'up' * min(count, 1)}</think>", "step": step}
            rows.append({**row, "group_id": m, "trajectory_id": f"{m}", "turn": t})
    return rows


def draws(label: str) -> dict[tuple[Any, int], list[dict[str, Any]]]:
    """The cases of a golden table of draws that have the same number of samples and the same seed."""
    found: dict[tuple[Any, int], list[dict[str, Any]]] = {}
    for case in GOLD["first_turn_sampling" if label == FIRST else "sampling"]:
        found.setdefault((case["num_samples"] or "all", case["np_seed"]), []).append(case)
    return found


IN_PYTHON = """
import json, sys, torch, transformers, vestige
sys.modules["matplotlib"] = None
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float64).eval()
for out, job in json.load(open("jobs.json")).items():
    vestige.measure_collapse(f"{out}.jsonl", model, tokenizer, out, parity="ragen", **job)
"""
STEPS = {"ema_seq_step1_A": 1, "ema_seq_step5_B": 5, "ema_seq_step10_A": 10}
NO_FIRST, NO_MULTI = {"first_turn_enabled": False}, {"multi_turn_enabled": False}
ONLY = {TRAJECTORY: NO_FIRST, TURN: {**NO_FIRST, **NO_MULTI, "turn_enabled": True}, FIRST: NO_MULTI}
LATER = [{**row, "turn": row["turn"] + 1} for row in turns([1] * 8 + [0])]
SCENARIOS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "temperature_0.7_first_turn_A": (histories("A"), {**NO_MULTI, "temperature": 0.7}),
    "world_size_4_micro_2_A": (histories("A"), {"micro_batch_size": 2}),
    "turn_uniform_None_A": (histories("A"), {**ONLY[TURN], "seed": 11}),
    "edge_single_group": (histories("A", [0, 1]), {}),
    "edge_first_turn_all_empty": (histories("A", [2, 10, 17]), {}),
    "edge_mode_single_turn": (histories("A"), {"context_window_mode": "single_turn"}),
    "edge_only_multi": (histories("A"), NO_FIRST),
    "edge_prompt_mismatch_in_group": (histories("A", group_id=lambda n: int(n > 5)), NO_MULTI),
    "edge_two_groups_same_prompt": (histories("A", [3, 4, 5, 12, 13, 14]), NO_MULTI),
    "edge_missing_first_turn_but_turn_counts_present": (LATER, NO_MULTI),
    "edge_no_group_ids": (histories("A", group_id=lambda n: None), {}),
}


@pytest.fixture(scope="session")
def golden_runs(shared: Callable[..., Path]) -> Path:
    """Every golden scenario and every table of draws, measured from Python with a float64 model in memory."""

    def build(place: Path) -> None:
        jobs: dict[str, dict[str, Any]] = {}
        place.mkdir()

        def add(name: str, rows: list[dict[str, Any]], **options: Any) -> None:
            write_rows(place / f"{name}.jsonl", rows)
            jobs[name] = {"num_samples": "all", "seed": 0, **options}

        for seed, (name, step) in enumerate(STEPS.items()):
            add(name, histories(name[-1]), seed=seed, steps=[step], ema="ema.json")
        for name, (rows, options) in SCENARIOS.items():
            add(name, rows, **options)
        for label, options in ONLY.items():
            for (count, seed), cases in draws(label).items():
                rows = []
                for step, case in enumerate(cases, 1):
                    counts = case.get("turn_counts") or [min(length, 1) for length in case["z_lengths"]]
                    rows += turns(counts, step)
                add(f"{label}-{count}-{seed}", rows, **options, num_samples=count, seed=seed)
        (place / "jobs.json").write_text(json.dumps(jobs))
        harness.python(IN_PYTHON, TINY, cwd=place)

    return shared("collapse-golden", build)


def mixture(call: dict[str, Any]) -> list[float]:
    """The log of the mean probability over prompts, each prompt once although it may be in several columns."""
    prompts = dict(zip(call["group_ids"], map(tuple, call["x_ids"]), strict=True))
    columns = {prompts[group]: column for column, group in enumerate(call["unique_groups"])}
    sums = torch.tensor(call["cross_sum"], dtype=torch.float64)[:, list(columns.values())]
    return (sums.logsumexp(1) - math.log(len(columns))).tolist()


@pytest.mark.parametrize("name", [*STEPS, *SCENARIOS])
def test_every_golden_scenario(name: str, golden_runs: Path) -> None:
    """All numbers, the log-probability of every pair, the drawn turns in their order, and each row's own numbers."""
    scenario, run = GOLD["float64"][name], golden_runs / name
    [step] = steps_of(run)
    found, golden = numbers(step["metrics"]), scenario["metrics"]
    if name == "turn_uniform_None_A":
        found = {key: value for key, value in found.items() if key.startswith(TURN)}
    if name.startswith("edge_missing"):  # the coverage is that of other rollouts; here 8 of 9
        golden = {"collapse/valid_thinking_rate": 8 / 9}
    assert found == near(golden, 0.02)  # log-probabilities are kept in float32
    assert set(step["metrics"]) - set(found) >= set(scenario.get("timing_keys", ()))
    calls = [call for call in scenario["calls"] if "cross_sum" in call]
    for call in calls:
        rows = [row for row in read_rows(run / "rows.jsonl") if row["label"] == call["label"]]
        with np.load(run / "cross.npz") as arrays:
            sums, own, lengths = (arrays[f"{step['step']}/{call['label']}/{key}"] for key in ("sums", "own", "lengths"))
            tokens = arrays[f"{step['step']}/{call['label']}/tokens"]
        for mine, theirs in ((sums, call["cross_sum"]), ([row["marginal"] for row in rows], mixture(call))):
            assert np.array(mine) == pytest.approx(np.array(theirs), abs=2e-5, rel=0)
        assert [row["matched"] for row in rows] == pytest.approx(call["matched_sum"], abs=2e-5, rel=0)
        assert (own.tolist(), lengths.tolist()) == (call["col_ids"], [len(z) for z in call["z_ids"]])
        if name in STEPS and call["label"] == TRAJECTORY:
            assert [int(row["trajectory"]) for row in rows] == [m for m, _ in scenario["trajectory_pairs"][0]]
        if (name, call["label"]) == ("ema_seq_step1_A", FIRST):  # each token: row by row, each row column by column
            golden_tokens = GOLD["float64"]["first_turn_A_token_logprobs"]["values"]
            wanted = [column[row][:length] for row, length in enumerate(lengths) for column in golden_tokens]
            assert tokens == pytest.approx(np.concatenate(wanted), abs=1e-5)


def test_every_draw_and_the_running_means(golden_runs: Path) -> None:
    """The order of rows is the order of draws; draws repeat, and some are lost, as RAGEN has it. And running means."""
    after = read_json(golden_runs / "ema.json")
    for variant, means in GOLD["float64"]["ema_state_after"].items():
        assert after[variant] == pytest.approx(means, rel=1e-7)
    names = {TRAJECTORY: "trajectory_uniform", TURN: "turn_uniform", FIRST: "selected_indices"}
    checked = 0
    for label, name in names.items():
        for (count, seed), cases in draws(label).items():
            rows = read_rows(golden_runs / f"{label}-{count}-{seed}" / "rows.jsonl")
            for step, case in enumerate(cases, 1):
                drawn = [[int(row["trajectory"]), row["turn"]] for row in rows if row["step"] == step]
                assert drawn == ([[m, 0] for m in case[name]] if label == FIRST else case[name]), (label, case)
                checked += 1
    assert checked == 24 + 24 + 6


def test_schedule(tmp_path: Path) -> None:
    """The detector's rule, and the steps of a file with and without a rhythm."""
    for case in GOLD["schedule"]:
        labels = {"first_turn_enabled": case["first"], "multi_turn_enabled": case["multi"]}
        settings = replace(vestige.CollapseDetector().settings, compute_freq=case["compute_freq"], **labels)
        detector = vestige.CollapseDetector(settings)
        assert [step for step in range(41) if detector.should_compute(step)] == case["true_steps"]
    rows = [row for step in (1, 2, 3, 4, 6) for row in turns([1, 1], step)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    for words, due in (((), [1, 2, 3, 4, 6]), (("collapse_detection.compute_freq=3",), [1, 3, 6])):
        collapse(tmp_path / "out", file, *words, *QUICK)
        assert [step["step"] for step in steps_of(tmp_path / "out")] == due


def test_the_command_gives_the_same_golden_numbers(tmp_path: Path) -> None:
    """RAGEN's numbers, then what it does not have: four samples as token ids, steps by the numbers of the files."""
    words = ("collapse_detection=ragen", "--num-samples", "all", "--seed", 2, "--step", 10)
    collapse(tmp_path / "ragen", write_rows(tmp_path / "A.jsonl", histories("A")), *words)
    [step] = steps_of(tmp_path / "ragen")
    golden = GOLD["float32"]["ema_seq_step10_A"]["metrics"]  # the running means are those of a first step
    assert numbers(step["metrics"]).keys() == golden.keys()
    assert numbers(step["metrics"]) == near(golden) | {key: step["metrics"][key] for key in golden if "_ema" in key}
    assert (step["turns"], step["left_out"]) == (36, {"empty reasoning": 3, "close tag missing": 1})
    cases = [name for name in GOLD["extensions_own_reference"] if name != "note"]
    files = []
    for number, case in enumerate(cases):
        scenario, label = case.split("/")
        [call] = [call for call in GOLD["float64"][scenario]["calls"] if call["label"] == label]
        columns = zip(call["x_ids"], call["z_ids"], call["group_ids"], strict=True)
        rows = [{"prompt_ids": x, "response_ids": z, "group_id": group} for x, z, group in columns]
        files.append(write_rows(tmp_path / f"case-{number}.jsonl", rows))
    words = ("--reasoning", "whole", "--num-samples", "all", "--multi-turn-enabled", "false", "--resamples", 100)
    collapse(tmp_path / "out", *files, *words)
    rows = read_rows(tmp_path / "out" / "rows.jsonl")
    for number, step in enumerate(steps_of(tmp_path / "out")):
        scenario, label = cases[number].split("/")
        golden = dict(GOLD["extensions_own_reference"][cases[number]])
        ranks = golden.pop("rank_of_own_prompt_distinct")
        assert [row["rank_of_own_prompt"] for row in rows if row["step"] == number] == ranks
        for name, value in GOLD["float64"][scenario]["metrics"].items():
            if name.startswith(f"{label}/") and "_ema" not in name:
                golden[name.removeprefix(f"{label}/")] = value
        found = {name.removeprefix(f"{FIRST}/"): value for name, value in step["metrics"].items()}
        assert {name: found[name] for name in golden} == near(golden)
        for name in ("mi_seq_estimate", "mi_estimate", "retrieval_accuracy", "conditional_entropy_est"):
            assert found[f"{name}_ci_low"] <= found[name] <= found[f"{name}_ci_high"]


# ---- prompts, reasoning and rollout files ----------------------------------------------------------------------------


@cache
def lab() -> tuple[Any, Any]:
    """The lab's model, which wrote the rollouts of golden/rollouts, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(FULL).eval(), AutoTokenizer.from_pretrained(FULL)


def through_template(messages: list[dict[str, str]]) -> str:
    return str(lab()[1].apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def parts(prompt: str, response: str) -> tuple[list[int], list[int]]:
    """Tokens of the prompt with the open tag, and of the reasoning; a token across its end is in neither."""
    x = lab()[1](prompt, add_special_tokens=False)["input_ids"]
    written = lab()[1](response, add_special_tokens=False, return_offsets_mapping=True)
    begin, end = response.index("<think>") + len("<think>"), response.index("</think>")
    z = []
    for token, (start, stop) in zip(written["input_ids"], written["offset_mapping"], strict=True):
        if start < begin:
            x.append(token)
        elif stop <= end:
            z.append(token)
    return x, z


def slowly(x: list[int], z: list[int], temperature: float = 1.0) -> float:
    """One prompt, one reasoning, one forward."""
    with torch.no_grad():
        logits = lab()[0](input_ids=torch.tensor([x + z])).logits[0, len(x) - 1 : -1]
    return float((logits / temperature).log_softmax(-1)[torch.arange(len(z)), torch.tensor(z)].sum())


ASKED = ("Where is the box?", "What does the grid show?", "Where is the box? Look twice.")
THOUGHTS = ("go up, then wait", "the box is at {}", "x")


def samples(chat: bool = False) -> list[tuple[int, str, str]]:
    """(group, prompt, response) of the same nine answers, in plain text or through the chat template."""
    found = []
    for group, asked in enumerate(ASKED):
        prompt = through_template([{"role": "user", "content": asked}]) if chat else asked
        found += [(group, prompt, f"Well. <think>{words.format(group)}</think>Up") for words in THOUGHTS]
    return found


def write_formats(place: Path) -> dict[Path, tuple[str, bool]]:
    """The same answers as several programs write them: file -> its format, and whether the prompts are chats."""
    import pandas

    names = ("1-native", "2-native", "5-trl", "7-native", "8-native", "9-ragen-jsonl", "6-slime")
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number, (group, prompt, response) in enumerate(samples()):
        x, y = (lab()[1](text, add_special_tokens=False)["input_ids"] for text in (prompt, response))
        user, said = ([{"role": role, "content": text}] for role, text in (("user", prompt), ("assistant", response)))
        about = {"env_id": number, "group_id": group, "num_turns": 1, "total_reward": 1.0}
        rows = (
            {"query": prompt, "generated": response},
            {"prompt_ids": x, "response_ids": y},
            {"step": 5, "prompt": user, "completion": said, "advantage": 0.5},
            {"messages": user, "response": response, "group_id": group},
            {"messages": [*user, *said], "trajectory_id": number},
            {"custom_id": str(number), "messages": [*user, *said], "metadata": about},
            {"group_index": group, "index": number, "tokens": x + y, "response_length": len(y), "reward": 0.0},
        )
        for name, row in zip(names, rows, strict=True):
            tables[name].append(row)
    files = {}
    for name, written in tables.items():
        file = place / f"{name}.jsonl"
        if name.endswith("trl"):
            file = place / f"completions_{name[0]}.parquet"
            pandas.DataFrame(written).to_parquet(file)
        elif name.endswith("slime"):
            file = place / "rollout_6.pt"
            torch.save({"rollout_id": 6, "samples": written}, file)
        else:
            write_rows(file, written)
        files[file] = (name[2:], name[0] in "5789")
    return files


def test_the_same_numbers_from_every_format(tmp_path: Path) -> None:
    """TRL, RAGEN, slime and our own: text, messages and token ids; every pair as scored alone."""
    files = write_formats(tmp_path)
    collapse(tmp_path / "out", *files, "--model", FULL, *QUICK)  # steps are in rows or in names
    collapse(tmp_path / "hot", next(iter(files)), "--model", FULL, "--temperature", 0.7, *QUICK)
    assert {step["format"] for step in steps_of(tmp_path / "out")} == {name for name, _ in files.values()}
    runs = [("out", 1.0, file) for file in files]
    for run, temperature, file in [*runs, ("hot", 0.7, next(iter(files)))]:
        step = re.findall(r"\d", file.name)[-1]
        pairs = [parts(prompt, response) for _, prompt, response in samples(chat=files[file][1])]
        expected = [[slowly(pairs[column][0], z, temperature) for column in (0, 3, 6)] for _, z in pairs]
        with np.load(tmp_path / run / "cross.npz") as arrays:
            assert arrays[f"{step}/{FIRST}/sums"] == pytest.approx(np.array(expected), abs=1e-4, rel=2e-5), file
    for row in read_rows(tmp_path / "out" / "rows.jsonl"):
        if row["label"] == FIRST:
            assert row["reasoning"] == THOUGHTS[row["row"] % 3].format(row["row"] // 3)


def conversations(rows: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[str, str]]:
    """RAGEN's validation dump: (row, turn) -> what was asked, through the chat template, and the answer."""
    found = {}
    for number, row in enumerate(rows, 1):
        pieces = re.split(r"(?m)^(system|user|assistant)\n", row["output"])
        messages = [{"role": role, "content": text[:-1]} for role, text in zip(pieces[1::2], pieces[2::2], strict=True)]
        answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        for turn, at in enumerate(answers):
            found[number, turn] = (through_template(messages[:at]), messages[at]["content"])
    return found


# name -> rows of first turns, their columns, rows of both labels, what is left out
DUMPS: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "verl_0.9_default_dump.jsonl": (26, 8, 52, {"close tag missing": 4, "no reasoning tags": 2}),
    "verl_multi_output.jsonl": (4, 2, 12, {}),
    "ragen_validation_dump.jsonl": (12, 4, 36, {}),
    "trl_completions.parquet": (16, 4, 32, {}),
}


def test_dumps_that_verl_ragen_and_trl_wrote(tmp_path: Path) -> None:
    """Groups and turns are found, and each reasoning is as likely under its own prompt as when it is scored alone."""
    import pandas

    model = harness.copy_tree(FULL, tmp_path / "model")
    config = read_json(model / "config.json")
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    files = [GOLDEN / "rollouts" / name for name in DUMPS]
    words = ["--num-samples", "all", *QUICK]
    for step, _ in enumerate(files):
        words += ["--step", step]  # comes before what the rows say
    collapse(tmp_path / "out", *files, "--model", model, *words)
    for step, (name, (first, columns, both, left_out)) in zip(steps_of(tmp_path / "out"), DUMPS.items(), strict=True):
        counts = tuple(step["metrics"][f"{FIRST}/{key}"] for key in ("n_rows", "n_columns"))
        assert (*counts, step["left_out"]) == (first, columns, left_out), name
        file = GOLDEN / "rollouts" / name
        raw = pandas.read_parquet(file).to_dict("records") if file.suffix == ".parquet" else read_rows(file)
        talks = conversations(raw) if name.startswith("ragen") else {}
        rows = [row for row in read_rows(tmp_path / "out" / "rows.jsonl") if row["step"] == step["step"]]
        assert len(rows) == both
        for row in rows:
            number = int(row["where"].rpartition(" ")[2])
            texts = [raw[number - 1].get(key) for key in ("input", "prompt", "output", "completion")]
            prompt, response = talks[number, row["turn"]] if talks else filter(None, texts)
            assert row["matched"] == pytest.approx(slowly(*parts(prompt, response)), abs=1e-4, rel=2e-5), (name, row)


def test_what_counts_as_reasoning(tmp_path: Path) -> None:
    ways: dict[str, tuple[str, ...]] = {
        "c<r>a b</r>": ("--open-tag", "<r>", "--close-tag", "</r>"),
        "why:a b. c": ("--reasoning-pattern", r"why:(.*?)\."),
        "<think>a b": ("--unclosed", "keep"),
        "<think> a b </think>": ("--tokenization", "separate"),
    }
    for number, (response, words) in enumerate(ways.items()):
        out = tmp_path / str(number)
        rows = [{"prompt": f"State {group}", "response": response} for group in range(3)]
        collapse(out, write_rows(tmp_path / "rows.jsonl", rows), *words, *QUICK)
        assert {row["reasoning"] for row in read_rows(out / "rows.jsonl")} == {"a b"}, response


class Call:
    """Pickled as a call of a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


def test_pickles_of_ragen_are_not_read_and_two_lines_convert_them(tmp_path: Path) -> None:
    """The token ids of the golden rollouts, as verl's container has them, give the golden numbers after it."""
    table = {}
    for name, values in GOLD["extracted"]["A"].items():
        table[name] = np.empty(18, dtype=object)
        table[name][:] = [np.array(value, dtype=object) if isinstance(value, list) else value for value in values]
    file, trap = tmp_path / "val_rollouts_1.pkl", tmp_path / "trap"
    file.write_bytes(pickle.dumps(SimpleNamespace(non_tensor_batch=table)))
    no = ("--model", TINY, "--out", tmp_path / "no")
    lines = re.findall("`([^`]+)`", harness.refused(file.name, "collapse", file, *no).error)
    assert len(lines) == 2
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=tmp_path, check=True)
    words = ("--parity", "ragen", "--tokenization", "exact", "--num-samples", "all", "--seed", 0)
    collapse(tmp_path / "out", tmp_path / "val_rollouts_1.pkl.jsonl", *words)
    [step] = steps_of(tmp_path / "out")
    assert step["format"] == "ragen-table"
    assert numbers(step["metrics"]) == near(GOLD["float32"]["ema_seq_step1_A"]["metrics"])
    for hostile in (Call(Path.mkdir, trap), {"group_ids": [Call(eval, "1")]}):
        file.write_bytes(pickle.dumps(hostile))
        harness.refused(file.name, "collapse", file, *no)
    assert not trap.exists()


# ---- settings, evidence and what is refused --------------------------------------------------------------------------


def test_settings_of_the_numbers(tmp_path: Path) -> None:
    """All of them read the log-probabilities of the first run, and so does `score`, without a model."""
    model = harness.copy_tree(TINY, tmp_path / "model")
    rows = [{"prompt": prompt, "response": response, "group_id": group} for group, prompt, response in samples()]
    file, out = write_rows(tmp_path / "rollouts_3.jsonl", rows), tmp_path / "out"

    def metrics(*words: object) -> dict[str, Any]:
        _, tokens = collapse(out, file, "--model", model, *words)
        assert tokens == 0 or words == ("--resamples", 20), words
        [step] = steps_of(out)
        return numbers(step["metrics"])

    first = metrics("--resamples", 20)
    mi, spread = (first[f"{TRAJECTORY}/{name}"] for name in ("mi_seq_estimate", "marginal_std_seq"))
    assert metrics("--std-eps", 0.5)[f"{TRAJECTORY}/mi_zscore_seq"] == pytest.approx(mi / (spread + 0.5), rel=1e-9)
    few = metrics("collapse_detection.num_samples=5", "collapse_detection.resamples=0")
    assert (few[f"{FIRST}/n_rows"], few[f"{TRAJECTORY}/n_rows"], first[f"{FIRST}/n_rows"]) == (5, 5, 9)
    assert few != metrics("--num-samples", 5, *QUICK, "--seed", 1)
    assert not [name for name in few if "_ci_" in name or name.endswith("_null_p")]
    assert {name.split("/")[0] for name in metrics("--first-turn-enabled", "false")} == {"collapse", TRAJECTORY}
    one = metrics("--multi-turn-enabled", "false", "--turn-enabled", "true", "--cross-columns", "distinct")
    assert {name.split("/")[0] for name in one} == {"collapse", FIRST, TURN}
    assert (first[f"{TRAJECTORY}/n_columns"], one[f"{TURN}/n_columns"]) == (9, 3)
    model.rename(tmp_path / "gone")
    harness.vestige("score", out)
    assert numbers(steps_of(out)[0]["metrics"]) == one


GOOD = {"prompt": "Q", "response": "<think>a</think>"}
TALK = "system\n\nQ<think></think>user\n\nassistant\n\nup"  # no line of its own for a role
WRONG: list[tuple[Any, str, str]] = [  # rows or bytes, further words, what the sentence names
    ([GOOD, {"response": "x"}], "", "row 2|prompt"),
    ([GOOD, {"prompt": "Q", "response": 3}], "", "row 2|response"),
    ([GOOD, {"prompt_ids": "abc", "response": "x"}], "", "row 2|prompt_ids"),
    ([GOOD, {**GOOD, "turn": "second"}], "", "row 2|turn"),
    ([{"input": "", "output": TALK}], "", "row 1|output"),
    (pickle.dumps({"group_ids": list(range(100))})[:-30], "--rollout-format ragen-pickle", "rows.jsonl"),
    ([GOOD], "--rollout-format trll", "trll|'trl'"),
    ([GOOD], "--num-samples 0", "num_samples"),
    ([GOOD], "--parity verl", "verl|ragen"),
    ([GOOD], "--step 1 --step 2", "--step"),
    ([GOOD], "--compute-freq 5 --step 3", "step"),
    ([GOOD, {**GOOD, "prompt": "R"}], "--temperature 0", "temperature"),
    ([GOOD], "--reasoning-pattern a(b", "--reasoning-pattern"),
    ([GOOD], "collapse_detection.num_sample=3", "num_sample"),
]


@pytest.mark.parametrize(("content", "words", "names"), WRONG)
def test_mistakes_are_one_sentence(content: Any, words: str, names: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        write_rows(file, content)
    harness.refused(names, "collapse", file, "--model", TINY, *words.split(), "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "metrics.json").exists()


# ---- in a trainer ----------------------------------------------------------------------------------------------------

TRAINER = """
import json, sys, transformers, vestige
from dataclasses import replace

tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
letters = tokenizer.convert_tokens_to_ids(list("ABCDEFGHIJKLMNOPQRSTUVWX"))
close = tokenizer("</think>", add_special_tokens=False)["input_ids"]
found = {"cases": []}

def settings(**changes):
    return replace(vestige.CollapseDetector().settings, num_samples="all", resamples=0, **changes)

def train(callback, out, steps, rows_of=None, resume=None, **more):
    class Feed(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            file = f"rollouts_{state.global_step + 1}.jsonl"
            callback.record(rows_of() if rows_of else [json.loads(line) for line in open(file)])

    options = dict(max_steps=steps, per_device_train_batch_size=1, report_to="none", disable_tqdm=True, use_cpu=True)
    options |= dict(optim="sgd", lr_scheduler_type="constant", learning_rate=0.5, save_strategy="no", seed=1)
    args = transformers.TrainingArguments(out, **{**options, **more})
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
    data = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * steps
    trainer = transformers.Trainer(model=model, args=args, train_dataset=data, callbacks=[Feed()])
    callback.install(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return [entry for entry in trainer.state.log_history if "collapse_first_turn_sample/mi_estimate" in entry]

slow = {"ema_decay": 0.25}
saving = dict(save_strategy="steps", save_steps=1, logging_steps=2)
found["logged"] = train(vestige.CollapseCallback(tokenizer, settings(compute_freq=2, **slow)), "first", 4, **saving)
for name, options in {"resumed": {}, "fresh": {"resume": False}}.items():
    callback = vestige.CollapseCallback(tokenizer, settings(compute_freq=2, **slow), **options)
    found[name] = train(callback, name, 4, resume="first/checkpoint-2", **saving)

for case in json.load(open("cases.json")):
    prompts = case["prompt_ids_by_group"]
    columns = [prompts[str(group)] for group in sorted(set(case["group_ids"]))]

    def log_probs(xs, zs):
        sums = [case["sum_matrix"][letters.index(z[0])][columns.index(list(x))] for x, z in zip(xs, zs)]
        return [[total / len(z)] * len(z) for total, z in zip(sums, zs)]

    def rows_of():
        rows = []
        for letter, group, count in zip(letters, case["group_ids"], case["token_counts"]):
            ids = {"prompt_ids": prompts[str(group)], "response_ids": [letter] * count + close}
            rows.append({**ids, "group_id": group, "think_in_prompt": True})
        return rows

    ragen = settings(parity="ragen", multi_turn_enabled=False, std_eps=case["std_eps"], on_error="raise")
    found["cases"] += train(vestige.CollapseCallback(tokenizer, ragen, log_prob_fn=log_probs), "case", 1, rows_of)

def broken(prompts, reasonings):
    raise RuntimeError("no GPU today")

found["broken"] = train(vestige.CollapseCallback(tokenizer, settings(), log_prob_fn=broken), "fourth", 2)
json.dump(found, open("found.json", "w"))
train(vestige.CollapseCallback(tokenizer, settings(on_error="raise"), log_prob_fn=broken), "fifth", 2)
"""


@pytest.fixture(scope="session")
def trained(shared: Callable[..., Path]) -> Path:
    """Trainings with transformers' own Trainer and the callback; an error stops the last one, as was asked."""

    def build(place: Path) -> None:
        for step in range(1, 5):
            rows = []
            for group, words in ((g, w) for g in (0, 1, 2) for w in ("look at", "wait for")):
                response = f"<think>{words} {group} in step {step}</think>Up"
                rows.append({"prompt": f"State {group}", "response": response, "group_id": group})
            write_rows(place / f"rollouts_{step}.jsonl", rows)
        (place / "cases.json").write_text(json.dumps(GOLD["matrix_cases"]))
        assert "no GPU today" in harness.python(TRAINER, TINY, cwd=place, status=1).err
        assert read_json(place / "found.json")["broken"] == []

    return shared("collapse-trained", build)


def test_bare_matrices(trained: Path) -> None:
    """All 29 numbers of RAGEN's cases without a model, through a log-probability function of one's own."""
    found = read_json(trained / "found.json")["cases"]
    for case, entry in zip(GOLD["matrix_cases"], found, strict=True):
        golden = {name.replace("collapse/", f"{FIRST}/"): value for name, value in case["metrics"].items()}
        assert len(golden) == 29
        mine = {name: value for name, value in entry.items() if name.startswith(FIRST)}
        assert mine == pytest.approx(golden, abs=1e-7, rel=0), case["name"]


def test_the_weights_that_wrote_rollouts_score_them(trained: Path, tmp_path: Path) -> None:
    """Each logged number is what the command says of the checkpoint before that step."""
    logged = read_json(trained / "found.json")["logged"]
    keys = ("step", "collapse/rollout_step", "collapse/updates_since_rollout")
    assert [[entry[key] for key in keys] for entry in logged] == [[1, 1, 0], [2, 2, 0], [4, 4, 0]]
    means = tmp_path / "ema.json"
    words: list[object] = ["--tokenizer", TINY, "--num-samples", "all", "--ema", means, "--ema-decay", 0.25, *QUICK]
    for step, model in ((1, TINY), (2, trained / "first" / "checkpoint-1"), (4, trained / "first" / "checkpoint-3")):
        words += [trained / f"rollouts_{step}.jsonl", "--model", model]
    collapse(tmp_path / "out", *words)
    steps = [numbers(step["metrics"]) for step in steps_of(tmp_path / "out")]
    for entry, expected in zip(logged, steps, strict=True):
        assert {name: entry[name] for name in expected} == near(expected)
    assert abs(steps[0][f"{FIRST}/matched_log_prob_mean"] - steps[1][f"{FIRST}/matched_log_prob_mean"]) > 0.1
    state = read_json(trained / "first" / "collapse_ema.json")
    for variant in ("per_token", "per_seq"):
        assert state[variant] == pytest.approx(read_json(means)[variant], rel=1e-4)


def test_a_resumed_training_has_the_running_means_of_its_checkpoint(trained: Path) -> None:
    found = read_json(trained / "found.json")
    first, resumed, fresh = (found[name][-1] for name in ("logged", "resumed", "fresh"))
    name = f"{FIRST}/marginal_std"
    earlier = found["logged"][1]
    assert first[f"{name}_ema"] == pytest.approx(0.25 * earlier[f"{name}_ema"] + 0.75 * first[name], rel=1e-9)
    assert resumed[f"{name}_ema"] == pytest.approx(first[f"{name}_ema"], rel=1e-4)
    assert fresh[f"{name}_ema"] == fresh[name]
