"""Text from a model: one prompt or many, all at once or as it comes."""

from pyflow.batch.completion import Chunk, Completion, StopReason
from pyflow.generate.any_model import AnyModel, Options
from pyflow.generate.local import stream
from pyflow.generate.stream import Stream

__all__ = [
    "AnyModel",
    "Chunk",
    "Completion",
    "Options",
    "StopReason",
    "Stream",
    "stream",
]
