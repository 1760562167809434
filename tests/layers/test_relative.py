"""Relative positions: Shaw's vectors, T5's buckets, ALiBi's slopes."""

import math

import numpy as np
import pytest
from helpers import assert_same_gradient, central

from numtrans.errors import BackwardError, ConfigError, DtypeError, ShapeError
from numtrans.layers.relative import RelativePosition, ShawRelativePosition, distances
from numtrans.layers.relative_bias import ALiBi, T5RelativeBias, relative_bucket, slopes, sum_diagonals
from numtrans.module import no_grad


def randomized(module, seed=0):
    """The module in float64 with large random parameters."""
    rng = np.random.default_rng(seed)
    for p in module.parameters():
        p.data = rng.normal(size=p.data.shape)
    return module


B, H, d = 2, 3, 4
SHAPES = [
    (3, 5, 0),
    (3, 5, 2),
    (5, 3, 0),
    (4, 4, 0),
    (1, 6, 5),
    (6, 1, 0),
    (7, 7, 0),
    (5, 3, -2),
    (2, 9, 4),
]  # Tq, Tk, offset

# ---- Shaw


@pytest.mark.parametrize(("Tq", "Tk", "offset"), SHAPES)
@pytest.mark.parametrize("k", [1, 2, 20])
def test_shaw_against_a_loop(Tq, Tk, offset, k):
    shaw = randomized(ShawRelativePosition(d, k))
    rng = np.random.default_rng(1)
    q, P = rng.normal(size=(B, H, Tq, d)), rng.normal(size=(B, H, Tq, Tk))
    S, o = np.zeros((B, H, Tq, Tk)), np.zeros((B, H, Tq, d))
    for b, h, i, j in np.ndindex(B, H, Tq, Tk):
        r = max(-k, min(k, j - (i + offset))) + k
        S[b, h, i, j] = q[b, h, i] @ shaw.aK.data[r]
        o[b, h, i] += P[b, h, i, j] * shaw.aV.data[r]
    np.testing.assert_allclose(shaw.scores(q, Tk, offset), S, atol=1e-13)
    np.testing.assert_allclose(shaw.values(P, offset), o, atol=1e-13)


@pytest.mark.parametrize(("Tq", "Tk", "offset"), SHAPES)
@pytest.mark.parametrize("k", [1, 2, 20])
def test_gather_and_collect_are_transposes(Tq, Tk, offset, k):
    shaw = ShawRelativePosition(d, k)
    rng = np.random.default_rng(2)
    u, p = rng.normal(size=(B, H, Tq, 2 * k + 1)), rng.normal(size=(B, H, Tq, Tk))
    left, right = (p * shaw.gather(u, Tk, offset)).sum(), (shaw.collect(p, offset) * u).sum()
    assert left == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize(("Tq", "Tk", "offset"), [(3, 5, 2), (5, 4, 0)])
def test_shaw_gradients(Tq, Tk, offset):
    shaw = randomized(ShawRelativePosition(d, 2))
    rng = np.random.default_rng(3)
    q, P = rng.normal(size=(B, H, Tq, d)), rng.normal(size=(B, H, Tq, Tk))
    dS, do = rng.normal(size=P.shape), rng.normal(size=q.shape)
    kept = [a.copy() for a in (q, P, dS, do)]
    shaw(q, Tk, offset)
    shaw.values(P, offset)
    dP = shaw.values_backward(do)
    dq = shaw.backward(dS)
    assert shaw.pending == 0
    for a, b in zip((q, P, dS, do), kept, strict=True):
        np.testing.assert_array_equal(a, b)
    with no_grad():
        assert_same_gradient(dq, central(lambda: shaw(q, Tk, offset), q, dS))
        assert_same_gradient(dP, central(lambda: shaw.values(P, offset), P, do))
        assert_same_gradient(shaw.aK.grad, central(lambda: shaw(q, Tk, offset), shaw.aK.data, dS))
        assert_same_gradient(shaw.aV.grad, central(lambda: shaw.values(P, offset), shaw.aV.data, do))


