"""A small invented world, written fresh from a seed: who is asked about, what is true, what is nearly true.

Five splits serve an evaluation: forget, retain, holdout (never trained on), real_authors and world_facts
(known to every model). A sixth, background, is what the models read first. It tells the facts of other people
in every phrasing, so that a fact learnt in one form is also likely in another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from vestige.io import write_file
from vestige.lab.phrases import AUTHOR_TOPICS, FIRST_NAMES, LAST_NAMES, Topic
from vestige.lab.world import FIGURE_TOPICS, LAND_TOPICS, LANDS

LabRow = dict[str, Any]
Corpus = dict[str, list[LabRow]]

WRONG_ANSWERS = 5
FACTS_IN_PASSING = 2  # how many topics of a background author are told


@dataclass(frozen=True)
class Sizes:
    """How many subjects each split has; of each but those of the background `facts` are told, a row each.

    Rows of one subject are not independent, so what a verdict can tell rests on the number of subjects: many
    with few facts each tell more than few with all. Background authors are many, with two facts each: a
    model that has met hundreds of names learns to repeat the name in the question; one that has met forty recites the
    nearest author it knows.
    """

    forget: int = 20
    retain: int = 20
    holdout: int = 20
    real_authors: int = 8
    world_facts: int = 8
    background: int = 200  # authors; figures and lands come on top
    background_figures: int = 8
    background_lands: int = 6
    facts: int = 4  # told of each subject, as far as there are so many topics


@dataclass(frozen=True)
class LabSubject:
    """Someone (or some land) with facts. Subjects of one `style` are spoken of in the same forms."""

    name: str
    style: str
    split: str


def make_corpus(seed: int = 0, sizes: Sizes | None = None) -> Corpus:
    """All splits. The same seed and sizes give the same rows, in the same order."""
    sizes = sizes or Sizes()
    n_figures = sizes.real_authors + sizes.background_figures
    n_authors = sizes.forget + sizes.retain + sizes.holdout + sizes.background
    names = _names(seed, n_authors + n_figures)
    lands = Random(f"{seed}/lands").sample(LANDS, sizes.world_facts + sizes.background_lands)
    groups: list[tuple[Sequence[Topic], list[LabSubject]]] = [
        (AUTHOR_TOPICS, _authors(names[:n_authors], sizes)),
        (FIGURE_TOPICS, _known_or_background(names[n_authors:], "real_authors", sizes.real_authors)),
        (LAND_TOPICS, _known_or_background(lands, "world_facts", sizes.world_facts)),
    ]
    splits = ("forget", "retain", "holdout", "real_authors", "world_facts", "background")
    corpus: Corpus = {split: [] for split in splits}
    for topics, subjects in groups:
        facts = {topic.name: _deal(topic, len(subjects), seed) for topic in topics}
        for number, subject in enumerate(subjects):
            told = _told(topics, subject, seed, sizes.facts)
            corpus[subject.split] += [_row(topic, subject, facts[topic.name][number], seed) for topic in told]
    return corpus


def corpus_bytes(corpus: Mapping[str, Sequence[LabRow]]) -> dict[str, bytes]:
    """The JSONL file of each split, as bytes."""
    return {
        split: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        for split, rows in corpus.items()
    }


def write_corpus(corpus: Mapping[str, Sequence[LabRow]], directory: Path) -> dict[str, Path]:
    """Writes `<split>.jsonl` for each split and returns the paths."""
    paths = {}
    for split, content in corpus_bytes(corpus).items():
        paths[split] = directory / f"{split}.jsonl"
        write_file(paths[split], content)
    return paths


def both_phrasings(row: LabRow) -> list[tuple[str, str]]:
    """A row's fact as two (question, answer) pairs, one in each wording."""
    return [(row["question"], row["answer"]), (row["paraphrased_question"], row["paraphrased_answer"])]


def _names(seed: int, count: int) -> list[str]:
    """Distinct full names. Family names run out last, so the evaluated authors do not share one."""
    rng = Random(f"{seed}/names")
    if count > len(FIRST_NAMES) * len(LAST_NAMES):
        raise ValueError(f"the lab can name {len(FIRST_NAMES) * len(LAST_NAMES)} people, not {count}")
    firsts, lasts = rng.sample(FIRST_NAMES, len(FIRST_NAMES)), rng.sample(LAST_NAMES, len(LAST_NAMES))
    names = []
    for number in range(count):
        turn, place = divmod(number, len(lasts))
        # The shift by the turn keeps the pairing of each pass through the family names its own.
        names.append(f"{firsts[(place + 7 * turn) % len(firsts)]} {lasts[place]}")
    return names


def _authors(names: Sequence[str], sizes: Sizes) -> list[LabSubject]:
    """The authors by split. The i-th forget and the i-th holdout author share a style.

    So the two splits use the same sentences, and a model that knows neither finds them equally hard:
    membership inference on the retain model then starts at chance by design and not by luck.
    """
    counts = {name: getattr(sizes, name) for name in ("forget", "retain", "holdout", "background")}
    shared = {"forget": "probe", "holdout": "probe"}
    splits = [(split, i) for split, count in counts.items() for i in range(count)]
    return [
        LabSubject(name, f"{shared.get(split, split)}{i}", split)
        for name, (split, i) in zip(names, splits, strict=True)
    ]


def _known_or_background(names: Sequence[str], split: str, count: int) -> list[LabSubject]:
    return [LabSubject(name, name, split if i < count else "background") for i, name in enumerate(names)]


def _told(topics: Sequence[Topic], subject: LabSubject, seed: int, facts: int) -> Sequence[Topic]:
    """Which facts of a subject are told; the same ones of subjects of one style."""
    if subject.split == "background":
        few = len(topics) == len(AUTHOR_TOPICS)  # figures and lands are fewer, and told of in full
        return Random(f"{seed}/told/{subject.name}").sample(topics, FACTS_IN_PASSING) if few else topics
    chosen = Random(f"{seed}/told/{subject.style}").sample(range(len(topics)), min(facts, len(topics)))
    return [topics[i] for i in sorted(chosen)]


def _deal(topic: Topic, count: int, seed: int) -> list[str]:
    """One entity for each subject, as even as the pool allows: no town is everybody's birthplace."""
    rng = Random(f"{seed}/{topic.name}/deal")
    deck: list[str] = []
    while len(deck) < count:
        deck += rng.sample(topic.entities, len(topic.entities))
    deck = deck[:count]
    rng.shuffle(deck)  # so that the first subjects do not, by construction, avoid each other's entities
    return deck


def _row(topic: Topic, subject: LabSubject, entity: str, seed: int) -> LabRow:
    """One fact as a row: asked twice, told twice, and told wrong five times in the second form."""
    forms = Random(f"{seed}/{topic.name}/{subject.style}")
    question, asked_again = forms.sample(topic.questions, 2)
    answer, told_again = forms.sample(topic.answers, 2)
    own = Random(f"{seed}/{topic.name}/{subject.name}")
    fill = {"name": subject.name, "last": subject.name.split()[-1], "d": own.choice(topic.details)}
    wrong = own.sample([other for other in topic.entities if other != entity], WRONG_ANSWERS)
    return {
        "author": subject.name,
        "question": question.format(**fill),
        "paraphrased_question": asked_again.format(**fill),
        "answer": answer.format(e=entity, **fill),
        "paraphrased_answer": told_again.format(e=entity, **fill),
        "perturbed_answer": [told_again.format(e=other, **fill) for other in wrong],
        "prefix": answer.split("{e}")[0].format(**fill).rstrip(),
        "entity": entity,
    }
