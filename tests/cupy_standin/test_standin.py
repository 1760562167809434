"""The stand-in refuses what CuPy refuses, and gives NumPy's numbers otherwise."""

import copy
import operator
import pickle

import numpy as np
import pytest
import scipy.special

from numtrans.backend import backend_name, get_xp, to_device, to_numpy


@pytest.fixture
def pair(cupy):
    """A function that returns a NumPy array and its copy on the stand-in."""

    def pair(array):
        return array, cupy.asarray(array)

    return pair


def values(shape=(3, 4), seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same(actual, expected):
    """`actual`, on the stand-in, equals the NumPy array `expected`, dtype and shape included."""
    assert backend_name(actual) == "cupy"
    expected = np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual.get(), expected)


# ---- the library takes it for CuPy


def test_numtrans_takes_it_for_cupy(cupy):
    x = cupy.zeros(3)
    assert backend_name(x) == "cupy"
    assert get_xp(x, x) is cupy
    assert to_device(np.ones(3), "cupy").dtype == np.float64
    assert isinstance(to_numpy(x), np.ndarray)
    assert cupy.get_array_module(x) is cupy
    assert cupy.get_array_module(np.ones(1)) is np


# ---- refusals


@pytest.mark.parametrize(
    "conversion", [np.asarray, np.array, np.float32, np.from_dlpack, lambda x: np.concatenate([x, np.ones(3)])]
)
def test_no_implicit_conversion(cupy, conversion):
    with pytest.raises((TypeError, AttributeError)):
        conversion(cupy.ones(3))
    assert cupy.synchronisations() == 0


OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.matmul, operator.lt, operator.ge, operator.eq, operator.ne,
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.ipow,
]  # fmt: skip


@pytest.mark.parametrize("operate", OPERATORS)
def test_operators_refuse_numpy_arrays(cupy, operate):
    with pytest.raises(TypeError):
        operate(cupy.ones(3), np.ones(3))
    with pytest.raises(TypeError):
        operate(np.ones(3), cupy.ones(3))


@pytest.mark.parametrize(
    "call",
    [
        lambda cp, x, n: cp.add(x, n),
        lambda cp, x, n: cp.exp(n),
        lambda cp, x, n: np.maximum(x, n),
        lambda cp, x, n: cp.exp(x, out=n),
        lambda cp, x, n: cp.where(n > 0, x, x),
        lambda cp, x, n: cp.where(x > 0, x, n),
        lambda cp, x, n: cp.concatenate([x, n]),
        lambda cp, x, n: cp.stack([n, x]),
        lambda cp, x, n: cp.einsum("i,i->", x, n),
        lambda cp, x, n: cp.matmul(x, n),
        lambda cp, x, n: cp.sum(n),
        lambda cp, x, n: cp.take_along_axis(x, n.astype(int), 0),
        lambda cp, x, n: x.dot(n),
        lambda cp, x, n: x.clip(n),
        lambda cp, x, n: operator.setitem(x, slice(None), n),
        lambda cp, x, n: operator.setitem(n, slice(None), x),
        lambda cp, x, n: cp.add.at(x, cp.asarray([0]), n[:1]),
        lambda cp, x, n: cp.linalg.norm(n),
    ],
)
def test_functions_refuse_numpy_arrays(cupy, call):
    with pytest.raises(TypeError):
        call(cupy, cupy.ones(3), np.ones(3))


@pytest.mark.parametrize(
    "call",
    [
        lambda cp, x: cp.add(x, [1.0, 2.0, 3.0]),
        lambda cp, x: x + [1.0, 2.0, 3.0],
        lambda cp, x: [1.0, 2.0, 3.0] * x,
        lambda cp, x: cp.exp([1.0]),
        lambda cp, x: operator.setitem(x, slice(None), [1.0, 2.0, 3.0]),
        lambda cp, x: cp.where(x > 0, x, [1.0, 2.0, 3.0]),
    ],
)
def test_lists_are_no_operands(cupy, call):
    with pytest.raises(TypeError):
        call(cupy, cupy.ones(3))


@pytest.mark.parametrize(
    "name", ["errstate", "vecdot", "einsum_path", "block", "nditer", "insert", "longdouble"]
)
def test_missing_names(cupy, name):
    assert hasattr(np, name)
    assert not hasattr(cupy, name)


