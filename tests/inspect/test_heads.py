"""Scores of planted heads, and ranks of planted maps."""

import numpy as np
import pytest

from numtrans.errors import ConfigError, NonFiniteError, ShapeError
from numtrans.inspect import attention_patterns, head_ranks, head_singular_values, induction_score, previous_token_score
from numtrans.inspect.heads import effective_rank, stable_rank
from numtrans.layers import Linear, MultiHeadAttention, RotaryPositionalEncoding


def planted(keys):
    """Weights (1, 1, T, T): token i attends to keys[i] alone."""
    return np.eye(len(keys))[list(keys)][None, None]


def test_a_planted_previous_token_head():
    before = planted([0, 0, 1, 2, 3])
    np.testing.assert_array_equal(previous_token_score(before), [1])
    np.testing.assert_array_equal(previous_token_score(planted(range(5))), [0])
    both = np.concatenate([before, planted([4, 2, 1, 0, 0])], axis=1)  # of the second's, token 2 alone
    np.testing.assert_array_equal(previous_token_score(both), [1, 1 / 4])


def test_previous_token_of_even_weights():
    T = 6
    causal = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
    expected = np.mean([1 / (i + 1) for i in range(1, T)])
    np.testing.assert_allclose(previous_token_score(causal[None]), [expected], rtol=1e-15)


def test_a_planted_induction_head():
    ids = np.array([7, 3, 9, 7, 3, 9])
    induction = planted([0, 0, 0, 1, 2, 3])  # the second 7 looks at the first 3, and so on
    np.testing.assert_array_equal(induction_score(induction, ids), [1])
    duplicate = planted([0, 0, 0, 0, 1, 2])  # looks at the same token instead
    np.testing.assert_array_equal(induction_score(duplicate, ids), [0])
    even = np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None]
    np.testing.assert_allclose(induction_score(even[None], ids), [(1 / 4 + 1 / 5 + 1 / 6) / 3], rtol=1e-15)


def test_induction_sums_over_earlier_occurrences():
    ids = np.array([5, 5, 8, 5])  # the last 5 followed by 5 at key 1 and by 8 at key 2; the second 5 by itself, key 1
    weights = np.array([[1, 0, 0, 0], [0.25, 0.75, 0, 0], [1, 0, 0, 0], [0.125, 0.25, 0.5, 0.125]])
    np.testing.assert_array_equal(induction_score(weights[None], ids), [(0.75 + 0.75) / 2])


def test_no_token_repeats():
    assert np.isnan(induction_score(planted(range(4)), np.arange(4))).all()
    assert np.isnan(previous_token_score(planted([0]))).all()  # a single token


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_takes_no_part_in_the_scores(side):
    """A text gives the same scores alone and padded, with weights of any kind in the padded queries."""
    rng = np.random.default_rng(2)
    T, pads, heads = 7, 3, 2
    alone = np.tril(rng.random((1, heads, T, T)) + 0.1)
    alone /= alone.sum(axis=-1, keepdims=True)
    ids = np.array([[4, 6, 4, 4, 6, 5, 5]])
    real = slice(pads, None) if side == "left" else slice(0, T)
    padded = np.zeros((1, heads, T + pads, T + pads))
    padded[...] = np.eye(T + pads)  # padding looks at itself
    padded[:, :, real] = 0
    padded[:, :, real, real] = alone
    mask = np.zeros((1, T + pads), bool)
    mask[:, real] = True
    more = np.full((1, T + pads), 4)  # as if the padding were the token 4
    more[:, real] = ids
    seen, expected = attention_patterns(padded, mask, more), attention_patterns(alone, ids=ids)
    assert set(seen) == {"entropy", "maximum", "distance", "previous", "induction"}
    for name in seen:
        np.testing.assert_allclose(seen[name], expected[name], rtol=1e-13)


def test_scores_of_what_is_no_self_attention():
    cross = np.full((1, 1, 2, 3), 1 / 3)
    with pytest.raises(ShapeError, match="2 queries and 3 keys"):
        previous_token_score(cross)
    with pytest.raises(ShapeError, match="2 queries and 3 keys"):
        attention_patterns(cross, ids=np.zeros((1, 3), int))
    with pytest.raises(ShapeError, match=r"expected integers \(batch, tokens\) = \(1, 3\)"):
        induction_score(planted(range(3)), np.arange(4))
    with pytest.raises(ShapeError, match="dtype float64"):
        induction_score(planted(range(3)), np.ones(3))


def maps(attention):
    """The (D, D) maps of each head, head by head as the definition says."""
    H, group = attention.num_heads, attention.num_heads // attention.num_kv_heads
    Q, K, V, O = (getattr(attention, name).W.data.astype(float) for name in ("q_proj", "k_proj", "v_proj", "out_proj"))
    d, dv = Q.shape[1] // H, O.shape[0] // H
    ov, qk = [], []
    for h in range(H):
        g = h // group
        qk.append(Q[:, h * d : (h + 1) * d] @ K[:, g * d : (g + 1) * d].T)
        ov.append(V[:, g * dv : (g + 1) * dv] @ O[h * dv : (h + 1) * dv])
    return {"ov": np.array(ov), "qk": np.array(qk)}


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"num_kv_heads": 1}, {"d_kv": 5, "d_v": 2}, {"d_kv": 20},
                                     {"position": RotaryPositionalEncoding(4), "bias": False}])  # fmt: skip
