"""How models and plug-ins are loaded: the flags that every verb which runs a model has in common."""

from __future__ import annotations

import argparse


def loading_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--dtype", metavar="NAME", help="auto | float32 | bfloat16 | float16")
    p.add_argument("--device", metavar="NAME", help="auto | cpu | cuda | mps")
    p.add_argument("--tokenizer", metavar="PATH", help="instead of the model's own")
    p.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")


def plugin_flag(p: argparse.ArgumentParser, what: str = "metrics, data sets, families, readers") -> None:
    p.add_argument("--plugin", action="append", default=[], metavar="FILE", help=f"Python file with your own {what}")
