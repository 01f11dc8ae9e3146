"""Completion for bash, zsh and fish: a script that knows the verbs, their flags and the names those take.

In: the parsers of the verbs. Out: the text of a script; the shell runs it, and Python is not started when somebody
presses TAB. Caller: `vestige completion SHELL` (cli.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vestige.errors import unknown_name
from vestige.flags import FLAGS


@dataclass(frozen=True)
class Completed:
    """One flag as a shell completes it: its spellings, what it means, and what may follow."""

    spellings: tuple[str, ...]
    about: str
    takes: str  # "": nothing, "file", "dir", "words" or "text"
    words: tuple[str, ...] = ()


def flags_of(parser: Any) -> list[Completed]:
    """The visible flags of a verb."""
    return [_flag(a) for a in parser.arguments if a.option_strings and a.help != argparse.SUPPRESS]


def _flag(action: argparse.Action) -> Completed:
    long = action.option_strings[-1].lstrip("-")
    row = FLAGS.get(long)
    words = row.words if row else tuple(str(c) for c in action.choices or ())
    shown = str(action.metavar or "")
    if not words and "|" in shown and shown == shown.lower():
        words = tuple(word for word in shown.split("|") if word.replace("-", "").isalnum())
    places = {"DIR": "dir", "FILE": "file", "PATH": "file", "RUN": "file", "MODEL": "file"}
    takes = "" if action.nargs == 0 else "words" if words else places.get(shown, "text")
    about = " ".join(str(action.help or "").replace("%%", "%").split())
    return Completed(tuple(action.option_strings), about, takes, words)


def words_of(parser: Any) -> list[str]:
    """Names that a verb's words may be, beside files."""
    if named := list(parser.names()):
        return named
    shown = [str(a.metavar or "") for a in parser.arguments if not a.option_strings]
    return [word for text in shown if "|" in text and text == text.lower() for word in text.split("|")]


def completion_script(shell: str, verbs: Mapping[str, Any]) -> str:
    """The script for one shell."""
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in makers:
        raise unknown_name("shell", shell, makers)
    return makers[shell](verbs)


def _bash(verbs: Mapping[str, Any]) -> str:
    cases, values = [], []
    for verb, parser in verbs.items():
        flags = flags_of(parser)
        spelled = " ".join(s for flag in flags for s in flag.spellings)
        cases.append(f'    {verb}) flags="{spelled}"; words="{" ".join(words_of(parser))}" ;;')
        values += [
            f"    {'|'.join(f'{verb}:{s}' for s in flag.spellings)}) {_bash_value(flag)} ;;"
            for flag in flags
            if flag.takes
        ]
    return f"""# bash: write this to ~/.local/share/bash-completion/completions/vestige
# or: source <(vestige completion bash)
_vestige() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local verb=${{COMP_WORDS[1]}} flags="" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(verbs)}" -- "$current"))
    return
  fi
  case "$verb:$before" in
{chr(10).join(values)}
  esac
  case "$verb" in
{chr(10).join(cases)}
  esac
  if [[ "$current" == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current"))
  fi
}}
complete -o filenames -F _vestige vestige"""


def _bash_value(flag: Completed) -> str:
    how = {"dir": "-d", "file": "-f", "words": f'-W "{" ".join(flag.words)}"'}.get(flag.takes)
    return f'COMPREPLY=($(compgen {how} -- "$current")); return' if how else "return"


def _quoted(text: str, special: str) -> str:
    """Text inside single quotes of a shell, with the characters special to its completion escaped."""
    for c in special:
        text = text.replace(c, f"\\{c}")
    return text.replace("'", "'\\''")


def _zsh(verbs: Mapping[str, Any]) -> str:
    listed = "\n".join(f"    '{verb}:{_quoted(_about(p), ':')}'" for verb, p in verbs.items())
    cases = []
    for verb, parser in verbs.items():
        lines = [f"        {line}" for flag in flags_of(parser) for line in _zsh_flag(flag)]
        first = " ".join(words_of(parser))
        rest = f"'*:word:{{ compadd -- {first}; _files }}'" if first else "'*:file:_files'"
        cases.append(
            "\n".join([f"      {verb}) _arguments \\", *(f"{line} \\" for line in lines), f"        {rest} ;;"])
        )
    return f"""#compdef vestige
# zsh: write this to a file _vestige in a directory of $fpath, or: source <(vestige completion zsh)
_vestige() {{
  local -a verbs
  verbs=(
{listed}
  )
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
{chr(10).join(cases)}
  esac
}}
if [[ ${{funcstack[1]}} == _vestige ]]; then _vestige "$@"; else compdef _vestige vestige; fi"""


def _about(parser: Any) -> str:
    return " ".join(str(parser.description or "").replace("%%", "%").split())


def _zsh_flag(flag: Completed) -> Iterable[str]:
    value = {"": "", "dir": ":directory:_files -/", "file": ":file:_files", "text": ":value:"}
    takes = (
        f":value:({' '.join(w.replace(':', chr(92) + ':') for w in flag.words)})" if flag.words else value[flag.takes]
    )
    for spelling in flag.spellings:
        yield f"'*{spelling}[{_quoted(flag.about, '[]:')}]{takes}'"


def _fish(verbs: Mapping[str, Any]) -> str:
    lines = [
        "# fish: write this to ~/.config/fish/completions/vestige.fish, or: vestige completion fish | source",
        "complete -c vestige -f -n __fish_use_subcommand",
    ]
    for verb, parser in verbs.items():
        lines.append(f"complete -c vestige -n __fish_use_subcommand -a {verb} -d '{_fish_text(_about(parser))}'")
        here = f"-n '__fish_seen_subcommand_from {verb}'"
        if first := words_of(parser):
            lines.append(f"complete -c vestige {here} -a '{' '.join(first)}'")
        lines += [f"complete -c vestige {here} {_fish_flag(flag)}" for flag in flags_of(parser)]
    return "\n".join(lines)


def _fish_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _fish_flag(flag: Completed) -> str:
    spelled = " ".join(f"-l {s[2:]}" if s.startswith("--") else f"-s {s[1:]}" for s in flag.spellings)
    takes = {
        "": "",
        "words": f" -x -a '{' '.join(flag.words)}'",
        "dir": " -x -a '(__fish_complete_directories)'",
        "file": " -r -F",
        "text": " -x",
    }[flag.takes]
    return f"{spelled}{takes} -d '{_fish_text(flag.about)}'"
