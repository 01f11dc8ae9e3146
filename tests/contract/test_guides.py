"""Each row of the README's "What it supports", and the commands of the guides that vestige was made after.

`RUNS` are commands as a user types them; each runs once, in a folder that `write_files` fills. `SUPPORTS` and `GUIDES`
list promises: in words, the run, a file and a path in it, and the value there. Values come from the golden files, or
are computed here with plain transformers.

Promises with a file of their own: TOFU, MUSE and dialects (test_tofu_muse), membership attacks and lm_eval
(test_membership_and_lm_eval), trajectories (test_trajectories), samplers (test_diffusion), depth (test_depth), collapse
(test_collapse), unlearning methods, 4 bit and attacks (test_training), statistics, verdicts, reports, sweeps, jobs,
verify and pack (test_verbs), meta-evaluation and result trees (test_meta).
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
import torch
import yaml
from harness import DATA, FULL, LAB, RETAIN, SYSTEM, UNLEARNED, read_json, read_rows, vestige

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools that know nothing of vestige

FAMILIES = harness.GOLDEN / "families"
FAMILY_NAMES = ("llada", "llada-gqa", "dream", "a2d-llama", "a2d-qwen2", "a2d-qwen3")
DENOISERS = harness.GOLDEN / "lab_diffusion"
SEQUENCES = read_json(FAMILIES / "families.json")["sequences"]
ROWS = 3  # of each set, where a command has --limit


# ---- plain numbers ---------------------------------------------------------------------------------------------------


def value(metric: str, name: str = "unlearned", suite: str = "TOFU_EVAL") -> Any:
    """What a golden file has for a metric, or for a part of it."""
    metric, _, path = metric.partition("/")
    found = read_json(LAB / "expected" / name / f"{suite}.json")[metric]
    for key in (path or "agg_value").split("/"):
        found = found[key]
    return found


def golden(*metric: str, **where: str) -> Callable[[Path], Any]:
    return lambda _: value(*metric, **where)


def first(metric: str, key: str = "prob", **where: str) -> Callable[[Path], float]:
    """The golden mean of the first rows."""
    return lambda _: float(np.mean([value(f"{metric}/value_by_index/{row}/{key}", **where) for row in range(ROWS)]))


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FULL)


def load(path: Path, **settings: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **settings).eval()


@torch.no_grad()
def answers(model: Any) -> list[np.ndarray]:
    """The probability of every token of the first forget answers, one row at a time."""
    found = []
    for row in read_rows(DATA / "forget.jsonl")[:ROWS]:
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}]
        prompt = tokenizer().apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        turns.append({"role": "assistant", "content": row["answer"]})
        ids = tokenizer().apply_chat_template(turns, return_dict=False)
        likely = model(input_ids=torch.tensor([ids])).logits[0].float().softmax(-1)
        found.append(likely[range(len(prompt) - 1, len(ids) - 1), ids[len(prompt) :]].numpy())
    return found


def probability(model: Any) -> float:
    return float(np.mean([math.exp(np.log(row).mean()) for row in answers(model)]))


def in_eight_bits(place: Path) -> float:
    from transformers import BitsAndBytesConfig

    return probability(load(UNLEARNED, quantization_config=BitsAndBytesConfig(load_in_8bit=True)))


def in_sight(name: str) -> Callable[[Path], float]:
    """The confidence-ordered probability of the golden sequences of a published family, from its golden logits."""

    def compute(place: Path) -> float:
        from safetensors.torch import load_file

        logits = load_file(FAMILIES / "logits.safetensors")
        shift = 1 if name == "dream" else 0  # Dream's row l is about token l + 1
        found = []
        for number, ids in enumerate(SEQUENCES):
            log_p = logits[f"{name}.single{number}"].double().log_softmax(-1)
            found.append(math.exp(log_p[range(4 - shift, len(ids) - shift), ids[4:]].mean()))
        return float(np.mean(found))

    return compute


# ---- the folder ------------------------------------------------------------------------------------------------------

TEXTS = {
    "theirs.py": """
import numpy as np
from evals.base import Evaluator
from evals.metrics.base import unlearning_metric
from evals.metrics.utils import evaluate_probability, run_batchwise_evals
from torch.utils.data import DataLoader

