"""Qwen 2 and 2.5: llama's layers with q, k and v biases and rotary pairs half a head apart."""

from __future__ import annotations

from ..spec import ModelSpec
from . import llama
from .metadata import Metadata


def build(m: Metadata) -> ModelSpec:
    return llama.build(m, interleaved=False)
