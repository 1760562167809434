"""Rotary positions."""

import math

import numpy as np
import pytest
from helpers import assert_same_gradient, central

from numtrans.errors import BackwardError, ConfigError, DtypeError, IndexRangeError, ShapeError
from numtrans.layers.rotary import RotaryPositionalEncoding
from numtrans.module import no_grad


def naive(x, positions, r, base, interleaved):
    """Pair by pair, position by position; positions (B, T)."""
    y = x.copy()
    for b, h, t in np.ndindex(x.shape[:3]):
        for i in range(r // 2):
            a = positions[b, t] * base ** (-2 * i / r)
            m, n = (2 * i, 2 * i + 1) if interleaved else (i, i + r // 2)
            y[b, h, t, m] = x[b, h, t, m] * math.cos(a) - x[b, h, t, n] * math.sin(a)
            y[b, h, t, n] = x[b, h, t, m] * math.sin(a) + x[b, h, t, n] * math.cos(a)
    return y


B, H, T, d = 2, 3, 4, 6
CASES = [
    (None, np.tile(np.arange(T), (B, 1))),
    (9, np.tile(np.arange(9, 9 + T), (B, 1))),
    (np.int64(9), np.tile(np.arange(9, 9 + T), (B, 1))),
    (np.array([5, 0, 3, 3]), np.tile([5, 0, 3, 3], (B, 1))),
    (np.array([[0, 1, 2, 3], [0, 0, 7, 1]]), np.array([[0, 1, 2, 3], [0, 0, 7, 1]])),
]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [None, 4, 2])
@pytest.mark.parametrize(("positions", "spelled"), CASES)
def test_forward_and_backward(interleaved, rotary_dim, positions, spelled):
    rope = RotaryPositionalEncoding(d, base=100.0, interleaved=interleaved, rotary_dim=rotary_dim)
    rng = np.random.default_rng(0)
    x, R = rng.normal(size=(B, H, T, d)), rng.normal(size=(B, H, T, d))
    kept, kept_R = x.copy(), R.copy()
    y = rope(x, positions)
    dx = rope.backward(R)
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(R, kept_R)
    np.testing.assert_allclose(y, naive(x, spelled, rotary_dim or d, 100.0, interleaved), atol=1e-14)
    with no_grad():
        assert_same_gradient(dx, central(lambda: rope(x, positions), x, R))


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_depend_on_the_distance_alone_and_norms_stay(interleaved):
    rope = RotaryPositionalEncoding(8, interleaved=interleaved)
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(1, 1, 1, 8)), rng.normal(size=(1, 1, 1, 8))
    scores = [(rope(q, m + 3) * rope(k, m)).sum() for m in (0, 1, 50, 4000)]
    np.testing.assert_allclose(scores, scores[0], atol=1e-11)
    assert abs((rope(q, 4) * rope(k, 0)).sum() - scores[0]) > 1e-3
    for p in (0, 1, 77):
        assert np.linalg.norm(rope(q, p)) == pytest.approx(np.linalg.norm(q), rel=1e-14)


def test_the_pairings_differ_by_an_order_of_the_features():
    halves, neighbors = RotaryPositionalEncoding(6), RotaryPositionalEncoding(6, interleaved=True)
    x = np.random.default_rng(2).normal(size=(1, 2, 5, 6))
    order = [0, 3, 1, 4, 2, 5]  # halves laid out as neighbors
    np.testing.assert_allclose(halves(x)[..., order], neighbors(x[..., order]), atol=1e-15)


def test_one_module_for_queries_and_keys():
    rope = RotaryPositionalEncoding(4)
    rng = np.random.default_rng(3)
    q, k = rng.normal(size=(1, 2, 2, 4)), rng.normal(size=(1, 2, 5, 4))  # Tq != Tk
    Rq, Rk = rng.normal(size=q.shape), rng.normal(size=k.shape)
    rope(q, 3)
    rope(k)
    dk, dq = rope.backward(Rk), rope.backward(Rq)
    assert rope.pending == 0
    with no_grad():
        assert_same_gradient(dq, central(lambda: rope(q, 3), q, Rq))
        assert_same_gradient(dk, central(lambda: rope(k), k, Rk))


