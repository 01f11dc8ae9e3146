"""What changed changes the number; what did not change is not computed again.

Each case changes one thing between two runs in one folder and compares the second with a run in a new folder. Worlds
stand at one path and are named from within it, so that nothing else differs. Numbers of another model or of other rows
are refused in a folder that holds results; then the results are taken away, as if the first run had been killed before
it wrote them, and what the second run makes of the evidence must not be stale.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy
import pytest
import yaml
from harness import DATA, FULL, GOLDEN, RETAIN, UNLEARNED, Outcome, assert_same, differences, read_json, read_rows
from safetensors.numpy import load_file, save_file

Rows = list[dict[str, Any]]
PROB, ROUGE = "forget_Q_A_Prob", "forget_Q_A_ROUGE"
OTHERS = "retain_Q_A_Prob,mia_min_k,rel_diff_mia_min_k,mia_reference,mine"
EVERY = f"{PROB},{ROUGE},{OTHERS}"
YAML = "configs/eval/tofu_metrics/mine.yaml"
TEXTS = f"++eval.tofu.metrics.{ROUGE}.generation_args"

# What the second run does. PART: less than a fresh run, because some of it was there. ALIKE: other ways, same numbers.
AGAIN, PART, ALIKE, SCORED, SAME = "all", "a part", "the same again", "scores only", "nothing"

PLUGIN = """
import shutil

from safetensors.numpy import load_file, save_file
from vestige.plugins import Card, attack, by_index, handler, mean_score, metric, one_stat, wants_answers

@metric(knows="low", source="here")
def mine(t):
    return -t.logprob.min(axis=-1)

CARD = Card(formula="-", high="-", low="-", tokens="-", unit=False, reading=lambda value: "-")

@handler("mine", wants_answers, card=CARD)
def score(inputs):
    return mean_score(by_index(inputs.rows, one_stat(inputs, lambda t: {"score": mine(t)})), "score")

@attack("shrink", unit="-", budgets=(1,), least=1, budget="times")
def shrink(checkpoint, copy, times=1):
    shutil.copytree(checkpoint, copy)
    for file in copy.glob("*.safetensors"):
        save_file({key: weight * 0.9 for key, weight in load_file(file).items()}, file, {"format": "pt"})
    return copy