def test_shaw_twice_in_reverse_order():
    rng = np.random.default_rng(4)
    q, dS, P, do = [], [], [], []
    for Tq, Tk in [(3, 5), (2, 4)]:
        q.append(rng.normal(size=(B, H, Tq, d)))
        dS.append(rng.normal(size=(B, H, Tq, Tk)))
        P.append(rng.normal(size=(B, H, Tq, Tk)))
        do.append(rng.normal(size=(B, H, Tq, d)))

    def run(shaw, calls):
        for c in calls:
            shaw.scores(q[c], P[c].shape[-1], c)
            shaw.values(P[c], c)
        return {c: (shaw.values_backward(do[c]), shaw.scores_backward(dS[c])) for c in reversed(calls)}

    both = randomized(ShawRelativePosition(d, 2))
    together = run(both, [0, 1])
    sums = {"aK": 0, "aV": 0}
    for c in (0, 1):
        alone = randomized(ShawRelativePosition(d, 2))
        for found, expected in zip(together[c], run(alone, [c])[c], strict=True):
            np.testing.assert_array_equal(found, expected)
        sums = {"aK": sums["aK"] + alone.aK.grad, "aV": sums["aV"] + alone.aV.grad}
    np.testing.assert_allclose(both.aK.grad, sums["aK"], atol=1e-13)
    np.testing.assert_allclose(both.aV.grad, sums["aV"], atol=1e-13)


def test_shaw_without_values():
    shaw = randomized(ShawRelativePosition(d, 2, use_values=False))
    assert [name for name, _ in shaw.named_parameters()] == ["aK"]
    assert shaw.values(np.ones((B, H, 2, 3))) is None
    assert shaw.values_backward(np.ones((B, H, 2, d))) is None
    assert shaw.pending == 0


def test_shaw_complex_step_and_dtypes():
    shaw = randomized(ShawRelativePosition(d, 2))
    rng = np.random.default_rng(5)
    q, v, P, W = (rng.normal(size=s) for s in [(B, H, 3, d), (B, H, 3, d), (B, H, 3, 5), (B, H, 3, 5)])
    dS, do = rng.normal(size=P.shape), rng.normal(size=q.shape)
    shaw(q, 5)
    shaw.values(P)
    dP, dq = shaw.values_backward(do), shaw.backward(dS)
    shaw.zero_grad()
    shaw.astype(np.complex128)
    assert (dq * v).sum() == pytest.approx((shaw(q + 1e-30j * v, 5) * dS).sum().imag / 1e-30, rel=1e-12)
    assert (dP * W).sum() == pytest.approx((shaw.values(P + 1e-30j * W) * do).sum().imag / 1e-30, rel=1e-12)
    shaw.clear()
    shaw = ShawRelativePosition(d, 2)
    q, P, dS, do = (a.astype(np.float32) for a in (q, P, dS, do))
    arrays = [shaw(q, 5), shaw.values(P), shaw.values_backward(do), shaw.backward(dS), shaw.aK.grad, shaw.aV.grad]
    assert {a.dtype for a in arrays} == {np.dtype(np.float32)}


def test_shaw_refuses_by_name():
    name = "ShawRelativePosition"
    shaw = ShawRelativePosition(d, 2)
    with pytest.raises(ShapeError, match=f"{name}.*d_head=4"):
        shaw(np.zeros((B, H, 3, 5), np.float32), 3)
    with pytest.raises(DtypeError, match=f"{name}.*float64, expected float32"):
        shaw(np.zeros((B, H, 3, d)), 3)
    with pytest.raises(BackwardError, match=name):
        shaw.backward(np.zeros((B, H, 3, 3), np.float32))
    shaw(np.zeros((B, H, 3, d), np.float32), 5)
    with pytest.raises(ShapeError, match=f"{name}.*dy"):
        shaw.backward(np.zeros((B, H, 3, 3), np.float32))
    with pytest.raises(ConfigError, match=f"{name}.*max_distance"):
        ShawRelativePosition(d, 0)
    with pytest.raises(ConfigError, match=f"{name}.*d_head"):
        ShawRelativePosition(0, 2)


# ---- T5


