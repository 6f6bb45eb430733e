"""vocab.txt: BERT's WordPiece, one token per line."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from pyflow.formats.side_files import read_text
from pyflow.tokenizer.base.headroom import vocab_nbytes
from pyflow.tokenizer.base.library_errors import refusing
from pyflow.tokenizer.base.settings import Role, Settings
from pyflow.tokenizer.library.added_tokens import add_tokens
from pyflow.tokenizer.library.byte_level import add_ends
from pyflow.tokenizer.library.tokenizer_json import MAX_NBYTES, check_vocab
from pyflow.tokenizer.ours.vocab import ids_of

_ROLES: dict[Role, str] = {
    "unk": "[UNK]",
    "sep": "[SEP]",
    "pad": "[PAD]",
    "cls": "[CLS]",
    "mask": "[MASK]",
}
_CLASSES = dict.fromkeys(("", "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), _ROLES)


def read(folder: Path, settings: Settings, *, n_rows: int) -> tuple[tokenizers.Tokenizer, Settings]:
    """The library's tokenizer for the vocab.txt in `folder`, and the settings with BERT's roles.

    n_rows: as for `add_tokens`. FormatError, naming the line: the file is broken. UnsupportedError:
    an unknown class. GenerationWarning: a text stands there twice.
    """
    path = folder / "vocab.txt"
    config = settings.config
    settings = settings.with_roles(settings.of_class(_CLASSES, "vocab.txt"))
    ids = _read_ids(path)
    with refusing(str(path), vocab_nbytes(len(ids))):
        library = tokenizers.Tokenizer(WordPiece(ids, unk_token=settings.named["unk"]))
    library.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=config.tokenize_chinese_chars is not False,
        strip_accents=config.strip_accents,
        lowercase=config.do_lower_case is not False,
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    add_tokens(library, settings, n_rows=n_rows)
    add_ends(library, settings, "cls", "sep", has_types=True, source=str(path))
    return library, settings


def _read_ids(path: Path) -> dict[str, int]:
    lines = read_text(path, max_nbytes=MAX_NBYTES).split("\n")
    if not lines[-1]:
        lines.pop()
    texts = [line.removesuffix("\r") for line in lines]
    ids = ids_of(texts, where=str(path), kind="lines", first=1)
    check_vocab(ids, source=str(path))
    return ids
