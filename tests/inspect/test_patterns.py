"""Numbers about attention patterns, against hand calculations and against other libraries' definitions."""

import math

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from numtrans.errors import ConfigError, ShapeError
from numtrans.inspect import (
    attention_distance,
    attention_entropy,
    attention_maximum,
    attention_patterns,
    head_divergence,
)
from numtrans.layers import MultiHeadAttention, padding_mask


def random_weights(*shape, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1])


def one_hot(keys, Tk):
    """Weights (1, 1, Tq, Tk): query i attends to key keys[i] alone."""
    return np.eye(Tk)[list(keys)][None, None]


def test_a_single_key_and_all_keys():
    single = one_hot([2, 2, 0], 4)
    np.testing.assert_array_equal(attention_entropy(single), [0])  # 0 log 0 = 0
    np.testing.assert_array_equal(attention_maximum(single), [1])
    np.testing.assert_allclose(attention_distance(single), [(2 + 1 + 2) / 3], rtol=1e-15)
    even = np.full((2, 1, 3, 4), 0.25)
    np.testing.assert_allclose(attention_entropy(even), [math.log(4)], rtol=1e-15)
    np.testing.assert_array_equal(attention_maximum(even), [0.25])
    np.testing.assert_allclose(attention_distance(even), [(1.5 + 1 + 1) / 3], rtol=1e-15)  # rows 0123, 1012, 2101


def test_against_scipy():
    P = random_weights(2, 3, 4, 5)
    np.testing.assert_allclose(attention_entropy(P), entropy(P, axis=-1).mean(axis=(0, 2)), rtol=1e-12)
    expected = [[np.mean(jensenshannon(P[:, g], P[:, h], axis=-1) ** 2) for h in range(3)] for g in range(3)]
    np.testing.assert_allclose(head_divergence(P), expected, rtol=1e-9, atol=1e-15)


def test_heads_that_agree_and_heads_that_never_meet():
    P = np.stack([np.eye(4)[[0, 1]], np.eye(4)[[0, 1]], np.eye(4)[[2, 3]]])  # (3, 2, 4), one example
    J = head_divergence(P)
    np.testing.assert_allclose(J, math.log(2) * np.array([[0, 0, 1], [0, 0, 1], [1, 1, 0]]), rtol=1e-15)


def test_each_head_on_its_own():
    P = random_weights(2, 3, 4, 5)
    for measure in (attention_entropy, attention_maximum, attention_distance):
        np.testing.assert_allclose(measure(P), [measure(P[:, [h]])[0] for h in range(3)], rtol=1e-14)
    patterns = attention_patterns(P)
    assert set(patterns) == {"entropy", "maximum", "distance"}
    np.testing.assert_array_equal(patterns["maximum"], attention_maximum(P))
    np.testing.assert_array_equal(attention_entropy(P[0]), attention_entropy(P[:1]))  # no batch axis


@pytest.mark.parametrize("measure", [attention_entropy, attention_maximum, attention_distance, head_divergence])
def test_padding_changes_nothing(measure):
    """Rows of a padded batch measure the same as rows alone."""
    rng = np.random.default_rng(1)
    layer = MultiHeadAttention(8, 2, rng=rng).astype(np.float64)
    x = rng.standard_normal((2, 6, 8))
    lengths = np.array([4, 6])
    layer(x, mask=padding_mask(lengths))
    padded = measure(layer.attention_weights, np.arange(6) < lengths[:, None])
    alone = []
    for row, n in zip(x, lengths):
        layer(row[None, :n])
        alone.append(measure(layer.attention_weights))
    np.testing.assert_allclose(padded, np.average(alone, axis=0, weights=lengths), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("measure", [attention_entropy, attention_maximum, attention_distance, head_divergence])
def test_a_query_without_a_key_does_not_count(measure):
    P = random_weights(1, 2, 3, 4)
    more = np.concatenate([P, np.zeros((1, 2, 1, 4))], axis=2)
    np.testing.assert_allclose(measure(more), measure(P), rtol=1e-14)
    assert np.isnan(measure(np.zeros((1, 2, 1, 4)))).all()
    assert np.isnan(measure(P, np.zeros((1, 3), bool))).all()


def test_float32_weights_give_float64_numbers_and_stay_as_they_are():
    P = random_weights(1, 2, 3, 4).astype(np.float32)
    before = P.copy()
    for measure in (attention_entropy, attention_maximum, attention_distance, head_divergence):
        assert measure(P).dtype == np.float64
    np.testing.assert_array_equal(P, before)


def test_refuses_wrong_shapes():
    P = random_weights(2, 3, 4, 5)
    with pytest.raises(ShapeError, match="batch, heads, queries, keys"):
        attention_entropy(P[0, 0])
    with pytest.raises(ShapeError, match=r"\(2, 4\)"):
        attention_distance(P, np.ones((2, 5), bool))


@pytest.mark.parametrize("measure", [attention_entropy, attention_maximum, attention_distance, head_divergence])
def test_refuses_what_is_no_attention_weight(measure):
    P = random_weights(1, 2, 3, 4)
    undefined = P.copy()
    undefined[0, 1, 2] = np.nan
    for wrong in (P * 2, P - 0.5, undefined, np.log(P)):
        with pytest.raises(ConfigError, match="each row must sum to 1"):
            measure(wrong)
    with pytest.raises(ConfigError, match="expected bool"):  # a mask of scores: 0 means seen there
        measure(P, np.array([[0.0, -np.inf, 0.0]]))
    with pytest.raises(ShapeError, match="no array of numbers"):
        measure([[[1.0], [0.5, 0.5]]])
    measure(P.astype(np.float16))
