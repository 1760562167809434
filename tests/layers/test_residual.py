"""Residual connections against the equations written out."""

import numpy as np
import pytest
from helpers import assert_same_gradient, check_gradients, generic, normal

from numtrans.errors import ConfigError
from numtrans.layers import Dropout, FeedForward, LayerNorm, MultiHeadAttention, Residual, RMSNorm


def parts():
    return generic(FeedForward(4, 6, "gelu"), 1), generic(LayerNorm(4), 2)


def test_pre_norm_by_hand():
    f, norm = parts()
    layer, (f2, norm2) = Residual(f, norm, "pre"), parts()
    x, dy = normal(2, 3, 4), normal(2, 3, 4, seed=1)
    np.testing.assert_allclose(layer(x), x + f2(norm2(x)), rtol=1e-14)
    assert_same_gradient(layer.backward(dy), dy + norm2.backward(f2.backward(dy)))


def test_post_norm_by_hand():
    f, norm = parts()
    layer, (f2, norm2) = Residual(f, norm, "post"), parts()
    x, dy = normal(2, 3, 4), normal(2, 3, 4, seed=1)
    np.testing.assert_allclose(layer(x), norm2(x + f2(x)), rtol=1e-14)
    dsum = norm2.backward(dy)
    assert_same_gradient(layer.backward(dy), dsum + f2.backward(dsum))


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients(placement, dropout):
    f = generic(FeedForward(4, 5, "tanh"))
    layer = Residual(f, generic(RMSNorm(4)), placement, dropout=dropout, rng=np.random.default_rng(0))
    check_gradients(layer, normal(2, 3, 4))


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_further_inputs_are_passed_on_raw(placement):
    layer = Residual(generic(MultiHeadAttention(4, 2)), generic(LayerNorm(4)), placement)
    x, memory = normal(2, 3, 4), normal(2, 2, 4, seed=1)
    mask = np.array([[[[True, False]]], [[[True, True]]]])
    dx, dmemory = check_gradients(layer, x, memory, mask=mask)
    assert dx.shape == x.shape
    assert (dmemory[0, 1] == 0).all()
    h = layer.norm(x) if placement == "pre" else x  # the norm sees x only
    inner = x + layer.sublayer(h, memory, mask=mask)
    expected = inner if placement == "pre" else layer.norm(inner)
    np.testing.assert_allclose(layer(x, memory, mask=mask), expected, rtol=1e-14)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_dropout_falls_on_the_sublayer_not_on_the_skip_path(placement):
    f, norm = parts()
    layer = Residual(f, norm, placement, dropout=0.5)
    x = normal(1, 100, 4)
    y = layer(x)
    inner = Dropout(0.5)
    inner.key = layer.dropout.key
    expected = x + inner(f(norm(x))) if placement == "pre" else norm(x + inner(f(x)))
    np.testing.assert_allclose(y, expected, rtol=1e-14)
    assert inner.counter == 1


def test_unknown_placement():
    with pytest.raises(ConfigError, match="placement is 'middle', expected 'pre' or 'post'"):
        Residual(*parts(), "middle")
