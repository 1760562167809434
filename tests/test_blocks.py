"""Encoder and decoder layers and stacks, against the equations composed by hand from layers."""

import copy
import tracemalloc

import numpy as np
import pytest
from helpers import assert_same_gradient, check_gradients, generic, normal

from numtrans.blocks import Decoder, DecoderLayer, Encoder, EncoderLayer, attention_position
from numtrans.layers import (
    ALiBi,
    BatchNorm,
    Dropout,
    GatedFeedForward,
    KVCache,
    LayerNorm,
    RMSNorm,
    RotaryPositionalEncoding,
    ShawRelativePosition,
    T5RelativeBias,
    causal_mask,
    padding_mask,
)
from numtrans.module import no_grad

X, MEMORY = normal(2, 3, 4), normal(2, 2, 4, seed=1)
MASK = padding_mask([3, 2])
MEMORY_MASK = padding_mask([2, 1])
placements = pytest.mark.parametrize("placement", ["pre", "post"])
POSITIONS = [None, "rope", "shaw", "t5", "alibi"]


def parts(residual):
    return residual.sublayer, residual.norm


def sublayer(placement, residual, x, call):
    """One residual sublayer written out: `call` applies it to the tokens."""
    f, norm = parts(residual)
    return x + call(f, norm(x)) if placement == "pre" else norm(x + call(f, x))


@placements
def test_encoder_layer_by_hand(placement):
    layer = generic(EncoderLayer(4, 2, 6, norm_placement=placement))
    h = sublayer(placement, layer.self_attention, X, lambda f, x: f(x, mask=MASK))
    y = sublayer(placement, layer.feedforward, h, lambda f, x: f(x))
    np.testing.assert_allclose(layer(X, MASK), y, rtol=1e-13)


@placements
@pytest.mark.parametrize("tgt_mask", [None, np.ones((3, 3), bool)])
def test_decoder_layer_by_hand(placement, tgt_mask):
    layer = generic(DecoderLayer(4, 2, 6, norm_placement=placement))
    seen = causal_mask(3) if tgt_mask is None else tgt_mask
    h = sublayer(placement, layer.self_attention, X, lambda f, x: f(x, mask=seen))
    c = sublayer(placement, layer.cross_attention, h, lambda f, x: f(x, MEMORY, MEMORY, mask=MEMORY_MASK))
    y = sublayer(placement, layer.feedforward, c, lambda f, x: f(x))
    np.testing.assert_allclose(layer(X, MEMORY, tgt_mask, MEMORY_MASK), y, rtol=1e-13)


@placements
@pytest.mark.parametrize(("norm", "feedforward", "options"), [
    ("layer", "relu", {}), ("rms", "swiglu", {"bias": False}), ("layer", "gelu", {"dropout": 0.3}),
    ("rms", "gelu_tanh", {"num_kv_heads": 1}),
])  # fmt: skip
def test_gradients_of_layers(placement, norm, feedforward, options):
    options = options | dict(norm_placement=placement, norm=norm, feedforward=feedforward, rng=np.random.default_rng(4))
    check_gradients(generic(EncoderLayer(4, 2, 3, **options)), X, mask=MASK, limit=4)
    check_gradients(generic(DecoderLayer(4, 2, 3, **options)), X, MEMORY, memory_mask=MEMORY_MASK, limit=4)


@placements
@pytest.mark.parametrize("position", ["shaw", "t5"])
def test_gradients_of_stacks(placement, position):
    """Two layers: the memory is read twice, and T5's table is shared."""
    options = dict(norm_placement=placement, position=position)
    x, memory = X[:1], MEMORY[:1]
    check_gradients(generic(Encoder(2, 4, 2, 2, **options)), x, limit=4)
    check_gradients(generic(Decoder(2, 4, 2, 2, **options)), x, memory, limit=4)


@placements
@pytest.mark.parametrize("make", [Encoder, Decoder])
def test_closing_norm_only_for_pre_norm(placement, make):
    stack = generic(make(2, 4, 2, 6, norm_placement=placement))
    inputs = (X,) if make is Encoder else (X, MEMORY)
    y = X
    for layer in stack.layers:
        y = layer(y, *inputs[1:])
    if placement == "pre":
        assert type(stack.norm) is LayerNorm
        y = stack.norm(y)
    else:
        assert stack.norm is None
        assert not any(name.startswith("norm") for name, _ in stack.named_parameters())
    np.testing.assert_array_equal(stack(*inputs), y)


