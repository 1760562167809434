"""Attention of one cached query against the plain form and against PyTorch."""

import numpy as np
import pytest
from helpers import normal

from numtrans.layers import ALiBi, ScaledDotProductAttention
from numtrans.layers.last_query import attend_from_last, attend_to_cache, sees_every_key
from numtrans.module import no_grad


@pytest.mark.parametrize(("B", "H", "G", "Tk"), [(1, 4, 4, 1), (1, 6, 2, 9), (3, 4, 1, 5), (2, 3, 3, 130)])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_it_is_pytorchs_attention(B, H, G, Tk, scale):
    torch = pytest.importorskip("torch")
    q, k, v = normal(B, H, 1, 8), normal(B, G, Tk, 8, seed=1), normal(B, G, Tk, 5, seed=2)
    attend = torch.nn.functional.scaled_dot_product_attention
    right = attend(*map(torch.tensor, (q, k, v)), scale=scale, enable_gqa=True)
    kept = [array.copy() for array in (q, k, v)]
    found, P = attend_from_last(q, k, v, 8**-0.5 if scale is None else scale)
    np.testing.assert_allclose(found, right.numpy(), rtol=0, atol=1e-14)
    np.testing.assert_allclose(P.sum(axis=-1), 1, rtol=1e-14)
    for array, before in zip((q, k, v), kept):
        np.testing.assert_array_equal(array, before)


def test_large_scores_do_not_overflow():
    q, k = np.full((1, 1, 1, 4), 200, np.float32), normal(1, 1, 6, 4, dtype=np.float32) * 50
    found, P = attend_from_last(q, k, k, 1.0)
    assert np.isfinite(found).all()
    assert P.max() == 1


CASES = {
    "one query": (True, {}, {}),
    "not causal": (True, {"causal": False}, {}),
    "window wide enough": (True, {"window": 7}, {}),
    "dropout in evaluation": (True, {"dropout": 0.5}, {"training": False}),
    "window": (False, {"window": 6}, {}),
    "dropout": (False, {"dropout": 0.5}, {}),
    "positions": (False, {"position": ALiBi(4)}, {}),
    "mask": (False, {}, {"mask": np.arange(7) != 2}),
    "two queries": (False, {}, {"Tq": 2}),
}


@pytest.mark.parametrize(("short", "options", "case"), CASES.values(), ids=CASES)
def test_the_short_form_is_taken_where_it_is_the_same(short, options, case):
    """Against the plain form, with the same draws of dropout."""
    q, k, v = normal(2, 4, case.get("Tq", 1), 8), normal(2, 2, 7, 8, seed=1), normal(2, 2, 7, 5, seed=2)
    mask = case.get("mask")
    plain, cached = (ScaledDotProductAttention(**{"causal": True} | options, rng=np.random.default_rng(0))
                     for _ in range(2))  # fmt: skip
    for attention in (plain, cached):
        attention.train(case.get("training", True))
    assert sees_every_key(cached, q, k, mask) is short
    with no_grad():
        right, found = plain(q, k, v, mask, 5), attend_to_cache(cached, q, k, v, mask, 5)
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-14)
    np.testing.assert_allclose(cached.attention_weights, plain.attention_weights, rtol=0, atol=1e-14)
    cached.clear()
    assert cached.attention_weights is None


def test_without_keys_the_output_is_zero():
    q, k = normal(1, 2, 1, 4), np.zeros((1, 2, 0, 4))
    attention = ScaledDotProductAttention()
    with no_grad():
        np.testing.assert_array_equal(attend_to_cache(attention, q, k, k, None, 0), np.zeros((1, 2, 1, 4)))
