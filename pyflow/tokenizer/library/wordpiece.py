"""vocab.txt: BERT's WordPiece, one token per line."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from pyflow.errors import FormatError
from pyflow.formats.side_files import read_text
from pyflow.tokenizer.base.headroom import vocab_nbytes
from pyflow.tokenizer.base.library_errors import refusing
from pyflow.tokenizer.base.settings import Role, Settings
from pyflow.tokenizer.library.byte_level import add_ends
from pyflow.tokenizer.library.tokenizer_json import MAX_NBYTES, check_vocab

_ROLES: dict[Role, str] = {
    "unk": "[UNK]",
    "sep": "[SEP]",
    "pad": "[PAD]",
    "cls": "[CLS]",
    "mask": "[MASK]",
}
_CLASSES = dict.fromkeys(("", "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), _ROLES)


def read(folder: Path, settings: Settings) -> tuple[tokenizers.Tokenizer, Settings]:
    """The library's tokenizer for the vocab.txt in `folder`, and the settings with BERT's roles.

    FormatError, naming the line: the file is broken. UnsupportedError: an unknown class.
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
    add_ends(library, settings, "cls", "sep", source=str(path))
    return library, settings


def _read_ids(path: Path) -> dict[str, int]:
    lines = read_text(path, max_nbytes=MAX_NBYTES).split("\n")
    if not lines[-1]:
        lines.pop()
    ids: dict[str, int] = {}
    for i, line in enumerate(lines):
        text = line.removesuffix("\r")
        if ids.setdefault(text, i) != i:
            raise FormatError(f"{path}: lines {ids[text] + 1} and {i + 1} both hold {text!r:.80}")
    check_vocab(ids, source=str(path))
    return ids