def test_a_name_that_the_stand_in_lacks_is_told_from_one_that_cupy_lacks(cupy):
    with pytest.raises(NotImplementedError, match=r"add it to standin\.py"):
        cupy.ElementwiseKernel  # noqa: B018


@pytest.mark.parametrize(
    "call",
    [
        lambda cp, x: cp.sum(x, where=x > 0),
        lambda cp, x: x.sum(where=x > 0),
        lambda cp, x: x.max(initial=0),
        lambda cp, x: cp.max(x, initial=0),
        lambda cp, x: x.mean(where=x > 0),
        lambda cp, x: cp.exp(x, where=x > 0),
        lambda cp, x: cp.var(x, mean=0),
        lambda cp, x: cp.einsum("i->", x, out=cp.zeros(())),
        lambda cp, x: cp.tril(x[None], 0, True),
        lambda cp, x: cp.ones(3, like=x),
        lambda cp, x: cp.clip(x, min=0),
        lambda cp, x: np.sum(x, where=x > 0),
    ],
)
def test_missing_keywords(cupy, call):
    with pytest.raises(TypeError):
        call(cupy, cupy.ones(3))


def test_ufunc_methods_that_cupy_has_not(cupy):
    x, i = cupy.ones(3), cupy.asarray([0, 2])
    for call in (
        lambda: cupy.maximum.reduce(x),
        lambda: cupy.logical_or.reduce(x),
        lambda: cupy.maximum.accumulate(x),
        lambda: cupy.maximum.reduceat(x, i),
        lambda: cupy.multiply.at(x, i, 2.0),
    ):
        with pytest.raises(NotImplementedError):
            call()
    with pytest.raises(TypeError):
        cupy.add.at(cupy.zeros(3, dtype=cupy.int64), i, 1)  # no 64-bit signed atomic addition
    with pytest.raises(TypeError):
        np.add.at(x, i, 1.0)
    with pytest.raises(TypeError):
        np.add.reduce(x)


def test_a_0d_array_is_no_index(cupy):
    with pytest.raises(TypeError):
        range(cupy.asarray(3))
    with pytest.raises(TypeError):
        [1, 2][cupy.asarray(1)]


def test_in_place_casting_is_same_kind(cupy):
    ids = cupy.arange(3)
    with pytest.raises(TypeError):
        ids += 0.5
    x = cupy.ones(3, dtype=cupy.float32)
    x += cupy.ones(3)
    assert x.dtype == np.float32
    assert (x.get() == 2).all()


def test_lexsort_takes_one_array_only(cupy, pair):
    keys, keys_c = pair(np.array([[3, 1, 2], [0, 0, 1]]))
    same(cupy.lexsort(keys_c), np.lexsort(keys))
    with pytest.raises(AttributeError):
        cupy.lexsort((keys_c[0], keys_c[1]))


# ---- what CuPy does differently


def test_out_of_range_index_arrays_wrap(cupy, pair):
    x, xc = pair(values((5, 2)))
    ids = cupy.asarray([0, 5, 7, -6])
    same(xc[ids], x[[0, 0, 2, 4]])
    same(cupy.take(xc, ids, 0), x[[0, 0, 2, 4]])
    same(xc[:, cupy.asarray([2])], x[:, [0]])
    same(xc[..., None, cupy.asarray([3])], x[..., None, [1]])
    with pytest.raises(IndexError):
        xc[5]
    with pytest.raises(IndexError):
        xc[cupy.asarray([0.0])]


def test_reductions_give_0d_arrays(cupy, pair):
    x, xc = pair(values())
    for name in ("sum", "mean", "max", "min", "var", "std", "argmax", "any", "all", "prod"):
        same(getattr(xc, name)(), getattr(x, name)())
        same(getattr(cupy, name)(xc), getattr(np, name)(x))
    same(xc[1, 2], x[1, 2])
    assert isinstance(xc.sum(), cupy.ndarray)
    assert xc.size == 12
    assert cupy.ndim(xc) == 2
    assert cupy.shape(xc) == (3, 4)


