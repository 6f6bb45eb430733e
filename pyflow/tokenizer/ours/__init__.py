"""Tokenizers that pyflow runs itself: GGUF vocabularies and SentencePiece files."""
