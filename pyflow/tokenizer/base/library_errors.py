"""Failures of the `tokenizers` library, as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyflow.errors import FormatError, PyflowError
from pyflow.text import printable


@contextmanager
def refusing(source: str) -> Iterator[None]:
    """Turns what the library raises into a FormatError that names `source`.

    It has no class of its own for what a file is to blame for, and where its authors expected no
    failure it panics, which is no Exception.
    """
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