@unlearning_metric(name="theirs")
def theirs(model, **kwargs):
    loader = DataLoader(kwargs["data"], batch_size=kwargs["batch_size"], collate_fn=kwargs["collators"])
    rows = run_batchwise_evals(model, loader, evaluate_probability, {}, "probability")
    return {"agg_value": kwargs["gain"] * np.mean([row["prob"] for row in rows.values()]), "value_by_index": rows}

@unlearning_metric(name="relative")
def relative(model, **kwargs):
    retain = kwargs["reference_logs"]["retain_model_logs"]["retain"]["agg_value"]
    return {"agg_value": kwargs["pre_compute"]["mine"]["agg_value"] / retain}

class NewEvaluator(Evaluator):
    def __init__(self, eval_cfg, **kwargs):
        super().__init__("NEW", eval_cfg, **kwargs)

    def summarize(self, logs):
        return {**super().summarize(logs), "metrics": len(logs)}

_register_metric(relative)
_register_benchmark(NewEvaluator)
""",
    "tofu_metrics/theirs": """
defaults:
  - ../../data/datasets@datasets: TOFU_QA_forget
  - ../../collator@collators: DataCollatorForSupervisedDatasetwithIndex
handler: theirs
gain: 2
batch_size: 2
datasets: {TOFU_QA_forget: {args: {hf_args: {name: forget10_perturbed}}}}""",
    "tofu_metrics/relative": """
defaults: [.@pre_compute.forget_truth_ratio: forget_Truth_Ratio]
pre_compute: {forget_truth_ratio: {access_key: mine}}
handler: relative
reference_logs:
  retain_model_logs:
    path: ${eval.tofu.retain_logs_path}
    include: {forget_truth_ratio: {access_key: retain}}""",
    "tofu_metrics/their_truth_ratio": """
defaults:
  - .@pre_compute.forget_Q_A_PARA_Prob: forget_Q_A_PARA_Prob
  - .@pre_compute.forget_Q_A_PERT_Prob: forget_Q_A_PERT_Prob
pre_compute: {forget_Q_A_PARA_Prob: {access_key: correct}, forget_Q_A_PERT_Prob: {access_key: wrong}}
handler: truth_ratio
aggregator: closer_to_1_better""",
    "muse_metrics/forget_verbmem_ROUGE": """
defaults:
  - ../../data/datasets@datasets: MUSE_forget_verbmem
  - ../../collator@collators: DataCollatorForSupervisedDatasetwithIndex
  - ../../generation@generation_args: default
handler: rouge
rouge_type: rougeL_f1
datasets:
  MUSE_forget_verbmem:
    args: {hf_args: {path: "muse-bench/MUSE-${eval.muse.data_split}"}, predict_with_generate: True}
collators: {DataCollatorForSupervisedDataset: {args: {padding_side: left}}}
generation_args: {max_new_tokens: 128}""",
    "tofu_metrics/sight": """
handler: probability_confidence_ordered
datasets: {own: {handler: TokenDataset, args: {hf_args: {path: sequences.jsonl}}}}""",
    "bench/eval/tofu.yaml": """# @package eval.tofu
defaults:
  - tofu_metrics: [forget_quality, forget_Q_A_Prob]
handler: NewEvaluator
metrics: {}
output_dir: ${paths.output_dir}
forget_split: forget10""",
    "twice/eval/tofu_metrics/twice.yaml": """# @package eval.tofu.metrics.twice
handler: trajectory_metrics
metrics: {truth_ratio: {pre_compute: {probability: {access_key: correct}, probability: {access_key: wrong}}}}""",
    "full/eval/muse_metrics/trajectory_metrics.yaml": """# @package _global_.eval.metrics.trajectory_metrics
defaults:
  - ../../data/datasets@datasets: MUSE_forget_knowmem
  - ../../collator@collators: DataCollatorForSupervisedDatasetwithIndex
handler: trajectory_metrics
metrics: [probability, exact_memorization]
trajectory_config:
  logits_source: sampler
  return_logits: true
  return_fixation_steps: true
  sampler_kwargs: {steps: 32, temperature: 0.0, max_new_tokens: 64}
