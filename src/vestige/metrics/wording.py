"""The words of a text with their places, made comparable across case, accents, punctuation, numbers and dates.

In: a text. Out: Words, each with the characters [start, end) it was written in. Caller: metrics/said.py. A number is
one word however its thousands are set, a date is one word whichever way round it is written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_MONTH_OF = {name: i for i, full in enumerate(_MONTHS, 1) for name in (full, full[:3])} | {"sept": 9}
_MONTH = rf"(?P<month>{'|'.join(sorted(_MONTH_OF, key=len, reverse=True))})\b\.?"
_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?\b"
_YEAR = r"(?P<year>\d{4})\b"
_DATE = re.compile(
    "|".join(
        part.replace("?P<", f"?P<{name}_")
        for name, part in {
            "iso": rf"\b{_YEAR}[-/](?P<month>[01]?\d)[-/](?P<day>[0-3]?\d)\b",
            "plain": rf"\b(?P<first>[0-3]?\d)[-/.](?P<second>[0-3]?\d)[-/.]{_YEAR}",
            "british": rf"\b{_DAY}(?:\s+day)?(?:\s+of)?\s+{_MONTH}(?:,?\s+(?:of\s+)?{_YEAR})?",
            "american": rf"\b{_MONTH}\s+{_DAY}(?!\d)(?:,?\s+{_YEAR})?",
            "month": rf"\b{_MONTH},?\s+(?:of\s+)?{_YEAR}",
        }.items()
    ),
    re.IGNORECASE,
)
# Thousands are set apart by a comma or one of the spaces that do not break; a plain space parts two numbers.
_NUMBER = r"\d{1,3}(?:[,\u00a0\u2009\u202f]\d{3})+(?:\.\d+)?(?!\w)|\d+\.\d+(?!\w)"
_ALONE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # scripts without spaces: each character is a word
_WORD = re.compile(rf"{_NUMBER}|[{_ALONE}]|(?:(?![{_ALONE}])[^\W_][\u0300-\u036f]*)+")
_TEENS = """
    two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SPELT = {name: i for i, name in enumerate(_TEENS.split(), 2)} | {t: 10 * i for i, t in enumerate(_TENS.split(), 2)}
_UNITS = {name: i for name, i in _SPELT.items() if i < 10} | {"one": 1}
# Letters that Unicode does not take apart into a base and an accent.
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"})

Date = tuple[int | None, int | None, int | None]  # year, month, day; None where it is not written


@dataclass(frozen=True)
class Word:
    """A word as it is compared, and where it is in its text. A date has its readings: 08/09/1956 has two."""

    word: str
    start: int
    end: int
    dates: tuple[Date, ...] = ()

    def tells(self, wanted: Word) -> bool:
        """Whether this word says the wanted one: the same, or a date that has what is wanted of a date."""
        if wanted.dates:
            return any(_holds(mine, theirs) for mine in self.dates for theirs in wanted.dates)
        if self.dates:
            return any(wanted.word in _parts(mine) for mine in self.dates)
        return self.word == wanted.word


def _holds(mine: Date, wanted: Date) -> bool:
    return all(theirs is None or theirs == own for own, theirs in zip(mine, wanted, strict=True))


def _parts(date: Date) -> set[str]:
    year, month, day = date
    said = {str(year)} if year is not None else set()
    if month is not None:
        said |= {_MONTHS[month - 1], _MONTHS[month - 1][:3]}
    return said | ({str(day)} if day is not None else set())


@lru_cache(4096)
def words(text: str) -> tuple[Word, ...]:
    """The words of a text in order. A possessive 's is not one.

    >>> [w.word for w in words("Zoë's 1,234 books, born 8th of September, 1956")]
    ['zoe', '1234', 'books', 'born', '1956-09-08']
    >>> [(w.start, w.end) for w in words("in Al-Kuwait")]
    [(0, 2), (3, 5), (6, 12)]
    """
    return tuple(_joined(_single(text)))


def plain(text: str) -> str:
    """Lower case without accents.

    >>> plain("Łódź, Ærø"), plain("ﬁﬅ")
    ('lodz, aero', 'fist')
    """
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", text).casefold().translate(_LETTERS)
    return "".join(c for c in unicodedata.normalize("NFKD", apart) if not unicodedata.combining(c))


def _single(text: str) -> Iterator[Word]:
    at = 0
    for found in _DATE.finditer(text):
        dates = _dates(found)
        if dates:
            yield from _between(text, at, found.start())
            yield Word("|".join(map(_written, dates)), *found.span(), dates)
            at = found.end()
    yield from _between(text, at, len(text))


def _between(text: str, low: int, high: int) -> Iterator[Word]:
    for found in _WORD.finditer(text, low, high):
        start, end = found.span()
        if found[0] in ("s", "S") and start and text[start - 1] in "'’ʼ`":
            continue
        yield Word(_number(found[0]) if found[0][0].isdigit() else plain(found[0]), start, end)


def _number(written: str) -> str:
    """
    >>> _number("1,234.50"), _number("007"), _number("3.0"), _number("20th")
    ('1234.5', '007', '3', '20th')
    """
    digits = re.sub("[,\u00a0\u2009\u202f]", "", written)
    return digits.rstrip("0").rstrip(".") if re.fullmatch(r"\d+\.\d+", digits) else plain(digits)


def _joined(single: Iterator[Word]) -> Iterator[Word]:
    """Numbers in words as digits ("twenty-one" is 21). "one" alone stays: it is mostly a pronoun."""
    open: Word | None = None  # tens that a unit may follow
    for word in single:
        if open is not None and word.word in _UNITS and word.start - open.end == 1:
            yield Word(str(_SPELT[open.word] + _UNITS[word.word]), open.start, word.end)
            open = None
            continue
        if open is not None:
            yield Word(str(_SPELT[open.word]), open.start, open.end)
            open = None
        value = _SPELT.get(word.word)
        if value is None:
            yield word
        elif value >= 20:
            open = word
        else:
            yield Word(str(value), word.start, word.end)
    if open is not None:
        yield Word(str(_SPELT[open.word]), open.start, open.end)


def _dates(found: re.Match[str]) -> tuple[Date, ...]:
    """The readings of what looks like a date; none where no day of that month exists."""
    parts = {k.split("_")[1]: v for k, v in found.groupdict().items() if v is not None}
    year = int(parts["year"]) if "year" in parts else None
    if "first" in parts:
        first, second = int(parts["first"]), int(parts["second"])
        given: list[Date] = [(year, first, second), (year, second, first)]
    else:
        name = parts["month"].lower()
        month = int(name) if name.isdigit() else _MONTH_OF[name]
        given = [(year, month, int(parts["day"]) if "day" in parts else None)]
    good = [d for d in given if 1 <= (d[1] or 0) <= 12 and (d[2] is None or 1 <= d[2] <= 31)]
    return tuple(dict.fromkeys(good))


def _written(date: Date) -> str:
    return "-".join("" if part is None else f"{part:02d}" for part in date)
