"""vestige through a model server beside lm-evaluation-harness through the same server, on the same rows, in one run.

    python bench/servers.py MODEL URL DATA [ROWS]

MODEL is the checkpoint that the server at URL serves; DATA has TOFU's splits (forget.jsonl, retain.jsonl, ...). Both
sides score every answer of the default set and write every text, greedily. Printed: prompt tokens pushed, tokens
decoded, wall time, and how far the losses are apart; last, vestige with the same checkpoint in this process.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import vestige
from vestige.data.chat import Encoder, Template
from vestige.models.load import ModelArgs, load_tokenizer

SPLITS = ("forget", "retain", "real_authors", "world_facts")
NEW_TOKENS = 200


def pairs(data: Path, rows: int) -> list[tuple[str, list[str]]]:
    """Per row its question, and its answer, paraphrase and wrong answers."""
    out = []
    for split in SPLITS:
        lines = (data / f"{split}.jsonl").read_text().splitlines()[:rows]
        for row in map(json.loads, lines):
            more = [row["paraphrased_answer"]] if row.get("paraphrased_answer") else []
            out.append((row["question"], [row["answer"], *more, *row.get("perturbed_answer", [])]))
    return out


def harness(model: str, url: str, asked: list[tuple[str, list[str]]]) -> dict[str, Any]:
    """The harness's own client (local-completions): every prompt is pushed once per answer, every text is decoded."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    tokenizer, _ = load_tokenizer(ModelArgs(path=model))
    encoder = Encoder(tokenizer, Template())
    lm = LocalCompletionsAPI(
        model=model, base_url=f"{url}/v1/completions", tokenizer=model, tokenizer_backend="huggingface",
        tokenized_requests=True, num_concurrent=8, batch_size=16, max_length=2048,
    )  # fmt: skip
    prompt_of = {q: encoder.encode([(q, "")])[0].prompt for q, _ in asked}
    requests = []
    for q, answers in asked:
        for e in encoder.encode([(q, a) for a in answers]):
            requests.append((("", ""), list(e.full[: e.start]), list(e.full[e.start :])))
    start = time.perf_counter()
    scored = lm._loglikelihood_tokens(requests)
    until = [tokenizer.eos_token] if tokenizer.eos_token else []
    how = {"until": until, "max_gen_toks": NEW_TOKENS, "temperature": 0}
    words = [tokenizer.decode(ids) for ids in prompt_of.values()]
    ask = [Instance("generate_until", {}, (text, dict(how)), i) for i, text in enumerate(words)]
    texts = lm.generate_until(ask)
    seconds = time.perf_counter() - start
    pushed = sum(len(c) + len(a) for _, c, a in requests) + sum(map(len, prompt_of.values()))
    decoded = sum(len(tokenizer(t, add_special_tokens=False)["input_ids"]) + 1 for t in texts) + len(requests)
    losses = [-value / len(answer) for (value, _), (_, _, answer) in zip(scored, requests, strict=True)]
    firsts = [sum(len(a) for _, a in asked[:i]) for i in range(len(asked))]  # where each question's own answer is
    return {"seconds": seconds, "pushed": pushed, "decoded": decoded, "losses": [losses[i] for i in firsts]}


def ours(model: str, url: str | None, data: Path, rows: int) -> dict[str, Any]:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        result = vestige.evaluate(
            model, data=data, out=Path(out) / "run", server=url, limit=rows, dialect="strict",
            overrides=["stats.resamples=0"],
        )  # fmt: skip
        whole = time.perf_counter() - start
        spent = result.manifest["seconds"]
        seconds = spent["answers"] + spent["texts"]  # as with the harness: requests and their answers
        cost = result.manifest["cost"]
        rows_of = result["forget_Q_A_Prob"].value_by_index or {}
    pushed = cost.get("server_prompt_tokens", cost["score_tokens"] + cost["prefill_tokens"])
    decoded = cost.get("server_decoded_tokens", cost["decode_row_steps"])
    losses = [r["avg_loss"] for r in rows_of.values()]
    return {"seconds": seconds, "pushed": pushed, "decoded": decoded, "losses": losses, "whole": whole}


def main(model: str, url: str, data: Path, rows: int) -> None:
    asked = pairs(data, rows)
    theirs, served, here = harness(model, url, asked), ours(model, url, data, rows), ours(model, None, data, rows)
    print(f"{rows} rows per split, {len(asked)} questions, {sum(len(a) for _, a in asked)} answers")
    print("| | prompt tokens | decoded | seconds |\n|---|---|---|---|")
    sides = {"lm-evaluation-harness, served": theirs, "vestige, served": served, "vestige, in process": here}
    for name, one in sides.items():
        print(f"| {name} | {one['pushed']:,} | {one['decoded']:,} | {one['seconds']:.1f} |")
    print(f"the whole evaluation, imports to files: served {served['whole']:.1f} s, here {here['whole']:.1f} s")
    print(f"wall time: the harness took {theirs['seconds'] / served['seconds']:.2f} times as long as vestige, served")
    for name, one in sides.items():
        gaps = [abs(a - b) for a, b in zip(one["losses"], here["losses"], strict=False)]
        print(f"losses of the forget answers, {name}: at most {max(gaps):.2g} from those in process")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].rstrip("/"), Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 5)