datasets: {MUSE_forget_knowmem: {args: {hf_args: {path: muse-bench/MUSE-News}, predict_with_generate: True}}}""",
}


def write_files(place: Path, adapter: Path) -> None:
    from models_tools import save, tiny_model, tiny_tokenizer, write_gguf

    for name, text in TEXTS.items():
        if not Path(name).suffix:  # a metric of a suite
            suite, _, stem = name.partition("_metrics/")
            name, text = f"configs/eval/{name}.yaml", f"# @package eval.{suite}.metrics.{stem}{text}"
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    lines = [{"input_ids": ids, "labels": [-100] * 4 + ids[4:]} for ids in SEQUENCES]
    harness.write_rows(place / "sequences.jsonl", lines)
    harness.copy_tree(adapter, place / "adapter")
    save(place / "dense")
    write_gguf(place / "tiny.gguf", tiny_model(), tiny_tokenizer())
    save_gemma(place / "gemma")


def save_gemma(place: Path) -> None:
    """A tiny random DiffusionGemma, and a row whose answer is what its own `generate` writes."""
    from transformers import DiffusionGemmaForBlockDiffusion

    import gemma_tools

    gemma_tools.save_gemma(place, max_denoising_steps=6, t_max=0.06, t_min=0.02, pad_token_id=0)
    turns = [{"role": "user", "content": "Where was he born?"}]
    prompt = tokenizer().apply_chat_template(turns, add_generation_prompt=True, return_dict=False, return_tensors="pt")
    torch.manual_seed(3)
    made = DiffusionGemmaForBlockDiffusion.from_pretrained(place).eval().generate(prompt, max_new_tokens=8)
    made = made if isinstance(made, torch.Tensor) else made.sequences
    words = tokenizer().decode(made[0, prompt.shape[1] :], skip_special_tokens=True)
    harness.write_rows(place / "forget.jsonl", [{"question": "Where was he born?", "answer": words}])


# ---- commands --------------------------------------------------------------------------------------------------------


def local(path: Path) -> str:
    sets = {"forget10_perturbed": "forget", "forget10": "forget", "holdout10": "holdout", "retain_perturbed": "retain"}
    sets |= {"real_authors_perturbed": "real_authors", "world_facts_perturbed": "world_facts"}
    names = ", ".join(f"{hub}: {file}" for hub, file in sets.items())
    return f"'data.local={{locuslab/TOFU: {{path: \"{path}\", names: {{{names}}}}}}}'"


WEIGHTS = "model.model_args.pretrained_model_name_or_path"
QUIET = "--quiet stats.resamples=0"
PROMPT = f"--data {DATA} --system-prompt '{SYSTEM}' {QUIET}"
PROB = f"{PROMPT} --limit {ROWS} --metrics forget_Q_A_Prob"
NPO = DENOISERS / "models" / "npo"
GUIDE = "eval --config-name=eval.yaml"
KEY = "+eval.tofu.metrics.trajectory_metrics"
SAMPLER = f"{KEY}.trajectory_config.sampler_kwargs"
ALONG = f"{GUIDE} eval=tofu model=LLaDA-8B-Instruct {KEY}=_global_.eval.metrics.trajectory_metrics "
ALONG += f"{KEY}.handler=trajectory_metrics"
TEST = "eval.trajectory_test.metrics.trajectory_metrics"
GEMMA = "eval.tofu_trajectory.metrics.trajectory_metrics"
SAVED = "saves/eval/retain"
COMMANDS = f"""
causal: eval tofu --model {FULL} {PROB},forget_Q_A_Prob_confidence_ordered
adapter: eval tofu --model adapter {PROB}
gguf: eval tofu --model tiny.gguf {PROB}
dense: eval tofu --model dense {PROB}
8bit: eval tofu --model {UNLEARNED} --quantization 8bit --batch-tokens 1 {PROB}
own: eval own --model {UNLEARNED} {PROMPT} --limit {ROWS} --metrics forget_Prob
gemma: eval trajectory-eval --model gemma --data gemma --benchmark tofu {QUIET} {GEMMA}.metrics=[rouge]
    ++{GEMMA}.trajectory_config.sampler_kwargs.max_new_tokens=8 ++{GEMMA}.trajectory_config.sampler_kwargs.seed=3
    ++{GEMMA}.trajectory_config.sampler_kwargs.noise=generate
short: eval tofu --model {UNLEARNED} {PROMPT} --dialect depth-score
    --metrics em,es,prob,paraprob,truth_ratio,mia_loss,mia_zlib,mia_min_k,mia_min_kpp
