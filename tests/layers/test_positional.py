"""Absolute positions: sinusoids and learned rows."""

import math

import numpy as np
import pytest
from helpers import assert_same_gradient, central

import numtrans.module
from numtrans.errors import BackwardError, ConfigError, DtypeError, IndexRangeError, ShapeError
from numtrans.layers.positional import LearnedPositionalEncoding, SinusoidalPositionalEncoding


def learned(d_model, max_len, seed=0):
    layer = LearnedPositionalEncoding(d_model, max_len, rng=np.random.default_rng(seed)).astype(np.float64)
    layer.W.data = np.random.default_rng(seed + 1).normal(size=(max_len, d_model))
    return layer


# ---- sinusoids


@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
def test_table_against_the_formula_entry_by_entry(d_model):
    table = SinusoidalPositionalEncoding(d_model).table(40)
    for p in range(40):
        for c in range(d_model):
            angle = p / 10000 ** ((c - c % 2) / d_model)
            assert table[p, c] == pytest.approx(math.cos(angle) if c % 2 else math.sin(angle), abs=1e-12)


def test_a_shift_is_a_rotation_whatever_the_position():
    D, shift = 6, 4
    pe = SinusoidalPositionalEncoding(D).table(60)
    R = np.zeros((D, D))
    for i in range(D // 2):
        a = shift * 10000 ** (-2 * i / D)
        R[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]
    np.testing.assert_allclose(pe[:-shift] @ R.T, pe[shift:], atol=1e-13)
    products = (pe[:-shift] * pe[shift:]).sum(-1)
    np.testing.assert_allclose(products, products[0], atol=1e-13)


@pytest.mark.parametrize("d_model", [4, 5])
def test_sinusoidal_adds_the_rows_and_passes_the_gradient(d_model):
    layer = SinusoidalPositionalEncoding(d_model)
    rng = np.random.default_rng(1)
    x, R = rng.normal(size=(2, 3, d_model)), rng.normal(size=(2, 3, d_model))
    before = x.copy()
    y = layer(x, offset=7)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(y - x, np.broadcast_to(layer.table(10)[7:], x.shape), atol=1e-15)
    dx = layer.backward(R)
    layer_again = SinusoidalPositionalEncoding(d_model)
    assert_same_gradient(dx, central(lambda: layer_again(x, offset=7), x, R))


def test_sinusoidal_grows_and_stays_the_same():
    small, large = SinusoidalPositionalEncoding(6, max_len=4), SinusoidalPositionalEncoding(6, max_len=100)
    x = np.zeros((1, 1, 6))
    for t in range(30):
        np.testing.assert_array_equal(small(x, offset=t), large(x, offset=t))
    np.testing.assert_array_equal(small(np.zeros((1, 90, 6))), large(np.zeros((1, 90, 6))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_sinusoidal_keeps_the_dtype(dtype):
    layer = SinusoidalPositionalEncoding(5)
    y = layer(np.zeros((1, 300, 5), dtype))
    assert y.dtype == dtype
    # far angles are taken in float64: the float32 table is the rounded float64 one
    np.testing.assert_array_equal(y[0], layer.table(300).astype(dtype))


def test_one_sinusoidal_module_in_two_dtypes():
    layer = SinusoidalPositionalEncoding(4)
    layer(np.zeros((1, 9, 4), np.float32))
    np.testing.assert_array_equal(layer(np.zeros((1, 9, 4)))[0], layer.table(9))


def test_sinusoidal_has_nothing_learned():
    layer = SinusoidalPositionalEncoding(4)
    layer(np.zeros((1, 2, 4), np.float32))
    assert layer.parameters() == []
    assert layer.state_dict() == {}


# ---- learned


def test_learned_gradients():
    layer = learned(3, 6)
    rng = np.random.default_rng(2)
    x, R = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 3))
    np.testing.assert_array_equal(layer(x, offset=1), x + layer.W.data[1:5])
    dx = layer.backward(R)
    with numtrans.module.no_grad():
        assert_same_gradient(dx, central(lambda: layer(x, offset=1), x, R))
        assert_same_gradient(layer.W.grad, central(lambda: layer(x, offset=1), layer.W.data, R))
    assert not layer.W.grad[[0, 5]].any()


def test_learned_used_twice_accumulates_in_reverse_order():
    layer = learned(3, 5)
    rng = np.random.default_rng(3)
    x1, x2 = rng.normal(size=(2, 4, 3)), rng.normal(size=(3, 2, 3))
    R1, R2 = rng.normal(size=x1.shape), rng.normal(size=x2.shape)
    layer(x1)
    layer(x2, offset=3)
    layer.backward(R2)
    first = layer.W.grad.copy()
    layer.backward(R1)
    expected = np.zeros((5, 3))
    expected[3:] = R2.sum(0)
    np.testing.assert_allclose(first, expected, atol=1e-14)
    expected[:4] += R1.sum(0)
    np.testing.assert_allclose(layer.W.grad, expected, atol=1e-14)
    assert layer.pending == 0


def test_learned_start_values():
    W = LearnedPositionalEncoding(50, 200, rng=np.random.default_rng(0)).W
    assert W.data.dtype == np.float32
    assert W.data.std() == pytest.approx(0.02, rel=0.03)
    again = LearnedPositionalEncoding(50, 200, rng=np.random.default_rng(0)).W
    np.testing.assert_array_equal(W.data, again.data)


def test_learned_float32_stays_float32():
    layer = LearnedPositionalEncoding(4, 6)
    assert layer(np.ones((2, 3, 4), np.float32)).dtype == np.float32
    layer.backward(np.ones((2, 3, 4), np.float32))
    assert layer.W.grad.dtype == np.float32


# ---- what a user may get wrong


@pytest.mark.parametrize("make", [SinusoidalPositionalEncoding, LearnedPositionalEncoding])
def test_bad_input_is_refused_by_name(make):
    layer = make(4, 6).astype(np.float32)
    name = make.__name__
    with pytest.raises(ShapeError, match=f"{name}.*last axis 3, expected d_model=4"):
        layer(np.zeros((1, 2, 3), np.float32))
    with pytest.raises(ShapeError, match=f"{name}.*expected"):
        layer(np.zeros(4, np.float32))
    with pytest.raises(DtypeError, match=f"{name}.*int64"):
        layer(np.zeros((1, 2, 4), np.int64))
    with pytest.raises(IndexRangeError, match=f"{name}.*-1"):
        layer(np.zeros((1, 2, 4), np.float32), offset=-1)
    with pytest.raises(DtypeError, match=f"{name}.*offset"):
        layer(np.zeros((1, 2, 4), np.float32), offset=1.0)
    with pytest.raises(BackwardError, match=name):
        layer.backward(np.zeros((1, 2, 4), np.float32))
    layer(np.zeros((1, 2, 4), np.float32))
    with pytest.raises(ShapeError, match=f"{name}.*dy"):
        layer.backward(np.zeros((2, 4), np.float32))
    with pytest.raises(ConfigError, match=f"{name}.*d_model"):
        make(0, 6)
    with pytest.raises(ConfigError, match=f"{name}.*max_len"):
        make(4, 2.5)


def test_learned_refuses_another_dtype():
    with pytest.raises(DtypeError, match=r"LearnedPositionalEncoding.*float64, expected float32"):
        LearnedPositionalEncoding(4, 6)(np.zeros((1, 2, 4)))
