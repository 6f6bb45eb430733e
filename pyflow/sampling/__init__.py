"""How the next token is chosen."""

from pyflow.sampling.params import SamplingParams

__all__ = ["SamplingParams"]
