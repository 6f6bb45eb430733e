"""Tokenizers: text to token ids and back, as the model's files describe them."""

from pyflow.tokenizer.checkpoint import from_checkpoint, memory_nbytes
from pyflow.tokenizer.detokenizer import Detokenizer
from pyflow.tokenizer.folder import from_folder
from pyflow.tokenizer.gguf import from_metadata
from pyflow.tokenizer.tokenizer import NoTokenizerError, Tokenizer

__all__ = [
    "Detokenizer",
    "NoTokenizerError",
    "Tokenizer",
    "from_checkpoint",
    "from_folder",
    "from_metadata",
    "memory_nbytes",
]
