"""Text from a stream of tokens."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """Decodes token ids to text one by one, in whole characters.

    If a token ends inside a character, its bytes are held back until the rest arrives. Bytes that
    cannot become a character are decoded as U+FFFD, also at the end of the stream.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that `token` completes, possibly empty."""
        return self._decoder.decode(self._token_bytes(token))

    def flush(self) -> str:
        """The text of held back bytes; resets the detokenizer."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
