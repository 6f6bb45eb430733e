"""The tokenizer of a checkpoint: in its file, or in files beside it."""

from __future__ import annotations

from collections.abc import Collection

from pyflow.errors import ShapeError
from pyflow.formats import Checkpoint
from pyflow.tokenizer.folder import from_folder
from pyflow.tokenizer.gguf import from_metadata
from pyflow.tokenizer.tokenizer import Tokenizer


def from_checkpoint(
    checkpoint: Checkpoint, *, n_rows: int = 0, stop_ids: Collection[int] = ()
) -> Tokenizer:
    """n_rows: of the model's embedding. stop_ids: tokens that end a generation besides those that
    the files tell. Raises like `from_metadata` and `from_folder`, and ShapeError where there are
    more tokens than rows."""
    if checkpoint.format != "GGUF":
        tokenizer = from_folder(checkpoint.path.parent, n_rows=n_rows, stop_ids=stop_ids)
    else:
        tokenizer = from_metadata(checkpoint.metadata, source=str(checkpoint.path))
        tokenizer.stop_ids |= frozenset(stop_ids)
    if 0 < n_rows < tokenizer.n_vocab:
        raise ShapeError(
            f"{checkpoint.path}: the tokenizer has {tokenizer.n_vocab} tokens, the embedding only "
            f"{n_rows} rows"
        )
    return tokenizer


def memory_nbytes(checkpoint: Checkpoint, n_rows: int) -> int:
    """What metadata and tokenizer take: measured on vocabularies of 30,522 to 262,144 tokens.

    n_rows: of the model's embedding.
    """
    if checkpoint.format != "GGUF":
        return 430 * n_rows  # 303 (BPE of SentencePiece) to 427 (its unigram) for a token
    texts = checkpoint.metadata.get("tokenizer.ggml.tokens", [])
    merges = checkpoint.metadata.get("tokenizer.ggml.merges", [])
    return 290 * len(texts) + 310 * len(merges)
