"""A real vLLM on loopback, and a checkpoint that it can serve: head size 64, a few rows known by heart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from conftest import LAB
from serve_tools import free_port

FLAGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--host", "127.0.0.1",
         "--max-logprobs", "-1", "--enable-prompt-tokens-details")  # fmt: skip
PATIENCE = 300.0  # seconds until it serves: about 40 on two free cores


def learned_model(place: Path) -> Path:
    """A tiny Llama with the golden lab's tokenizer that has read its forget rows some times."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from vestige.lab.models import encode_row
    from vestige.unlearn.loop import Training, finetune

    tokenizer = AutoTokenizer.from_pretrained(LAB / "models" / "full")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    rows = [json.loads(line) for line in (LAB / "data" / "forget.jsonl").read_text().splitlines()[:12]]
    lessons = [encode_row(tokenizer, r["question"], r["answer"]) for r in rows]
    finetune(model, lessons, Training(epochs=20, lr=5e-3, batch_size=4, pad_id=tokenizer.pad_token_id, seed=0))
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


class Vllm:
    """One vLLM process with a model."""

    def __init__(self, model: Path, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        env = {k: v for k, v in env.items() if k not in ("PYTHONPATH", "OMP_NUM_THREADS")}
        command = [os.environ["VESTIGE_ENGINES"], "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, *FLAGS, "--port", str(self.port)], stdout=out, stderr=out, env=env, start_new_session=True
            )

    def wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/v1/models", timeout=2).close()
                return
            except OSError:
                alive = self.process.poll() is None
                assert alive and time.monotonic() < end, self.log.read_text()[-3000:]
                time.sleep(0.5)

    def kill(self) -> None:
        """SIGKILL to the server and its engine."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def differing(a: Any, b: Any, tolerance: float, where: str = "") -> list[str]:
    """What is not the same: numbers beyond the tolerance, texts and the rest at all."""
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [where]
        return [x for k in a for x in differing(a[k], b[k], tolerance, f"{where}/{k}")]
    if isinstance(a, list):
        if len(a) != len(b):
            return [where]
        return [
            x for i, (p, q) in enumerate(zip(a, b, strict=True)) for x in differing(p, q, tolerance, f"{where}[{i}]")
        ]
    if isinstance(a, float) and isinstance(b, float):
        return [] if abs(a - b) <= tolerance * (1 + abs(a)) else [f"{where}: {a} and {b}"]
    return [] if a == b else [f"{where}: {a!r} and {b!r}"]