def test_grows_beyond_max_len():
    small, large = RotaryPositionalEncoding(4, 2), RotaryPositionalEncoding(4, 500)
    x = np.random.default_rng(4).normal(size=(1, 1, 1, 4))
    for p in (0, 1, 2, 3, 250, np.array([301])):
        np.testing.assert_array_equal(small(x, p), large(x, p))
    fresh = RotaryPositionalEncoding(4, 2)
    np.testing.assert_array_equal(fresh(x, np.array([2])), large(x, 2))  # one beyond the end


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_keeps_the_dtype(dtype):
    rope = RotaryPositionalEncoding(4)
    x = np.random.default_rng(5).normal(size=(1, 2, 3, 4)).astype(dtype)
    for positions in (None, np.array([2, 0, 1])):
        assert rope(x, positions).dtype == dtype
        assert rope.backward(x).dtype == dtype
    assert rope.parameters() == []
    assert rope.state_dict() == {}


def test_one_module_in_two_dtypes():
    rope = RotaryPositionalEncoding(4)
    x = np.random.default_rng(9).normal(size=(1, 1, 5, 4))
    rope(x.astype(np.float32))
    np.testing.assert_array_equal(rope(x), RotaryPositionalEncoding(4)(x))


def test_complex_step():
    rope = RotaryPositionalEncoding(4)
    rng = np.random.default_rng(6)
    x, R, v = (rng.normal(size=(1, 2, 3, 4)) for _ in range(3))
    slope = (rope(x + 1e-30j * v, 5) * R).sum().imag / 1e-30
    rope(x, 5)
    assert (rope.backward(R) * v).sum() == pytest.approx(slope, rel=1e-13)


def test_float32_is_right_at_far_positions():
    rope = RotaryPositionalEncoding(4, 200_000)
    x = np.random.default_rng(7).normal(size=(1, 1, 1, 4))
    near = rope(x.astype(np.float32), 199_999)
    np.testing.assert_allclose(near, rope(x, 199_999), atol=1e-6)


def test_bad_input_is_refused_by_name():
    name = "RotaryPositionalEncoding"
    rope = RotaryPositionalEncoding(4)
    x = np.zeros((2, 1, 3, 4), np.float32)
    with pytest.raises(ShapeError, match=f"{name}.*last axis 5, expected d_head=4"):
        rope(np.zeros((1, 1, 3, 5), np.float32))
    with pytest.raises(DtypeError, match=f"{name}.*int64"):
        rope(np.zeros((1, 1, 3, 4), np.int64))
    with pytest.raises(DtypeError, match=f"{name}.*positions.*float64"):
        rope(x, np.zeros(3))
    with pytest.raises(ShapeError, match=rf"{name}.*\(4,\), expected \(3,\) or \(2, 3\)"):
        rope(x, np.arange(4))
    with pytest.raises(ShapeError, match=name):
        rope(x, np.zeros((1, 3), np.int64))
    with pytest.raises(IndexRangeError, match=f"{name}.*-2"):
        rope(x, np.array([0, -2, 1]))
    with pytest.raises(IndexRangeError, match=f"{name}.*-1"):
        rope(x, -1)
    with pytest.raises(BackwardError, match=name):
        rope.backward(x)
    rope(x)
    with pytest.raises(ShapeError, match=f"{name}.*dy"):
        rope.backward(x[:1])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"d_head": 5}, "d_head=5"),
        ({"d_head": 6, "rotary_dim": 3}, "rotary_dim=3"),
        ({"d_head": 4, "rotary_dim": 6}, "rotary_dim=6"),
        ({"d_head": 4, "rotary_dim": 0}, "rotary_dim"),
        ({"d_head": 4, "max_len": 0}, "max_len"),
        ({"d_head": 4, "base": 0.0}, "base"),
    ],
)
def test_bad_settings_are_refused(arguments, match):
    with pytest.raises(ConfigError, match=f"RotaryPositionalEncoding.*{match}"):
        RotaryPositionalEncoding(**arguments)


def test_odd_head_with_even_rotated_part():
    x = np.random.default_rng(8).normal(size=(1, 1, 3, 5))
    y = RotaryPositionalEncoding(5, rotary_dim=4)(x)
    np.testing.assert_array_equal(y[..., 4], x[..., 4])