def test_repeats_are_lost_by_indexed_addition_and_kept_by_at(cupy):
    a, b, ids = cupy.zeros(3), cupy.zeros(3), cupy.asarray([1, 1, 4, 2])
    a[ids] += 1.0
    cupy.add.at(b, ids, 1.0)
    np.testing.assert_array_equal(a.get(), [0, 1, 1])
    np.testing.assert_array_equal(b.get(), [0, 3, 1])


def test_matmul_in_place_makes_a_new_array(cupy):
    a = before = cupy.eye(2)
    a @= cupy.ones((2, 2))
    assert a is not before
    assert (before.get() == np.eye(2)).all()


@pytest.mark.parametrize(
    "wait",
    [
        lambda cp, x: x.get(),
        lambda cp, x: float(x[0]),
        lambda cp, x: int(x[0]),
        lambda cp, x: bool(x[0]),
        lambda cp, x: x[0].item(),
        lambda cp, x: x.tolist(),
        lambda cp, x: cp.asnumpy(x),
        lambda cp, x: repr(x),
        lambda cp, x: f"{x[0]:.3f}",
        lambda cp, x: x[x > 0],
        lambda cp, x: x.nonzero(),
        lambda cp, x: cp.where(x > 0),
        lambda cp, x: cp.unique(x),
        lambda cp, x: x[np.array([0, 1])],
        lambda cp, x: x[[0, 1]],
        lambda cp, x: cp.cuda.runtime.deviceSynchronize(),
    ],
)
def test_waits_for_the_device_are_counted(cupy, wait):
    x = cupy.ones(3)
    assert cupy.synchronisations() == 0
    wait(cupy, x)
    assert cupy.synchronisations() == 1


def test_nothing_else_is_counted(cupy):
    x, mask = cupy.ones((3, 4)), cupy.asarray([True, False, True])
    y = cupy.exp(x[1:]).sum(0) @ x.T
    y[mask] = 0.0
    y = cupy.where(mask, y, -1.0)[cupy.asarray([0, 1])]
    assert len(x) == 3
    assert y.shape == (2,)
    assert cupy.synchronisations() == 0


# ---- the same numbers as NumPy


@pytest.mark.parametrize("operate", [*OPERATORS[:7], *OPERATORS[8:]])
@pytest.mark.parametrize("other", ["array", "row", 2, 0.5, np.float32(3), np.float64(3)])
def test_operators(pair, operate, other):
    a, ac = pair(values() ** 2 + 1)
    b = bc = other
    if isinstance(other, str):
        b, bc = pair((values((3, 4) if other == "array" else (4,), 1) ** 2) + 1)
    kept = ac
    same(operate(ac, bc), operate(a, b))
    if operate.__name__.startswith("i"):
        assert kept.get().tolist() == a.tolist()
    else:
        same(operate(bc, ac), operate(b, a))


@pytest.mark.parametrize("operate", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift])
def test_integer_operators(pair, operate):
    a, ac = pair(np.arange(1, 7, dtype=np.uint64))
    same(operate(ac, np.uint64(3)), operate(a, np.uint64(3)))
    same(operate(ac, 3), operate(a, 3))
    same(operate(3, ac), operate(3, a))
    same(~ac, ~a)
    same(~(ac > 3) & (ac < 6), ~(a > 3) & (a < 6))


def test_matmul_and_out(cupy, pair):
    a, ac = pair(values((2, 3, 4)))
    b, bc = pair(values((4, 5), 1))
    same(ac @ bc, a @ b)
    out = cupy.empty((2, 3, 5), dtype=cupy.float32)
    assert cupy.matmul(ac, bc, out=out) is out
    same(out, a @ b)
    assert cupy.multiply(ac, 2.0, out=ac) is ac
    same(ac, a * np.float32(2))
    same(cupy.sum(ac, 0, out=cupy.zeros((3, 4), dtype=cupy.float32)), (2 * a).sum(0))
    same(cupy.einsum("bij,jk->bik", cupy.asarray(a), bc), np.einsum("bij,jk->bik", a, b))


@pytest.mark.parametrize(
    "name", ["exp", "log1p", "sqrt", "tanh", "sin", "square", "negative", "isnan", "isfinite", "sign"]
)
def test_ufuncs_by_either_name(cupy, pair, name):
    a, ac = pair(abs(values()))
    same(getattr(cupy, name)(ac), getattr(np, name)(a))
    same(getattr(np, name)(ac), getattr(np, name)(a))  # np.exp(x) of a CuPy array is CuPy's


