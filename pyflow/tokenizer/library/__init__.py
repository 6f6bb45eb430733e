"""Files that the `tokenizers` library runs, checked before it reads them."""
