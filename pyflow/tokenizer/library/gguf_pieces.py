"""BPE over SentencePiece's pieces of GGUF files (tokenizer.ggml.model = gemma4), run by the
tokenizers library: spaces become U+2581, whole texts are merged by the list of merges, and
characters without a token are bytes, <0x0A>. Ids are those of Gemma's tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping

import tokenizers
from tokenizers import AddedToken, decoders, normalizers, processors
from tokenizers.models import BPE

from pyflow.tokenizer.base.headroom import vocab_nbytes
from pyflow.tokenizer.base.library_errors import refusing
from pyflow.tokenizer.base.token_types import TokenType
from pyflow.tokenizer.base.tokenizer import Tokenizer
from pyflow.tokenizer.library.library_tokenizer import LibraryTokenizer
from pyflow.tokenizer.library.tokenizer_json import check_vocab
from pyflow.tokenizer.ours.vocab import Vocab, read_id, read_merges, read_vocab

_SPACE = "\u2581"


def from_merged_pieces(metadata: Mapping[str, object], *, source: str, n_rows: int) -> Tokenizer:
    """The tokenizer of such metadata; raises like `from_metadata`. Texts begin with BOS whatever
    the file says, as llama.cpp has it."""
    vocab = read_vocab(metadata, source=source)
    merges = read_merges(metadata, source=source)
    check_vocab(vocab.ids, source=f"{source}: tokenizer.ggml.tokens")
    unknown = read_id(metadata, "tokenizer.ggml.unknown_token_id", len(vocab), source=source)
    with refusing(f"{source}: tokenizer.ggml.merges", vocab_nbytes(len(vocab.ids), len(merges))):
        library = tokenizers.Tokenizer(
            BPE(
                dict(vocab.ids),
                merges,
                unk_token=None if unknown is None else vocab.texts[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        library.normalizer = normalizers.Replace(" ", _SPACE)
        library.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        library.add_special_tokens(_added(vocab, TokenType.CONTROL))
        library.add_tokens(_added(vocab, TokenType.USER_DEFINED))
        bos, eos = (None if i is None else vocab.texts[i] for i in (vocab.bos_id, vocab.eos_id))
        if bos is not None:
            library.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A",
                pair=f"{bos} $A {bos}:1 $B:1",
                special_tokens=[(bos, vocab.ids[bos])],
            )
    return LibraryTokenizer(library, bos=bos, eos=eos, n_rows=n_rows, source=source)


def _added(vocab: Vocab, kind: TokenType) -> list[AddedToken]:
    texts = (text for text, each in zip(vocab.texts, vocab.types, strict=True) if each == kind)
    return [AddedToken(text, normalized=False, special=kind == TokenType.CONTROL) for text in texts]
