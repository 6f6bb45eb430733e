"""The interface of tokenizers, their settings, and types of tokens."""
