"""Checkpoints: files that hold a model's weights and what describes them.

import pyflow.formats

checkpoint = pyflow.formats.open("model.gguf")
checkpoint.metadata["general.architecture"]
"""

from pyflow.formats.checkpoint import Checkpoint, has_pickle, open

__all__ = ["Checkpoint", "has_pickle", "open"]