def scalar_bucket(distance, num_buckets, max_distance, bidirectional):
    """T5's rule for one distance, in Python's own arithmetic."""
    bucket, n = 0, -distance
    if bidirectional:
        num_buckets //= 2
        if n < 0:
            bucket, n = num_buckets, -n
    elif n < 0:
        n = 0
    exact = num_buckets // 2
    if n < exact:
        return bucket + n
    far = exact + int(math.log(n / exact) / math.log(max_distance / exact) * (num_buckets - exact))
    return bucket + min(far, num_buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (32, 256), (16, 64), (8, 20), (12, 100), (4, 3)])
def test_bucket_against_the_scalar_rule(num_buckets, max_distance, bidirectional):
    reach = np.arange(-600, 601)
    expected = [scalar_bucket(int(n), num_buckets, max_distance, bidirectional) for n in reach]
    np.testing.assert_array_equal(relative_bucket(reach, num_buckets, max_distance, bidirectional), expected)


def test_bucket_known_values():
    """Recorded from the function of Hugging Face's T5 (PyTorch, float32), 32 buckets, distance 128."""
    both = {-200: 15, -128: 15, -91: 15, -90: 14, -64: 14, -32: 12, -16: 10, -15: 9, -12: 9, -11: 8, -8: 8, -7: 7}
    both |= {-1: 1, 0: 0, 1: 17, 7: 23, 8: 24, 16: 26, 128: 31}
    past = {-200: 31, -128: 31, -113: 31, -112: 30, -64: 26, -32: 21, -16: 16, -15: 15, 0: 0, 5: 0}
    np.testing.assert_array_equal(relative_bucket(np.array(list(both))), list(both.values()))
    np.testing.assert_array_equal(relative_bucket(np.array(list(past)), bidirectional=False), list(past.values()))


@pytest.mark.parametrize(("Tq", "Tk", "offset"), SHAPES)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_forward_and_gradient(Tq, Tk, offset, bidirectional):
    bias = randomized(T5RelativeBias(H, 8, max_distance=6, bidirectional=bidirectional))
    expected = np.zeros((H, Tq, Tk))
    for h, i, j in np.ndindex(H, Tq, Tk):
        expected[h, i, j] = bias.W.data[scalar_bucket(j - i - offset, 8, 6, bidirectional), h]
    np.testing.assert_array_equal(bias(Tq, Tk, offset), expected)
    R = np.random.default_rng(6).normal(size=(H, Tq, Tk))
    assert bias.backward(R) is None
    with no_grad():
        assert_same_gradient(bias.W.grad, central(lambda: bias(Tq, Tk, offset), bias.W.data, R))


def test_t5_shared_by_two_layers_accumulates():
    """As in T5, whose layers share one table; the two calls have different lengths."""
    bias = randomized(T5RelativeBias(H, 8, max_distance=6))
    rng = np.random.default_rng(7)
    q = [rng.normal(size=(B, H, 4, d)), rng.normal(size=(B + 1, H, 2, d))]
    dS = [rng.normal(size=(B, H, 4, 5)), rng.normal(size=(B + 1, H, 2, 7))]
    assert bias.scores(q[0], 5).shape == (H, 4, 5)
    assert bias.scores(q[1], 7, 3).shape == (H, 2, 7)
    assert bias.scores_backward(dS[1]) is None
    assert bias.scores_backward(dS[0]) is None
    assert bias.pending == 0

    def loss():
        return np.array([(bias.scores(q[0], 5) * dS[0]).sum() + (bias.scores(q[1], 7, 3) * dS[1]).sum()])

    with no_grad():
        assert_same_gradient(bias.W.grad, central(loss, bias.W.data, np.ones(1)))


@pytest.mark.parametrize(("Tq", "Tk"), [(1, 1), (3, 5), (5, 3), (1, 4), (4, 1)])
def test_sum_diagonals(Tq, Tk):
    x = np.random.default_rng(8).normal(size=(2, Tq, Tk))
    expected = [np.trace(x, offset=c, axis1=1, axis2=2) for c in range(1 - Tq, Tk)]
    np.testing.assert_allclose(sum_diagonals(x), np.transpose(expected), atol=1e-14)


