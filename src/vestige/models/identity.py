"""What evidence depends on, in one place: it is read again only where all of this is the same.

    what                                   how it is known                               where it counts
    weights, config, generation config     fingerprint (models/fingerprint.py)           name of the bank
    adapter, quantisation, code it brings  fingerprint                                   name of the bank
    precision, attention, kind of device   as they are resolved here, not as asked       name of the bank
    torch, transformers, peft, ...         their versions (LIBRARIES)                    name of the bank
    our own way of collecting              a number for each kind (COLLECTED)            head of the bank
    the tokenizer's end and mask tokens    their ids                                     head of the bank
    prompts, answers, chat template,       token ids of what is asked: another           key of each entry
      system prompt, date, pre-tokeniser     prompt is another entry
    decoding, seeds, sampler settings      in the want itself                            key of each entry
    the tokenizer's decoder                texts are kept as ids and decoded again       not at all
    metrics, dialects, plug-ins, rows      scores are made of evidence each time         not at all

A sweep also skips scoring, so its key knows the rest too: `tokenizer_files`, data, plug-ins (sweep/keys.py).
"""

from __future__ import annotations

import functools
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vestige.models import choose
from vestige.models.args import ModelArgs
from vestige.models.fingerprint import digests, stable
from vestige.models.locate import Place, locate, read_json
from vestige.types import content_key

# Library -> the models whose numbers another version of it can change. tokenizers is not here: which tokens it makes is
# in the key of every entry, and texts are decoded again when they are read.
LIBRARIES = {
    "torch": "all",  # kernels; what it was built for is told by the device
    "transformers": "all",  # the model's code, generation
    "peft": "adapter",
    "bitsandbytes": "quantised",
    "gguf": "gguf",
}

# How each kind of evidence is collected. A number goes up only when values can change beyond rounding for the same
# weights and wants: a mask, a position, which token is scored, a sampler's order. Not for speed, batching or notes.
COLLECTED = {
    "answers": 1,
    "visible": 1,
    "errors": 1,
    "denoised": 1,
    "texts": 1,
    "gradients": 1,
    "patched": 1,
    "classified": 1,
    "cross": 1,
}

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "tekken.json",
    "spiece.model",
    "*.bpe.model",
    "*.tiktoken",
    "tokenization_*.py",
    "chat_template*",
    "additional_chat_templates/*",
)


@functools.cache
def library(name: str) -> str:
    """A library's version without what it was built for (`+cpu`); nothing is imported."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""


def libraries(kind: str, quantised: bool) -> dict[str, str]:
    """The versions that count for one model; `kind` as in Place."""
    met = {"all", kind, *(["quantised"] if quantised else [])}
    return {name: library(name) for name, whose in LIBRARIES.items() if whose in met}


def held(args: ModelArgs) -> dict[str, str]:
    """How the weights are held when they are loaded as asked, with `auto` resolved: known without loading them.

    (Which of sdpa and eager transformers takes by itself follows from the architecture and its version.)
    """
    device = choose.choose_device(args.device)
    kind = device.split(":")[0]
    dtype = args.dtype if args.dtype != "auto" else ("float32" if device == "cpu" else stored_dtype(args))
    return {"dtype": dtype, "attention": choose.choose_attention(args.attention)[0] or "sdpa", "device": kind}


def stored_dtype(args: ModelArgs) -> str:
    """The checkpoint's own precision, as transformers' `auto` reads it: from its config, else its first tensor."""
    place = locate(args)
    place = place.base or place
    if place.gguf:
        return "auto"  # unpacked to what transformers chooses for it
    config = place.config
    inner = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    for body in (config, inner or {}):
        if name := body.get("dtype") or body.get("torch_dtype"):
            return str(name).removeprefix("torch.")
    return _first_tensor(place, args)


PRECISIONS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as safetensors writes them


def _first_tensor(place: Place, args: ModelArgs) -> str:
    from safetensors import safe_open

    from vestige.models.locate import weight_names

    file = place.directory / weight_names(place.directory, False, args)[0]
    if file.suffix != ".safetensors" or not file.is_file():
        return "auto"
    with safe_open(file, "numpy") as tensors:
        kinds = (str(tensors.get_slice(key).get_dtype()) for key in tensors.keys())  # noqa: SIM118 - not a mapping
        return next((PRECISIONS[k] for k in kinds if k in PRECISIONS), "auto")


def special_ids(tokenizer: Any) -> str:
    """A name for the tokens that end or mask a text, by their ids: a model's own settings may leave them open."""
    names = ("eos_token_id", "mask_token_id", "pad_token_id", "bos_token_id")
    return content_key(json.dumps({n: getattr(tokenizer, n, None) for n in names}, default=str).encode())[:16]


def pipeline_key(tokenizer: Any) -> str:
    """A name for what cuts text into tokens and puts it together again: vocabulary, merges, pre-tokeniser, decoder.

    Of the object that tokenises, since it may differ from the file it was read from (a tokenizer class can bring a
    pre-tokeniser of its own). Padding and truncation are left out: every call sets them.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        whole = backend.to_str()
        return content_key(whole[max(whole.find('"added_tokens"'), 0) :].encode())
    facts = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    settings = {k: repr(v) for k, v in getattr(tokenizer, "init_kwargs", {}).items() if k not in ("name_or_path",)}
    return content_key(json.dumps([facts, settings], sort_keys=True, default=repr).encode())


def tokenizer_files(args: ModelArgs) -> list[str]:
    """Names and digests of the files that a checkpoint's tokenizer may be read from; where they are is left out."""
    out = []
    for directory in _tokenizer_places(args):
        files = sorted({f for pattern in TOKENIZER_FILES for f in directory.glob(pattern) if f.is_file()})
        out += [f"{file.name}={_file_key(file, digest)}" for file, digest in zip(files, digests(files), strict=True)]
    return out


def _tokenizer_places(args: ModelArgs) -> list[Path]:
    """The local directories among those that `load_tokenizer` looks into."""
    place: Place | None = locate(args, weights=False) if Path(args.path).expanduser().exists() else None
    out: list[Path] = []
    while place is not None:
        out += [place.directory, place.root]
        place = place.base
    named = (Path(p).expanduser() for p in (args.tokenizer, args.base) if p)
    out += [p.parent if p.is_file() else p for p in named if p.exists()]
    return list(dict.fromkeys(p.resolve() for p in out))


def _file_key(file: Path, digest: str) -> str:
    """Of tokenizer_config.json only what matters: transformers writes its own version and the path into it."""
    return json.dumps(stable(read_json(file)), sort_keys=True) if file.name == "tokenizer_config.json" else digest


def says_today(args: ModelArgs) -> bool:
    """Whether the chat template may print the day it is used on."""
    names = ("chat_template*", "additional_chat_templates/*", "tokenizer_config.json")
    files = [f for place in _tokenizer_places(args) for name in names for f in place.glob(name) if f.is_file()]
    return any(b"strftime_now" in file.read_bytes() for file in files)
