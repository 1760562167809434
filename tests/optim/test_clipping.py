"""Clipping by the global norm."""

import numpy as np
import pytest

from numtrans.errors import ConfigError
from numtrans.module import Parameter
from numtrans.optim import NonFiniteError, clip_grad_norm


def with_grad(*values, dtype=np.float64):
    parameter = Parameter(np.zeros(len(values), dtype), "w")
    parameter.grad = np.array(values, dtype)
    return parameter


def test_one_factor_for_all():
    a, b = with_grad(3.0), with_grad(0.0, 4.0)
    assert clip_grad_norm([a, b, Parameter(np.ones(2))], 2.5) == 5.0
    np.testing.assert_allclose(a.grad, [1.5], rtol=1e-6)
    np.testing.assert_allclose(b.grad, [0, 2.0], rtol=1e-6)


@pytest.mark.parametrize("max_norm", [5.1, np.inf])
def test_never_scales_up(max_norm):
    a = with_grad(3.0, 4.0)
    assert clip_grad_norm([a], max_norm) == 5.0
    np.testing.assert_array_equal(a.grad, [3.0, 4.0])


def test_tied_counts_once_and_nothing_is_zero():
    a = with_grad(3.0)
    assert clip_grad_norm([a, a], 10) == 3.0
    assert clip_grad_norm([Parameter(np.ones(1))], 1.0) == 0.0


def test_float32_whose_squares_overflow():
    a = with_grad(3e25, 4e25, dtype=np.float32)
    with np.errstate(over="ignore"):
        assert clip_grad_norm([a], 1.0) == pytest.approx(5e25, rel=1e-6)
    np.testing.assert_allclose(a.grad, [0.6, 0.8], rtol=1e-6)
    assert a.grad.dtype == np.float32


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(bad):
    a, b = with_grad(1.0), with_grad(2.0, bad)
    b.name = "decoder.W"
    with pytest.raises(NonFiniteError, match=r"not finite in: \['decoder.W'\]"):
        clip_grad_norm([a, b], 1.0)
    assert a.grad[0] == 1.0


@pytest.mark.parametrize("max_norm", [0, -1, np.nan])
def test_refuses(max_norm):
    with pytest.raises(ConfigError, match="max_norm"):
        clip_grad_norm([with_grad(1.0)], max_norm)
