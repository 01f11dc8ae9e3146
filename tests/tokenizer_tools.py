"""Byte-level BPE tokenizers with the published pre-tokenisation rules of Llama 3 and Qwen 2, and few merges."""

from __future__ import annotations

from typing import Any

_RULE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RULES = {"llama3": _RULE.format(digits=r"\p{N}{1,3}"), "qwen2": _RULE.format(digits=r"\p{N}")}
# Words of the tests, and what both vocabularies really join: `>` with newlines, a full stop with `</`.
WORDS = (
    "<think",
    "think",
    ">Ċ",
    ">ĊĊ",
    ".Ċ",
    ".</",
    ".ĊĊ",
    "ĊĊ",
    "</",
    "Ġgo",
    "Ġup",
    "go",
    "up",
    "Ġthe",
    "Ġbox",
    "Ċgo",
)


def merges_of(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Pairs that build each word from the left."""
    pairs = [(w[:n], w[n]) for w in words for n in range(1, len(w))]
    return list(dict.fromkeys(pairs))


def byte_bpe(rule: str, template: str | None = None, special: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> Any:
    """A fast tokenizer: the rule splits, bytes are letters, WORDS and `more` are merged; `special` stay whole."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    merges = merges_of(WORDS + more)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = list(dict.fromkeys([*letters, *(a + b for a, b in merges)]))
    inner = Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, merges))
    split = pre_tokenizers.Split(Regex(RULES[rule]), behavior="isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    inner.post_processor = processors.ByteLevel(trim_offsets=True)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens([AddedToken(t, normalized=False) for t in special])
    made = PreTrainedTokenizerFast(tokenizer_object=inner)
    made.chat_template = template
    return made
