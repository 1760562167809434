"""LayerNorm, RMSNorm and BatchNorm."""

import numpy as np
import pytest
from helpers import assert_same_gradient, check_gradients, generic, normal

from numtrans.errors import ConfigError, ShapeError
from numtrans.layers import BatchNorm, LayerNorm, RMSNorm
from numtrans.layers.normalization import make_norm

MASK = np.array([[True, True, False], [True, False, True]])


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
@pytest.mark.parametrize("make", [LayerNorm, lambda d: LayerNorm(d, bias=False), RMSNorm, BatchNorm])
def test_gradients(make, shape):
    layer = generic(make(5))
    if isinstance(layer, BatchNorm) and len(shape) == 1:
        layer.eval()
    check_gradients(layer, normal(*shape) * 2 + 1)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", [None, MASK])
def test_batch_norm_gradients(training, mask):
    layer = generic(BatchNorm(4)).train(training)
    layer.running_mean, layer.running_var = normal(4), normal(4, seed=1) ** 2 + 0.5
    check_gradients(layer, normal(2, 3, 4), mask=mask)


def test_layer_norm_gradient_has_no_mean_and_nothing_along_xhat():
    layer, x = generic(LayerNorm(16, eps=0.0)), normal(3, 4, 16) + 2
    xhat = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    np.testing.assert_allclose(layer(x), layer.gamma.data * xhat + layer.beta.data, rtol=1e-12, atol=1e-12)
    dx = layer.backward(normal(3, 4, 16, seed=1))
    assert np.abs(dx.sum(-1)).max() < 1e-13
    assert np.abs((dx * xhat).sum(-1)).max() < 1e-13
    assert np.abs(dx).max() > 0.1


def test_rms_norm_gradient_is_orthogonal_to_x():
    layer, x = generic(RMSNorm(16, eps=0.0)), normal(3, 4, 16) + 2
    rms = np.sqrt((x * x).mean(-1, keepdims=True))
    np.testing.assert_allclose(layer(x), layer.gamma.data * x / rms, rtol=1e-13)
    dx = layer.backward(normal(3, 4, 16, seed=1))
    assert np.abs((dx * x).sum(-1)).max() < 1e-12
    assert np.abs(dx.sum(-1)).max() > 0.1


@pytest.mark.parametrize(("make", "shift"), [(LayerNorm, 3.0), (RMSNorm, 0.0)])
def test_scale_and_shift_do_not_matter(make, shift):
    layer, x = generic(make(8, eps=0.0)), normal(2, 8)
    np.testing.assert_allclose(layer(5 * x + shift), layer(x), rtol=1e-12)


@pytest.mark.parametrize("make", [LayerNorm, RMSNorm])
def test_a_constant_or_zero_row_is_finite(make):
    layer = make(4)
    y = layer(np.zeros((2, 4), np.float32))
    dx = layer.backward(normal(2, 4, dtype=np.float32))
    assert (y == 0).all()
    assert np.isfinite(dx).all()


def test_float32_row_with_a_large_mean():
    x = (1e4 + normal(4, 64)).astype(np.float32)
    exact = x.astype(np.float64)
    expected = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(LayerNorm(64)(x), expected, atol=2e-2)  # mean of squares less square of mean: no digit


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_leaves_masked_tokens_out(training):
    masked, plain = (generic(BatchNorm(4)).train(training) for _ in range(2))
    x, dy = normal(2, 3, 4), normal(2, 3, 4, seed=1)
    real = x.copy()
    x[~MASK] = 1e6
    y, expected = masked(x, MASK), plain(real[MASK])
    np.testing.assert_allclose(y[MASK], expected, rtol=1e-13)
    assert (y[~MASK] == 0).all()
    dx, expected = masked.backward(dy), plain.backward(dy[MASK])
    np.testing.assert_allclose(dx[MASK], expected, rtol=1e-12, atol=1e-13)
    assert (dx[~MASK] == 0).all()
    for name in ("gamma", "beta"):
        np.testing.assert_allclose(getattr(masked, name).grad, getattr(plain, name).grad, rtol=1e-12)
    np.testing.assert_allclose(masked.running_mean, plain.running_mean, rtol=1e-13)
    np.testing.assert_allclose(masked.running_var, plain.running_var, rtol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.1, 1.0])
def test_running_statistics(momentum):
    layer, mean, var = generic(BatchNorm(3, momentum=momentum)), np.zeros(3), np.ones(3)
    for seed in range(3):
        x = normal(2, 4, 3, seed=seed) * 3 + 1
        y = layer(x)
        flat = x.reshape(-1, 3)
        mean = (1 - momentum) * mean + momentum * flat.mean(0)
        var = (1 - momentum) * var + momentum * flat.var(0, ddof=1)
        xhat = (flat - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5)
        np.testing.assert_allclose(y.reshape(-1, 3), layer.gamma.data * xhat + layer.beta.data, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(layer.running_mean, mean, rtol=1e-13)
        np.testing.assert_allclose(layer.running_var, var, rtol=1e-13)
    layer.eval()
    y = layer(x)
    xhat = (x - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(y, layer.gamma.data * xhat + layer.beta.data, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(layer.running_mean, mean, rtol=1e-13)  # evaluation moves nothing
    assert_same_gradient(layer.backward(x), x * layer.gamma.data / np.sqrt(var + 1e-5))
    assert layer(x[:1, :1]).shape == (1, 1, 3)  # one token is enough in evaluation


def test_running_statistics_are_state():
    layer = BatchNorm(3)
    layer(normal(4, 3, dtype=np.float32))
    state = layer.state_dict()
    assert set(state) == {"gamma", "beta", "running_mean", "running_var"}
    other = BatchNorm(3)
    other.load_state_dict(state)
    x = normal(2, 3, dtype=np.float32)
    assert (other.eval()(x) == layer.eval()(x)).all()
    assert layer.num_parameters() == 6


def test_batch_norm_refuses():
    layer = BatchNorm(3)
    with pytest.raises(ShapeError, match=r"BatchNorm: mask has shape \(3, 2\), expected \(2, 3\)"):
        layer(np.zeros((2, 3, 3), np.float32), np.ones((3, 2), bool))
    with pytest.raises(ShapeError, match=r"0 token\(s\) to take statistics over"):
        layer(np.zeros((2, 3, 3), np.float32), np.zeros((2, 3), bool))
    with pytest.raises(ConfigError, match=r"momentum is 1\.5"):
        BatchNorm(3, momentum=1.5)
    with pytest.raises(ConfigError, match="unknown norm 'batch', expected one of layer, rms"):
        make_norm("batch", 3)


def test_batch_norm_leaves_out_a_masked_nan():
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    mask = np.array([[True, True, False], [True, True, True]])
    hidden = x.copy()
    hidden[0, 2] = np.nan
    assert (BatchNorm(4)(hidden, mask=mask) == BatchNorm(4)(x, mask=mask)).all()
