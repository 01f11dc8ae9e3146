"""The catalogue of errors: every sentence a user may meet, found in the source. Writes docs/errors.md.

python bench/errors.py            write the page
python bench/errors.py --check    exit 1 if the page is not what the source says
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, PAGE = ROOT / "src" / "vestige", ROOT / "docs" / "errors.md"
KINDS = ("UserError", "MissingData", "HeldError")
# Rooms as a user knows them: by what they were doing.
TITLES = {
    "cli": "The command line", "verbs": "Flags", "run": "Commands and configuration", "suites": "Suites and metrics",
    "data": "Rows, templates, spans", "models": "Checkpoints", "collect": "Running a model",
    "integrations": "Rollouts, result files, plug-ins, lm-eval", "meta": "Meta-evaluation", "metrics": "Definitions",
    "compare": "Statistics", "store": "Run directories", "unlearn": "Training and unlearning", "stress": "Attacks",
    "lab": "The lab", "report": "Pictures", "guard": "Limits and names", "errors": "Names that are not known",
    "wants": "Settings of sampling",
}  # fmt: skip


@dataclass(frozen=True)
class Sentence:
    """One message as the source has it; {parts} are filled in when it is raised."""

    module: str
    line: int
    text: str

    @property
    def room(self) -> str:
        return self.module.split("/")[0].removesuffix(".py")


def sentences(source: Path = SOURCE) -> list[Sentence]:
    out = []
    for path in sorted(source.rglob("*.py")):
        module = str(path.relative_to(source))
        out += [Sentence(module, line, text) for line, text in _calls(ast.parse(path.read_text(encoding="utf-8")))]
    return out


def _calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
            continue
        if node.func.id in KINDS:
            yield node.lineno, template(node.args[0])
        elif node.func.id == "unknown_name":
            yield node.lineno, _unknown(node)


def _unknown(node: ast.Call) -> str:
    kind, name = template(node.args[0]), template(node.args[1])
    name = name if name.startswith("{") else f"{{{name}}}"
    hint = f" {template(node.args[3])}" if len(node.args) > 3 else ""
    return f"Unknown {kind} '{name}'. Did you mean '...'? Available: ...{hint}"


def template(node: ast.expr) -> str:
    """A message with {names} where values go.

    >>> template(ast.parse("f'{path} is empty; ' 'give ' + more", mode="eval").body)
    '{path} is empty; give {more}'
    """
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(template(p) for p in parts)
        case ast.FormattedValue(value=value):
            return f"{{{_short(value)}}}"
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return template(left) + template(right)
        case ast.Call(func=ast.Attribute(value=inner, attr="format")):
            return template(inner)
        case _:
            return f"{{{_short(node)}}}"


def _short(node: ast.expr) -> str:
    """A value's name; long expressions by the name that stands in them."""
    text = ast.unparse(node)
    if len(text) <= 28 and text.isprintable() and "|" not in text:
        return text
    names = [n.attr if isinstance(n, ast.Attribute) else n.id for n in ast.walk(node)
             if isinstance(n, (ast.Attribute, ast.Name))]  # fmt: skip
    quiet = {"join", "map", "str", "sorted", "len", "repr", "items", "type", "name", "splitlines", "split"}
    return next((n for n in names if n not in quiet and len(n) > 1), "...")


INTRO = """# Errors

Every mistake that can be put right is one sentence: what was wrong, where, and what to do. The command line prints it
behind `vestige: error:` and ends with status 2. In Python it is a `vestige.errors.UserError`. Words in braces are
filled in. A traceback is a defect of vestige: please report it. What was done to find such defects is in
[bad_input.md](bad_input.md).

```python
import vestige
from vestige.errors import UserError

try:
    vestige.evaluate("no/such/model", "tofu", data="DIR")
except UserError as error:
    print(error)    # No model at 'no/such/model'...
```

This page is written by `bench/errors.py` from the source; a test compares them.
"""


def page(found: list[Sentence]) -> str:
    by_room: dict[str, dict[str, list[str]]] = {}
    for s in found:
        texts = by_room.setdefault(s.room, {}).setdefault(s.module, [])
        if s.text not in texts:
            texts.append(s.text)
    parts = [INTRO]
    for room in sorted(by_room, key=lambda r: list(TITLES).index(r) if r in TITLES else 99):
        parts.append(f"\n## {TITLES.get(room, room)}\n")
        for module, texts in by_room[room].items():
            parts.append(f"\n`{module}`\n\n" + "".join(f"- {_escaped(t)}\n" for t in texts))
    return "".join(parts)


def _escaped(text: str) -> str:
    """As text in Markdown: no links, no emphasis, no tags."""
    plain = " ".join(text.split())
    for mark in ("\\", "*", "_", "[", "]", "<", ">", "|", "#"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def main() -> int:
    wanted = page(sentences())
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    print(f"{PAGE}: {wanted.count(chr(10) + '- ')} sentences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
