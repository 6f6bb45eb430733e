"""What a GGUF file must say and hold of a model that comes as a folder of hubs.

    model = to_gguf(formats.open("folder"))
    model.metadata, model.tensors

The family's spec says where either side has a size or a tensor, so it is read in both directions:
sizes and tensors are written where its GGUF side looks for them, that side is then applied to what
would be written, and the model that comes of it must be the one in the folder. What GGUF cannot say
of a model is thereby found before anything is written.
"""

from pyflow.gguf_export.model import GgufModel, to_gguf
from pyflow.gguf_export.tensor import GgufTensor

__all__ = ["GgufModel", "GgufTensor", "to_gguf"]