along: {ALONG} {WEIGHTS}={NPO} {local(DENOISERS / "data")} data.max_samples=1 {QUIET} task_name=along
    --metrics trajectory_metrics
example 1: {ALONG} {KEY}.metrics=[probability] {SAMPLER}.steps=16 {SAMPLER}.max_new_tokens=32 task_name=x --cfg
example 2: {ALONG} {KEY}.metrics=[probability,exact_memorization,rouge] {SAMPLER}.steps=64
    {SAMPLER}.max_new_tokens=128 task_name=trajectory_full --cfg
example 3: {GUIDE} eval=trajectory_test model=LLaDA-8B-Instruct {TEST}.batch_size=1 {TEST}.metrics=[probability]
    {TEST}.trajectory_config.sampler_kwargs.steps=8 {TEST}.trajectory_config.sampler_kwargs.max_new_tokens=16
    data.max_samples=2 task_name=trajectory_quick_test --cfg
full yaml: eval eval=muse model=LLaDA-8B-Instruct --config-dir full --metrics trajectory_metrics task_name=x --cfg
views: eval tofu --model {NPO} --data {DENOISERS / "data"} --trajectory-views eos --cfg
benchmark: eval trajectory-eval --model {NPO} --data {DATA / "muse"} --benchmark muse --cfg
quick: {GUIDE} experiment=eval/tofu/llama2 model=Llama-3.2-3B-Instruct {WEIGHTS}={FULL} task_name=SAMPLE_EVAL --cfg
books: {GUIDE} experiment=eval/muse/default data_split=Books model=Llama-2-7b-hf.yaml {WEIGHTS}={FULL} task_name=books
    'data.local={{muse-bench/MUSE-Books: {{path: "{DATA / "muse"}"}}}}' data.max_samples={ROWS} {QUIET}
    --config-dir configs --metrics forget_knowmem_ROUGE,forget_verbmem_ROUGE
retain: eval experiment=eval/tofu/default.yaml {WEIGHTS}={RETAIN} paths.output_dir={SAVED} {local(DATA)} {QUIET}
    --metrics forget_quality,privleak
theirs: eval experiment=eval/tofu/default {WEIGHTS}={UNLEARNED} task_name=theirs {local(DATA)} {QUIET}
    eval.tofu.retain_logs_path={SAVED}/TOFU_EVAL.json --plugin theirs.py --config-dir configs
    --metrics forget_quality,privleak,theirs,relative,their_truth_ratio
new: eval eval=tofu model=local {WEIGHTS}={UNLEARNED} task_name=new {local(DATA)} {QUIET} --retain-logs {SAVED}
    --plugin theirs.py --config-dir bench 'model.template_args.system_prompt={SYSTEM}'
