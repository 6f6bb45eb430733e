"""Folders with tokenizer files, as the tests of tokenizers have them."""

from ..tokenizer.conftest import folder_of, hostile

__all__ = ["folder_of", "hostile"]
