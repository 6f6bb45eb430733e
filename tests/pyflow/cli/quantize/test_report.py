"""What is told of quantizing."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyflow.quant.convert import Share
from pyflow.quant.plan import Step

from pyflow.cli.quantize.report import fallbacks, lost


@pytest.mark.parametrize(
    ("n", "told"),
    [
        (
            1,
            [
                "1 matrix gets Q8_0 instead of Q6_K: rows of 32 are not a multiple of 256",
                "1 matrix stays as it is: stored transposed",
            ],
        ),
        (
            2,
            [
                "2 matrices get Q8_0 instead of Q6_K: rows of 32 are not a multiple of 256",
                "2 matrices stay as they are: stored transposed",
            ],
        ),
    ],
)
def test_matrices_are_counted(n: int, told: list[str]) -> None:
    tensor: Any = SimpleNamespace(name="blk.0.attn_v.weight", dtype="F16", shape=(8, 32))
    other = Step(tensor, "Q8_0", 272, "attn_v", instead_of="Q6_K")
    kept = Step(tensor, "F16", 512, "attn_v", kept_for="stored transposed")
    assert fallbacks([other, kept] * n, weighed=False) == told


def test_what_is_lost_whole_is_told_by_role() -> None:
    shares = {
        "attn_v": Share(),
        "ffn_up": Share(lost=["blk.0.ffn_up.weight", "blk.1.ffn_up.weight"]),
    }
    (told,) = lost(shares)
    assert told.startswith("warning: blk.0.ffn_up.weight and 1 more: ")
    assert "--tensor-type 'ffn_up=bf16'" in told