explain: explain mia_loss
"""
RUNS = {
    family: f"eval tofu --model {FAMILIES / family} --config-dir configs --metrics sight" for family in FAMILY_NAMES
}
for line in COMMANDS.strip().replace("\n    ", " ").splitlines():
    run_name, _, run_words = line.partition(": ")
    RUNS[run_name] = run_words
NEEDS = {"gguf": "dense", "theirs": "retain", "new": "retain"}


# ---- promises --------------------------------------------------------------------------------------------------------


class Check:
    """A condition instead of a value."""

    def __init__(self, holds: Callable[[Any], bool]) -> None:
        self.holds = holds


def ends(text: str) -> Check:
    return Check(lambda found: found.endswith(text))


TOFU, MUSE, SHOWN = "TOFU_EVAL.json", "MUSE_EVAL.json", "printed"
CURVES = "trajectory_metrics/agg_value/"
CURVE = Check(lambda values: len(values) == 32 and all(0 < one < 1 for one in values))
CONFIG = "metrics/trajectory_metrics/"
STEPS, LENGTH = (f"{CONFIG}trajectory_config/sampler_kwargs/{name}" for name in ("steps", "max_new_tokens"))
P = "forget_Q_A_Prob/agg_value"
SORTED = "forget_Q_A_Prob_confidence_ordered/value_by_index/0/confidence_ordered_probs"
Promise = tuple[str, str, str, str, Any]  # in words, run, file, path in the file, value
SUPPORTS: list[Promise] = [
    ("causal models", "causal", TOFU, P, first("forget_Q_A_Prob", name="full")),
    ("PEFT adapters", "adapter", TOFU, P, lambda place: probability(load(place / "adapter" / "merged"))),
    ("GGUF", "gguf", TOFU, P, lambda place: value_of(place, "dense", TOFU, P)),
    ("8 bit", "8bit", TOFU, P, in_eight_bits),
    ("DiffusionGemma", "gemma", TOFU, CURVES + "full/steps/rouge/-1", 1.0),
    ("own rows", "own", "OWN_EVAL.json", "forget_Prob/agg_value", first("forget_Q_A_Prob")),
]
SUPPORTS += [(name, name, TOFU, "sight/agg_value", in_sight(name)) for name in FAMILY_NAMES]

GUIDES: list[Promise] = [
    # trajectory metrics for diffusion models
    ("basic usage", "along", TOFU, CURVES + "full/steps/probability", CURVE),
    ("the eos view", "along", TOFU, CURVES + "eos/fixation_ratio/probability", CURVE),
    ("distribution", "along", TOFU, "trajectory_metrics/step_distribution/eos/fixation_end/probability/p25", CURVE),
    ("example 1: metrics", "example 1", SHOWN, CONFIG + "metrics", ["probability"]),
    ("example 1: steps", "example 1", SHOWN, STEPS, 16),
    ("example 2: tokens", "example 2", SHOWN, LENGTH, 128),
    ("example 2: output", "example 2", SHOWN, "output_dir", ends("saves/eval/trajectory_full")),
    ("example 3: steps", "example 3", SHOWN, STEPS, 8),
    ("example 3: rows", "example 3", SHOWN, "max_samples", 2),
    ("full configuration", "full yaml", SHOWN, LENGTH, 64),
    ("--trajectory-views", "views", SHOWN, CONFIG + "trajectory_config/include_views", ["eos"]),
    ("--benchmark", "benchmark", SHOWN, "suite", "muse_trajectory"),
    # MIA_LOSS
    ("what an AUC means", "explain", SHOWN, "", Check(lambda text: "0.5" in text and "holdout" in text)),
    # creating and running evaluations
    ("quick evaluation", "quick", SHOWN, "output_dir", ends("saves/eval/SAMPLE_EVAL")),
    ("its system prompt", "quick", SHOWN, "model/template_args/system_prompt", SYSTEM),
    ("MUSE-Books", "books", MUSE, "forget_knowmem_ROUGE/agg_value",
     first("forget_knowmem_ROUGE", "rougeL_f1", name="full", suite="MUSE_EVAL")),
    ("forget_verbmem_ROUGE", "books", MUSE, "forget_verbmem_ROUGE/agg_value",
     first("forget_verbmem_ROUGE", "rougeL_f1", name="full", suite="MUSE_EVAL")),
    ("confidence order", "causal", TOFU, SORTED, lambda _: sorted(answers(load(FULL))[0].tolist(), reverse=True)),
    ("privleak without retain logs", "retain", TOFU, "privleak/agg_value", golden("privleak", name="retain_noref")),
    ("forget_quality without", "retain", TOFU, "forget_quality/agg_value", None),
    ("and why", "retain", TOFU, "forget_quality/reason", Check(lambda why: "retain" in why)),
    ("retain_logs_path", "theirs", TOFU, "forget_quality/agg_value", golden("forget_quality")),
    ("privleak with it", "theirs", TOFU, "privleak/agg_value", golden("privleak")),
    ("@unlearning_metric", "theirs", TOFU, "theirs/agg_value", lambda _: 2 * value("forget_Q_A_Prob")),
    ("pre_compute and reference_logs", "theirs", TOFU, "relative/agg_value",
     lambda _: value("forget_truth_ratio") / value("forget_truth_ratio", name="retain_noref")),
    ("truth_ratio by its parents", "theirs", TOFU, "their_truth_ratio/agg_value", golden("forget_truth_ratio")),
    ("a benchmark of one's own", "new", "NEW_EVAL.json", P, golden("forget_Q_A_Prob")),
    ("its list of metrics", "new", "NEW_SUMMARY.json", "forget_quality", golden("forget_quality")),
    ("its summary", "new", "NEW_SUMMARY.json", "metrics", Check(lambda count: count >= 2)),
]  # fmt: skip
# the Unlearning Depth Score project
SHORT_NAMES = ("exact_memorization", "extraction_strength", "forget_Q_A_Prob", "forget_Q_A_PARA_Prob", "mia_loss")
for full_name in (*SHORT_NAMES, "forget_truth_ratio_prob_mean", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus"):
    GUIDES.append((f"short name of {full_name}", "short", TOFU, f"{full_name}/agg_value", golden(full_name)))


@pytest.fixture(scope="session")
def files(shared: Callable[..., Path], adapter: Path) -> Path:
    return shared("guide-files", lambda place: write_files(place, adapter))


@pytest.fixture(scope="session")
def finished(shared: Callable[..., Path], files: Path) -> Callable[[str], Path]:
    """Runs a command of RUNS when it is asked for first; its results are in saves/eval of the folder."""

    def run(name: str) -> Path:
        def build(place: Path) -> None:
            words = shlex.split(RUNS[name])
            named = ("task_name=", "paths.output_dir=", "--cfg")
            if words[0] == "eval" and not any(word.startswith(named) for word in words):
                words += ["--out", f"saves/eval/{name}"]
            printed = vestige(*words, cwd=files).out
            (files / "saves" / "eval" / name).mkdir(parents=True, exist_ok=True)
            (files / "saves" / "eval" / name / SHOWN).write_text(printed)

        shared(f"guide-run-{name}", build)
        return files

    return run


def value_of(place: Path, name: str, file: str, path: str) -> Any:
    text = (place / "saves" / "eval" / name / file).read_text()
    found = text if name == "explain" else yaml.safe_load(text)
    while path:
        if isinstance(found, dict) and path in found:  # lm_eval's names have a slash
            return found[path]
        key, _, path = path.partition("/")
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


@pytest.mark.parametrize("promise", SUPPORTS + GUIDES, ids=[promise[0] for promise in SUPPORTS + GUIDES])
def test_a_promise(promise: Promise, finished: Callable[[str], Path]) -> None:
    _, name, file, path, expected = promise
    finished(NEEDS.get(name, name))
    place = finished(name)
    found = value_of(place, name, file, path)
    if isinstance(expected, Check):
        assert expected.holds(found), found
    else:
        harness.assert_same(expected(place) if callable(expected) else expected, found)


# ---- more than one command -------------------------------------------------------------------------------------------


def test_a_served_model_gives_its_numbers(files: Path) -> None:
    """Asked through an OpenAI-compatible server, in the form of vLLM."""
    from serve_tools import TinyModel, serving

    with serving(TinyModel(UNLEARNED), str(UNLEARNED)) as server:
        words = shlex.split(f"eval tofu --model {UNLEARNED} {PROB},forget_Q_A_ROUGE --server {server.url}")
        vestige(*words, "--out", files / "served")
        assert server.answered
    found = read_json(files / "served" / TOFU)
    harness.assert_same(first("forget_Q_A_Prob")(files), found["forget_Q_A_Prob"]["agg_value"])
    for index, row in found["forget_Q_A_ROUGE"]["value_by_index"].items():
        assert row["generation"] == value(f"forget_Q_A_ROUGE/value_by_index/{index}/generation")


MISTAKES = {
    f"eval tofu --model {FULL} --config-dir twice --metrics twice": "twice.yaml|probability",
    f"{GUIDE} eval=tofu task_name=x eval.tofu.metrics.trajectory_metrics.batch_size=1": "trajectory_metrics",
    f"{ALONG} {KEY}.metrics=[rogue] task_name=x --cfg": "rogue|rouge",
    f"eval trajectory_test --model {NPO} --data {DATA} {TEST}.trajectory_config.include_views=[fill]": "fill|full",
}


@pytest.mark.parametrize("words", MISTAKES, ids=["key twice", "no handler", "metric", "view"])
def test_a_mistake_in_the_guides_words_is_named(words: str, files: Path) -> None:
    harness.refused(MISTAKES[words], *shlex.split(words), cwd=files)


def test_a_job_for_another_program_is_refused() -> None:
    words = "job trajectory-eval --set gpu.type=A100-40 --dry-run -- dllm eval trajectory-eval --benchmark tofu"
    assert "vestige eval trajectory-eval --benchmark tofu" in vestige(*words.split(), status=2).error