"""
METRIC = """# @package eval.tofu.metrics.mine
handler: mine
datasets: {TOFU_QA_forget: {args: {hf_args: {name: forget10_perturbed}}}}
"""


# ---- the world -------------------------------------------------------------------------------------------------------


def build(world: Path) -> None:
    """Models, an adapter, rows, retain logs, a plug-in, rollouts and a plan, before anything was run."""
    for name, source in (("model", UNLEARNED), ("full", FULL), ("retain", RETAIN)):
        shutil.copytree(source, world / name)
    shutil.copytree(GOLDEN / "collapse" / "tiny", world / "policy")
    (world / "adapter").mkdir()
    random = numpy.random.default_rng(0)
    key = "base_model.model.model.layers.0.mlp.down_proj"
    low_rank = {}
    for part, size in (("A", (2, 160)), ("B", (64, 2))):
        low_rank[f"{key}.lora_{part}.weight"] = random.normal(size=size).astype("float32")
    save_file(low_rank, world / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    about = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 1, "target_modules": ["down_proj"]}
    about |= {"base_model_name_or_path": "../model", "layers_to_transform": [0]}
    (world / "adapter" / "adapter_config.json").write_text(json.dumps(about))
    for name in ("forget", "retain", "holdout"):
        harness.write_rows(world / "data" / f"{name}.jsonl", read_rows(DATA / f"{name}.jsonl")[:3])
    (world / "logs.json").write_text(json.dumps({"mia_min_k": {"agg_value": 0.6, "auc": 0.6}}))
    (world / "plug.py").write_text(PLUGIN)
    (world / YAML).parent.mkdir(parents=True)
    (world / YAML).write_text(METRIC)
    for name, word in (("rollouts", "go"), ("earlier", "stay"), ("others", "never move at all")):
        harness.write_rollouts(world / f"{name}.jsonl", "wait", word, steps=[1 if name != "rollouts" else 2])
    harness.write_plan(world / "plan.yaml", {"retain": "retain", "model": "model"}, {"data": "data"}, retain="retain")


MODEL, LIMITED = ("--model", "model"), ("--limit", 2, "--cluster", "none", "--quiet")
OWN = ("--plugin", "plug.py", "--config-dir", "configs", "--retain-logs", "logs.json", "--reference-model", "retain")
EVAL = ("eval", "tofu", "--data", "data", *OWN, "--cluster", "none", "--quiet", "stats.resamples=0")
DEPTH = ("depth", "--unlearned", "model", "--full", "full", "--retain-model", "retain", "resamples=0", *LIMITED)
STRESS = ("stress", "jailbreak", *MODEL, "--data", "data", "--metrics", PROB, *LIMITED, "--plugin", "plug.py")
ROWS = ("--forget", "data/forget.jsonl")
ATTACKS = "layers,jailbreak,prune,quantise,relearn"
AUDIT = ("audit", "--before", "full", "--after", "model", *ROWS, "--limit", 1, "--quiet", "--skip", ATTACKS)


def command(verb: str, world: Path, out: str, metrics: str) -> list[object]:
    """The words that make the folder `out` of a world; whatever is not `out` is new."""
    if verb == "sweep":
        plan = yaml.safe_load((world / "plan.yaml").read_text())
        (world / f"plan-{out}.yaml").write_text(yaml.safe_dump({**plan, "out": out}))
        return ["sweep", f"plan-{out}.yaml"]
    if verb == "collapse":
        rest = ("--model", "policy", "--resamples", 20, "--quiet", "--ema", f"ema-{out}.json", "--out", out)
        return ["collapse", f"{out if out in ('earlier', 'others') else 'rollouts'}.jsonl", *rest]
    words: dict[str, tuple[object, ...]] = {
        "eval": (*EVAL, *MODEL, f"{TEXTS}.max_new_tokens=8", "--metrics", metrics),
        "adapter": (*EVAL, "--model", "adapter", "--metrics", PROB),
        "depth": (*DEPTH, *ROWS),
        "S1 cache": (*DEPTH, *ROWS, "--s1-cache", "s1-new" if out == "new" else "s1"),
        "stress": STRESS,
        "audit": AUDIT,
    }
    return [*words[verb], "--out", out]


def numbers(verb: str, folder: Path) -> Any:
    if verb in ("eval", "adapter"):
        return read_json(folder / "TOFU_EVAL.json")
    if verb in ("depth", "S1 cache"):
        records = read_json(folder / "results.json")
        for record in records:
            record.pop("ratio_s2_over_s1", None)  # a quotient of two small numbers that are compared themselves
        return records
    if verb == "collapse":
        (step,) = read_json(folder / "metrics.json")["steps"]
        return {name: value for name, value in step["metrics"].items() if not name.startswith("timing_s/")}
    if verb == "stress":
        return [[row["attack"], row["budget"], row["values"]] for row in read_json(folder / "stress.json")["rows"]]
    return {file.parent.name: read_json(file) for file in sorted(folder.rglob("*_EVAL.json"))}


# ---- changes ---------------------------------------------------------------------------------------------------------

Change = Callable[[Path], object]


def weights(name: str) -> Change:
    """Other numbers in two tensors of a model."""

    def change(world: Path) -> None:
        (file,) = (world / name).glob("*.safetensors")
        tensors = load_file(file)
        for key in tensors:
            if key.endswith(("model.norm.weight", "0.mlp.down_proj.weight", "lora_B.weight")):
                tensors[key] = tensors[key] * numpy.linspace(0.2, 2, tensors[key].shape[-1], dtype="float32")
        save_file(tensors, file, metadata={"format": "pt"})

    return change


def weights_in_place(world: Path) -> None:
    """Other numbers at the end of the same file, which keeps its size and its modification time."""
    file = world / "model" / "model.safetensors"
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(-4096, os.SEEK_END)
        values = numpy.frombuffer(stream.read(), dtype="float32")
        stream.seek(-4096, os.SEEK_END)
        stream.write((values * -3).tobytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def edit(name: str, **values: object) -> Change:
    return lambda world: (world / name).write_text(json.dumps({**read_json(world / name), **values}))


def replace(name: str, old: str, new: str) -> Change:
    def change(world: Path) -> None:
        text = (world / name).read_text()
        assert old in text
        (world / name).write_text(text.replace(old, new))

    return change


def rows(name: str, how: Callable[[Rows], Rows]) -> Change:
    return lambda world: harness.write_rows(world / f"{name}.jsonl", how(read_rows(world / f"{name}.jsonl")))


def first_row(name: str, **values: str) -> Change:
    return rows(name, lambda found: [{**found[0], **values}, *found[1:]])


def nothing_that_counts(world: Path) -> None:
    """Times of files, what is remembered of them, and a file that nothing reads."""
    for file in [*(world / "model").iterdir(), *(world / "data").iterdir(), world / "plug.py", world / "logs.json"]:
        os.utime(file, (1, 1))
    shutil.rmtree(world / "cache", ignore_errors=True)  # files of the last two seconds leave nothing in it
    (world / "model" / "README.md").write_text("A model.")


def moved(world: Path) -> None:
    (world / "model").rename(world / "moved")


def earlier_means(world: Path, earlier: str = "others") -> None:
    """Running means as they are after step 1 of the earlier rollouts."""
    for name in ("out", "new"):
        shutil.copy(world / f"ema-{earlier}.json", world / f"ema-{name}.json")


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What changes: a thing in the world, or further words; what the second run does; and which metrics show it."""

    name: str
    effect: str
    change: Change = lambda world: None
    more: tuple[object, ...] = ()
    shows: str = PROB
    before: tuple[object, ...] | None = None  # further words of the first run


