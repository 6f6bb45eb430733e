"""A CPU-first runtime for quantized language models.

>>> import pyflow
>>> with pyflow.load("smollm2") as model:
...     print(model.generate("The capital of France is", n_predict=8).text)
"""

from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import TYPE_CHECKING

if find_spec("pyflow._core") is None:
    for _other in import_module("pathlib").Path(__path__[0]).glob("_core.*.so"):
        raise ImportError(
            f"{_other} is of another Python or machine, expected "
            f"_core{EXTENSION_SUFFIXES[0]}: install pyflow with the Python that runs it"
        )
    raise ImportError(
        f"{__path__[0]} is pyflow's source folder, without the built extension: run Python in "
        "another folder or as 'python -P', which does not look here, or build it with 'make dev'"
    )

if TYPE_CHECKING:
    from pyflow.engine.context import Context
    from pyflow.engine.loaded import plan
    from pyflow.engine.memory import MemoryPlan
    from pyflow.engine.offload import Offload
    from pyflow.engine.topology import Placement
    from pyflow.generate.session import ChatSession
    from pyflow.model import Model, load

    from .errors import (
        CancelledError,
        FilesWarning,
        FormatError,
        GenerationWarning,
        PlacementWarning,
        PyflowError,
        ResourceError,
        SessionError,
        SessionWarning,
        ShapeError,
        UnsupportedError,
    )
    from .formats import Overrides
    from .generate import Chunk, Completion, Stream
    from .sampling import SamplingParams

__all__ = [
    "CancelledError",
    "ChatSession",
    "Chunk",
    "Completion",
    "Context",
    "FilesWarning",
    "FormatError",
    "GenerationWarning",
    "MemoryPlan",
    "Model",
    "Offload",
    "Overrides",
    "Placement",
    "PlacementWarning",
    "PyflowError",
    "ResourceError",
    "SamplingParams",
    "SessionError",
    "SessionWarning",
    "ShapeError",
    "Stream",
    "UnsupportedError",
    "load",
    "plan",
]

# Lowest first: the first module that has a name is its home.
_MODULES = (
    "errors",
    "formats",
    "engine.topology",
    "engine.offload",
    "sampling",
    "engine.context",
    "generate",
    "engine.loaded",
    "model",
    "generate.session",
)


def __getattr__(name: str) -> object:
    """The engine is imported when it is first used: `pyflow --help` can do without."""
    if name == "__version__":
        return import_module("importlib.metadata").version("pyflow-llm")
    if name in __all__:
        for module in _MODULES:
            found = getattr(import_module(f"{__name__}.{module}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
