"""Models of Hugging Face folders as GGUF files.

    model = to_gguf(formats.open("folder"))
    model.metadata, model.tensors

The family's spec is read in reverse: sizes and tensors go where its GGUF side looks for them. Then
the GGUF side is applied to the planned file, and must give the folder's model. What GGUF cannot
express is thus found before anything is written.
"""

from pyflow.gguf_export.model import GgufModel, to_gguf
from pyflow.gguf_export.tensor import GgufTensor

__all__ = ["GgufModel", "GgufTensor", "to_gguf"]
