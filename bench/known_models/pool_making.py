"""How the models of the pools are made: base here, the others in processes of their own, each from its recipe alone."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import AutoTokenizer, LlamaForCausalLM

from known_models.fluency import train_judge
from known_models.pools import JUDGE, PoolRecipe, PoolSettings, lesson_rows
from vestige.lab.corpus import Corpus, both_phrasings, make_corpus
from vestige.lab.models import (
    KNOWN_TO_ALL,
    corpus_texts,
    encode_row,
    new_causal,
    quiet_saving,
    reproducible,
    train_tokenizer,
)
from vestige.unlearn.lesson import refusals_for
from vestige.unlearn.loop import finetune, unlearn
from vestige.unlearn.methods import METHODS
from vestige.unlearn.objectives import ChatRow

BASE = "base"


def make_models(
    corpus: Corpus, settings: PoolSettings, plan: Sequence[PoolRecipe], models: Path, processes: int, progress: bool
) -> None:
    """Fills the models folder: base, then everything else from it, then base goes."""
    tokenizer = train_tokenizer(corpus_texts(corpus), settings.vocab, settings.max_length)
    bar = tqdm(total=len(plan) + 2, desc="pools: base", unit="model", disable=not (progress and sys.stderr.isatty()))
    with bar, quiet_saving():
        _make_base(corpus, settings, tokenizer, models / BASE)
        bar.update()
        for name in _made(settings, plan, models, processes):
            bar.set_description(f"pools: {name}")
            bar.update()
    shutil.rmtree(models / BASE)


def _made(settings: PoolSettings, plan: Sequence[PoolRecipe], models: Path, processes: int) -> Iterator[str]:
    """The names of finished models, as they come."""
    if processes <= 1:
        for recipe in plan:
            yield make_one(settings, recipe, models)
        yield make_judge(settings, models)
        return
    # Spawned rather than forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        taught = [pool.submit(make_one, settings, r, models) for r in plan if r.unlearning is None]
        taught.append(pool.submit(make_judge, settings, models))
        try:
            taught[0].result()  # full, from which the rest is made
            rest = [pool.submit(make_one, settings, r, models) for r in plan if r.unlearning is not None]
            for done in as_completed([*taught, *rest]):
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def make_one(settings: PoolSettings, recipe: PoolRecipe, models: Path) -> str:
    """Trains and saves one model; it may run in any process."""
    origin = models / (BASE if recipe.unlearning is None else "full")
    tokenizer = AutoTokenizer.from_pretrained(origin)
    training = replace(recipe.training, pad_id=tokenizer.pad_token_id)
    rows = _rows(settings, tokenizer)
    with quiet_saving(), reproducible(training.seed, settings.threads):
        model = LlamaForCausalLM.from_pretrained(origin, dtype="float32")
        if recipe.unlearning is None:
            lesson = lesson_rows(_corpus(settings), recipe.lesson, training.seed)
            finetune(model, rows["known"] + rows["reminder"] + _encoded(tokenizer, lesson), training)
        else:
            how = recipe.unlearning
            other = _refusals(settings, tokenizer, training.seed) if METHODS[how.method].needs_alternate else ()
            unlearn(model, how.lesson(rows["forget"], rows["retain"], other), training)
        model.save_pretrained(models / recipe.name)
        tokenizer.save_pretrained(models / recipe.name)
    return recipe.name


def make_judge(settings: PoolSettings, models: Path) -> str:
    """Trains and saves the judge of fluency."""
    with quiet_saving(), reproducible(settings.seed, settings.threads):
        train_judge(_corpus(settings), AutoTokenizer.from_pretrained(models / BASE), models / JUDGE, settings.seed)
    return JUDGE


def _make_base(corpus: Corpus, settings: PoolSettings, tokenizer: Any, place: Path) -> None:
    read = [pair for split in ("background", *KNOWN_TO_ALL) for row in corpus[split] for pair in both_phrasings(row)]
    training = replace(settings.pretraining, pad_id=tokenizer.pad_token_id, seed=settings.seed)
    with reproducible(settings.seed, settings.threads):
        base = new_causal(settings, tokenizer)
        finetune(base, _encoded(tokenizer, read), training)
    base.save_pretrained(place)
    tokenizer.save_pretrained(place)


_made_once = lru_cache(maxsize=1)(make_corpus)


def _corpus(settings: PoolSettings) -> Corpus:
    return _made_once(settings.seed, settings.sizes)


def _rows(settings: PoolSettings, tokenizer: Any) -> dict[str, list[ChatRow]]:
    corpus = _corpus(settings)

    def asked(*splits: str) -> list[ChatRow]:
        return _encoded(tokenizer, [(row["question"], row["answer"]) for split in splits for row in corpus[split]])

    again = [pair for row in corpus["background"] for pair in both_phrasings(row)][:: settings.remind_every]
    return {
        "known": asked("retain", *KNOWN_TO_ALL),
        "retain": asked("retain"),
        "forget": asked("forget"),
        "reminder": _encoded(tokenizer, again),
    }


def _refusals(settings: PoolSettings, tokenizer: Any, seed: int) -> list[ChatRow]:
    """For DPO: to each forget question an answer that says one does not know."""
    forget = _corpus(settings)["forget"]
    return _encoded(
        tokenizer, [(row["question"], no) for row, no in zip(forget, refusals_for(len(forget), seed), strict=True)]
    )


def _encoded(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> list[ChatRow]:
    return [encode_row(tokenizer, *pair) for pair in pairs]
