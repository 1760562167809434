"""Multi-head attention."""

import numpy as np
import pytest
from helpers import assert_same_gradient, check_gradients, generic, normal

from numtrans.layers import (
    ALiBi,
    MultiHeadAttention,
    RotaryPositionalEncoding,
    ShawRelativePosition,
    T5RelativeBias,
    causal_mask,
    padding_mask,
)
from numtrans.layers.multi_head_attention import merge_heads, split_heads

D, H = 6, 2
POSITIONS = {
    "none": lambda: None,
    "rope": lambda: RotaryPositionalEncoding(D // H - 1),
    "shaw": lambda: ShawRelativePosition(D // H - 1, 2),
    "t5": lambda: T5RelativeBias(H, 4, max_distance=5),
    "alibi": lambda: ALiBi(H),
}
FORMS = {
    "plain": {},
    "no bias": {"bias": False},
    "multi-query": {"num_kv_heads": 1},
    "d_k != d_v": {"d_kv": 2, "d_v": 1},
    "scale": {"scale": 1.0},
    "dropout": {"dropout": 0.4},
}


def make(seed=0, **options):
    return generic(MultiHeadAttention(D, H, rng=np.random.default_rng(3), **options), seed)


def copy_heads(full, shared):
    """Give `full` the weights of grouped-query `shared`, whose key-value heads are repeated for their group."""
    repeats, d = full.num_kv_heads // shared.num_kv_heads, full.k_proj.d_out // full.num_kv_heads
    state = shared.state_dict()
    for name in ("k_proj.W", "k_proj.b", "v_proj.W", "v_proj.b"):
        heads = state[name].reshape(*state[name].shape[:-1], shared.num_kv_heads, d)
        state[name] = heads.repeat(repeats, axis=-2).reshape(*state[name].shape[:-1], -1)
    full.load_state_dict(state)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_self_attention(form, causal):
    mask = padding_mask([3, 2])
    mask = np.broadcast_to(mask, (2, 1, 3, 3)).copy()
    mask[1, 0, 0] = False
    check_gradients(make(causal=causal, **FORMS[form]), normal(2, 3, D), mask=mask, limit=20)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("Tq", "Tk"), [(2, 3), (3, 2)])
def test_gradients_of_cross_attention(form, Tq, Tk):
    layer = make(causal=True, **FORMS[form])
    check_gradients(layer, normal(2, Tq, D), normal(2, Tk, D, seed=1), normal(2, Tk, D, seed=2), limit=20)
    check_gradients(layer, normal(2, Tq, D), normal(2, Tk, D, seed=1), limit=20)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_with_positions(position, causal):
    layer = make(causal=causal, d_kv=2, position=POSITIONS[position]())
    check_gradients(layer, normal(2, 3, D), limit=20)
    check_gradients(layer, normal(1, 2, D), normal(1, 3, D, seed=1), limit=20)


def test_heads_by_hand():
    layer, x, m = make(), normal(2, 3, D), normal(2, 4, D, seed=1)
    W = {name: p.data for name, p in layer.named_parameters()}
    heads = []
    for h in range(H):
        columns = slice(3 * h, 3 * h + 3)
        q = x @ W["q_proj.W"][:, columns] + W["q_proj.b"][columns]
        k, v = (m @ W[f"{n}_proj.W"][:, columns] + W[f"{n}_proj.b"][columns] for n in "kv")
        S = np.exp(q @ k.transpose(0, 2, 1) / 3**0.5)
        heads.append(S / S.sum(-1, keepdims=True) @ v)
    expected = np.concatenate(heads, -1) @ W["out_proj.W"] + W["out_proj.b"]
    np.testing.assert_allclose(layer(x, m), expected, rtol=1e-12, atol=1e-13)
    assert layer.attention_weights.shape == (2, H, 3, 4)


def test_split_and_merge_are_inverse():
    x = normal(2, 3, 8)
    heads = split_heads(x, 4)
    assert heads.shape == (2, 4, 3, 2)
    assert np.shares_memory(heads, x)
    assert (merge_heads(heads) == x).all()


def test_one_gradient_for_each_array_given():
    layer, x, m, dy = make(), normal(2, 3, D), normal(2, 3, D, seed=1), normal(2, 3, D, seed=2)
    layer(x, x, x)
    parts = layer.backward(dy)
    layer(x)
    np.testing.assert_allclose(layer.backward(dy), sum(parts), rtol=1e-12)
    layer(x, m, m)
    parts = layer.backward(dy)
    layer(x, m)
    dx, dm = layer.backward(dy)
    np.testing.assert_allclose(dx, parts[0], rtol=1e-12)
    np.testing.assert_allclose(dm, parts[1] + parts[2], rtol=1e-12)


@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_grouped_query_is_attention_with_repeated_heads(num_kv_heads):
    shared = generic(MultiHeadAttention(8, 4, num_kv_heads))
    full = generic(MultiHeadAttention(8, 4))
    copy_heads(full, shared)
    x, dy = normal(2, 3, 8), normal(2, 3, 8, seed=1)
    np.testing.assert_allclose(shared(x), full(x), rtol=1e-12)
    assert_same_gradient(shared.backward(dy), full.backward(dy))
    grads, sums = dict(full.named_parameters()), dict(shared.named_parameters())
    for name, p in sums.items():
        expected = grads[name].grad
        if name[0] in "kv":  # a shared head collects from its group
            expected = expected.reshape(*expected.shape[:-1], num_kv_heads, -1, 2).sum(-2)
            expected = expected.reshape(p.data.shape)
        np.testing.assert_allclose(p.grad, expected, rtol=1e-11, atol=1e-12)


def test_neighboring_heads_share():
    layer, x = generic(MultiHeadAttention(8, 4, 2)), normal(1, 3, 8)
    layer(x)
    before = layer.attention_weights.copy()
    layer.k_proj.W.data[:, :2] += 1  # the first key-value head
    layer(x)
    changed = (layer.attention_weights != before).any(axis=(0, 2, 3))
    np.testing.assert_array_equal(changed, [True, True, False, False])


def test_order_of_the_tokens_plays_no_part_without_positions():
    layer, x, dy = make(), normal(2, 5, D), normal(2, 5, D, seed=1)
    order = np.array([3, 0, 4, 1, 2])
    y = layer(x)
    dx = layer.backward(dy)
    np.testing.assert_allclose(layer(x[:, order]), y[:, order], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(layer.backward(dy[:, order]), dx[:, order], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("position", [p for p in POSITIONS if p != "none"])
def test_order_plays_a_part_with_positions(position):
    layer, x = make(d_kv=2, position=POSITIONS[position]()), normal(1, 5, D)
    order = np.array([3, 0, 4, 1, 2])  # not its mirror image, as ALiBi looks at distances only
    assert not np.allclose(layer(x[:, order]), layer(x)[:, order], atol=1e-3)


@pytest.mark.parametrize("position", POSITIONS)
def test_the_future_does_not_leak(position):
    layer, x = make(causal=True, d_kv=2, position=POSITIONS[position]()), normal(2, 5, D)
    before = layer(x)
    for token in (1, 4):
        changed = x.copy()
        changed[:, token] += 1
        same = (layer(changed) == before).all(axis=(0, 2))
        np.testing.assert_array_equal(same, np.arange(5) < token)


@pytest.mark.parametrize("position", POSITIONS)
def test_the_last_queries_give_what_the_whole_gives(position):
    layer, x = make(causal=True, d_kv=2, position=POSITIONS[position]()), normal(2, 5, D)
    np.testing.assert_allclose(layer(x[:, 3:], x), layer(x)[:, 3:], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("position", POSITIONS)
def test_padding_does_not_change_real_tokens(position):
    layer, x = make(d_kv=2, position=POSITIONS[position]()), normal(1, 3, D)
    padded = np.concatenate([x, np.full((1, 2, D), 50.0)], axis=1)
    y = layer(padded, mask=padding_mask([3], 5))
    np.testing.assert_allclose(y[:, :3], layer(x), rtol=1e-12, atol=1e-13)
    layer.clear()
    layer(padded, padded, padded, mask=padding_mask([3], 5))
    _, dk, dv = layer.backward(normal(1, 5, D, seed=1))
    assert (dk[:, 3:] == 0).all()
    assert (dv[:, 3:] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("error")
def test_a_row_without_keys_poisons_nothing(dtype):
    layer = make().astype(dtype)
    x = normal(2, 3, D, dtype=dtype)
    mask = np.ones((2, 1, 3, 3), bool)
    mask[0] = False  # a whole sequence that is padding
    y = layer(x, mask=mask)
    assert (y[0] == layer.out_proj.b.data).all()
    dx = layer.backward(normal(2, 3, D, seed=1, dtype=dtype))
    assert (dx[0] == 0).all()
    grads = {name: p.grad for name, p in layer.named_parameters()}
    assert all(np.isfinite(g).all() for g in grads.values())
    layer.zero_grad()
    layer(x[1:])
    layer.backward(normal(2, 3, D, seed=1, dtype=dtype)[1:])
    for name, p in layer.named_parameters():
        if name != "out_proj.b":
            np.testing.assert_allclose(grads[name], p.grad, rtol=1e-4, atol=1e-5)


def test_a_mask_for_each_head():
    layer, x = make(), normal(2, 3, D)
    mask = np.random.default_rng(0).random((2, H, 3, 3)) < 0.5
    layer(x, mask=mask)
    assert (layer.attention_weights[~mask] == 0).all()
    assert (layer.attention_weights[mask] > 0).all()


def test_causal_flag_is_the_causal_mask():
    causal, plain, x, m = make(causal=True), make(), normal(2, 3, D), normal(2, 5, D, seed=1)
    plain.load_state_dict(causal.state_dict())
    np.testing.assert_allclose(causal(x), plain(x, mask=causal_mask(3)), rtol=1e-13)
    np.testing.assert_allclose(causal(x, m), plain(x, m, mask=causal_mask(3, 5)), rtol=1e-13)


def test_sizes_of_the_weights():
    layer = MultiHeadAttention(8, 4, 2, 3, d_v=5)
    shapes = {name: p.data.shape for name, p in layer.named_parameters() if name.endswith("W")}
    assert shapes == {"q_proj.W": (8, 12), "k_proj.W": (8, 6), "v_proj.W": (8, 10), "out_proj.W": (20, 8)}
    assert layer.astype(np.float64)(normal(1, 2, 8)).shape == (1, 2, 8)


def test_rotary_positions_of_a_causal_mask_meet_at_the_last_key():
    """With more queries than keys the last of each have the same place: only the difference of places counts."""
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(8, 2, causal=True, position=RotaryPositionalEncoding(4), rng=rng).astype(np.float64)
    query, key = rng.standard_normal((1, 5, 8)), rng.standard_normal((1, 3, 8))
    whole = layer(query, key)
    alone = layer(query[:, 2:], key)  # the first two queries come before every key
    layer.clear()
    assert np.allclose(whole[:, 2:], alone, rtol=1e-12, atol=1e-12)
    assert np.allclose(whole[:, :2], layer.out_proj.b.data)
