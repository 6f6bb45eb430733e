"""Text from a stream of tokens."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """Turns token ids into text as they come, never half a character.

    A token may end inside a character: its bytes wait for the rest. Bytes that can no longer become
    a character come out as U+FFFD, as do those still waiting when the stream ends.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that `token` completes, possibly empty."""
        return self._decoder.decode(self._token_bytes(token))

    def flush(self) -> str:
        """What is left at the end; the detokenizer is then as new."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
