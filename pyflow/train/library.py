"""torch, which only training needs: it is imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import UnsupportedError

Tensor: TypeAlias = Any
"""A torch.Tensor; types of torch are not needed to check this package."""
Parameters: TypeAlias = Mapping[str, Tensor]
"""Tensors of a speculator by their names in its file."""
Floats: TypeAlias = NDArray[np.float32]

# Features of CPUs that multiply bf16 faster than f32.
_BF16 = {"avx512bf16", "amxbf16", "amx_bf16", "bf16"}


def library() -> Any:
    """The module torch. UnsupportedError: it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UnsupportedError(
            f"training needs torch, which cannot be imported ({error}): "
            "pip install 'pyflow-llm[train]'"
        ) from None


def product_type(device: str) -> Any:
    """The type in which products are fast there: bf16, or f32. UnsupportedError: it is not here."""
    torch = library()
    if device != "cpu" and not torch.cuda.is_available():
        raise UnsupportedError(
            f"device {device}: torch {torch.__version__} finds none here; leave --device out"
        )
    is_fast = device != "cpu" or bool(_BF16 & {*_core.cpu_info()["features"]})
    return torch.bfloat16 if is_fast else torch.float32


def rms_normed(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x over the root of its mean square in each row; no mean is subtracted."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
