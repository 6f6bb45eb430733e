"""Products of many rows by matrix units, on a device that has them: test_cuda.py runs this."""

from __future__ import annotations

import numpy as np
import pyflow_testing
import pytest

from ..kernels.products import FORMATS, random_rows, random_weights
from .rows import same_bits
from .test_products import by_law, of_any_inputs

# Some of a group's rows, all, and of a second group; tiles that do not fill a group, and more.
ROWS, OUTPUTS = [25, 64, 128, 130], (20, 70)
BLOCKS = [name for name in FORMATS if not FORMATS[name]["float_inputs"]]


@pytest.mark.parametrize("name", BLOCKS)
def test_many_rows_have_the_bits_of_the_scalar_table(
    ops: pyflow_testing.DeviceOps, name: str
) -> None:
    assert f"name##_{name}_units" in ops.source
    rng = np.random.default_rng(31)
    for outputs in OUTPUTS:
        cols = 3 * max(FORMATS[name]["block"], 64)
        w = pyflow_testing.PackedTensor(
            name, random_weights(rng, name, outputs, cols), outputs, cols
        )
        x = random_rows(rng, ROWS[-1], cols)
        expected = of_any_inputs(name, w, x)
        for n in ROWS:
            assert same_bits(ops.product(w, x[:n].copy()), expected[:n]), (outputs, n)


def test_units_that_differ_are_found_and_left_out(device: int) -> None:
    rng = np.random.default_rng(32)
    wrong = [("as_float(dot[e]) - MAGIC", "as_float(dot[e] + (lane == 5)) - MAGIC")]
    ops = pyflow_testing.DeviceOps(device, ["Q4_K"], wrong)
    w = pyflow_testing.PackedTensor("Q4_K", random_weights(rng, "Q4_K", 20, 256), 20, 256)
    x = random_rows(rng, 40, 256)
    assert not same_bits(ops.product(w, x), by_law(w, x))
    assert "product with Q4_K, number 65: expected" in ops.units_fault()
    assert ops.first_fault() == ""
    assert same_bits(ops.product(w, x), by_law(w, x))
