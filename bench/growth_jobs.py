"""The pieces of work whose growth is measured, each a function of its sizes. Models are random and made on the spot.

A job's function gets its sizes and returns the work to be measured, with everything else already prepared.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vestige
from vestige.types import Prompt, Target

Work = Callable[[], Any]
VOCAB, WIDTH, LAYERS = 2048, 64, 4
SPLITS = ("forget", "retain", "holdout", "real_authors", "world_facts")
METRICS = ["forget_Q_A_Prob", "forget_Q_A_ROUGE", "forget_truth_ratio", "privleak", "extraction_strength"]
SCRATCH = Path(tempfile.mkdtemp(prefix="growth"))  # removed by growth.py


def place() -> Path:
    return Path(tempfile.mkdtemp(dir=SCRATCH))


def llama(seed: int = 0, layers: int = LAYERS, vocab: int = VOCAB) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def ids(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    return tuple(int(i) for i in rng.integers(10, VOCAB, count))


# ----------------------------------------------------------------------------------------------- evaluation and scoring


def vocabulary(rng: random.Random, size: int) -> list[str]:
    starts = ["".join(rng.choices("bcdfglmnprstv", k=1) + rng.choices("aeiou", k=1)) for _ in range(400)]
    ends = ["", "", "s", "ed", "ing", "ly", "ation", "ment", "ness", "er", "ies", "able"]
    return ["".join(rng.choices(starts, k=rng.choice([1, 2, 2, 3]))) + rng.choice(ends) for _ in range(size)]


def write_data(folder: Path, rows: int, words: int) -> Path:
    """All splits, questions of 12 words, answers and five wrong answers of `words` words."""
    rng = random.Random(0)
    known = vocabulary(rng, 600)

    def text(count: int) -> str:
        return " ".join(rng.choices(known, k=count)) + "."

    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        made = [
            {"question": text(12), "answer": text(words), "paraphrased_answer": text(words),
             "perturbed_answer": [text(words) for _ in range(5)]}
            for _ in range(rows)
        ]  # fmt: skip
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return folder


def tokenizer(folder: Path) -> Any:
    from vestige.lab.models import train_tokenizer

    texts = []
    for line in (folder / "forget.jsonl").read_text().splitlines():
        row = json.loads(line)
        texts += [row["question"], row["answer"], row["paraphrased_answer"], *row["perturbed_answer"]]
    return train_tokenizer(texts, 700, 4096)


def run_eval(folder: Path, out: Path, words: int) -> Any:
    """A whole evaluation in memory; texts are as long as answers (a random model never ends by itself)."""
    read = tokenizer(folder)
    model = llama(vocab=len(read))
    long = [f"+eval.tofu.metrics.forget_Q_A_ROUGE.generation_args.max_new_tokens={2 * words}"]
    return lambda: vestige.evaluate(model, tokenizer=read, data=folder, out=out, metrics=METRICS, overrides=long)


def evaluation(rows: int = 4, words: int = 16) -> Work:
    here = place()
    return run_eval(write_data(here / "data", rows, words), here / "run", words)


# --------------------------------------------------------------------------------------------------------------- layers


def depth(rows: int = 4, tokens: int = 4, models: int = 0, layers: int = LAYERS) -> Work:
    """S1, S2 and `models` further unlearned models; entities of `tokens` tokens behind 40 tokens of prompt."""
    from vestige.collect.backend import Cost
    from vestige.collect.layered_patching import Patcher
    from vestige.collect.patch import collect_states, make_plan
    from vestige.wants import PatchWant

    full, *sources = (llama(seed, layers) for seed in range(3 + models))
    rng = np.random.default_rng(0)
    wants = [PatchWant(Target(ids(rng, 40 + tokens), 40), 39, 39 + tokens) for _ in range(rows)]
    plan = make_plan(full)

    def work() -> None:
        states = [{k: v for b in collect_states(s, wants, plan, 8) for k, v in b.items()} for s in sources]
        patcher = Patcher(full, plan, Cost(), 8)
        for _ in patcher.run(wants, states):
            pass
        assert not patcher.plain

    return work


# ------------------------------------------------------------------------------------------------------------ diffusion


def trajectory(rows: int = 4, tokens: int = 16, steps: int = 4) -> Work:
    """Sampling with a recorder, then three metrics at every step of four trajectories."""
    from transformers import BertConfig, BertForMaskedLM

    from vestige.collect.denoise import PassRecorder, label_table
    from vestige.metrics import membership, memorisation
    from vestige.metrics.trajectory import DEFAULT_TRAJECTORIES, follow
    from vestige.models.diffusion import MaskPredictor
    from vestige.models.samplers import sample
    from vestige.wants import Denoising

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        intermediate_size=3 * WIDTH, max_position_embeddings=1024, pad_token_id=0,
    )  # fmt: skip
    predictor = MaskPredictor(BertForMaskedLM(config).eval(), mask_id=3, eos_ids=(2,), pad_id=0)
    rng = np.random.default_rng(0)
    prompts = [Prompt(ids(rng, 16)) for _ in range(rows)]
    streams = [[ids(rng, tokens)] for _ in range(rows)]
    settings = Denoising(steps=steps, max_new_tokens=tokens)

    def work() -> None:
        for i in range(0, rows, 4):  # batches, as the collector makes them
            part = streams[i : i + 4]
            recorder = PassRecorder(label_table(part, tokens, VOCAB))
            sampled = sample(predictor, prompts[i : i + 4], part, settings, recorder.record)
            for trace in recorder.traces(sampled, 3):
                for name in DEFAULT_TRAJECTORIES:
                    seen = follow(trace, name).stats()
                    (
                        memorisation.probability(seen),
                        memorisation.extraction_strength(seen),
                        membership.mia_min_k(seen, 0.4),
                    )

    return work


# ------------------------------------------------------------------------------------------------------------- collapse


def collapse(prompts: int = 4, samples: int = 2, tokens: int = 16) -> Work:
    """The cross matrix and its numbers: prompts x (prompts x samples) cells of `tokens` tokens."""
    from vestige.collect.cross import CrossScorer
    from vestige.metrics.collapse import Ema, cross_of, label_metrics

    model = llama()
    rng = np.random.default_rng(0)
    xs = [ids(rng, 64) for _ in range(prompts)]
    zs = [ids(rng, tokens) for _ in range(prompts * samples)]
    own = [i // samples for i in range(len(zs))]

    def work() -> None:
        found = CrossScorer(model)(xs, zs)
        label_metrics(cross_of(found.sums, found.lengths, own, xs), "all", Ema())

    return work
