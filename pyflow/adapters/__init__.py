"""Low-rank adapters (LoRA, Hu et al. 2021): files that change a model a little, beside its weights.

A product W x of the model becomes W x + s B (A x). Each text has its own choice of adapters, so a
batch may hold several, and a text's bits depend on its own choice alone.
"""

from pyflow.adapters.choice import NOTHING, Choice, chosen
from pyflow.adapters.files import AdapterFile
from pyflow.adapters.known import Given, KnownAdapters
from pyflow.adapters.loaded import Adapters
from pyflow.adapters.opening import open_adapter

__all__ = [
    "NOTHING",
    "AdapterFile",
    "Adapters",
    "Choice",
    "Given",
    "KnownAdapters",
    "chosen",
    "open_adapter",
]
