"""Keeping other libraries' chatter out of ours; what matters in it is told as a note or an error."""

from __future__ import annotations

import contextlib
import io
import logging as std_logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(bars: bool = True) -> Iterator[None]:
    """No transformers log lines, no Python warnings, no progress bars, until the block ends.

    Some bars (GGUF unpacking) have no switch; `bars=False` holds back standard error as well.
    """
    from transformers.utils import logging

    _hush_bitsandbytes()
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hush = contextlib.nullcontext() if bars else contextlib.redirect_stderr(io.StringIO())
    with warnings.catch_warnings(), hush:
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if shown:
                logging.enable_progress_bar()


def _hush_bitsandbytes() -> None:
    """On import it complains of a CPU kernel it can do without; peft imports it unasked."""
    logger = std_logging.getLogger("bitsandbytes")
    if logger.level == std_logging.NOTSET:
        logger.setLevel(std_logging.ERROR)


def first_line(error: BaseException) -> str:
    """The gist of another library's error, as the end of a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if text.endswith(":") and len(lines) > 1:  # a heading; the matter is below it
        text = f"{text} {lines[1]}"
    return text if text.endswith((".", "!", "?")) else text + "."
