"""Finding a model's tokenizer, without touching its weights."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from vestige.errors import UserError, reraise_ours
from vestige.models.args import ModelArgs
from vestige.models.families import find_family, native_config, tokenizer_class
from vestige.models.fingerprint import digests, stable
from vestige.models.foreign import error_sentence, explain_foreign, quiet
from vestige.models.locate import Place, find_directory, locate, read_json
from vestige.models.quantised import damaged, parsed_once
from vestige.types import content_key

# A tokenizer_config.json alone is not a tokenizer: transformers would build an empty one from it.
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")

# Everything that a tokenizer may be read from.
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


def load_tokenizer(args: ModelArgs) -> tuple[Any, list[str]]:
    """The tokenizer and notes on where it came from.

    Looked for in `args.tokenizer` if given; else with the checkpoint, above its subfolder, with the
    adapter's base, and at last in `args.base`. The pad token is left as it is found.
    """
    if args.tokenizer:
        return _read(*_own(args, args.tokenizer), args)
    place: Place | None = locate(args, weights=False)
    while place is not None:
        for directory in dict.fromkeys((place.directory, place.root)):
            if place.gguf or has_tokenizer(directory):
                # transformers reads the model's config, too, and would blame the tokenizer for what is in it.
                family = find_family(place.config) if place.kind == "model" else None
                if family is not None:
                    native_config(family, place.config, place.name)
                return _read(directory, place.gguf, args)
        place = place.base
    if not args.base:
        raise UserError(f"'{args.path}' has no tokenizer; say where it is with `tokenizer` (a hub id or a directory).")
    tokenizer, notes = _read(*_own(args, args.base), args)
    return tokenizer, [f"'{args.path}' has no tokenizer; took the one of '{args.base}'.", *notes]


def tokenizer_in(directory: Path) -> Any:
    """A tokenizer saved in a directory without a model."""
    return _read(directory, None, ModelArgs(path=str(directory)))[0]


def has_tokenizer(directory: Path) -> bool:
    """Whether a directory holds a vocabulary, or a config that names code which brings one."""
    if any(map(Path.is_file, map(directory.joinpath, VOCABULARIES))) or any(directory.glob("*.tiktoken")):
        return True
    config = directory / "tokenizer_config.json"
    return config.is_file() and "auto_map" in read_json(config)


def _own(args: ModelArgs, path: str) -> tuple[Path, Path | None]:
    """The place of a tokenizer named on its own; the model's revision and subfolder are not its own."""
    plain = replace(args, path=str(Path(path).expanduser()) if path.startswith("~") else path)
    plain = replace(plain, revision=None, subfolder=None)
    if path.endswith(".gguf"):
        place = locate(plain)
        return place.directory, place.gguf
    directory, _ = find_directory(plain.path, plain)
    if not has_tokenizer(directory):
        raise UserError(f"'{path}' has no tokenizer files (such as tokenizer.json); name one that has.")
    return directory, None


def _read(directory: Path, gguf: Path | None, args: ModelArgs) -> tuple[Any, list[str]]:
    import transformers

    # The whole path, because transformers looks for a bare name in the current directory first.
    named = {"gguf_file": str(gguf)} if gguf else {}
    config = directory / "tokenizer_config.json"  # may ask for a class; else it is left to transformers
    declared = str(read_json(config).get("tokenizer_class") or "") if config.is_file() else ""
    reader = getattr(transformers, tokenizer_class(declared, "AutoTokenizer"))  # but for classes known by another name
    try:
        with quiet(), parsed_once() if gguf else contextlib.nullcontext():
            tokenizer = reader.from_pretrained(str(directory), trust_remote_code=args.trust_remote_code, **named)
            plain = None if gguf else _by_files(tokenizer, directory, declared)
    except Exception as error:
        # The tokenizers library raises bare Exception for a file it cannot parse.
        reraise_ours(error)
        if gguf:
            raise damaged(gguf, error) from None
        if told := explain_foreign(error, str(directory), "its tokenizer was read"):
            raise told from None
        raise UserError(f"The tokenizer in '{directory}' cannot be read: {error_sentence(error)}") from None
    if not len(tokenizer):
        raise UserError(f"The tokenizer in '{directory}' is empty; give another one with `tokenizer`.")
    return _prefer_files(tokenizer, plain) if plain is not None else (tokenizer, [])