def test_singular_values_are_those_of_the_whole_maps(options):
    attention = MultiHeadAttention(16, 4, rng=np.random.default_rng(0), **options)
    found = head_singular_values(attention)
    for name, whole in maps(attention).items():
        values = np.linalg.svd(whole, compute_uv=False)
        width = found[name].shape[1]
        np.testing.assert_allclose(found[name], values[:, :width], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(values[:, width:], 0, atol=1e-12)
        p = values[:, :width] / values[:, :width].sum(axis=1, keepdims=True)
        ranks = head_ranks(attention)
        np.testing.assert_allclose(ranks[name], np.exp(-(p * np.log(p)).sum(axis=1)), rtol=1e-9)
        frobenius, spectral = np.linalg.norm(whole, axis=(1, 2)), np.linalg.norm(whole, 2, axis=(1, 2))
        np.testing.assert_allclose(ranks[f"{name}_stable"], (frobenius / spectral) ** 2, rtol=1e-9)


def test_a_group_with_one_key_and_value_is_the_same_as_copies():
    few = MultiHeadAttention(12, 6, 2, rng=np.random.default_rng(1))
    all_heads = MultiHeadAttention(12, 6, rng=np.random.default_rng(2))
    for name in ("q_proj", "out_proj"):
        getattr(all_heads, name).W.data = getattr(few, name).W.data
    for name in ("k_proj", "v_proj"):
        blocks = getattr(few, name).W.data.reshape(12, 2, 2)
        getattr(all_heads, name).W.data = blocks[:, [0, 0, 0, 1, 1, 1]].reshape(12, 12)
    for name, ranks in head_ranks(few).items():
        np.testing.assert_allclose(ranks, head_ranks(all_heads)[name], rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_planted_map_of_rank_k_gives_k(k):
    """Value and output matrices that copy k directions: k equal singular values."""
    rng = np.random.default_rng(k)
    attention = MultiHeadAttention(12, 3, rng=rng).astype(np.float64)
    for first, second, name in (("v_proj", "out_proj", "ov"), ("q_proj", "k_proj", "qk")):
        left, right = (np.linalg.qr(rng.standard_normal((12, 12)))[0] for _ in range(2))
        A, B = np.zeros((12, 12)), np.zeros((12, 12))
        for h in range(3):
            A[:, 4 * h : 4 * h + k], B[:, 4 * h : 4 * h + k] = 7 * left[:, :k], right[:, :k]
        getattr(attention, first).W.data = A
        getattr(attention, second).W.data = B.T if second == "out_proj" else B
        ranks = head_ranks(attention)
        np.testing.assert_allclose(ranks[name], [k] * 3, rtol=1e-12)
        np.testing.assert_allclose(ranks[f"{name}_stable"], [k] * 3, rtol=1e-12)


def test_ranks_of_unequal_singular_values():
    attention = MultiHeadAttention(2, 1).astype(np.float64)
    attention.v_proj.W.data, attention.out_proj.W.data = np.diag([3.0, 1.0]), np.eye(2)
    attention.q_proj.W.data = np.zeros((2, 2))
    ranks = head_ranks(attention)
    p = 3 / 4
    np.testing.assert_allclose(ranks["ov"], [np.exp(-p * np.log(p) - (1 - p) * np.log(1 - p))], rtol=1e-14)
    np.testing.assert_allclose(ranks["ov_stable"], [10 / 9], rtol=1e-14)
    np.testing.assert_array_equal([ranks["qk"], ranks["qk_stable"]], [[0], [0]])  # a map that is zero


def test_ranks_of_what_is_no_attention():
    with pytest.raises(ConfigError, match="a Linear, expected a MultiHeadAttention"):
        head_ranks(Linear(2, 2))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "out_proj"])
def test_ranks_of_weights_that_are_not_finite(name, value):
    attention = MultiHeadAttention(4, 2, rng=np.random.default_rng(0))
    getattr(attention, name).W.data[0, 0] = value
    with pytest.raises(NonFiniteError, match="head_ranks: a matrix of the attention holds values that are not finite"):
        head_ranks(attention)


@pytest.mark.parametrize("rank", [effective_rank, stable_rank])
def test_ranks_of_what_are_no_singular_values(rank):
    for values in ([], 5.0, np.zeros((3, 0))):
        with pytest.raises(ShapeError, match=rf"{rank.__name__}: singular_values have shape"):
            rank(values)
    for values in ([np.nan], [1.0, np.inf], [1.0, -1.0]):
        with pytest.raises(NonFiniteError, match=rf"{rank.__name__}: singular_values must be finite"):
            rank(values)


def test_complex_weights_and_ids_of_unequal_rows():
    weights = np.tile(np.eye(3), (1, 1, 1, 1))
    with pytest.raises(ShapeError, match=r"weights are no array of numbers .*: they are complex"):
        attention_patterns(weights.astype(complex))
    with pytest.raises(ShapeError, match=r"ids are rows of unequal lengths, expected \(batch, tokens\) = \(1, 3\)"):
        induction_score(weights, [[1], [2, 3]])
