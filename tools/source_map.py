"""Writes the table of rooms and the map of files into docs/architecture.md, from the sources themselves.

    tools/source_map.py            rewrite both, between their markers
    tools/source_map.py --check    exit status 1 if the page is not what the sources say

A file's line is the first line of its docstring (of its first comment, for the page's scripts). What a room may import
comes from tests/test_modules.py, which enforces it.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # the rooms and their arrows are the table of a test
SOURCE, PAGE = ROOT / "src" / "vestige", ROOT / "docs" / "architecture.md"
OUTSIDE = {"bench": "measurements beside other ways to do the same", "tools": "campaigns, generators and checkers"}
COLUMN, WIDTH = 30, 120


def described(path: Path) -> str:
    """What a file says of itself in one line; empty if it says nothing.

    >>> described(Path(__file__))
    'Writes the table of rooms and the map of files into docs/architecture.md, from the sources themselves.'
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    first = text.partition("\n")[0]
    return first.removeprefix("//").strip() if first.startswith("//") else ""


def silent() -> list[str]:
    """Files of the map that do not say what they are for."""
    return [str(p.relative_to(ROOT)) for p in sources() if not described(p)]


def sources() -> list[Path]:
    """Every file that has a line on the map."""
    ours = [*SOURCE.rglob("*.py"), *(SOURCE / "report" / "page").glob("*.js")]
    return sorted([*ours, *(p for name in OUTSIDE for p in (ROOT / name).glob("*.py"))])


# ---- the rooms ---------------------------------------------------------------------------------------------------


def rooms() -> dict[str, set[str]]:
    """Each room and what it may import, in the order of the table that the tests enforce."""
    import test_modules

    return {room: arrows for room, arrows in test_modules.DEPENDENCIES.items() if not room.startswith("__")}


def place_of(room: str) -> Path:
    folder = SOURCE / room
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def room_table() -> str:
    arrows_of = rooms()
    import test_modules

    lines = ["| room | what it does | may import |", "|---|---|---|"]
    for room, arrows in arrows_of.items():
        if room in test_modules.TOP_LEVEL:
            continue
        words = described(place_of(room)).replace("|", "\\|")
        lines.append(f"| `{room}` | {words} | {_arrows(arrows, test_modules.BELOW)} |")
    return "\n".join(lines)


def _arrows(arrows: set[str], below: set[str]) -> str:
    """What a room may import, short: question rooms all stand on the same rooms below them."""
    named = [f"`{name}`" for name in sorted(arrows - below if arrows >= below else arrows)]
    return ", ".join((["all below"] if arrows >= below else []) + named)


# ---- the map -----------------------------------------------------------------------------------------------------


def file_map() -> str:
    return "\n".join(["```text", *_package(), *_outside(), "```"])


def _package() -> Iterator[str]:
    yield from _line(0, "src/vestige/", described(SOURCE / "__init__.py"))
    order = list(rooms())
    top = [p for p in SOURCE.glob("*.py") if p.name != "__init__.py"]
    for path in sorted(top, key=lambda p: (order.index(p.stem) if p.stem in order else -1, p.stem)):
        yield from _line(1, path.name, described(path))
    for room in order:
        if (SOURCE / room).is_dir():
            yield from _folder(SOURCE / room, 1)


def _folder(folder: Path, depth: int) -> Iterator[str]:
    head = folder / "__init__.py"
    words = described(head) if head.is_file() else "the page's scripts, one module per view and what views share"
    yield from _line(depth, f"{folder.name}/", words)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".py", ".js") and path != head:
            yield from _line(depth + 1, path.name, described(path))
    for path in sorted(folder.iterdir()):
        if path.is_dir() and any(p.suffix in (".py", ".js") for p in path.iterdir()):
            yield from _folder(path, depth + 1)


def _outside() -> Iterator[str]:
    for name, words in OUTSIDE.items():
        yield from _line(0, f"{name}/", words)
        for path in sorted((ROOT / name).glob("*.py")):
            yield from _line(1, path.name, described(path))


def _line(depth: int, name: str, words: str) -> list[str]:
    """One entry: its name, and its words in a column of their own."""
    head = f"{'  ' * depth}{name}"
    return textwrap.wrap(words, WIDTH, initial_indent=f"{head:<{COLUMN}}", subsequent_indent=" " * COLUMN) or [head]


# ---- the page ----------------------------------------------------------------------------------------------------


def written(page: str) -> str:
    """The page with both parts as the sources have them now."""
    for name, text in {"rooms": room_table(), "map": file_map()}.items():
        pattern = rf"(<!-- {name}: [^\n]*-->\n).*?(\n<!-- /{name} -->)"
        page, found = re.subn(pattern, lambda m, new=text: f"{m[1]}{new}{m[2]}", page, flags=re.S)  # type: ignore[misc]
        if found != 1:
            sys.exit(f"{PAGE} needs one pair of markers <!-- {name}: ... --> and <!-- /{name} -->.")
    return page


def main() -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if "--check" in sys.argv[1:]:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(sources())} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
