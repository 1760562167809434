"""Linear and the tied output projection."""

import numpy as np
import pytest
from helpers import check_gradients, generic, normal

from numtrans.layers import Embedding, Linear, TiedLinear
from numtrans.layers.linear import xavier_uniform


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (2, 1, 4, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients(shape, bias):
    check_gradients(generic(Linear(3, 5, bias)), normal(*shape))
    check_gradients(TiedLinear(generic(Embedding(5, 3)).E), normal(*shape))


def test_hand_values():
    layer = Linear(2, 2).astype(np.float64)
    layer.W.data, layer.b.data = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([10.0, 20.0])
    x = np.array([[1.0, 0.0], [0.0, 2.0]])
    np.testing.assert_array_equal(layer(x), [[11, 22], [16, 28]])
    np.testing.assert_array_equal(layer.backward(np.array([[1.0, 0.0], [0.0, 1.0]])), [[1, 3], [2, 4]])
    np.testing.assert_array_equal(layer.W.grad, [[1, 0], [0, 2]])
    np.testing.assert_array_equal(layer.b.grad, [1, 1])


def test_initial_values():
    W = xavier_uniform(np.random.default_rng(0), 300, 500)
    bound = (6 / 800) ** 0.5
    assert W.dtype == np.float32
    assert np.abs(W).max() <= bound
    assert np.std(W) == pytest.approx(bound / 3**0.5, rel=0.01)
    assert abs(W.mean()) < 5 * W.std() / W.size**0.5
    layer = Linear(3, 4, rng=np.random.default_rng(5))
    assert (layer.W.data == xavier_uniform(np.random.default_rng(5), 3, 4)).all()
    assert (layer.b.data == 0).all()
    assert Linear(3, 4, False).b is None


def test_no_tokens():
    layer = generic(Linear(3, 2))
    assert layer(np.zeros((0, 4, 3))).shape == (0, 4, 2)
    assert layer.backward(np.zeros((0, 4, 2))).shape == (0, 4, 3)
    assert (layer.W.grad == 0).all()


def test_tied_projection_adds_to_the_gradient_of_the_table():
    table = generic(Embedding(5, 3))
    output = TiedLinear(table.E)
    ids, x, dy = np.array([1, 1, 4]), normal(3, 3), normal(3, 5, seed=1)
    assert np.allclose(output(x), x @ table.E.data.T, rtol=1e-14)
    output.backward(dy)
    projection = table.E.grad.copy()
    np.testing.assert_allclose(projection, dy.T @ x, rtol=1e-13)
    table(ids)
    table.backward(x)
    lookup = np.zeros((5, 3))
    np.add.at(lookup, ids, x)
    np.testing.assert_allclose(table.E.grad, projection + lookup, rtol=1e-13)
    assert output.E is table.E
