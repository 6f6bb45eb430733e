"""Texts as vectors, pairs of texts as scores, masked tokens as guesses.

    with pyflow.load("minilm") as model:
        vectors = model.embed(["a text", "another one"])

Encoders run many texts of unequal length in one pass; what comes of a text depends on no other.
Decoders give the hidden state of their last token, or the mean of all.
"""

from pyflow.embed.encoder import Encoder
from pyflow.embed.recipe import Recipe

__all__ = ["Encoder", "Recipe"]
