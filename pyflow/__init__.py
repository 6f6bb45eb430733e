"""A CPU-first runtime for quantized language models.

>>> import pyflow
>>> with pyflow.load("smollm2") as model:
...     print(model.generate("The capital of France is", n_predict=8).text)
"""

from .context import Context
from .engine import MemoryPlan, Model, load, plan
from .errors import (
    CancelledError,
    FormatError,
    PyflowError,
    ResourceError,
    ShapeError,
    UnsupportedError,
)
from .generate import Chunk, Completion, Stream
from .sampling import SamplingParams
from .session import ChatSession

__all__ = [
    "CancelledError",
    "ChatSession",
    "Chunk",
    "Completion",
    "Context",
    "FormatError",
    "MemoryPlan",
    "Model",
    "PyflowError",
    "ResourceError",
    "SamplingParams",
    "ShapeError",
    "Stream",
    "UnsupportedError",
    "load",
    "plan",
]
