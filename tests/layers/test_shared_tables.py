"""Tables that are made once and shared by threads: another thread may store a shorter one at any moment.

The twins of a model have one dictionary of tables; `numtrans.reductions` and the causal masks have one for the process.
"""

import numpy as np
import pytest
from helpers import normal

from numtrans import reductions
from numtrans.layers import RotaryPositionalEncoding, SinusoidalPositionalEncoding, masks


class Overtaken(dict):
    """Right after each write another thread writes, which needed less: the first half of each array."""

    def __setitem__(self, key, value):
        arrays = value if isinstance(value, tuple) else (value,)
        shorter = tuple(array[: len(array) // 2] for array in arrays)
        super().__setitem__(key, shorter if isinstance(value, tuple) else shorter[0])


@pytest.mark.parametrize("make", [SinusoidalPositionalEncoding, RotaryPositionalEncoding])
@pytest.mark.parametrize("offset", [0, np.array([6, 0, 2, 3, 3, 1, 8])])
def test_positions(make, offset):
    x, dy = normal(1, 2, 7, 4), normal(1, 2, 7, 4, seed=1)
    plain, module = make(4, max_len=9), make(4, max_len=9)
    module._tables = Overtaken()
    for _ in range(2):
        np.testing.assert_array_equal(module(x, offset), plain(x, offset))
        np.testing.assert_array_equal(module.backward(dy), plain.backward(dy))
    ((stored, *_),) = [value if isinstance(value, tuple) else (value,) for value in module._tables.values()]
    assert len(stored) < 7


def test_ones(monkeypatch):
    cache = Overtaken()
    monkeypatch.setattr(reductions, "_ones", cache)
    x = normal(7, 5)
    np.testing.assert_allclose(reductions.sum_rows(x), x.sum(axis=0), rtol=1e-13)
    np.testing.assert_allclose(reductions.sum_last(x)[:, 0], x.sum(axis=1), rtol=1e-13)
    (stored,) = cache.values()
    assert len(stored) < 5

def test_triangle_of_causal_bias(monkeypatch):
    monkeypatch.setattr(masks, "_triangles", Overtaken())
    for Tq, Tk in [(5, 5), (3, 5), (5, 3)]:
        seen = masks.causal_bias(np, Tq, Tk, np.float32) == 0
        np.testing.assert_array_equal(seen, masks.causal_mask(Tq, Tk))
