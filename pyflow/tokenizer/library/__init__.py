"""Tokenizers that the `tokenizers` library runs; files are checked before it reads them."""
