"""Tokenizers: text to token ids and back, as the model's files describe them."""

from pyflow.tokenizer.base.tokenizer import (
    Detokenizer,
    DrawnTokens,
    FromStart,
    NoText,
    NoTokenizerError,
    Tokenizer,
)
from pyflow.tokenizer.gguf import from_metadata
from pyflow.tokenizer.open import from_checkpoint, from_folder, memory_nbytes

__all__ = [
    "Detokenizer",
    "DrawnTokens",
    "FromStart",
    "NoText",
    "NoTokenizerError",
    "Tokenizer",
    "from_checkpoint",
    "from_folder",
    "from_metadata",
    "memory_nbytes",
]
