"""Dropout: its statistics, its generator, its modes."""

import numpy as np
import pytest
from helpers import check_gradients, normal

from numtrans.errors import ConfigError
from numtrans.layers import Dropout
from numtrans.layers.dropout_mask import keep_mask

N = 1_000_000


def agree(a, b):
    """Share of places where two masks agree, in standard deviations away from that of independent masks."""
    p = a.mean()
    q = b.mean()
    expected = p * q + (1 - p) * (1 - q)
    return (np.mean(a == b) - expected) / (expected * (1 - expected) / a.size) ** 0.5


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_share_and_mean(p):
    layer = Dropout(p, rng=np.random.default_rng(0))
    y = layer(np.ones(N, np.float32))
    kept = np.count_nonzero(y)
    assert abs(kept - (1 - p) * N) < 5 * (p * (1 - p) * N) ** 0.5
    assert y.mean(dtype=np.float64) == pytest.approx(1, abs=5 * (p / (1 - p) / N) ** 0.5)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / (1 - p))}


@pytest.mark.parametrize("lag", [1, 2, 3, 64, 128, 512, 1000, 4096])
def test_neighbors_are_independent(lag):
    keep = keep_mask(np, (N,), 0.5, 12345, 1)
    assert abs(agree(keep[lag:], keep[:-lag])) < 5


@pytest.mark.parametrize("other", [(12345, 2), (12346, 1), (1, 12345), (12345 + (1 << 31), 1), (12344, 2)])
def test_masks_of_other_calls_and_layers_are_independent(other):
    a, b = keep_mask(np, (N,), 0.3, 12345, 1), keep_mask(np, (N,), 0.3, *other)
    assert abs(agree(a, b)) < 5
    assert abs(agree(a[1:], b[:-1])) < 5


def test_every_call_and_layer_has_its_own_mask():
    rng = np.random.default_rng(0)
    x, layers = np.ones(64), [Dropout(0.5, rng=rng) for _ in range(4)]
    masks = {layer(x).tobytes() for layer in layers for _ in range(4)}
    assert len(masks) == 16
    assert Dropout(0.5).key != Dropout(0.5).key


def test_counter_draws_again():
    layer, x = Dropout(0.5), np.ones((3, 50))
    first, second = layer(x), layer(x)
    assert layer.counter == 2
    layer.load_random_state({"": 0})
    assert (layer(x) == first).all()
    assert (layer(x) == second).all()
    assert (first != second).any()


def test_mask_depends_on_place_not_on_shape():
    assert (keep_mask(np, (6, 10), 0.5, 1, 1).ravel() == keep_mask(np, (60,), 0.5, 1, 1)).all()


def test_gradients():
    check_gradients(Dropout(0.4, rng=np.random.default_rng(1)), normal(3, 4, 5))


def test_backwards_of_two_calls_in_reverse_order():
    layer, x = Dropout(0.5), np.ones(100)
    first, second = layer(x), layer(x)
    assert (layer.backward(x) == second).all()
    assert (layer.backward(x) == first).all()


@pytest.mark.parametrize(("p", "training"), [(0.5, False), (0, True)])
def test_identity(p, training):
    layer, x = Dropout(p).train(training), normal(4, 4)
    assert (layer(x) == x).all()
    assert (layer.backward(x) == x).all()
    assert layer.counter == 0


def test_backward_of_a_training_forward_after_eval():
    layer, x = Dropout(0.5), np.ones(100)
    y = layer(x)
    layer.eval()
    assert (layer.backward(x) == y).all()


@pytest.mark.parametrize("p", [-0.1, 1, 1.5, float("nan")])
def test_wrong_p(p):
    with pytest.raises(ConfigError, match=r"Dropout: p is .*, expected 0 <= p < 1"):
        Dropout(p)
