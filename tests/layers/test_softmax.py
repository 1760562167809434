"""Softmax and log-softmax."""

import numpy as np
import pytest
from helpers import check_gradients, normal

from numtrans.layers import LogSoftmax, Softmax

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("make", [Softmax, LogSoftmax])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_gradients(make, axis):
    check_gradients(make(axis), normal(2, 3, 4) * 3)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_values(axis):
    s = normal(2, 3, 4)
    expected = np.exp(s) / np.exp(s).sum(axis, keepdims=True)
    np.testing.assert_allclose(Softmax(axis)(s), expected, rtol=1e-13)
    np.testing.assert_allclose(LogSoftmax(axis)(s), np.log(expected), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e4, 1e30, -1e30])
def test_extreme_scores(dtype, size):
    s = np.array([[size, 0.0, size], [size, size, size]], dtype)
    p = Softmax()(s)
    expected = [[0.5, 0, 0.5] if size > 0 else [0, 1, 0], [1 / 3] * 3]
    np.testing.assert_allclose(p, expected, rtol=1e-6)
    y = LogSoftmax()(s)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y[1], np.log(1 / 3), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_minus_infinity(dtype):
    inf = np.inf
    s = np.array([[-inf, 0, 0], [-inf, -inf, -inf], [-inf, -1e4, -inf]], dtype)
    softmax = Softmax()
    np.testing.assert_allclose(softmax(s), [[0, 0.5, 0.5], [0, 0, 0], [0, 1, 0]])
    ds = softmax.backward(np.array([[5, 1, 2], [1, 2, 3], [1, 2, 3]], dtype))
    np.testing.assert_allclose(ds, [[0, -0.25, 0.25], [0, 0, 0], [0, 0, 0]])


def test_shift_changes_nothing():
    s, dp = normal(3, 5), normal(3, 5, seed=1)
    for make in (Softmax, LogSoftmax):
        layer = make()
        np.testing.assert_allclose(layer(s + 37), layer(s), rtol=1e-12)
        ds = layer.backward(dp)
        assert np.abs(ds.sum(-1)).max() < 1e-14
    p = Softmax()(s)
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-14)


def test_input_is_left_alone():
    s = normal(3, 4)
    before = s.copy()
    Softmax()(s)
    Softmax(0)(s)
    assert (s == before).all()
