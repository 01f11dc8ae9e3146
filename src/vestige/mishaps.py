"""What the world does to a command, in one sentence: no room, no permission, no memory. Imports nothing heavy."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from vestige.errors import UserError, first_line
from vestige.journal import CLOSED, FULL, write_error

OTHERS = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENODEV, errno.ESTALE, errno.ENOTCONN)


@contextmanager
def mishaps_said() -> Iterator[None]:
    """Turns what is nobody's bug into a UserError; everything else goes on as it came."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in (*FULL, *CLOSED, *OTHERS):
            raise write_error(error, error.filename or "a file") from None
        if error.errno == errno.ENOMEM:
            raise _memory(error) from None
        raise
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or _out_of_memory(error):
            raise _memory(error) from None
        raise


def _out_of_memory(error: BaseException) -> bool:
    if "torch" not in sys.modules:
        return False
    from vestige.collect.safety import out_of_memory

    return out_of_memory(error)


def _memory(error: BaseException) -> UserError:
    words = first_line(error)[:160] or type(error).__name__
    return UserError(
        f"Memory ran out ({words}); close other programs or lower --batch-tokens, then run the same command again: "
        "what was collected is kept."
    )
