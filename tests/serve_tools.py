"""A model server of our own for tests: real numbers of a tiny model, in the forms of several servers, faults on demand.

Each sequence is run alone and in float32, so that its numbers never depend on the batch. `Misbehaviour` changes or
withholds answers: what a client must notice. Loopback only.

    python tests/serve_tools.py MODEL [PORT]      serves a checkpoint until it is killed
"""

from __future__ import annotations

import http.server
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

Answer = dict[str, Any] | list[Any]


class Silence(Exception):  # noqa: N818 - a way to answer
    """The connection is closed without an answer."""


class Half(Exception):  # noqa: N818
    """Half of the answer is sent, and the connection closed."""


@dataclass
class HttpStatus(Exception):  # noqa: N818
    """Another status than 200."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: str = '{"error": {"message": "on purpose"}}'


# (path, number of the request, what was asked, the honest answer) -> the answer
Misbehaviour = Callable[[str, int, dict[str, Any], Answer], Answer]


def honest(path: str, number: int, asked: dict[str, Any], answer: Answer) -> Answer:
    return answer


class TinyModel:
    """One checkpoint, run a sequence at a time."""

    def __init__(self, path: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.lock = threading.Lock()

    @torch.inference_mode()
    def logprobs(self, ids: list[int]) -> torch.Tensor:
        with self.lock:
            return self.model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)

    def write(self, asked: dict[str, Any], ids: list[int]) -> tuple[list[int], str, list[torch.Tensor]]:
        """Greedy, or seeded: each token by its own draw, so that a text is the same whoever asks beside it."""
        out: list[int] = []
        rows: list[torch.Tensor] = []
        stops = {*asked.get("stop_token_ids", []), self.tokenizer.eos_token_id}
        noise = torch.Generator().manual_seed(int(asked.get("seed") or 0))
        while len(out) < asked["max_tokens"]:
            row = self.logprobs([*ids, *out])[-1]
            rows.append(row)
            if asked.get("temperature", 1.0) == 0:
                token = int(row.argmax())
            else:
                token = int(torch.multinomial((row / asked["temperature"]).softmax(-1), 1, generator=noise))
            out.append(token)
            text = self.tokenizer.decode(out, skip_special_tokens=True)
            if token in stops or any(word in text for word in asked.get("stop") or []):
                return out, "stop", rows
        return out, "length", rows


class ModelServer(http.server.ThreadingHTTPServer):
    """Speaks as vLLM does (`kind` vllm), as an OpenAI server that takes no ids, or only chats."""

    daemon_threads = True

    def __init__(self, model: TinyModel, name: str, kind: str = "vllm", port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.model, self.name, self.kind = model, name, kind
        self.misbehave: Misbehaviour = honest
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answered: list[tuple[int, ...]] = []  # sequences scored, prompts continued
        self.headers_seen: list[dict[str, str]] = []
        self.all_logprobs = True
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""

    def answer(self, path: str, asked: dict[str, Any]) -> Answer:
        table = {
            "/v1/models": self.models, "/version": self.version, "/tokenize": self.tokenize,
            "/v1/completions": self.completions, "/v1/chat/completions": self.chat,
        }  # fmt: skip
        missing = {"/v1/completions", "/version"} if self.kind == "chat" else set()
        if path not in table or path in missing:
            raise HttpStatus(404)
        return table[path](asked)

    def models(self, asked: dict[str, Any]) -> Answer:
        owner = "vllm" if self.kind == "vllm" else "somebody"
        return {"data": [{"id": self.name, "owned_by": owner, "root": self.name, "max_model_len": 256}]}

    def version(self, asked: dict[str, Any]) -> Answer:
        return {"version": "0.0-test"}

    def tokenize(self, asked: dict[str, Any]) -> Answer:
        return {"tokens": self.model.tokenizer(asked["prompt"], add_special_tokens=False)["input_ids"]}

    def completions(self, asked: dict[str, Any]) -> Answer:
        prompts = asked["prompt"]
        if self.kind == "openai":
            if not isinstance(prompts, str):
                raise HttpStatus(422)
            return self.old_form(asked, self.model.tokenizer(prompts, add_special_tokens=False)["input_ids"])
        if asked.get("prompt_logprobs") == -1 and not self.all_logprobs:
            raise HttpStatus(400)
        choices = [self.completion(i, ids, asked) for i, ids in enumerate(prompts)]
        written = sum(len(c["token_ids"]) for c in choices)
        usage = {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": written}
        usage["prompt_tokens_details"] = {"cached_tokens": 0}
        return {"model": self.name, "choices": choices, "usage": usage}

    def completion(self, index: int, ids: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        written, finish, rows = self.model.write(asked, ids)
        out: dict[str, Any] = {"index": index, "token_ids": written, "finish_reason": finish, "text": ""}
        out |= {"prompt_token_ids": ids}
        if asked.get("logprobs"):
            tops = [dict(zip(("a", "b"), r.topk(2).values.tolist(), strict=True)) for r in rows]
            out["logprobs"] = {"top_logprobs": tops}
        if (top := asked.get("prompt_logprobs")) is not None:
            table = self.model.logprobs(ids)
            told = [self.position(table[at], token, top) for at, token in enumerate(ids[1:])]
            out["prompt_logprobs"] = [None, *told]
        return out

    def position(self, row: torch.Tensor, token: int, top: int) -> dict[str, Any]:
        best = range(len(row)) if top == -1 else row.topk(top).indices.tolist()
        ranks, values = row.argsort(descending=True).argsort().tolist(), row.tolist()
        return {str(i): {"logprob": values[i], "rank": ranks[i] + 1} for i in {token, *best}}

    def old_form(self, asked: dict[str, Any], ids: list[int]) -> Answer:
        written, finish, _ = self.model.write(asked, ids)
        words = [self.model.tokenizer.decode([i]) for i in [*ids, *written]]
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        choice["text"] = self.model.tokenizer.decode(written, skip_special_tokens=True)
        if asked.get("logprobs") and asked.get("echo"):
            table = self.model.logprobs(ids)
            told = [float(table[at][token]) for at, token in enumerate(ids[1:])]
            best = [{words[at + 1]: told[at], self.model.tokenizer.decode([int(row.argmax())]): float(row.max())}
                    for at, row in enumerate(table[:-1])]  # fmt: skip
            choice["logprobs"] = {
                "tokens": words, "token_logprobs": [None, *told, *[-1.0] * len(written)],
                "top_logprobs": [None, *best, *[{}] * len(written)],
            }  # fmt: skip
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(written)}
        return {"model": self.name, "choices": [choice], "usage": usage}

    def chat(self, asked: dict[str, Any]) -> Answer:
        text = self.model.tokenizer.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        ids = self.model.tokenizer(text, add_special_tokens=False)["input_ids"]
        written, finish, _ = self.model.write(asked, ids)
        said = self.model.tokenizer.decode(written, skip_special_tokens=True)
        choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": said}}
        return {"model": self.name, "choices": [choice], "usage": {"prompt_tokens": len(ids)}}


class Handler(http.server.BaseHTTPRequestHandler):
    """Reads a request, asks the server, sends what it is told to."""

    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, *args: Any) -> None:
        """Tests are quiet."""

    def do_GET(self) -> None:
        self.respond({})

    def do_POST(self) -> None:
        self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def respond(self, asked: dict[str, Any]) -> None:
        server = self.server
        with server.lock:
            server.asked.append((self.path, asked))
            server.headers_seen.append(dict(self.headers))
            number = len(server.asked)
        try:
            answer = server.misbehave(self.path, number, asked, server.answer(self.path, asked))
        except HttpStatus as error:
            self.send(error.status, error.body.encode(), error.headers)
        except Silence:
            self.close_connection = True
        except Half as half:
            raw = json.dumps(half.args[0]).encode()
            self.send(200, raw[: len(raw) // 2], {"Content-Length": str(len(raw))})
            self.close_connection = True
        else:
            with server.lock:
                sent = asked.get("prompt", [])
                server.answered += [tuple(ids) for ids in sent if isinstance(ids, list)]
            self.send(200, json.dumps(answer).encode(), {})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(model: TinyModel, name: str, kind: str = "vllm", port: int = 0) -> Iterator[ModelServer]:
    """A server on a free port of loopback, for the length of a block."""
    server = ModelServer(model, name, kind, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, port = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with serving(TinyModel(place), str(place), port=port) as running:
        print(running.url, flush=True)
        threading.Event().wait()
