"""Tokenizers: text to token ids and back, as the model's file describes them."""

from pyflow.tokenizer.detokenizer import Detokenizer
from pyflow.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer"]