def test_functions(cupy, pair):
    a, ac = pair(values((2, 3, 4)))
    i, ic = pair(np.array([[[0, 3, 1, 1]], [[2, 0, 0, 1]]]).transpose(0, 2, 1))
    same(cupy.concatenate([ac, ac], 1), np.concatenate([a, a], 1))
    same(cupy.stack((ac, ac)), np.stack((a, a)))
    same(cupy.where(ac > 0, ac, -1.0), np.where(a > 0, a, np.float32(-1)))
    same(cupy.tril(cupy.ones((3, 5), dtype=bool), 2), np.tril(np.ones((3, 5), bool), 2))
    same(cupy.take_along_axis(ac, ic % 3, 1), np.take_along_axis(a, i % 3, 1))
    same(cupy.sort(ac, -1), np.sort(a, -1))
    same(ac.argsort(-1), a.argsort(-1))
    same(cupy.zeros_like(ac, dtype=int), np.zeros_like(a, dtype=int))
    same(np.zeros_like(ac), np.zeros_like(a))
    same(np.sum(ac, axis=1), a.sum(1))
    same(cupy.arange(5, dtype=np.uint32), np.arange(5, dtype=np.uint32))
    same(cupy.add.reduceat(ac[0, 0], cupy.asarray([0, 2])), np.add.reduceat(a[0, 0], [0, 2]))
    same(cupy.add.reduce(ac, 1), np.add.reduce(a, 1))
    same(cupy.clip(ac, -1, 1), np.clip(a, -1, 1))
    same(cupy.array([[1.0, 2.0]], dtype=np.float32), np.array([[1, 2]], np.float32))
    same(cupy.array([ac[0, 0, 0], ac[0, 0, 1]]), a[0, 0, :2])
    same(cupy.linalg.norm(ac), np.linalg.norm(a))
    for part, part_c in zip(np.split(a, 2, -1), cupy.split(ac, 2, -1), strict=True):
        same(part_c, part)


def test_methods_and_attributes(cupy, pair):
    a, ac = pair(values((2, 3, 4)))
    same(ac.reshape(-1, 4), a.reshape(-1, 4))
    same(ac.reshape((6, 4)), a.reshape(6, 4))
    same(ac.transpose(0, 2, 1), a.transpose(0, 2, 1))
    same(ac.swapaxes(1, 2), a.swapaxes(1, 2))
    same(ac.T, a.T)
    same(ac.sum(axis=-1, keepdims=True), a.sum(axis=-1, keepdims=True))
    same(ac.astype(np.float64), a.astype(np.float64))
    assert ac.astype(np.float32, copy=False) is ac
    assert ac.flags.c_contiguous
    assert ac.nbytes == a.nbytes
    assert ac.strides == a.strides
    assert [row.shape for row in ac] == [(3, 4)] * 2
    for copied in (copy.deepcopy(ac), ac.copy(), pickle.loads(pickle.dumps(ac))):
        same(copied, a)
        assert copied is not ac


def test_slices_are_views(pair):
    a, ac = pair(values((3, 4)))
    view = ac[1:, ::2]
    view *= 2.0
    ac[0] = 7.0
    ac[:, 1] += 1
    ac.reshape(-1)[-1] = -5.0
    a[1:, ::2] *= 2
    a[0] = 7
    a[:, 1] += 1
    a[-1, -1] = -5
    same(ac, a)


def test_masks_and_index_arrays(cupy, pair):
    a, ac = pair(values((3, 4)))
    m, mc = pair(a > 0)
    same(ac[mc], a[m])
    same(ac[cupy.arange(3), cupy.asarray([0, 3, 1])], a[np.arange(3), [0, 3, 1]])
    ac[mc] = -np.inf
    a[m] = -np.inf
    same(ac, a)


def test_special_functions(pair):
    from cupyx.scipy.special import erf, expit

    a, ac = pair(values())
    same(erf(ac), scipy.special.erf(a))
    same(expit(ac), scipy.special.expit(a))
    with pytest.raises(TypeError):
        erf(a)
    with pytest.raises(TypeError):
        scipy.special.erf(ac)
