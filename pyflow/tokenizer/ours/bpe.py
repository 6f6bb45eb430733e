"""Byte-level byte-pair encoding (GPT-2, Llama 3, Qwen, SmolLM, ...).

Text is split into words (pretokenize.py), each byte of a word becomes one printable character, and
pairs are merged in the order of the merge list. The `tokenizers` library merges. pyflow splits: the
library's Unicode tables are newer than those that define these ids, and it rejects text that Python
cannot encode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tokenizers.models import BPE

from pyflow.tokenizer.base.headroom import TEXT_NBYTES, check_headroom, vocab_nbytes
from pyflow.tokenizer.base.library_errors import refusing
from pyflow.tokenizer.ours.pretokenize import PreTokenizer, by_name
from pyflow.tokenizer.ours.vocab import Vocab, read, read_merges

# Words repeat: the cache answers nine of ten in running text.
_CACHED_WORDS = 1 << 15


def _byte_characters() -> str:
    """GPT-2's character for each byte: itself if printable, else the next free one from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(spare)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
_TO_CHARACTERS = dict(enumerate(BYTE_CHARACTERS))
_TO_BYTES = {ord(character): byte for byte, character in enumerate(BYTE_CHARACTERS)}


class ByteLevelBpe:
    """Encodes text without special tokens."""

    def __init__(self, metadata: Mapping[str, object], vocab: Vocab, *, source: str) -> None:
        name = read(metadata, "tokenizer.ggml.pre", str, "default", source=source)
        self._pre: PreTokenizer = by_name(name, source=source)
        self._ids = vocab.ids
        self._source = source
        self._words: dict[str, list[int]] = {}
        merges = read_merges(metadata, source=source)
        nbytes = vocab_nbytes(len(vocab.ids), len(merges))
        with refusing(f"{source}: tokenizer.ggml.merges", nbytes):
            self._model = BPE(dict(vocab.ids), merges, cache_capacity=0)
        missing = [c for c in BYTE_CHARACTERS if c not in vocab.ids]
        self.missing_bytes = frozenset(BYTE_CHARACTERS.index(c) for c in missing)
        # Unlike llama.cpp, the library merges across a character that it does not know.
        self._known = re.compile(f"[^{re.escape(''.join(missing))}]+") if missing else None

    @property
    def add_bos(self) -> bool:
        """Whether texts begin with BOS if the file does not say."""
        return self._pre.add_bos

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; drops bytes without a token, see `missing_bytes`."""
        ids: list[int] = []
        words = self._words
        for word in self._pre.split(text):
            known = words.get(word)
            if known is None:
                known = self._encode_word(word)
                if len(words) >= _CACHED_WORDS:
                    words.clear()
                if len(word) <= 64:
                    words[word] = known
            ids += known
        return ids

    def _encode_word(self, word: str) -> list[int]:
        raw = word.encode("utf-8", "surrogatepass").decode("latin-1").translate(_TO_CHARACTERS)
        if self._pre.whole_words and raw in self._ids:
            return [self._ids[raw]]
        check_headroom(self._source, TEXT_NBYTES * len(raw))
        parts = self._known.findall(raw) if self._known else [raw]
        return [token.id for part in parts for token in self._model.tokenize(part)]


def token_bytes(text: str) -> bytes:
    """The bytes of a normal token with this text."""
    try:
        return bytes([_TO_BYTES[ord(character)] for character in text])
    except KeyError:  # added after training, written as plain text
        return text.encode("utf-8")
