"""Text from a model: one prompt or many, all at once or as it comes."""

from pyflow.generate.any_model import AnyModel, Options, Prompt
from pyflow.generate.completion import Chunk, Completion, StopReason, Timings, TokenLogprobs
from pyflow.generate.local import stream
from pyflow.generate.stream import Request, Stream, View

__all__ = [
    "AnyModel",
    "Chunk",
    "Completion",
    "Options",
    "Prompt",
    "Request",
    "StopReason",
    "Stream",
    "Timings",
    "TokenLogprobs",
    "View",
    "stream",
]