FORGET, TOKENIZER = "data/forget", "model/tokenizer.json"
ATTENTION, SILENT = "model.model_args.attn_implementation", {"answer": "Nobody knows."}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
LOUD = {"type": "Sequence", "decoders": [BYTES, {"type": "Replace", "pattern": {"String": "a"}, "content": "xyz "}]}
SAMPLED = (f"{TEXTS}.do_sample=true", f"{TEXTS}.temperature=1.0")
LOGS, REL_DIFF = replace("logs.json", "0.6", "0.7"), "rel_diff_mia_min_k"
SOURCE = replace("plug.py", "-t.logprob.min", "-2 * t.logprob.max")
CORK = {"entity": "Cork", "answer": "Anselm Varga was born in Cork."}
CASES = {
    "eval": [
        Case("weights", AGAIN, weights("model")),
        Case("weights, not size and time", AGAIN, weights_in_place, before=()),
        Case("config.json", AGAIN, edit("model/config.json", rms_norm_eps=0.3)),
        Case("generation config", AGAIN, edit("model/generation_config.json", repetition_penalty=5.0), shows=ROUGE),
        Case("chat template", AGAIN, replace("model/chat_template.jinja", "<|user|>", "<|user|>Now: ")),
        Case("words of the tokenizer", AGAIN, edit(TOKENIZER, pre_tokenizer=BYTES)),
        Case("decoder of the tokenizer", SCORED, edit(TOKENIZER, decoder=LOUD), shows=ROUGE),
        Case("end token", AGAIN, edit("model/tokenizer_config.json", eos_token="<|end|>")),
        Case("weights of the reference model", PART, weights("retain"), shows="mia_reference"),
        Case("a forget row", PART, first_row(FORGET, **SILENT)),
        Case("a retain row", PART, first_row("data/retain", **SILENT), shows="retain_Q_A_Prob"),
        Case("a holdout row", PART, first_row("data/holdout", **SILENT), shows="mia_min_k"),
        Case("one row less", SCORED, rows(FORGET, lambda found: found[1:])),
        Case("order of rows", SCORED, rows(FORGET, lambda found: found[::-1])),
        Case("--system-prompt", AGAIN, more=("--system-prompt", "Be brief.")),
        Case("tags instead of the template", AGAIN, more=("model.template_args.apply_chat_template=false",)),
        Case("--limit", SCORED, more=("--limit", 2)),
        Case("max_new_tokens", AGAIN, more=(f"{TEXTS}.max_new_tokens=3",), shows=ROUGE),
        Case("sampling", AGAIN, more=SAMPLED, shows=ROUGE),
        Case("seed", AGAIN, more=(*SAMPLED, f"{TEXTS}.seed=5"), shows=ROUGE, before=SAMPLED),
        Case("--dtype", AGAIN, more=("--dtype", "float16")),
        Case("attention", ALIKE, more=(f"{ATTENTION}=eager",)),
        Case("--quantization", AGAIN, more=("--quantization", "4bit", "--compute-dtype", "float32")),
        Case("k of a metric", SCORED, more=("++eval.tofu.metrics.mia_min_k.k=0.9",), shows="mia_min_k"),
        Case("--dialect", SCORED, more=("--dialect", "strict"), shows="mia_min_k"),
        Case("retain model's results", SCORED, LOGS, shows=REL_DIFF),
        Case("source of a metric", SCORED, SOURCE, shows="mine"),
        Case("YAML of a metric", SCORED, replace(YAML, "forget10_perturbed", "retain_perturbed"), shows="mine"),
        Case("nothing", SAME, shows=EVERY),
        Case("nothing that counts", SAME, nothing_that_counts, shows=EVERY),
        Case("folder of the model", SAME, moved, ("--model", "moved"), EVERY),
        Case("--batch-tokens", SAME, more=("--batch-tokens", 200), shows=EVERY),
    ],
    "adapter": [
        Case("its weights", AGAIN, weights("adapter")),
        Case("its scale", AGAIN, edit("adapter/adapter_config.json", lora_alpha=4)),
        Case("its base", AGAIN, weights("model")),
    ],
    "depth": [
        Case("weights of the unlearned model", PART, weights("model")),
        Case("weights of the retain model", PART, weights("retain")),
        Case("--delta-threshold", SCORED, more=("--delta-threshold", 0.5)),
        Case("nothing", SAME),
    ],
    "S1 cache": [
        Case("weights of the unlearned model", PART, weights("model")),
        Case("weights of the full model", AGAIN, weights("full")),
        Case("weights of the retain model", AGAIN, weights("retain")),
        Case("a row", AGAIN, first_row(FORGET, **CORK)),
        Case("a prefix", AGAIN, first_row(FORGET, prefix="It was")),
        Case("--em-scope", AGAIN, more=("--em-scope", "full")),
        Case("--patch-scope", AGAIN, more=("--patch-scope", "boundary")),
        Case("attention", ALIKE, more=("--attn-implementation", "eager")),
        Case("--last-layer", AGAIN, more=("--last-layer", "peer")),
        Case("--layers", AGAIN, more=("--layers", "0,2")),
    ],
    "collapse": [
        Case("weights", AGAIN, weights("policy")),
        Case("a rollout", AGAIN, first_row("rollouts", response="<think>Left.</think>Up")),
        Case("--temperature", AGAIN, more=("--temperature", 2)),
        Case("running means", SCORED, earlier_means),
    ],
    "stress": [
        Case("weights", AGAIN, weights("model")),
        Case("a row", PART, first_row(FORGET, **SILENT)),
        Case("source of an attack", PART, replace("plug.py", "* 0.9", "* 0.5"), ("shrink",), before=("shrink",)),
        Case("nothing", SAME),
    ],
    "sweep": [
        Case("weights", PART, weights("model")),
        Case("weights of the retain model", PART, weights("retain")),
        Case("a row", PART, first_row(FORGET, **SILENT)),
        Case("a setting", AGAIN, replace("plan.yaml", "limit: 2", "limit: 2\n    system_prompt: Be brief.")),
        Case("one model more", PART, replace("plan.yaml", "models:", "models:\n  full: full")),
        Case("nothing", SAME),
    ],
    "audit": [Case("weights", PART, weights("model"))],
}
TABLE = [pytest.param(verb, case, id=f"{verb}: {case.name}") for verb, cases in CASES.items() for case in cases]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("staleness")


