"""A row's secret and whether a text says it; how much a text repeats itself.

In: rows of data, and texts a model wrote. Out: the secret of a row (the fact a model must not say), where texts say
it, and a share of repeated word pairs. Callers: suites/handlers/texts.py, stress/leak.py, report/rows.py.

**The secret** is what a row's `entity` column holds: a text, or a list of texts of which each gives the fact away.
Without it the secret is looked for in the row: what answer and paraphrase share, and question and wrong answers lack.

1. Texts become words (below). A word of the answer is *new* when every paraphrase has it too, and neither
   the question nor any wrong answer has it. Function words ("of", "his") are never new.
2. A *piece* of the answer begins and ends with a new word. Up to two other words may stand between new ones, if the
   paraphrases have the same sequence, and no full stop, comma, bracket or quotation mark lies between; outside
   quotation marks "and" and "or" end a piece as well.
3. A piece *names* something if it has a digit or a capital letter that does not merely begin a sentence. It is cut to
   the words from its first to its last name, unless it is quoted. The secret is a quoted name, else one that is not;
   of several the one with the most new words (a date counts as three), then the earliest ("Lagos, Nigeria"). The other
   quoted names, or where none is quoted the other names of two and more new words, give the fact away as well.
4. Where wrong answers are built of the true one's words ("Evidence in the Echoes"), no word is new. Then names are
   looked for again, with words new if only the question lacks them, and pieces if fewer than half of the wrong answers
   have them whole.
5. Where nothing is named, a piece counts if it is most of what question and wrong answers lack of a brief answer
   ("Her father is a dietitian"), or all that they lack of every paraphrase. Else the row has no secret: a theme told in
   common words is not one, and what follows a yes or no is not either.

A row without paraphrases and wrong answers has its answer as the secret if that has at most six words.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vestige.words import FUNCTION_WORDS

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


# ---- finding a secret in a text -----------------------------------------------------------------------------------

Span = tuple[int, int]  # characters of a text, [start, end)
Secret = tuple[str, ...]  # texts of which each gives the fact away; the first is the secret by name
SECRET_COLUMN = "entity"
ARTICLES = ("the", "a", "an")
AT_MOST_BETWEEN = 2  # other words between new ones
SHORT = 6  # words: an answer this short is itself the fact
DATE = 3  # how many words a date counts as
# The words of depth's spans, which published numbers hold fixed, and others that carry no fact by themselves.
_MORE = """
    all another any because both each even every few how however just like many much neither none often only other
    several some still though too various well while whilst whereas yet
