"""Text from a model: one prompt or many, all at once or as it comes."""

from pyflow.generate.completion import Chunk, Completion, StopReason, Timings, TokenLogprobs
from pyflow.generate.prompts import Generates, Options, Prompt, stream
from pyflow.generate.stream import Request, Stream, View

__all__ = [
    "Chunk",
    "Completion",
    "Generates",
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