def take_results_away(folder: Path) -> None:
    """Leaves evidence alone, as a run that was killed before it wrote results."""
    for file in folder.glob("*.json"):
        file.unlink()


def run(world: Path, words: list[object], status: int | None = 0) -> tuple[Outcome, int]:
    """A command in a world, and how many tokens went through models."""
    return harness.counted(
        *words, folder=world / "run", cwd=world, env={"VESTIGE_CACHE": str(world / "cache")}, status=status
    )


@pytest.fixture(scope="module")
def prepare(place: Path) -> Callable[[str], Path]:
    """The world with a finished run of a verb in it. The run is made once."""

    def prepared(verb: str) -> Path:
        world, kept = place / "world", place / verb
        shutil.rmtree(world, ignore_errors=True)
        if kept.exists():
            return harness.copy_tree(kept, world)
        build(world)
        if verb == "collapse":
            for earlier in ("earlier", "others"):
                run(world, command(verb, world, earlier, ""))
            earlier_means(world, "earlier")
        run(world, command(verb, world, "out", EVERY))
        harness.copy_tree(world, kept)
        return world

    return prepared


@pytest.mark.parametrize(("verb", "case"), TABLE)
def test_numbers_follow_what_changed(verb: str, case: Case, prepare: Callable[[str], Path]) -> None:
    if "--quantization" in case.more and importlib.util.find_spec("bitsandbytes") is None:
        pytest.skip("needs bitsandbytes")
    second = "later" if verb == "S1 cache" else "out"
    world = prepare(verb)
    if case.before is not None:
        time.sleep(0 if case.before else 2.1)  # digests of younger files are not remembered
        if verb == "eval":
            take_results_away(world / "out")
        run(world, [*command(verb, world, "out", case.shows), *case.before])
    before, files = numbers(verb, world / "out"), harness.visible(world / "out")
    case.change(world)
    words = [*command(verb, world, second, case.shows), *case.more]
    outcome, tokens = run(world, words, status=None)
    if verb in ("eval", "adapter") and outcome.status == 2:
        assert re.search(r"\bout\b", outcome.error)
        assert harness.visible(world / "out") == files
        take_results_away(world / "out")
        outcome, tokens = run(world, words)
    if case.effect == SAME:
        assert outcome.status == 0, outcome.printed[-3000:]
        assert (tokens, numbers(verb, world / "out")) == (0, before)
        return
    _, most = run(world, [*command(verb, world, "new", case.shows), *case.more])
    fresh = numbers(verb, world / "new")
    if outcome.status == 2 and case.effect != SCORED:
        assert re.search(r"\bout\b", outcome.error)
        assert harness.visible(world / "out") == files
        return
    assert outcome.status == 0, outcome.printed[-3000:]
    assert_same(fresh, numbers(verb, world / second))
    changed = bool(differences(fresh, before)[1])
    assert changed == (case.effect != ALIKE), "the change makes no difference: it tests nothing"
    assert (tokens == 0) == (case.effect == SCORED), f"{tokens} tokens"
    if case.effect == PART:
        assert tokens < most, "all was computed again"