def test_kind_of_the_closing_norm():
    assert type(Encoder(1, 4, 2, 6, norm_placement="pre", norm="rms").norm) is RMSNorm
    assert not any(isinstance(m, (LayerNorm, BatchNorm)) for m in Encoder(1, 4, 2, 6, norm="rms").modules())


@placements
def test_gradient_of_the_memory_is_the_sum_over_the_layers(placement):
    stack = generic(Decoder(3, 4, 2, 6, norm_placement=placement))
    layers, norm = copy.deepcopy(stack.layers), copy.deepcopy(stack.norm)
    dy = normal(2, 3, 4, seed=2)
    stack(X, MEMORY)
    dx, dmemory = stack.backward(dy)
    x = X
    for layer in layers:
        x = layer(x, MEMORY)
    if norm is not None:
        norm(x)
        dy = norm.backward(dy)
    shares = []
    for layer in reversed(layers):
        dy, share = layer.backward(dy)
        shares.append(share)
    assert_same_gradient(dx, dy)
    assert_same_gradient(dmemory, sum(shares))
    assert all(np.linalg.norm(share) > 0.01 for share in shares)


@pytest.mark.parametrize("position", POSITIONS)
def test_decoder_is_causal(position):
    stack = generic(Decoder(2, 4, 2, 6, position=position))
    x, memory = normal(1, 5, 4), MEMORY[:1]
    before = stack(x, memory)
    for token in (1, 4):
        changed = x.copy()
        changed[:, token] += 1
        same = (stack(changed, memory) == before).all(axis=(0, 2))
        np.testing.assert_array_equal(same, np.arange(5) < token)


@pytest.mark.parametrize("position", POSITIONS)
def test_causal_encoder_is_causal_and_another_is_not(position):
    x = normal(1, 5, 4)
    changed = x.copy()
    changed[:, 3, 0] += 1  # one feature: a norm takes away what all have in common
    for causal in (True, False):
        stack = generic(Encoder(2, 4, 2, 6, position=position, causal=causal, norm_placement="pre"))
        same = (stack(changed) == stack(x)).all(axis=(0, 2))
        np.testing.assert_array_equal(same, np.arange(5) < 3 if causal else np.zeros(5, bool))


@placements
@pytest.mark.parametrize("position", POSITIONS)
def test_padding_does_not_change_real_tokens(placement, position):
    encoder = generic(Encoder(2, 4, 2, 6, norm_placement=placement, position=position))
    x = normal(1, 3, 4)
    padded = np.concatenate([x, np.full((1, 2, 4), 9.0)], axis=1)
    mask = padding_mask([3], 5)
    np.testing.assert_allclose(encoder(padded, mask)[:, :3], encoder(x), rtol=1e-11, atol=1e-12)
    decoder = generic(Decoder(2, 4, 2, 6, norm_placement=placement, position=position))
    tgt = normal(1, 4, 4, seed=3)
    expected = decoder(tgt, x)
    decoder.clear()
    np.testing.assert_allclose(decoder(tgt, padded, memory_mask=mask), expected, rtol=1e-11, atol=1e-12)
    _, dmemory = decoder.backward(normal(1, 4, 4, seed=4))
    assert (dmemory[:, 3:] == 0).all()
    assert (dmemory[:, :3] != 0).any()


def test_order_plays_no_part_without_positions():
    encoder, order = generic(Encoder(2, 4, 2, 6)), np.array([2, 0, 1])
    np.testing.assert_allclose(encoder(X[:, order]), encoder(X)[:, order], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("name", "kind"), [
    (None, type(None)), ("rope", RotaryPositionalEncoding), ("shaw", ShawRelativePosition), ("t5", T5RelativeBias),
    ("alibi", ALiBi),
])  # fmt: skip
def test_positions_by_name(name, kind):
    assert type(attention_position(name, 2, 2, bidirectional=True)) is kind
    encoder = Encoder(3, 4, 2, 6, position=name)
    found = [m for m in encoder.modules() if isinstance(m, kind)]
    assert len(found) == {None: 0, "shaw": 3}.get(name, 1)  # Shaw's tables are each layer's own


