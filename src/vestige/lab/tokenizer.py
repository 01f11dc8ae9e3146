"""The lab's tokenizer: a small byte-level BPE with a chat template, trained on the lab's own words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from vestige.data.chat import Encoder, Template
from vestige.lab.corpus import LabRow
from vestige.unlearn.objectives import ChatRow

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eot|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

# As in Llama 3, the end-of-turn token closes every turn and is also the end-of-sequence token.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab: int, max_length: int) -> PreTrainedTokenizerFast:
    """Byte-level, so that any text can be encoded; bos, eos and pad are three different tokens."""
    specials = [PAD, BOS, EOS, *ROLES]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, specials.index(BOS))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=list(ROLES),
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def corpus_texts(corpus: Mapping[str, Sequence[LabRow]]) -> Iterable[str]:
    """Every question and answer of every split.

    The holdout is included: names cut into more pieces than others would give non-members away.
    """
    for rows in corpus.values():
        for row in rows:
            yield from (
                row["question"],
                row["paraphrased_question"],
                row["answer"],
                row["paraphrased_answer"],
            )


def encode_row(tokenizer: Any, question: str, answer: str) -> ChatRow:
    """One question and its answer as a chat, of which the answer and the end token are trained.

    Through the data room's encoder: what is trained here is, token for token, what evaluation scores.
    """
    [encoded] = Encoder(tokenizer, Template()).encode([(question, answer)])
    return ChatRow(encoded.full, encoded.start)
