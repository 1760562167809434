"""Pieces of arrays cover them, and what is written into a piece is in the array."""

import numpy as np
import pytest

from numtrans.cache_blocks import BLOCK, in_blocks


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (BLOCK,), (3, BLOCK - 1), (2, BLOCK)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_all_values_are_met_once(shape, order):
    read = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape).T
    written = np.zeros(read.shape, np.float32, order=order)
    for out, x in in_blocks((written,), (read,)):
        out += x + 1
    np.testing.assert_array_equal(written, read + 1)


def test_an_array_without_axes_is_one_row():
    """NumPy returns a number, not an array, for a formula of arrays without axes: it cannot be written into."""
    written, read = np.zeros(()), np.array(2.0)
    for out, x in in_blocks((written,), (read,)):
        assert out.shape == x.shape == (1,)
        out += x
    assert written == 2


def test_pieces_are_small():
    sizes = [out.size for (out,) in in_blocks((np.zeros((5, BLOCK // 2)),))]
    assert sizes == [BLOCK, BLOCK, BLOCK // 2]
