"""A CPU-first runtime for quantized language models.

>>> import pyflow
>>> with pyflow.load("smollm2") as model:
...     print(model.generate("The capital of France is", n_predict=8).text)
"""

from importlib.util import find_spec

if find_spec("pyflow._core") is None:
    raise ImportError(
        f"{__path__[0]} is pyflow's source folder, without the built extension: run Python in "
        "another folder or as 'python -P', which does not look here, or build it with 'make dev'"
    )

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
