"""Keys and values kept from step to step: the arrays, attention that reads them, and what is refused."""

import tracemalloc

import numpy as np
import pytest
from helpers import generic, normal

from numtrans.blocks import Decoder, Encoder
from numtrans.errors import BackwardError, ConfigError, ShapeError
from numtrans.layers import (
    ALiBi,
    KVCache,
    MultiHeadAttention,
    RotaryPositionalEncoding,
    ShawRelativePosition,
    T5RelativeBias,
    causal_mask,
)
from numtrans.layers.kv_cache import StackCache
from numtrans.module import no_grad

D, H = 8, 4
POSITIONS = {
    "none": lambda: None,
    "rope": lambda: RotaryPositionalEncoding(2),
    "shaw": lambda: ShawRelativePosition(2, 2),
    "t5": lambda: T5RelativeBias(H, 4, max_distance=5, bidirectional=False),
    "alibi": lambda: ALiBi(H),
}
CHUNKS = [[1] * 7, [3, 1, 2, 1], [7]]


def in_steps(layer, x, chunks, cache, mask=None):
    """`layer` on pieces of `x` (B, T, D), one after another; `mask` (B, 1, T, T) is cut to fit."""
    found, end = [], 0
    with no_grad():
        for size in chunks:
            end += size
            piece = None if mask is None else mask[:, :, end - size : end, :end]
            found.append(layer(x[:, end - size : end], mask=piece, cache=cache))
    return np.concatenate(found, axis=1)


def pair(n, B=2, G=3, seed=0):
    return normal(B, G, n, 2, seed=seed), normal(B, G, n, 5, seed=seed + 1)


def test_it_grows_and_keeps_what_was_there():
    cache, k, v = KVCache(2), *pair(11)
    for t, size in enumerate([1, 1, 1, 2, 6]):  # into the room, full, doubled, doubled again, more than double
        start = cache.length
        keys, values = cache.append(k[:, :, start : start + size], v[:, :, start : start + size])
        assert cache.length == start + size, t
        np.testing.assert_array_equal(keys, k[:, :, : start + size])
        np.testing.assert_array_equal(values, v[:, :, : start + size])
        assert np.shares_memory(keys, cache.keys)
        assert np.shares_memory(values, cache.values)
    assert cache.capacity == 16


def test_it_makes_few_arrays():
    """2000 tokens one at a time: the arrays are made log2(2000 / 64) + 1 times, not 2000 times."""
    cache, made = KVCache(), set()
    k, v = pair(1, 1, 1)
    for _ in range(2000):
        cache.append(k, v)
        made.add((id(cache.keys), cache.capacity))
    assert sorted(capacity for _, capacity in made) == [64, 128, 256, 512, 1024, 2048]


@pytest.mark.parametrize("num_kv_heads", [8, 2])
@pytest.mark.parametrize("position", ["rope", "alibi", None])
def test_a_step_copies_nothing_that_grows(position, num_kv_heads):
    """A step at 3000 tokens allocates a few rows of scores at its height; the keys of all heads are 64 such rows."""
    places = {"rope": lambda: RotaryPositionalEncoding(64), "alibi": lambda: ALiBi(8), None: lambda: None}
    layer = MultiHeadAttention(512, 8, num_kv_heads, causal=True, position=places[position]())
    cache, x = KVCache(4096), normal(1, 3000, 512, dtype=np.float32)
    kv = normal(1, num_kv_heads, 3000, 64, dtype=np.float32)
    cache.append(kv, kv)
    with no_grad():
        layer(x[:, :1], cache=cache)
        tracemalloc.start()
        layer(x[:, :1], cache=cache)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 8 * (4 * 8 * 3002)  # bytes, heads, keys


