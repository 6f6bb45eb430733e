"""Text from a model: one prompt or many, all at once or as it comes."""

from pyflow.generate.completion import Chunk, Completion, StopReason, Timings, TokenLogprobs
from pyflow.generate.prompts import Options, Prompt, generate, stream
from pyflow.generate.stream import Feed, Request, Stream

__all__ = [
    "Chunk",
    "Completion",
    "Feed",
    "Options",
    "Prompt",
    "Request",
    "StopReason",
    "Stream",
    "Timings",
    "TokenLogprobs",
    "generate",
    "stream",
]
