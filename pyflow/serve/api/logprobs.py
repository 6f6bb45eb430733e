"""Log-probabilities in the shapes of OpenAI's two APIs."""

from __future__ import annotations

from collections.abc import Sequence

from pyflow.batch.completion import TokenLogprobs
from pyflow.tokenizer import FromStart, Tokenizer


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token; where its bytes are no text, the bytes, so that tokens stay apart."""
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def of_chat(
    tokenizer: Tokenizer, found: Sequence[TokenLogprobs], n_top: int
) -> dict[str, list[dict[str, object]]]:
    """Of a message's tokens, without the one that ended it."""

    def entry(token: int, logprob: float) -> dict[str, object]:
        raw = tokenizer.token_bytes(token)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": [*raw]}

    return {
        "content": [
            {
                **entry(each.token, each.logprob),
                "top_logprobs": [entry(*pair) for pair in each.top[:n_top]],
            }
            for each in found
            if each.token not in tokenizer.stop_ids
        ]
    }


class TextReport:
    """Of a text's tokens, for /v1/completions; streams report a part at a time.

    Tops are by text: of tokens with one text the likeliest counts. A control token has no width.
    """

    def __init__(
        self, tokenizer: Tokenizer, n_top: int, *, start: int = 0, begins_text: bool = False
    ) -> None:
        """start: characters of the whole text before the first token. begins_text: it loses the
        blank that tokenizers put before texts."""
        self._tokenizer = tokenizer
        self._n_top = n_top
        self._widths = (FromStart(tokenizer) if begins_text else tokenizer).detokenizer()
        self._at = start

    def part(
        self, tokens: Sequence[int], found: Sequence[TokenLogprobs | None]
    ) -> dict[str, list[object]]:
        """Of the next tokens; None where a token has no probability."""
        offsets: list[object] = []
        for token in tokens:
            offsets.append(max(0, self._at))
            self._at += len(self._widths.feed(token))
        return {
            "tokens": [token_text(self._tokenizer, token) for token in tokens],
            "token_logprobs": [each and each.logprob for each in found],
            "top_logprobs": [each and self._tops(each) for each in found],
            "text_offset": offsets,
        }

    def _tops(self, each: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and the one that stands there."""
        tops: dict[str, float] = {}
        for token, logprob in [*each.top[: self._n_top], (each.token, each.logprob)]:
            tops.setdefault(token_text(self._tokenizer, token), logprob)
        return tops
