"""Exceptions of the `tokenizers` library as pyflow's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyflow.errors import FormatError, PyflowError
from pyflow.text import printable
from pyflow.tokenizer.base.headroom import check_headroom


@contextmanager
def refusing(source: str, nbytes: int) -> Iterator[None]:
    """Converts the library's exceptions into FormatError with `source`.

    nbytes: memory that the library takes at most; ResourceError if a limit leaves less.
    The library has no exception class for broken files. Where its authors expected no failure it
    panics, and PanicException is not a subclass of Exception.
    """
    check_headroom(source, nbytes)
    try:
        yield
    except MemoryError:
        raise
    except PyflowError:
        raise
    except BaseException as error:
        message = printable(" ".join(str(error).split()))[:300] or type(error).__name__
        if isinstance(error, Exception):
            raise FormatError(f"{source}: {message}") from None
        if type(error).__name__ == "PanicException":
            raise FormatError(f"{source}: the tokenizers library gives up: {message}") from None
        raise
