"""Every error message a user may meet, found in the source.

    python tools/messages.py [WORD]    prints them by file, or those that contain a word

tests/test_messages.py holds each of them to one form.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "vestige"
KINDS = ("UserError", "MissingData", "HeldError")


@dataclass(frozen=True)
class Sentence:
    """One message as the source has it; {parts} are filled in when it is raised."""

    module: str
    line: int
    text: str


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


def main() -> int:
    wanted = " ".join(sys.argv[1:]).lower()
    module = ""
    for sentence in sentences():
        if wanted not in sentence.text.lower():
            continue
        if sentence.module != module:
            module = sentence.module
            print(f"\n{module}")
        print(f"  {sentence.line:>4}  {' '.join(sentence.text.split())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