def test_select_takes_rows_of_keys_and_values():
    cache, (k, v) = KVCache(4), pair(3)
    cache.append(k, v)
    for rows in ([1, 0], [1, 1], [0, 1], [0, 0, 1, 1], [2, 3], [3]):
        cache.select(np.array(rows) % cache.keys.shape[0])
        k, v = (array[np.array(rows) % len(array)] for array in (k, v))
        keys, values = cache.views()
        np.testing.assert_array_equal(keys, k)
        np.testing.assert_array_equal(values, v)
        new = pair(1, len(k), seed=len(rows))
        cache.append(*new)
        k, v = np.concatenate([k, new[0]], 2), np.concatenate([v, new[1]], 2)
    with pytest.raises(ShapeError, match=r"rows \[1\] selected from a batch of 1"):
        cache.select([1])


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10)])
def test_steps_equal_one_pass(dtype, tolerance, position, num_kv_heads, window, chunks):
    layer = MultiHeadAttention(D, H, num_kv_heads, causal=True, window=window, position=POSITIONS[position]())
    layer, x = generic(layer, dtype=dtype), normal(2, 7, D, dtype=dtype)
    y = layer(x)
    found = in_steps(layer, x, chunks, KVCache(2))
    assert found.dtype == dtype
    assert abs(found - y).max() <= tolerance * max(1, abs(y).max())


@pytest.mark.parametrize("position", POSITIONS)
def test_steps_equal_one_pass_under_a_mask(position):
    """As in a decoder: attention is not causal by itself, so its positions must count from the start of the cache."""
    layer, x = generic(MultiHeadAttention(D, H, 2, position=POSITIONS[position]())), normal(2, 7, D)
    mask = np.broadcast_to(causal_mask(7), (2, 1, 7, 7)).copy()
    mask[1, :, :, :2] = False  # two tokens of padding on the left
    y = layer(x, mask=mask)
    for chunks in CHUNKS:
        np.testing.assert_allclose(in_steps(layer, x, chunks, KVCache(), mask), y, rtol=0, atol=1e-10)


def test_cross_attention_computes_the_memory_once():
    layer, x, m = generic(MultiHeadAttention(D, H, 2)), normal(2, 5, D), normal(2, 3, D, seed=1)
    y, cache = layer(x, m), KVCache(fixed=True)
    with no_grad():
        for t in range(5):
            np.testing.assert_allclose(layer(x[:, t : t + 1], m, cache=cache), y[:, t : t + 1], rtol=0, atol=1e-12)
        before = layer.k_proj.W.data.copy()
        layer.k_proj.W.data[...] = np.nan  # would show if the keys were computed again
        assert np.isfinite(layer(x, m, cache=cache)).all()
        layer.k_proj.W.data[...] = before
    assert cache.length == 3
    with pytest.raises(ConfigError, match="takes no more"):
        cache.append(*pair(1, 2, 2))


@pytest.mark.parametrize("position", ["rope", "shaw", "t5", "alibi", None])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_stacks(position, placement):
    x, m = normal(2, 7, D), normal(2, 3, D, seed=1)
    options = dict(norm_placement=placement, position=position, feedforward="gelu")
    encoder = generic(Encoder(2, D, 2, 6, causal=True, window=4, **options))
    decoder = generic(Decoder(2, D, 2, 6, **options))
    y, z = encoder(x), decoder(x, m)
    for chunks in CHUNKS:
        found = in_steps(encoder, x, chunks, encoder.make_cache(1))
        np.testing.assert_allclose(found, y, rtol=0, atol=1e-10)
        cache, end = decoder.make_cache(3), 0
        with no_grad():
            for size in chunks:
                end += size
                found = decoder(x[:, end - size : end], m, cache=cache)
                np.testing.assert_allclose(found, z[:, end - size : end], rtol=0, atol=1e-10)
        assert cache.length == 7
        assert [cross.length for cross in cache.cross] == [3, 3]


def test_nbytes():
    encoder = generic(Encoder(3, D, 4, 6, num_kv_heads=2, causal=True), dtype=np.float32)
    cache = encoder.make_cache(16)
    assert cache.nbytes == 0
    in_steps(encoder, normal(5, 7, D, dtype=np.float32), [7], cache)
    assert cache.nbytes == 3 * 2 * (5 * 2 * 16 * 2) * 4  # layers, two, (batch, heads, room, features)


