"""Masks: True = may attend."""

import numpy as np
import pytest

from numtrans.errors import DtypeError, ShapeError
from numtrans.layers import causal_mask, padding_mask
from numtrans.layers import masks as source
from numtrans.layers.masks import causal_bias, check_boolean, mask_bias

SIZES = [(1, 1), (4, 4), (2, 5), (1, 4), (5, 2), (3, 1), (70, 70), (3, 90)]


@pytest.mark.parametrize(("Tq", "Tk"), SIZES)
def test_causal_mask(Tq, Tk):
    mask = causal_mask(Tq, Tk)
    assert mask.dtype == bool
    expected = [[j <= i + Tk - Tq for j in range(Tk)] for i in range(Tq)]
    np.testing.assert_array_equal(mask, expected)
    assert mask[-1].all()


@pytest.mark.parametrize("order", [SIZES, SIZES[::-1]], ids=["growing", "shrinking"])
def test_causal_bias_is_the_mask(order, monkeypatch):
    monkeypatch.setattr(source, "_triangles", {})
    for Tq, Tk in order * 2:
        for dtype in (np.float32, np.float64):
            bias = causal_bias(np, Tq, Tk, dtype)
            assert bias.dtype == dtype
            np.testing.assert_array_equal(bias, np.where(causal_mask(Tq, Tk), 0, -np.inf))


def test_causal_mask_is_square_by_default():
    np.testing.assert_array_equal(causal_mask(3), np.tril(np.ones((3, 3), bool)))


def test_padding_mask():
    expected = np.array([[True, True, False], [True, False, False], [True, True, True]])[:, None, None]
    np.testing.assert_array_equal(padding_mask([2, 1, 3]), expected)
    np.testing.assert_array_equal(padding_mask(np.array([2, 1, 3]), 3), expected)
    np.testing.assert_array_equal(padding_mask([2, 1], 5).shape, (2, 1, 1, 5))
    ids = np.array([[5, 6, 0], [4, 0, 0], [1, 2, 3]])
    np.testing.assert_array_equal(padding_mask(ids=ids, pad_id=0), expected)
    np.testing.assert_array_equal(padding_mask(ids=ids, pad_id=3)[2, 0, 0], [True, True, False])


@pytest.mark.parametrize("arguments", [{}, {"ids": np.ones((1, 2), int)}, {"lengths": [1], "pad_id": 0}])
def test_padding_mask_needs_one_source(arguments):
    with pytest.raises(TypeError, match="either lengths, or ids together with pad_id"):
        padding_mask(**arguments)


def test_check_boolean():
    mask = np.array([True, False])
    assert check_boolean(mask, "X") is mask
    for dtype in (np.int64, np.uint8):
        as_bool = check_boolean(mask.astype(dtype), "X")
        assert as_bool.dtype == bool
        assert (as_bool == mask).all()
    for wrong in (np.array([0.0, 1.0]), np.array([0, 2]), np.array([0, -1])):
        with pytest.raises(DtypeError, match=rf"X: mask has dtype {wrong.dtype}, expected boolean or 0/1.*mask == 0"):
            check_boolean(wrong, "X")
    with pytest.raises(DtypeError, match="got list"):
        check_boolean([True], "X")


@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (2, 1, 1, 4), (2, 5, 3, 4), (1, 1, 3, 1)])
def test_mask_bias(shape):
    scores = np.zeros((2, 5, 3, 4), np.float32)
    mask = np.random.default_rng(0).random(shape) < 0.5
    bias = mask_bias(mask, scores, "X")
    assert bias.dtype == np.float32
    np.testing.assert_array_equal(bias, np.where(mask, 0, -np.inf))


@pytest.mark.parametrize("shape", [(3,), (2, 4), (4, 3), (3, 1, 1, 4), (1, 2, 5, 3, 4), (6, 2, 5, 3, 4)])
def test_mask_of_a_wrong_shape(shape):
    with pytest.raises(ShapeError, match=r"X: mask has shape .*broadcasts to \(2, 5, 3, 4\)"):
        mask_bias(np.ones(shape, bool), np.zeros((2, 5, 3, 4)), "X")
