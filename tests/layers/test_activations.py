"""Activations against the standard library's erf, exp and tanh, and against central differences."""

import math

import numpy as np
import pytest
import scipy.special
from helpers import check_gradients, normal

from numtrans.cache_blocks import BLOCK
from numtrans.errors import ConfigError
from numtrans.layers.activations import ACTIVATIONS, GELU, erf_float32, make_activation

FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "identity": lambda x: x,
}
GRID = np.array([-20.0, -3.3, -1.0, -0.1, 0.0, 0.2, 0.7519, 1.0, 4.0, 20.0])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_gradients(name):
    layer = make_activation(name)
    np.testing.assert_allclose(layer(GRID), [FORMULAS[name](float(x)) for x in GRID], rtol=1e-13, atol=1e-13)
    layer.clear()
    check_gradients(make_activation(name), normal(3, 4, 5) * 2)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.filterwarnings("error")
def test_far_out(name):
    x = np.array([-1e4, -200.0, 200.0, 1e4], np.float32)
    layer = make_activation(name)
    y = layer(x)
    dx = layer.backward(np.ones_like(x))
    limits = {"sigmoid": ([0, 0, 1, 1], [0] * 4), "tanh": ([-1, -1, 1, 1], [0] * 4), "identity": (x, [1] * 4)}
    expected, slope = limits.get(name, ([0, 0, 200, 1e4], [0, 0, 1, 1]))
    np.testing.assert_allclose(y, expected, atol=1e-6)
    np.testing.assert_allclose(dx, slope, atol=1e-6)


def test_relu_has_slope_0_at_0():
    layer = make_activation("relu")
    layer(np.array([-0.0, 0.0, 1e-300]))
    np.testing.assert_array_equal(layer.backward(np.ones(3)), [0, 0, 1])


def test_names():
    with pytest.raises(ConfigError, match=r"unknown activation 'swish', expected one of relu, gelu"):
        make_activation("swish")
    with pytest.raises(ConfigError, match=r"approximate is 'erf', expected 'none' or 'tanh'"):
        GELU("erf")


def test_erf_float32_is_erf():
    x = np.linspace(-6, 6, 100_001, dtype=np.float32)
    np.testing.assert_allclose(erf_float32(x), scipy.special.erf(x.astype(np.float64)), rtol=4e-7, atol=0)
    np.testing.assert_allclose(erf_float32(np.float32([-np.inf, 0, 100])), [-1, 0, 1], rtol=4e-7, atol=0)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_a_large_array_is_that_of_its_parts(approximate):
    x = normal(3, BLOCK // 2, 2).astype(np.float32)[::-1, ::-1]  # more than one piece, and not laid out row by row
    layer = GELU(approximate)
    y = layer(x)
    dx = layer.backward(np.ones_like(x))
    part = x[1, 5:30]
    np.testing.assert_array_equal(layer(part), y[1, 5:30])
    np.testing.assert_array_equal(layer.backward(np.ones_like(part)), dx[1, 5:30])
