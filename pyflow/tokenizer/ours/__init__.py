"""Encoders of our own: GGUF vocabularies and SentencePiece files."""
