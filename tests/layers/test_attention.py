"""Scaled dot-product attention."""

import numpy as np
import pytest
from helpers import assert_same_gradient, check_gradients, normal

from numtrans.errors import ConfigError
from numtrans.layers import ALiBi, ScaledDotProductAttention, ShawRelativePosition, T5RelativeBias, causal_mask

pytestmark = pytest.mark.filterwarnings("error")
SIZES = [(3, 3), (2, 4), (4, 2)]


def qkv(Tq, Tk, B=2, H=2, d=3, dv=5, dtype=np.float64):
    return normal(B, H, Tq, d, dtype=dtype), normal(B, H, Tk, d, seed=1, dtype=dtype), normal(
        B, H, Tk, dv, seed=2, dtype=dtype
    )


def by_hand(q, k, v, mask=None, scale=None):
    """Query by query."""
    out, scale = np.zeros((*q.shape[:-1], v.shape[-1])), q.shape[-1] ** -0.5 if scale is None else scale
    mask = np.broadcast_to(True if mask is None else mask, (*q.shape[:-1], k.shape[-2]))
    for b, h, i in np.ndindex(q.shape[:3]):
        keys = np.flatnonzero(mask[b, h, i])
        if keys.size:
            e = np.exp([scale * q[b, h, i] @ k[b, h, j] for j in keys])
            out[b, h, i] = e / e.sum() @ v[b, h, keys]
    return out