# Where rules for cutting text differ: digits, contractions, spaces, line ends, accents, other scripts, special tokens.
PROBES = (
    "It's 1978, 12,345.67 and 0x1F;\n\n  two  spaces\t\r\n",
    "Caf\u0065\u0301 na\u00efve \u5317\u4eac 2024\u5e74",
    "I'LL we'd <a>x</a>\n",
)


def _by_files(tokenizer: Any, directory: Path, declared: str) -> Any | None:
    """The tokenizer that tokenizer.json describes by itself, where transformers' class may bring rules of its own.

    For classes such as Qwen2Tokenizer transformers 5 takes only vocabulary and merges from the file and builds the rest
    (normaliser, pre-tokeniser, special tokens) by itself.
    """
    from transformers import PreTrainedTokenizerFast

    own_rules = isinstance(tokenizer, PreTrainedTokenizerFast) and "__init__" in type(tokenizer).__dict__
    foreign = not type(tokenizer).__module__.startswith("transformers.")
    if foreign or not own_rules or not (directory / "tokenizer.json").is_file():
        return None
    plain = PreTrainedTokenizerFast.from_pretrained(str(directory))
    if tokenizer_class(declared, declared).removesuffix("Fast") == type(tokenizer).__name__:
        # The files name this class, so what it says of special tokens is theirs where they say nothing else.
        known, missing = plain.get_vocab(), {}
        for name, token in tokenizer.special_tokens_map.items():
            if name not in plain.special_tokens_map and isinstance(token, str) and token in known:
                missing[name] = token
        plain.add_special_tokens(missing)
    return plain


def _prefer_files(tokenizer: Any, plain: Any) -> tuple[Any, list[str]]:
    """The files' tokenizer wherever the class differs from it; a note where that shows in ids or in padding."""
    if _rules(plain) == _rules(tokenizer) and plain.special_tokens_map == tokenizer.special_tokens_map:
        return tokenizer, []
    differs = any(plain(text)["input_ids"] != tokenizer(text)["input_ids"] for text in PROBES)
    what = ["cuts text by other rules"] if differs else []
    if plain.pad_token != tokenizer.pad_token:
        what.append(f"pads with {tokenizer.pad_token!r} (the files: {plain.pad_token!r})")
    origin = f"The tokenizer is the one tokenizer.json describes; transformers' {type(tokenizer).__name__}"
    return plain, [f"{origin} {' and '.join(what)}."] if what else []


CUTS = itemgetter("normalizer", "pre_tokenizer", "post_processor", "added_tokens")


def _rules(tokenizer: Any) -> tuple[Any, ...]:
    """What decides the ids of a text, vocabulary and merges apart: those are read from the file in any case."""
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    model = {k: v for k, v in whole.pop("model").items() if k not in ("vocab", "merges") and v not in (None, "", False)}
    return model, *CUTS(whole)


def tokenizer_facts(tokenizer: Any) -> dict[str, Any]:
    """What a manifest keeps of a tokenizer: names for its vocabulary, for all that cuts text and puts it together, and
    for its chat template, and its special tokens.

    Kept apart, so that two runs can be told to differ in one and not in the others.
    """
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=True)
    template = getattr(tokenizer, "chat_template", None)
    special = {k: str(v) for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    facts = {
        "vocabulary": content_key(vocabulary.encode()),
        "pipeline": pipeline_key(tokenizer),
        "special_tokens": special,
        "chat_template": content_key(json.dumps(template).encode()) if template else None,
    }
    return {"fingerprint": content_key(json.dumps(facts, sort_keys=True).encode()), **facts}


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
        for file, digest in zip(files, digests(files), strict=True):
            # Of tokenizer_config.json only what matters: transformers writes its own version and the path into it.
            is_config = file.name == "tokenizer_config.json"
            key = json.dumps(stable(read_json(file)), sort_keys=True) if is_config else digest
            out.append(f"{file.name}={key}")
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


def says_today(args: ModelArgs) -> bool:
    """Whether the chat template may print the day it is used on."""
    names = ("chat_template*", "additional_chat_templates/*", "tokenizer_config.json")
    files = [f for place in _tokenizer_places(args) for name in names for f in place.glob(name) if f.is_file()]
    return any(b"strftime_now" in file.read_bytes() for file in files)
