"""Token embedding."""

import numpy as np
import pytest
from helpers import check_gradients, generic, normal

from numtrans.errors import ConfigError
from numtrans.layers import Embedding
from numtrans.layers import embedding as source
from numtrans.layers.embedding import segment_sums, sum_by_id


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("limit", [1 << 22, 0], ids=["one-hot", "sort"])
def test_gradients(scale, limit, monkeypatch):
    monkeypatch.setattr(source, "ONE_HOT_LIMIT", limit)
    check_gradients(generic(Embedding(7, 3, scale)), np.array([[1, 1, 6, 0], [6, 1, 2, 2]]))


def test_both_sums_agree(monkeypatch):
    rng = np.random.default_rng(0)
    for ids in (rng.integers(50, size=400), np.full(9, 3), np.arange(50), np.array([49])):
        dy = normal(ids.size, 5)
        expected = np.zeros((50, 5))
        np.add.at(expected, ids, dy)
        for limit in (1 << 22, 0):
            monkeypatch.setattr(source, "ONE_HOT_LIMIT", limit)
            np.testing.assert_allclose(sum_by_id(dy, ids, 50), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("limit", [1 << 22, 0], ids=["one-hot", "sort"])
def test_a_gradient_that_is_there_is_added_to(limit, monkeypatch):
    monkeypatch.setattr(source, "ONE_HOT_LIMIT", limit)
    layer, ids, dy = generic(Embedding(5, 2, scale=True)), np.array([3, 0, 3]), normal(3, 2)
    layer.E.grad = np.ones((5, 2))
    layer(ids)
    layer.backward(dy)
    expected = np.ones((5, 2))
    np.add.at(expected, ids, 2**0.5 * dy)
    np.testing.assert_allclose(layer.E.grad, expected, rtol=1e-13)
    layer.E.requires_grad = False
    layer(ids)
    layer.backward(dy)
    np.testing.assert_allclose(layer.E.grad, expected, rtol=1e-13)


def test_lookup_and_scale():
    plain, scaled = Embedding(5, 4), Embedding(5, 4, scale=True)
    scaled.load_state_dict(plain.state_dict())
    ids = np.array([[0, 4], [3, 3]])
    np.testing.assert_array_equal(plain(ids), plain.E.data[ids])
    np.testing.assert_array_equal(scaled(ids), 2 * plain.E.data[ids])
    assert plain(3).shape == (4,)
    assert plain([1, 2]).shape == (2, 4)
    assert not np.shares_memory(plain(ids), plain.E.data)


def test_no_ids():
    layer = Embedding(5, 4)
    assert layer(np.zeros((2, 0), int)).shape == (2, 0, 4)


@pytest.mark.parametrize("limit", [1 << 22, 0], ids=["one-hot", "sort"])
def test_backward_without_ids(limit, monkeypatch):
    monkeypatch.setattr(source, "ONE_HOT_LIMIT", limit)
    layer = Embedding(5, 4)
    layer(np.zeros((2, 0), int))
    layer.backward(np.zeros((2, 0, 4), np.float32))
    np.testing.assert_array_equal(layer.E.grad, np.zeros((5, 4)))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_any_integer_dtype(dtype):
    layer = generic(Embedding(5, 2))
    layer(np.array([1, 4], dtype))
    layer.backward(np.ones((2, 2)))
    np.testing.assert_array_equal(layer.E.grad[:, 0], [0, 1, 0, 0, 1])


def test_segment_sums_of_no_rows():
    present, sums = segment_sums(np.zeros((0, 3)), np.zeros(0, int))
    assert present.shape == (0,)
    assert sums.shape == (0, 3)


def test_initial_values():
    table = Embedding(2000, 64, rng=np.random.default_rng(0)).E.data
    assert table.std() == pytest.approx(64**-0.5, rel=0.02)
    assert Embedding(2000, 64, std=0.02, rng=np.random.default_rng(0)).E.data.std() == pytest.approx(0.02, rel=0.02)
    with pytest.raises(ConfigError, match="Embedding: vocab_size is 0, expected an integer"):
        Embedding(0, 4)