def test_refused_with_gradients():
    layer, encoder = MultiHeadAttention(D, H, causal=True), Encoder(1, D, H, 6, causal=True)
    x = normal(1, 2, D, dtype=np.float32)
    with pytest.raises(BackwardError, match="MultiHeadAttention: a cache was given and gradients are on"):
        layer(x, cache=KVCache())
    with pytest.raises(BackwardError, match=r"Encoder: a cache was given .*no_grad"):
        encoder(x, cache=encoder.make_cache())
    assert layer.pending == encoder.pending == 0


def test_refused_for_another_batch_stack_or_kind():
    layer = generic(MultiHeadAttention(D, H, causal=True))
    two, other = generic(Encoder(2, D, H, 6, causal=True)), generic(Encoder(2, D, H, 6, causal=True))
    x, cache = normal(2, 3, D), KVCache()
    with no_grad():
        layer(x, cache=cache)
        with pytest.raises(ShapeError, match=r"Attention: the cache holds a batch of 2, got shape \(3, 1, 8\)"):
            layer(normal(3, 1, D), cache=cache)
        with pytest.raises(ShapeError, match=r"KVCache: new keys have shape .*expected batch 2, 4 heads, 2 features"):
            generic(MultiHeadAttention(D, H, 2, causal=True))(x, cache=cache)
        with pytest.raises(ConfigError, match="got a cache with fixed=False, expected True"):
            layer(x, x, cache=cache)
        with pytest.raises(ConfigError, match="got a cache with fixed=True, expected False"):
            layer(x, cache=KVCache(fixed=True))
        with pytest.raises(ConfigError, match="a fixed cache with positions or a causal mask"):
            layer(x, x, cache=KVCache(fixed=True))
        cross, cache = generic(MultiHeadAttention(D, H)), KVCache(fixed=True)
        cross(x, x, cache=cache)
        with pytest.raises(ShapeError, match=r"holds a batch of 2 of 3 tokens, got shape \(2, 2, 8\)"):
            cross(x, x[:, :2], cache=cache)
        stack = two.make_cache()
        two(x, cache=stack)
        with pytest.raises(ConfigError, match=r"Encoder: the cache of 2 layers belongs to another stack"):
            other(x, cache=stack)
        with pytest.raises(ConfigError, match=r"the cache of 3 layers belongs to another stack, this one has 2"):
            two(x, cache=StackCache(3))
        stack.own[1].length -= 1
        with pytest.raises(ConfigError, match=r"the layers of the cache hold \[2, 3\] tokens"):
            two(x, cache=stack)
    with pytest.raises(ConfigError, match="Encoder: a cache needs causal=True"):
        Encoder(1, D, H, 6).make_cache()
    with pytest.raises(ConfigError, match="KVCache: capacity is 0, expected an integer of at least 1"):
        KVCache(0)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_refused_after_a_forward_that_broke_off(num_layers):
    """A layer that has taken the token before the error would hold it twice; an error before that does no harm."""
    stack = Encoder(num_layers, 8, 2, 16, causal=True, rng=np.random.default_rng(0)).eval()
    x = normal(2, 4, 8).astype(np.float32)
    with no_grad():
        cache, whole = stack.make_cache(), stack(x)
        stack(x[:, :3], cache=cache)
        with pytest.raises(ShapeError, match="the cache holds a batch of 2"):
            stack(x[:1, 3:], cache=cache)
        np.testing.assert_allclose(stack(x[:, 3:], cache=cache)[:, 0], whole[:, 3], atol=1e-5)
        cache = stack.make_cache()
        stack(x[:, :3], cache=cache)
        with pytest.raises(ShapeError):
            stack(x[:, 3:], np.ones((2, 1, 1, 99), bool), cache=cache)
        with pytest.raises(ConfigError, match="expected 3: a forward broke off"):
            stack(x[:, 3:], cache=cache)