# ---- a model in memory -----------------------------------------------------------------------------------------------

IN_MEMORY = """
import json, pathlib, shutil, sys, torch, vestige
from transformers import AutoModelForCausalLM, AutoTokenizer

place, data = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(place + "/model")
layer_type = type(AutoModelForCausalLM.from_pretrained(place + "/model").model.layers[0].mlp)
usual = layer_type.forward

def inner(model):
    return model.model.layers[0]

CHANGES = {
    "nothing": lambda model: None,
    "weight": lambda model: model.model.norm.weight.data[:8].add_(1),
    "buffer": lambda model: model.model.rotary_emb.inv_freq.mul_(0.5),
    "attribute": lambda model: setattr(inner(model).self_attn, "scaling", 2.0),
    "hook": lambda model: model.lm_head.register_forward_hook(lambda module, inputs, output: 0.5 * output),
    "forward of class": lambda model: setattr(layer_type, "forward", lambda self, x: 0.5 * usual(self, x)),
    "forward of instance": lambda model: setattr(inner(model).mlp, "forward", lambda x: 0.5 * x),
    "dropout": lambda model: (setattr(inner(model).self_attn, "attention_dropout", 0.5), model.train()),
}

def values(model, out=None):
    result = vestige.evaluate(model, tokenizer=tokenizer, data=data, out=out, metrics=["forget_Q_A_Prob"], limit=10)
    return result["forget_Q_A_Prob"].value_by_index

def values_again(model, out):
    try:
        return values(model, out)
    except vestige.UserError as error:
        assert out in str(error)
        for file in pathlib.Path(out).glob("*.json"):  # as if the first run had been killed before its results
            file.unlink()
        return values(model, out)

found = {}
for name, change in CHANGES.items():
    model = AutoModelForCausalLM.from_pretrained(place + "/model")
    out = f"{place}/{name}"
    before = values(model, out)
    change(model)
    training = model.training
    found[name] = {"before": before, "after": values_again(model, out), "fresh": values(model)}
    assert model.training == training
    layer_type.forward = usual
print(json.dumps(found))
"""


CHANGED = ("weight", "buffer", "attribute", "hook", "forward of class", "forward of instance")


def test_a_model_in_memory_is_measured_as_it_is(place: Path) -> None:
    """An evaluation switches dropout off, so that one changes nothing."""
    shutil.copytree(UNLEARNED, place / "memory" / "model")
    found = json.loads(harness.python(IN_MEMORY, place / "memory", DATA).out.splitlines()[-1])
    assert set(found) == {*CHANGED, "nothing", "dropout"}
    for name, values in found.items():
        assert_same(values["fresh"], values["after"], least=20)
        assert bool(differences(values["before"], values["after"])[1]) == (name in CHANGED), name