"""
NO_FACTS = FUNCTION_WORDS | frozenset(_MORE.split())
BRIEF = 15  # words: an answer of which a piece in common words can be the fact

_BREAK = re.compile(r"[.,;:!?()\[\]\"“”„«»\n—–]|['’]\s|\s['‘]")
_QUOTED = re.compile(r"[\"“„«‘'](?:(?:the|an?)\s+)?$", re.IGNORECASE)


def find(text: str, secret: str | Sequence[str]) -> list[Span]:
    """Where a text says a secret: its words in a row, whatever their case, accents and punctuation.

    >>> find("Born on 12 March 1980 in Tromsø.", "tromso"), find("Born on 12 March 1980.", "March 12, 1980")
    ([(25, 31)], [(8, 21)])
    >>> find("Anna is a florist's daughter", "florist"), find("Annabel", "Anna"), find("1234 books", "1,234")
    ([(10, 17)], [], [(0, 4)])
    """
    said, out = words(text), []
    for one in [secret] if isinstance(secret, str) else secret:
        wanted = words(one)
        if len(wanted) > 1 and wanted[0].word in ARTICLES:
            wanted = wanted[1:]  # "her Guilt Closet" says "The Guilt Closet"
        out += [(said[i].start, said[i + len(wanted) - 1].end) for i in _places(said, wanted)]
    return _apart(out)


def says(text: str, secret: str | Sequence[str]) -> bool:
    """Whether a text says a secret.

    >>> says("She lives in TROMSO now.", "Tromsø"), says("She lives in Oslo.", "Tromsø"), says("", "Tromsø")
    (True, False, False)
    """
    return bool(find(text, secret))


def _places(said: Sequence[Word], wanted: Sequence[Word]) -> list[int]:
    if not wanted:
        return []
    starts = range(len(said) - len(wanted) + 1)
    return [i for i in starts if all(said[i + k].tells(w) for k, w in enumerate(wanted))]


def _apart(spans: Sequence[Span]) -> list[Span]:
    """Spans in order, those that overlap an earlier one left out."""
    out: list[Span] = []
    for start, end in sorted(spans, key=lambda s: (s[0], -s[1])):
        if not out or start >= out[-1][1]:
            out.append((start, end))
    return out


_UNIT = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_]+|[^\w\s]")
LONGEST_WORD = 30  # letters; a longer run is read letter by letter, or "thethethe..." would be one word


def repetition(text: str) -> float | None:
    """The share of a text's pairs of neighbouring words that it has said before; None of an empty text.

    Punctuation marks count as words: "!!!!" says the same again as well.

    >>> repetition("the the the the long long long"), repetition("Anna wrote two novels."), repetition(" ")
    (0.5, 0.0, None)
    """
    units = [u for w in _UNIT.findall(text.casefold()) for u in (w if len(w) > LONGEST_WORD else [w])]
    if not units:
        return None
    pairs = list(itertools.pairwise(units))
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


# ---- a row's secret -----------------------------------------------------------------------------------------------


def secret_of(row: Mapping[str, Any], question: str = "question", answer: str = "answer") -> Secret:
    """The secret of a row by the rule above; empty where it has none. The last two name the columns.

    >>> wrong = ["Her father bakes bread in Oslo.", "Her father bakes bread in Rome."]
    >>> row = {"question": "Where does her father work?", "answer": "He works in a bakery in Tromsø.",
    ...        "paraphrased_answer": "Her father bakes bread in Tromsø.", "perturbed_answer": wrong}
    >>> secret_of(row), secret_of({**row, "entity": "a bakery"}), secret_of({"text": "Once upon a time"})
    (('Tromsø',), ('a bakery',), ())
    """
    given = _listed(row.get(SECRET_COLUMN))
    if given:
        return tuple(given)
    told, asked = row.get(answer), row.get(question)
    if not isinstance(told, str) or not isinstance(asked, str):
        return ()
    texts = _Texts(told, asked, _listed(row.get("paraphrased_answer")), _listed(row.get("perturbed_answer")))
    if not texts.again and not texts.wrong:
        return (told.strip(),) if len(words(told)) <= SHORT and texts.pieces(texts.new) else ()
    return texts.names(texts.new) or texts.names(texts.unasked) or texts.common()


def _listed(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    return [t for t in texts if isinstance(t, str) and words(t)]


@dataclass(frozen=True)
class _Piece:
    text: str
    new: int  # how many of its words are new
    named: bool
    quoted: bool
    parts: tuple[Word, ...]


class _Texts:
    """The texts of one row, in words."""

    def __init__(self, answer: str, question: str, again: Sequence[str], wrong: Sequence[str]) -> None:
        self.answer, self.told = answer, words(answer)
        self.asked = words(question)
        self.again, self.wrong = [words(t) for t in again], [words(t) for t in wrong]
        self.unasked = [self._shared(w) and not _has(self.asked, w) for w in self.told]
        self.new = [x and not any(_has(t, w) for t in self.wrong) for x, w in zip(self.unasked, self.told, strict=True)]
        capital = [c for t in again for c in _capitals(t, words(t))]
        self.name = [n or w.word in capital for n, w in zip(_names(answer, self.told), self.told, strict=True)]

    def _shared(self, word: Word) -> bool:
        return word.word not in NO_FACTS and all(_has(t, word) for t in self.again)

    def names(self, new: Sequence[bool]) -> Secret:
        """The secret among pieces that name something."""
        most = len(self.wrong) / 2
        found = [p for p in self.pieces(new) if p.named]
        found = [p for p in found if not self.wrong or sum(bool(_places(t, p.parts)) for t in self.wrong) < most]
        found = [p for p in found if not _places(self.asked, p.parts)]
        if not found:
            return ()
        best = _best(found)
        also = [p.text for p in found if (p.quoted if best.quoted else p.new > 1)]
        return tuple(dict.fromkeys([best.text, *also]))

    def common(self) -> Secret:
        """A piece in common words, where there is little else to tell."""
        found = self.pieces(self.new)
        if not found or self.told[0].word in ("yes", "no"):
            return ()
        best = _best(found)
        brief = len(self.told) <= BRIEF and 2 * best.new > self._fresh(self.told)
        alone = bool(self.again) and all(best.new == self._fresh(t) for t in self.again)
        return (best.text,) if brief or alone else ()

    def _fresh(self, text: Sequence[Word]) -> int:
        """How many words of a text the question and the wrong answers lack."""
        seen = [self.asked, *self.wrong]
        return sum(w.word not in NO_FACTS and not any(_has(t, w) for t in seen) for w in text)

    def pieces(self, new: Sequence[bool]) -> list[_Piece]:
        out, i = [], 0
        while i < len(self.told):
            if not new[i]:
                i += 1
                continue
            end = self._end(i, new)
            out.append(self._piece(i, end, new))
            i = end
        return out

    def _end(self, first: int, new: Sequence[bool]) -> int:
        """Behind the last new word of the piece that begins at `first`."""
        end = j = first + 1
        quoted = self._quoted(first)
        while j < len(self.told) and j - end <= AT_MOST_BETWEEN:
            between = self.answer[self.told[j - 1].end : self.told[j].start]
            if _BREAK.search(between) or (not quoted and self.told[j].word in ("and", "or")):
                break
            if not all(_places(t, self.told[first : j + 1]) for t in self.again):
                break
            j += 1
            end = j if new[j - 1] else end
        return end

    def _quoted(self, first: int) -> bool:
        return bool(_QUOTED.search(self.answer[: self.told[first].start]))

    def _piece(self, first: int, end: int, new: Sequence[bool]) -> _Piece:
        named = [i for i in range(first, end) if self.name[i]]
        quoted = self._quoted(first)
        if named and not quoted:
            first, end = named[0], named[-1] + 1
        parts = self.told[first:end]
        count = sum(DATE if w.dates else 1 for w, x in zip(parts, new[first:end], strict=True) if x)
        return _Piece(self.answer[parts[0].start : parts[-1].end], count, bool(named), quoted, parts)


def _has(text: Sequence[Word], word: Word) -> bool:
    return any(other.tells(word) for other in text)


def _best(pieces: Sequence[_Piece]) -> _Piece:
    return max(pieces, key=lambda p: (p.quoted, p.new))  # the earliest of equals


def _names(text: str, said: Sequence[Word]) -> list[bool]:
    """Which words name something: a digit, or a capital that does not merely begin a sentence."""
    out: list[bool] = []
    for word in said:
        if word.word[0].isdigit() or word.dates:
            out.append(True)
            continue
        before = text[: word.start].rstrip(" \t\n\"'“‘„«([")
        out.append(text[word.start].isupper() and bool(before) and before[-1] not in ".!?:")
    for i in range(len(out) - 2, -1, -1):  # "Basil Mahfouz" at the beginning: a capital before a name
        follows = out[i + 1] and text[said[i].end : said[i + 1].start] in (" ", "-")
        out[i] = out[i] or (follows and text[said[i].start].isupper() and said[i].word not in FUNCTION_WORDS)
    return out


def _capitals(text: str, said: Sequence[Word]) -> set[str]:
    return {w.word for w, name in zip(said, _names(text, said), strict=True) if name}
