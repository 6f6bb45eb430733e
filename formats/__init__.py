"""Checkpoints: files with a model's weights and their description.

import pyflow.formats

checkpoint = pyflow.formats.open("model.gguf")
checkpoint.metadata["general.architecture"]
"""

from pyflow.formats.checkpoint import Checkpoint, has_pickle, open
from pyflow.formats.overrides import Overrides

__all__ = ["Checkpoint", "Overrides", "has_pickle", "open"]
