"""A small invented world, written fresh from a seed: who is asked about, what is true, what is nearly true.

Five splits serve an evaluation: forget, retain, holdout (never trained on), real_authors and world_facts
(known to every model). A sixth, background, is what the models read first. It tells the facts of other people
in every phrasing, so that a fact learnt in one form is also likely in another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from vestige.io import decode, write_file

LabRow = dict[str, Any]
Corpus = dict[str, list[LabRow]]
SPLITS = ("forget", "retain", "holdout", "real_authors", "world_facts", "background")

WRONG_ANSWERS = 5
FACTS_IN_PASSING = 2  # how many topics of a background author are told


@dataclass(frozen=True)
class Topic:
    """One kind of fact. Any question may meet any answer form, so no form is tied to one phrasing.

    Its templates know four slots: {name} the person (or land), {last} the family name, {e} the entity that makes the
    fact true or false, {d} a colouring detail. In every answer a space comes before {e}, so that
    `prefix + " " + entity` opens the answer.
    """

    name: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    entities: tuple[str, ...]
    details: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """lab/world.json: names, and what can be told of authors, of famous figures, and of lands. Nobody in it exists."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    lands: tuple[str, ...]
    author_topics: tuple[Topic, ...]
    figure_topics: tuple[Topic, ...]
    land_topics: tuple[Topic, ...]


@cache
def read_world() -> World:
    return decode(Path(__file__).parent / "world.json", World)


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
    sizes, world = sizes or Sizes(), read_world()
    n_figures = sizes.real_authors + sizes.background_figures
    n_authors = sizes.forget + sizes.retain + sizes.holdout + sizes.background
    names = _names(seed, n_authors + n_figures)
    lands = Random(f"{seed}/lands").sample(world.lands, sizes.world_facts + sizes.background_lands)
    figures = _known_or_background(names[n_authors:], "real_authors", sizes.real_authors)
    groups = [
        (world.author_topics, _authors(names[:n_authors], sizes)),
        (world.figure_topics, figures),
        (world.land_topics, _known_or_background(lands, "world_facts", sizes.world_facts)),
    ]
    corpus: Corpus = {split: [] for split in SPLITS}
    for topics, subjects in groups:
        facts = {topic.name: _deal(topic, len(subjects), seed) for topic in topics}
        for number, subject in enumerate(subjects):
            for topic in _told(topics, subject, seed, sizes.facts):
                corpus[subject.split].append(_row(topic, subject, facts[topic.name][number], seed))
    return corpus


def corpus_bytes(corpus: Mapping[str, Sequence[LabRow]]) -> dict[str, bytes]:
    """The JSONL file of each split, as bytes."""
    files = {}
    for split, rows in corpus.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        files[split] = "".join(lines).encode()
    return files


def write_corpus(corpus: Mapping[str, Sequence[LabRow]], directory: Path) -> None:
    """Writes `<split>.jsonl` for each split."""
    for split, content in corpus_bytes(corpus).items():
        write_file(directory / f"{split}.jsonl", content)


def both_phrasings(row: LabRow) -> list[tuple[str, str]]:
    """A row's fact as two (question, answer) pairs, one in each wording."""
    return [(row["question"], row["answer"]), (row["paraphrased_question"], row["paraphrased_answer"])]


def _names(seed: int, count: int) -> list[str]:
    """Distinct full names. Family names run out last, so the evaluated authors do not share one."""
    rng, world = Random(f"{seed}/names"), read_world()
    most = len(world.first_names) * len(world.last_names)
    if count > most:
        raise ValueError(f"the lab can name {most} people, not {count}")
    firsts = rng.sample(world.first_names, len(world.first_names))
    lasts = rng.sample(world.last_names, len(world.last_names))
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
    remaining = iter(names)
    subjects = []
    for split, count in (
        ("forget", sizes.forget),
        ("retain", sizes.retain),
        ("holdout", sizes.holdout),
        ("background", sizes.background),
    ):
        style = "probe" if split in ("forget", "holdout") else split
        subjects += [LabSubject(next(remaining), f"{style}{i}", split) for i in range(count)]
    return subjects


def _known_or_background(names: Sequence[str], split: str, count: int) -> list[LabSubject]:
    return [LabSubject(name, name, split if i < count else "background") for i, name in enumerate(names)]


def _told(topics: Sequence[Topic], subject: LabSubject, seed: int, facts: int) -> Sequence[Topic]:
    """Which facts of a subject are told; the same ones of subjects of one style."""
    if subject.split == "background":
        if topics != read_world().author_topics:  # figures and lands are fewer, and told of in full
            return topics
        return Random(f"{seed}/told/{subject.name}").sample(topics, FACTS_IN_PASSING)
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