def test_t5_is_bidirectional_in_the_encoder_only():
    def bias(stack):
        return next(m for m in stack.modules() if isinstance(m, T5RelativeBias))

    assert bias(Encoder(1, 4, 2, 6, position="t5")).bidirectional
    assert not bias(Encoder(1, 4, 2, 6, position="t5", causal=True)).bidirectional
    assert not bias(Decoder(1, 4, 2, 6, position="t5")).bidirectional


def test_positions_are_in_self_attention_only():
    layer = DecoderLayer(4, 2, 6, position=RotaryPositionalEncoding(2))
    assert layer.self_attention.sublayer.rotary is not None
    assert layer.cross_attention.sublayer.rotary is None


def test_dropout_is_where_it_should_be():
    layer = DecoderLayer(4, 2, 6, dropout=0.25)
    paths = {path for path, m in layer.named_modules() if isinstance(m, Dropout)}
    assert paths == {
        "self_attention.sublayer.attention.dropout", "self_attention.dropout", "cross_attention.dropout",
        "cross_attention.sublayer.attention.dropout", "feedforward.sublayer.dropout", "feedforward.dropout",
    }  # fmt: skip
    assert {m.p for m in layer.modules() if isinstance(m, Dropout)} == {0.25}
    keys = [m.key for m in layer.modules() if isinstance(m, Dropout)]
    assert len(set(keys)) == len(keys)


def test_options_reach_the_layers():
    stack = Encoder(2, 8, 4, 6, num_kv_heads=2, bias=False, feedforward="swiglu")
    names = stack.state_dict()
    assert not any(name.endswith(".b") for name in names)
    assert names["layers.1.self_attention.sublayer.k_proj.W"].shape == (8, 4)
    assert isinstance(stack.layers[1].feedforward.sublayer, GatedFeedForward)


def test_same_seed_same_weights():
    a, b, c = (Encoder(2, 4, 2, 6, position="shaw", rng=np.random.default_rng(seed)).state_dict() for seed in (1, 1, 2))
    assert all((a[name] == b[name]).all() for name in a)
    assert any((a[name] != c[name]).any() for name in a)
    assert (a["layers.0.feedforward.sublayer.linear1.W"] != a["layers.1.feedforward.sublayer.linear1.W"]).any()


def test_dropout_of_the_encoder_is_where_it_should_be():
    layer = EncoderLayer(4, 2, 6, dropout=0.25)
    assert {path: m.p for path, m in layer.named_modules() if isinstance(m, Dropout)} == {
        "self_attention.sublayer.attention.dropout": 0.25, "self_attention.dropout": 0.25,
        "feedforward.sublayer.dropout": 0.25, "feedforward.dropout": 0.25,
    }  # fmt: skip


def test_a_decoder_in_tiles_makes_no_array_of_all_pairs():
    """Not in numbers and not in booleans: the peak is below a byte for each pair of tokens."""
    T = 2048
    layer = DecoderLayer(16, 2, 16, block_size=128, rng=np.random.default_rng(0))
    x, memory = normal(1, T, 16).astype(np.float32), normal(1, 3, 16).astype(np.float32)
    tracemalloc.start()
    try:
        y = layer(x, memory)
        layer.backward(np.ones_like(y))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < T * T


@pytest.mark.parametrize("position", [None, "rope", "t5"])
def test_a_decoder_without_a_mask_is_causal(position):
    """The same as with the mask given, in training and, token by token, from a cache."""
    T = 70  # more than one block of queries
    positions = {"rope": lambda: RotaryPositionalEncoding(4), "t5": lambda: T5RelativeBias(2, bidirectional=False)}
    rng = np.random.default_rng(0)
    position = positions[position]() if position else None
    layer = DecoderLayer(8, 2, 8, position=position, rng=rng).astype(np.float64)
    x, memory, dy = normal(2, T, 8), normal(2, 3, 8), normal(2, T, 8, seed=1)
    found = []
    for mask in (None, causal_mask(T)):
        layer.zero_grad()
        y = layer(x, memory, mask)
        found.append([y, *layer.backward(dy), *(p.grad for p in layer.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    cache = KVCache(), KVCache(fixed=True)
    with no_grad():
        parts = [layer(x[:, t : t + 1], memory, cache=cache) for t in range(T)]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), found[0][0], rtol=1e-10, atol=1e-12)
