"""Activations against the standard library's erf, exp and tanh, and against central differences."""

import math

import numpy as np
import pytest
import scipy.special
from helpers import check_gradients, normal

from numtrans.cache_blocks import BLOCK
from numtrans.errors import ConfigError, DtypeError
from numtrans.gradcheck import gradcheck
from numtrans.layers.activations import ACTIVATIONS, GELU, make_activation
from numtrans.layers.error_function import erf_float32

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


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.filterwarnings("error")
def test_far_out(name, dtype):
    """However large x is, the limits: 0 below and x above, with slopes 0 and 1, and no warning."""
    far = np.geomspace(50, float(np.finfo(dtype).max) / 2, 200).astype(dtype)
    zero, one = np.zeros_like(far), np.ones_like(far)
    limits = {"sigmoid": (zero, one, zero), "tanh": (-one, one, zero), "identity": (-far, far, one)}
    below, above, slope_above = limits.get(name, (zero, far, one))
    slope_below = one if name == "identity" else zero
    rtol = float(np.finfo(dtype).eps)
    for x, y, dx in ((-far, below, slope_below), (far, above, slope_above)):
        layer = make_activation(name)
        np.testing.assert_allclose(layer(x), y, rtol=rtol, atol=1e-15)
        np.testing.assert_allclose(layer.backward(one), dx, rtol=rtol, atol=1e-15)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.filterwarnings("error")
def test_float32_everywhere_is_the_formula(name):
    """No step where one way to compute ends and the next begins."""
    x = np.linspace(-120, 120, 60_001, dtype=np.float32)
    single, double = make_activation(name), make_activation(name)
    np.testing.assert_allclose(single(x), double(x.astype(np.float64)), rtol=5e-7, atol=3e-6)
    one = np.ones_like(x)
    np.testing.assert_allclose(single.backward(one), double.backward(one.astype(np.float64)), rtol=5e-7, atol=3e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_complex_step(name):
    assert gradcheck(make_activation(name), normal(3, 4) * 5, method="complex")


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu_tanh"])
@pytest.mark.filterwarnings("error")
def test_complex_step_far_out(name, dtype):
    """The limits hold for the imaginary part, which carries the derivative, as well."""
    for x, y, slope in ((-1e30, 0, 0), (1e30, 1 if name == "sigmoid" else 1e30, name != "sigmoid")):
        found = make_activation(name)(np.array([x + 1e-3j], dtype))
        np.testing.assert_allclose(found, [complex(y, 1e-3 * slope)], rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "gelu"])
def test_longdouble(name):
    single, double = make_activation(name), make_activation(name)
    x = GRID.astype(np.longdouble)
    y, dx = single(x), single.backward(np.ones_like(x))
    assert y.dtype == dx.dtype == np.longdouble
    np.testing.assert_allclose(y, double(GRID), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(dx, double.backward(np.ones_like(GRID)), rtol=1e-13, atol=1e-13)


def test_exact_gelu_refuses_longdouble():
    with pytest.raises(DtypeError, match=r"erf, of GELU: input has dtype (longdouble|float128), expected float16"):
        GELU()(GRID.astype(np.longdouble))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_array_without_axes(name, dtype):
    layer = make_activation(name)
    x = np.array(0.7, dtype)
    y, dx = layer(x), layer.backward(np.array(2, dtype))
    assert y.shape == dx.shape == ()
    assert y.dtype == dx.dtype == dtype
    np.testing.assert_allclose(y, FORMULAS[name](0.7), rtol=1e-6)
    slope = (FORMULAS[name](0.7 + 1e-6) - FORMULAS[name](0.7 - 1e-6)) / 2e-6
    np.testing.assert_allclose(dx, 2 * slope, rtol=1e-6)


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
