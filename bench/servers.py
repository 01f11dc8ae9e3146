"""vestige through a vLLM server next to lm-evaluation-harness through the same server, on the same rows, in one run.

    python bench/servers.py --vllm PYTHON --model DIR --tofu DIR [--rows 20] [--runs 3] [--write PAGE]

PYTHON is that of an environment with vLLM (`make engines` makes .venv-engines); DIR has TOFU's own files. The server
is started here, on loopback, in float32. Both sides score every answer of TOFU's default set and write every text,
greedily, in turn; tokens are as the server counts them (its /metrics). Seconds are by the clock, of requests and their
answers; last comes vestige with the same checkpoint in this process. `--write` puts the table into a page.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np

import vestige
from measure import circumstances, markdown, replace_section
from tofu import FILES, real_rows, worst, write_rows
from vestige.data.chat import Encoder, Template
from vestige.models.load import ModelArgs, load_tokenizer

OPEN, CLOSE = "<!-- served table: written by bench/servers.py -->", "<!-- /served table -->"
SPOKEN = ("forget", "retain", "real_authors", "world_facts")  # splits whose questions are answered in text
NEW_TOKENS = 200  # as TOFU generates
LONGEST = 1024
PORT = 8377
PATIENCE = 300.0  # seconds until vLLM serves: about 40 on two free cores
# Of one server: tokens of prompts, those of them that its prefix cache had, and tokens written.
COUNTED = {
    "pushed": "vllm:prompt_tokens_total",
    "cached": "vllm:prefix_cache_hits_total",
    "decoded": "vllm:generation_tokens_total",
}

HARNESS, SERVED, HERE = "lm-evaluation-harness, served", "vestige, served", "vestige, in process"

Rows = dict[str, list[dict[str, Any]]]


@dataclass
class Outcome:
    """One side, one run: seconds, the server's counts, and what it found."""

    seconds: float
    tokens: dict[str, int] = field(default_factory=dict)
    losses: dict[tuple[str, str], float] = field(default_factory=dict)  # (question, answer) -> mean loss
    texts: dict[str, str] = field(default_factory=dict)  # question -> greedy text
    scores: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def vllm(python: str, model: Path) -> Iterator[str]:
    """The address of a vLLM that serves this model in float32."""
    url = f"http://127.0.0.1:{PORT}"
    flags = ["--dtype", "float32", "--enforce-eager", "--max-model-len", str(LONGEST), "--host", "127.0.0.1"]
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    env = {k: v for k, v in env.items() if k not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *flags, "--port", str(PORT)]
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            end = time.monotonic() + PATIENCE
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{url}/v1/models", timeout=2).close()
                    break
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"servers: vLLM did not start:\n{Path(log.name).read_text()[-3000:]}")
                time.sleep(0.5)
            yield url
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def counters(url: str) -> dict[str, int]:
    """What the server has counted since it started."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
    found = {}
    for name, metric in COUNTED.items():
        values = re.findall(rf"^{metric}(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.M)
        found[name] = int(sum(map(float, values)))
    return found


def answers_of(row: dict[str, Any]) -> list[str]:
    """Its answer, paraphrase and wrong answers."""
    more = [row["paraphrased_answer"]] if row.get("paraphrased_answer") else []
    return [row["answer"], *more, *row.get("perturbed_answer", [])]


def asked(data: Rows) -> list[tuple[str, str]]:
    """Every (question, answer) of the default set, each once. Of holdout rows only the answer itself is scored."""
    pairs = [
        (row["question"], answer)
        for split in FILES
        for row in data[split]
        for answer in (answers_of(row) if split in SPOKEN else [row["answer"]])
    ]
    return list(dict.fromkeys(pairs))


def harness(model: Path, url: str, data: Rows) -> Outcome:
    """The harness's own client (local-completions): every prompt is pushed once per answer, every text is decoded."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    tokenizer, _ = load_tokenizer(ModelArgs(path=str(model)))
    encoder = Encoder(tokenizer, Template())
    lm = LocalCompletionsAPI(
        model=str(model), base_url=f"{url}/v1/completions", tokenizer=str(model), tokenizer_backend="huggingface",
        tokenized_requests=True, num_concurrent=8, batch_size=16, max_length=LONGEST,
    )  # fmt: skip
    pairs = asked(data)
    encoded = encoder.encode(pairs)
    requests = [(("", ""), list(e.full[: e.start]), list(e.full[e.start :])) for e in encoded]
    questions = [row["question"] for split in SPOKEN for row in data[split]]
    prompts = [tokenizer.decode(e.prompt) for e in encoder.encode([(q, "") for q in questions])]
    how = {"until": [tokenizer.eos_token], "max_gen_toks": NEW_TOKENS, "temperature": 0}
    instances = [Instance("generate_until", {}, (text, dict(how)), i) for i, text in enumerate(prompts)]
    before, start = counters(url), time.perf_counter()
    scored = lm._loglikelihood_tokens(requests)
    texts = lm.generate_until(instances)
    seconds = time.perf_counter() - start
    after = counters(url)
    losses = {p: -value / len(r[2]) for p, (value, _), r in zip(pairs, scored, requests, strict=True)}
    tokens = {name: after[name] - before[name] for name in after}
    return Outcome(seconds, tokens, losses, dict(zip(questions, texts, strict=True)))


