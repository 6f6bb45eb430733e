"""Weight formats and encoding (csrc/bindings/bind_quant.cpp, bind_encode.cpp)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow._core_stubs.machine import ThreadPool

def weight_formats() -> list[dict[str, Any]]:
    """name: str, gguf_id: int, block: int (weights in one), block_bytes: int, fine_inputs: bool
    (activations meet it in fifteen bits), float_inputs: bool (as f32), encodes: bool
    (weights can become it); of each format."""

def runnable_isas() -> list[str]:
    """Names of the kernel tables that this CPU can run, best last."""

def dequantize(
    dtype: str, data: NDArray[np.uint8], shape: Sequence[int]
) -> NDArray[np.float32]: ...
def quantize(
    dtype: str,
    x: NDArray[np.floating[Any]],
    importance: NDArray[np.floating[Any]] | None = None,
    pool: ThreadPool | None = None,
    isa: str = "",
) -> NDArray[np.uint8]:
    """Rows of blocks, uint8 (..., bytes of a row), of rows of weights (..., columns); see
    pyflow.quant.quantize. isa: the kernel table, "" for the best one."""

class Feedback:
    """What an error in one column is to change in others (csrc/encode/feedback.h)."""

    def __init__(
        self,
        moments: NDArray[np.floating[Any]],
        columns: int,
        pool: ThreadPool | None = None,
        isa: str = "",
    ) -> None:
        """moments: (size(columns),) sums of products of inputs' columns. FormatError where they are
        not positive definite."""
    @staticmethod
    def size(columns: int) -> int:
        """How many numbers the moments of so many columns, a multiple of 16, are."""

class Requantizer:
    """Turns rows of one format's bytes into another's.

    feedback: of the rows' columns. Importance is then not looked at; squares of errors become those
    of the error times the inputs, and squares of weights are weighed by the moments' diagonal.
    """

    def __init__(
        self,
        from_dtype: str,
        dtype: str,
        columns: int,
        importance: NDArray[np.floating[Any]] | None = None,
        feedback: Feedback | None = None,
        isa: str = "",
    ) -> None: ...
    def run(
        self, data: NDArray[np.uint8], first_row: int = 0, pool: ThreadPool | None = None
    ) -> tuple[NDArray[np.uint8], tuple[float, float, float, float]]:
        """Blocks, uint8 (rows, bytes of a row), and four numbers on the differences d: the sums of
        w d^2, of w x^2 over the weights x, and of |d|, and the largest |d|; w is the importance.

        Errors count rows from first_row. Any number of threads gives the same.
        """
