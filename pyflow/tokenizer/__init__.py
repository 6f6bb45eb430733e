"""Tokenizers: text to token ids and back, as the model's files describe them."""

from pyflow.tokenizer.detokenizer import Detokenizer
from pyflow.tokenizer.folder import from_folder
from pyflow.tokenizer.gguf import from_metadata
from pyflow.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "from_folder", "from_metadata"]