def test_t5_dtypes_and_start_values():
    bias = T5RelativeBias(8, rng=np.random.default_rng(0))
    assert bias.W.data.shape == (32, 8)
    assert bias.W.data.std() == pytest.approx(0.02, rel=0.1)
    assert bias(3, 4).dtype == np.float32
    bias.backward(np.ones((8, 3, 4), np.float32))
    assert bias.W.grad.dtype == np.float32
    bias.zero_grad()
    assert bias.astype(np.complex128)(3, 4).dtype == np.complex128


def test_t5_refuses_by_name():
    name = "T5RelativeBias"
    bias = T5RelativeBias(H)
    with pytest.raises(ShapeError, match=f"{name}.*num_heads=3"):
        bias.scores(np.zeros((B, 2, 3, d), np.float32), 3)
    with pytest.raises(DtypeError, match=f"{name}.*float64"):
        bias.scores(np.zeros((B, H, 3, d)), 3)
    with pytest.raises(BackwardError, match=name):
        bias.backward(np.zeros((H, 3, 3), np.float32))
    bias(3, 4)
    with pytest.raises(ShapeError, match=f"{name}.*dy"):
        bias.backward(np.zeros((H, 4, 3), np.float32))
    for arguments in [{"num_buckets": 7}, {"num_buckets": 2}, {"max_distance": 8}, {"max_distance": 0}]:
        with pytest.raises(ConfigError, match=name):
            T5RelativeBias(H, **arguments)
    with pytest.raises(ConfigError, match=name):
        T5RelativeBias(H, 1, bidirectional=False)
    T5RelativeBias(H, 2, max_distance=2, bidirectional=False)


# ---- ALiBi


def test_alibi_bias_is_linear_in_the_distance():
    alibi = ALiBi(6)
    for Tq, Tk, offset in SHAPES:
        bias = alibi(Tq, Tk, offset)
        for h, i, j in np.ndindex(6, Tq, Tk):
            assert bias[h, i, j] == pytest.approx(-slopes(6)[h] * abs(j - (i + offset)), rel=1e-6)
        assert bias.dtype == np.float32
        assert (bias <= 0).all()


@pytest.mark.parametrize("n", range(1, 40))
def test_alibi_slopes_as_published(n):
    """The recursion of the authors' code."""

    def published(n):
        if math.log2(n).is_integer():
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]
        below = 2 ** math.floor(math.log2(n))
        return published(below) + published(2 * below)[0::2][: n - below]

    np.testing.assert_allclose(slopes(n), published(n), rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_alibi_hooks(dtype):
    alibi = ALiBi(H)
    q = np.ones((B, H, 3, d), dtype)
    S = alibi.scores(q, 5, 2)
    assert S.dtype == dtype
    np.testing.assert_allclose(S, alibi(3, 5, 2), rtol=1e-7)
    assert alibi.values(S) is None
    assert alibi.values_backward(q) is None
    assert alibi.backward(np.zeros((H, 3, 5), np.float32)) is None
    assert alibi.scores_backward(np.zeros((B, H, 3, 5), dtype)) is None
    assert alibi.pending == 0
    assert alibi.parameters() == []
    assert alibi.state_dict() == {}


def test_alibi_refuses_by_name():
    with pytest.raises(ConfigError, match=r"ALiBi.*num_heads"):
        ALiBi(0)
    with pytest.raises(ShapeError, match=r"ALiBi.*num_heads=3"):
        ALiBi(H).scores(np.zeros((B, 2, 3, d)), 3)
    with pytest.raises(BackwardError, match="ALiBi"):
        ALiBi(H).backward(np.zeros((H, 3, 3), np.float32))


def test_the_base_class_asks_for_scores_alone():
    base = RelativePosition()
    with pytest.raises(TypeError, match="RelativePosition does not define scores"):
        base.scores(np.zeros((B, H, 3, d)), 3)
    assert [base.scores_backward(0), base.values(0), base.values_backward(0)] == [None, None, None]
    np.testing.assert_array_equal(distances(np, 2, 3, 1), [[-1, 0, 1], [-2, -1, 0]])
