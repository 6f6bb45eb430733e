"""What blocks are made of: registers, references to tensors, ropes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

Register: TypeAlias = Literal["x", "h", "a"]
"""A token's hidden states: x, the residual stream; h, the branch; a, a second branch, for attention
and feed-forward side by side. Only x goes from layer to layer."""
NormType: TypeAlias = Literal["rms", "layer"]
Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu", "swiglu_clamped"]
"""gelu is the exact one, by erf; gelu_tanh its approximation by tanh."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A matrix or vector: a tensor of the checkpoint, or rows of one that holds several.

    rows: segments (start, count), joined in this order; empty means all. They count rows of a
    matrix, with leading dimensions flattened, or values of a vector. (-1, count) makes zeros.
    step: rows of a segment are start, start + step, ...
    transposed: the tensor is stored (in, out), in F32, F16 or BF16; the segments count outputs.
    inputs: (start, count) of such a tensor's rows, those of one of several matrices; empty: all.
    add: is added to the values of a vector (Gemma stores the weights of its norms less one).
    Example: the keys in a fused ``(n_q + 2 * n_kv, n_embd)`` are rows ``((n_q, n_kv),)``.
    """

    name: str
    rows: tuple[tuple[int, int], ...] = ()
    transposed: bool = False
    add: float = 0.0
    step: int = 1
    inputs: tuple[int, int] | tuple[()] = ()

    def places(self) -> NDArray[np.intp]:
        """Where the rows of the segments lie."""
        return np.concatenate([np.arange(a, a + n * self.step, self.step) for a, n in self.rows])


Ref: TypeAlias = str | TensorRef
"""A tensor of the checkpoint by its name, or a part of one."""


def name_of(ref: Ref) -> str:
    """The tensor's name."""
    return ref.name if isinstance(ref, TensorRef) else ref


@cache
def tensor_fields(part: type[object]) -> tuple[str, ...]:
    """The fields of a dataclass that hold references to tensors, by their types."""
    return tuple(name for name, hint in get_type_hints(part).items() if _holds_ref(hint))


def _holds_ref(hint: object) -> bool:
    return hint is TensorRef or any(map(_holds_ref, get_args(hint)))


def tensors_of(part: Any) -> Iterator[str]:
    """Names of the tensors that a part of a model uses; some more than once."""
    for name in tensor_fields(part.__class__):
        value = getattr(part, name)
        for ref in value if isinstance(value, tuple) else (value,):
            if ref is not None:
                yield name_of(ref)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: pair i of a head turns by ``position * inv_freq[i]`` radians.

    interleaved: pairs are (2i, 2i + 1); otherwise (i, i + n / 2) for n / 2 frequencies. Values of a
    head from n on stay as they are. magnitude scales the result. With long_inv_freq, contexts of
    more than n_ctx_original cells take these and long_magnitude instead (LongRoPE).
    """

    inv_freq: tuple[float, ...]
    magnitude: float = 1.0
    interleaved: bool = False
    long_inv_freq: tuple[float, ...] = ()
    long_magnitude: float = 1.0
    n_ctx_original: int = 0

    def is_long(self, n_positions: int) -> bool:
        """Whether a text that may take so many positions has the frequencies for long ones."""
        return bool(self.long_inv_freq) and n_positions > self.n_ctx_original
