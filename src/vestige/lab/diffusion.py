"""The lab once more, with masked diffusion language models: the same plan, fewer rows, another kind of model.

The models look both ways and predict hidden tokens. They are taught to fill a window of fixed length after the
prompt: the answer, then end tokens. A sampler that asks for as many tokens as the window has finds them at home;
`diffusion_window` in a model's configuration says how many that is, `mask_token_id` which token hides another.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM

from vestige.lab.corpus import Corpus, Sizes, make_corpus
from vestige.lab.models import (
    BuildBar,
    Lab,
    LabSettings,
    ModelKind,
    Unlearning,
    corpus_texts,
    encode_row,
    ensure_built,
    lab_at,
    quiet_saving,
    reproducible,
    train_models,
    train_tokenizer,
)
from vestige.models.diffusion import mask_predictor
from vestige.models.families import Origin, find_family, native_config, save_published
from vestige.runs.directory import temporary
from vestige.unlearn.loop import Training, finetune
from vestige.unlearn.objectives import MaskedDiffusion

# Raise it when the code below makes other models from the same settings, so that old labs are rebuilt.
DIFFUSION_RECIPE = 4

MASK = "<|mask|>"
VISIBLE = 0.1  # the share of trained tokens left visible while learning, so that models can tell what is decided
LLADA = "llada"  # the model in LLaDA's published layout
INITIAL = (
    0.08  # LLaDA's first weights: at Llama's own 0.02 so narrow a model has hardly begun to learn in as many steps
)


def _sizes() -> Sizes:
    return Sizes(
        forget=10,
        retain=20,
        holdout=10,
        real_authors=2,
        world_facts=2,
        background=100,
        background_figures=4,
        background_lands=4,
        facts=2,
    )


@dataclass(frozen=True)
class DiffusionSettings(LabSettings):
    """As the causal lab's, but for what makes masked models learn in less than a minute.

    They need many more passes to learn a row by heart: hence fewer rows, nearly whole words as tokens, and two small
    layers. Base learns while little is hidden, because it is meant to find out what context is good for; the others
    while much is hidden, because a sampler begins with nothing but the question.
    """

    sizes: Sizes = field(default_factory=_sizes)
    vocab: int = 3000  # more than the corpus needs: most words become one token
    layers: int = 2
    hidden: int = 64
    max_length: int = 128  # positions are learned, one vector each
    window: int = 40  # no answer of the corpus is longer
    reading: tuple[float, float] = (0.15, 0.5)  # the share hidden from base, least and most
    reciting: tuple[float, float] = (0.4, 1.0)  # and from the others
    pretraining: Training = field(default_factory=lambda: Training(epochs=10, lr=6e-3, batch_size=8))
    remind_every: int = 32
    learning: Training = field(default_factory=lambda: Training(epochs=100, lr=6e-3, batch_size=8))
    learned: float | None = None  # a masked model's loss depends on what is hidden
    unlearned: tuple[Unlearning, ...] = (
        Unlearning("npo", Training(epochs=40, lr=2e-3, batch_size=8), {"beta": 0.2, "alpha": 5.0}),
    )
    # One more model, which begins at nothing and learns the forget and the retain rows: in LLaDA's published layout.
    published: Training = field(default_factory=lambda: Training(epochs=80, lr=6e-3, batch_size=8))


def build_diffusion_lab(
    directory: str | Path,
    seed: int = 0,
    force: bool = False,
    progress: bool = True,
    settings: DiffusionSettings | None = None,
) -> Lab:
    """Makes the lab in `directory`/diffusion, or returns at once if the same lab is already there.

    `directory` may be the causal lab's: neither build touches the other's files. `seed` replaces the seed of the
    settings.
    """
    settings = replace(settings or DiffusionSettings(), seed=seed)
    root = Path(directory) / "diffusion"
    corpus = make_corpus(settings.seed, settings.sizes)

    def make(models: Path) -> None:
        _make_models(corpus, settings, models, progress)

    ensure_built(root, ["diffusion", DIFFUSION_RECIPE], asdict(settings), corpus, force, make)
    lab = lab_at(root, settings)
    return replace(lab, models={**lab.models, LLADA: root / "models" / LLADA})


def _make_models(corpus: Corpus, settings: DiffusionSettings, directory: Path, progress: bool) -> None:
    tokenizer = train_tokenizer(corpus_texts(corpus), settings.vocab, settings.max_length)
    tokenizer.add_special_tokens({"mask_token": MASK})  # after all others: their ids are those of the causal lab
    ids = tokenizer.mask_token_id, tokenizer.eos_token_id
    reciting = MaskedDiffusion(*ids, settings.window, *settings.reciting, visible=VISIBLE)
    kind = ModelKind(
        title="diffusion lab",
        tokenizer=tokenizer,
        new_model=lambda: _new_model(settings, tokenizer),
        reading=MaskedDiffusion(*ids, None, *settings.reading),
        reciting=reciting,
        forgetting=MaskedDiffusion(*ids, settings.window),
        reads_questions=True,
    )
    train_models(corpus, settings, kind, directory, progress)
    rows = []
    for split in ("forget", "retain"):
        rows += [encode_row(tokenizer, row["question"], row["answer"]) for row in corpus[split]]
    training = replace(settings.published, pad_id=tokenizer.pad_token_id, seed=settings.seed)
    steps = training.steps(len(rows))
    with (
        reproducible(settings.seed, settings.threads),
        quiet_saving(),
        BuildBar(f"diffusion lab, {LLADA}", steps, progress) as bar,
    ):
        # It learns the same rows as `full` and is written with LLaDA's names for settings and tensors. So the demo and
        # the tests load it as a user loads a published checkpoint: translated into transformers' Llama when it is read.
        config = published_config(settings, tokenizer)
        family = find_family(config)
        assert family is not None
        native = native_config(family, config, LLADA)
        native.initializer_range = INITIAL  # only beginnings need it, so it is not in the published config
        model = AutoModelForCausalLM.from_config(native)
        predictor = mask_predictor(model, tokenizer, "llada")
        finetune(model, rows, training, bar.on(LLADA, steps), replace(reciting, predictor=predictor))
        with temporary() as place:
            tokenizer.save_pretrained(place)
            save_published(model, Origin(family, config, place), directory / LLADA)


def _new_model(settings: DiffusionSettings, tokenizer: Any) -> Any:
    # BERT, because its positions are learned. With rotary positions (ModernBERT), the same rows and as many steps, the
    # model still guessed frequent words where this one knew a third of the answers' tokens.
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=2 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=settings.max_length,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    # transformers has no names for these two; they are saved with the rest.
    config.mask_token_id = tokenizer.mask_token_id
    config.diffusion_window = settings.window
    return BertForMaskedLM(config)


def published_config(settings: DiffusionSettings, tokenizer: Any) -> dict[str, Any]:
    """A config.json as LLaDA's authors write it, with the lab's sizes."""
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "d_model": settings.hidden,
        "n_layers": settings.layers,
        "n_heads": settings.heads,
        "n_kv_heads": settings.heads,
        "mlp_hidden_size": 2 * settings.hidden,
        "max_sequence_length": settings.max_length,
        "vocab_size": len(tokenizer),
        "embedding_size": len(tokenizer),
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "weight_tying": False,
        "block_type": "llama",
        "rope": True,
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "include_bias": False,
        "include_qkv_bias": False,
        "dtype": "float32",
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "mask_token_id": tokenizer.mask_token_id,
        "diffusion_window": settings.window,
    }