def ours(model: Path, url: str | None, folder: Path) -> Outcome:
    """One evaluation with TOFU's default metrics; through the server, or in this process."""
    before = counters(url) if url else {}
    with tempfile.TemporaryDirectory() as out:
        result = vestige.evaluate(
            str(model), data=folder, out=Path(out) / "run", server=url, dialect="strict",
            overrides=["stats.resamples=0"],
        )  # fmt: skip
        spent: Any = result.manifest["seconds"]
        scores = {name: result[name].to_json() for name in result.scores}
    after = counters(url) if url else {}
    tokens = {name: after[name] - before[name] for name in after}
    # As with the harness: requests and their answers, without imports, rows and files.
    return Outcome(spent["answers"] + spent["texts"], tokens, scores=scores)


LOSSES = {"forget": "forget_Q_A_Prob", "retain": "retain_Q_A_Prob"}
TEXTS = {
    "forget": "forget_Q_A_ROUGE",
    "retain": "retain_Q_A_ROUGE",
    "real_authors": "ra_Q_A_ROUGE",
    "world_facts": "wf_Q_A_ROUGE",
}


def agreement(theirs: Outcome, mine: Outcome, data: Rows) -> tuple[float, int, int]:
    """Between the harness and vestige: the largest difference of two losses; texts that are equal, and all."""
    gaps: list[float] = []
    same = count = 0
    for split, name in LOSSES.items():
        for row, found in zip(data[split], mine.scores[name]["value_by_index"].values(), strict=True):
            gaps.append(abs(found["avg_loss"] - theirs.losses[row["question"], row["answer"]]))
    for split, name in TEXTS.items():
        for row, found in zip(data[split], mine.scores[name]["value_by_index"].values(), strict=True):
            same += found["generation"].strip() == theirs.texts[row["question"]].strip()
            count += 1
    return float(np.max(gaps)), same, count  # NaN, if there is one


HEAD = (
    "who", "prompt tokens", "of them cached", "decoded", "seconds", "times vestige's, served",
    "equal to vestige, served?",
)  # fmt: skip


def table(sides: dict[str, list[Outcome]], equal: dict[str, str]) -> str:
    served = statistics.median(outcome.seconds for outcome in sides[SERVED])
    rows = []
    for name, outcomes in sides.items():
        tokens = outcomes[0].tokens
        counts = [f"{tokens[k]:,}" if k in tokens else "" for k in COUNTED]
        seconds = [outcome.seconds for outcome in outcomes]
        middle = statistics.median(seconds)
        spread = f"{middle:.0f} ({min(seconds):.0f}-{max(seconds):.0f})"
        rows.append([name, *counts, spread, f"{middle / served:.2f}", equal.get(name, "")])
    return markdown(HEAD, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", required=True, help="the Python of an environment with vLLM")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tofu", type=Path, required=True, help="TOFU's own files")
    parser.add_argument("--rows", type=int, default=20, help="per split")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    args = parser.parse_args()
    model = args.model.resolve()
    sides: dict[str, list[Outcome]] = {n: [] for n in (HARNESS, SERVED, HERE)}
    with tempfile.TemporaryDirectory() as place:
        data = real_rows(args.tofu, args.rows)
        folder = write_rows(Path(place) / "rows", data)
        with vllm(args.vllm, model) as url:
            for _ in range(args.runs):
                sides[HARNESS].append(harness(model, url, data))
                sides[SERVED].append(ours(model, url, folder))
                for name, outcomes in sides.items():
                    print(
                        *(f"{name}: {outcome.seconds:.1f} s {outcome.tokens}" for outcome in outcomes[-1:]), flush=True
                    )
        sides[HERE].append(ours(model, None, folder))
    gaps = list(worst(sides[HERE][0].scores, sides[SERVED][0].scores))
    numbers = [gap for path, gap in gaps if not path.endswith("text")]
    texts = [gap for path, gap in gaps if path.endswith("text")]
    loss, same, count = agreement(sides[HARNESS][0], sides[SERVED][0], data)
    alike = f"{len(texts) - int(sum(texts))} of {len(texts)} texts, {len(numbers):,} numbers within {max(numbers):.0e}"
    equal = {HARNESS: f"{same} of {count} texts; losses within {loss:.0e}", HERE: alike}
    about = circumstances(f"; {args.model.name}; {args.rows} real TOFU rows per split; {args.runs} runs in turn")
    section = f"{about}\n\n{table(sides, equal)}"
    print(section)
    if args.write:
        replace_section(args.write, section, OPEN, CLOSE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
