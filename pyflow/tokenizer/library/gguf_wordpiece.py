"""WordPiece of GGUF files (tokenizer.ggml.model = bert), run by the tokenizers library.

llama.cpp marks the beginnings of words, ▁the, where BERT marks all other pieces, ##ing. Ids are
those of BERT's tokenizer: accents go if texts are lowercased.
"""

from __future__ import annotations

from collections.abc import Mapping

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from pyflow.errors import FormatError
from pyflow.tokenizer.base.headroom import vocab_nbytes
from pyflow.tokenizer.base.library_errors import refusing
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.base.tokenizer import Tokenizer
from pyflow.tokenizer.library.library_tokenizer import LibraryTokenizer
from pyflow.tokenizer.library.tokenizer_json import check_vocab
from pyflow.tokenizer.ours.vocab import Vocab, ids_of, read, read_id, read_vocab

_START = "\u2581"
# By the keys of GGUF: the name that BERT gives the token, if the file does not say which it is.
_MARKS = {
    "unknown_token_id": "[UNK]",
    "cls_token_id": "[CLS]",
    "seperator_token_id": "[SEP]",
    "padding_token_id": "[PAD]",
    "mask_token_id": "[MASK]",
}


def from_wordpiece(metadata: Mapping[str, object], *, source: str, n_rows: int) -> Tokenizer:
    """The tokenizer of such metadata; raises like `from_metadata`."""
    vocab = read_vocab(metadata, source=source)
    marks = {}
    for key, name in _MARKS.items():
        if (found := _mark(metadata, vocab, key, name, source=source)) is not None:
            marks[key] = found
    for key in ("unknown_token_id", "cls_token_id", "seperator_token_id"):
        if key not in marks:
            raise FormatError(
                f"{source}: tokenizer.ggml.{key}: expected a token, such as {_MARKS[key]}, found "
                "none"
            )
    controls = {*marks.values()}
    controls |= {i for i, kind in enumerate(vocab.types) if kind == TokenType.CONTROL}
    texts = [_text(text, i in controls) for i, text in enumerate(vocab.texts)]
    ids = ids_of(texts, where=f"{source}: tokenizer.ggml.tokens")
    check_vocab(ids, source=f"{source}: tokenizer.ggml.tokens")
    lowercase = read(
        metadata, "tokenizer.ggml.normalizer.lowercase", bool, _is_uncased(texts), source=source
    )
    with refusing(source, vocab_nbytes(len(ids))):
        library = tokenizers.Tokenizer(WordPiece(ids, unk_token=texts[marks["unknown_token_id"]]))
        library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.decoder = decoders.WordPiece()
        library.add_special_tokens([texts[i] for i in sorted(controls)])
        first, last = texts[marks["cls_token_id"]], texts[marks["seperator_token_id"]]
        library.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[(text, ids[text]) for text in {first, last}],
        )
    return LibraryTokenizer(library, bos=first, eos=last, n_rows=n_rows, source=source)


def _mark(
    metadata: Mapping[str, object], vocab: Vocab, key: str, name: str, *, source: str
) -> int | None:
    also = {"cls_token_id": "bos_token_id", "seperator_token_id": "eos_token_id"}.get(key)
    for one in (key, also):
        if one is not None:
            found = read_id(metadata, f"tokenizer.ggml.{one}", len(vocab), source=source)
            if found is not None:
                return found
    return vocab.ids.get(name)


def _text(text: str, is_control: bool) -> str:
    """A token as BERT writes it."""
    if is_control:
        return text
    return text[1:] if text.startswith(_START) and len(text) > 1 else f"##{text}"


def _is_uncased(texts: list[str]) -> bool:
    """Whether no word has an upper-case letter: what old files do not say."""
    return not any(text != text.lower() for text in texts if not text.startswith("["))