@pytest.mark.parametrize(("Tq", "Tk"), SIZES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_values(Tq, Tk, causal, scale):
    q, k, v = qkv(Tq, Tk)
    mask = np.random.default_rng(3).random((2, 1, Tq, Tk)) < 0.6
    both = mask & causal_mask(Tq, Tk) if causal else mask
    layer = ScaledDotProductAttention(causal=causal, scale=scale)
    np.testing.assert_allclose(layer(q, k, v, mask), by_hand(q, k, v, both, scale), rtol=1e-12, atol=1e-13)
    plain = by_hand(q, k, v, causal_mask(Tq, Tk) if causal else None, scale)
    np.testing.assert_allclose(layer(q, k, v), plain, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("Tq", "Tk"), SIZES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients(Tq, Tk, causal, dropout):
    layer = ScaledDotProductAttention(dropout, causal, rng=np.random.default_rng(0))
    mask = np.random.default_rng(3).random((2, 1, Tq, Tk)) < 0.7
    mask[0, 0, 0] = False  # a query with no key
    check_gradients(layer, *qkv(Tq, Tk, d=2, dv=3), mask=mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", [
    lambda: ShawRelativePosition(3, 2), lambda: ShawRelativePosition(3, 1, use_values=False),
    lambda: T5RelativeBias(2, 4, max_distance=6, bidirectional=False), lambda: ALiBi(2),
])  # fmt: skip
def test_gradients_with_relative_positions(make, causal):
    layer = ScaledDotProductAttention(causal=causal, position=make()).astype(np.float64)
    for p in layer.parameters():
        p.data = normal(*p.data.shape, seed=5)
    check_gradients(layer, *qkv(2, 3, B=2, d=3, dv=3))


def test_one_gradient_for_each_array_given():
    q, k, _ = qkv(3, 3, dv=3)
    layer, dy = ScaledDotProductAttention(), normal(2, 2, 3, 3, seed=4)
    layer(q, q, q)
    dq, dk, dv = layer.backward(dy)
    layer(q)
    np.testing.assert_allclose(layer.backward(dy), dq + dk + dv, rtol=1e-13)
    layer(q, k, k)
    dq, dk, dv = layer.backward(dy)
    layer(q, k)
    both = layer.backward(dy)
    np.testing.assert_allclose(both[0], dq, rtol=1e-13)
    np.testing.assert_allclose(both[1], dk + dv, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_query_without_keys(dtype):
    q, k, v = qkv(3, 4, dtype=dtype)
    mask = np.ones((2, 1, 3, 4), bool)
    mask[1, 0, 2] = False
    layer = ScaledDotProductAttention()
    y = layer(q, k, v, mask)
    assert (y[1, :, 2] == 0).all()
    assert (layer.attention_weights[1, :, 2] == 0).all()
    gradients = layer.backward(normal(*y.shape, seed=6, dtype=dtype))
    assert (gradients[0][1, :, 2] == 0).all()
    assert all(np.isfinite(g).all() for g in gradients)
    everything = layer(q, k, v, np.zeros((2, 1, 3, 4), bool))
    assert (everything == 0).all()
    assert all((g == 0).all() for g in layer.backward(np.ones_like(y)))


@pytest.mark.parametrize(("Tq", "Tk"), [(130, 130), (70, 133), (133, 70), (65, 1), (140, 10)])
@pytest.mark.parametrize("window", [None, 3, 100])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_blocks_of_queries(Tq, Tk, window, heads):
    """More than 64 causal queries are worked through in blocks: the same as one block with a mask."""
    H, G = heads
    q, k, v = normal(2, H, Tq, 3), normal(2, G, Tk, 3, seed=1), normal(2, G, Tk, 5, seed=2)
    mask = np.random.default_rng(3).random((2, 1, 1, Tk)) < 0.8
    layer, whole = ScaledDotProductAttention(causal=True, window=window), ScaledDotProductAttention()
    assert len(layer.row_blocks(Tq, Tk, True)) > 1
    both = mask & causal_mask(Tq, Tk, window=window)
    np.testing.assert_allclose(layer(q, k, v, mask), whole(q, k, v, both), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(layer.attention_weights, whole.attention_weights, rtol=1e-12, atol=1e-15)
    dO = normal(2, H, Tq, 5, seed=4)
    for ours, expected in zip(layer.backward(dO), whole.backward(dO), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-13)
    full = np.random.default_rng(5).random((2, H, Tq, Tk)) < 0.5
    full[:, :, Tq // 2] = False
    both = full & causal_mask(Tq, Tk, window=window)
    np.testing.assert_allclose(layer(q, k, v, full), whole(q, k, v, both), rtol=1e-12, atol=1e-14)
    for ours, expected in zip(layer.backward(dO), whole.backward(dO), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_scores(dtype):
    q, k, v = qkv(3, 4, dtype=dtype)
    layer = ScaledDotProductAttention(causal=True)
    y = layer(q * 1000, k * 1000, v)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(layer.attention_weights.sum(-1), 1, rtol=1e-6)
    assert all(np.isfinite(g).all() for g in layer.backward(y))


@pytest.mark.parametrize(("Tq", "Tk"), [(5, 5), (3, 5), (80, 80)])
def test_the_future_does_not_leak(Tq, Tk):
    q, k, v = qkv(Tq, Tk)
    layer = ScaledDotProductAttention(causal=True)
    before = layer(q, k, v)
    for key in {1, Tk // 2, Tk - 1}:
        k2, v2 = k.copy(), v.copy()
        k2[:, :, key] += 3
        v2[:, :, key] -= 2
        same = (layer(q, k2, v2) == before).all(axis=(0, 1, 3))
        np.testing.assert_array_equal(same, np.arange(Tq) + Tk - Tq < key)


@pytest.mark.parametrize("Tq", [5, 70])
def test_cached_steps_equal_one_pass(Tq):
    q, k, v = qkv(Tq, Tq)
    layer = ScaledDotProductAttention(causal=True)
    whole = layer(q, k, v)
    for t in range(Tq):
        step = layer(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1])
        np.testing.assert_allclose(step[:, :, 0], whole[:, :, t], rtol=1e-12, atol=1e-13)


def test_weights_are_those_before_dropout():
    q, k, v = qkv(3, 4)
    layer, plain = ScaledDotProductAttention(0.5), ScaledDotProductAttention()
    y = layer(q, k, v)
    assert not np.allclose(y, plain(q, k, v))
    np.testing.assert_allclose(layer.attention_weights, plain.attention_weights, rtol=1e-14)
    layer.clear()
    assert layer.attention_weights is None


def test_dropout_leaves_the_mean():
    q, k, v = qkv(1, 3, B=20000, H=1)
    q, k, v = (np.broadcast_to(x[:1], x.shape) for x in (q, k, v))
    y = ScaledDotProductAttention(0.3, rng=np.random.default_rng(0))(q, k, v)
    expected = ScaledDotProductAttention()(q[:1], k[:1], v[:1])[0]
    assert (np.abs(y.mean(0) - expected) < 5 * y.std(0) / 20000**0.5).all()
    assert y.std() > 0.1


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize(("Tq", "Tk", "window"), [(6, 6, 1), (6, 6, 3), (6, 6, 9), (2, 7, 3), (1, 7, 4)])
def test_window_equals_torch(Tq, Tk, window, num_kv_heads):
    """The mask written out, in PyTorch's attention: j <= i and j > i - window, the last query at the last key."""
    torch = pytest.importorskip("torch")
    q, k, v = normal(2, 4, Tq, 3), normal(2, num_kv_heads, Tk, 3, seed=1), normal(2, num_kv_heads, Tk, 5, seed=2)
    mask = np.array([[i + Tk - Tq - window < j <= i + Tk - Tq for j in range(Tk)] for i in range(Tq)])
    np.testing.assert_array_equal(causal_mask(Tq, Tk, window=window), mask)
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    y = torch.nn.functional.scaled_dot_product_attention(*tensors, torch.tensor(mask), enable_gqa=True)
    layer, dy = ScaledDotProductAttention(causal=True, window=window), normal(2, 4, Tq, 5, seed=3)
    np.testing.assert_allclose(layer(q, k, v), y.detach(), rtol=1e-11, atol=1e-12)
    y.backward(torch.tensor(dy))
    for found, tensor in zip(layer.backward(dy), tensors):
        assert_same_gradient(found, tensor.grad.numpy())


@pytest.mark.parametrize(("window", "causal"), [(2, False), *((window, True) for window in (0, 2.5, "3", True))])
def test_wrong_window(window, causal):
    expected = rf"ScaledDotProductAttention: window is {window!r} with causal={causal}, expected an integer > 0, and"
    with pytest.raises(ConfigError, match=expected):
        ScaledDotProductAttention(window=window, causal=causal)


@pytest.mark.parametrize("scale", [0, -1.0, "a", float("inf"), float("nan"), True])
def test_wrong_scale(scale):
    with pytest.raises(ConfigError, match=rf"Attention: scale is {scale!r}, expected a positive number"):
        ScaledDotProductAttention(scale=scale)
