"""A CPU-first runtime for quantized language models.

>>> import pyflow
>>> with pyflow.load("smollm2") as model:
...     print(model.generate("The capital of France is", n_predict=8).text)
"""

from .engine import Context, MemoryPlan, Model, load, plan
from .errors import (
    CancelledError,
    FormatError,
    PyflowError,
    ResourceError,
    ShapeError,
    UnsupportedError,
)

__all__ = [
    "CancelledError",
    "Context",
    "FormatError",
    "MemoryPlan",
    "Model",
    "PyflowError",
    "ResourceError",
    "ShapeError",
    "UnsupportedError",
    "load",
    "plan",
]
